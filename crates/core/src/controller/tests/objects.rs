//! Values that are announced before they come, and answers that refer to objects.

use super::*;

const OBJECT: ObjectId = ObjectId::of(TaskId::from_u128(90), 0);

fn needy(number: u128) -> TaskSpec {
    TaskSpec { needs: vec![OBJECT], ..task(number) }
}

fn resolve(value: Result<Value, Error>) -> FromClient {
    FromClient::Resolve { object: OBJECT, value }
}

#[test]
fn a_task_waits_for_an_announced_object_and_other_tasks_do_not() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    rig.client_says(client, FromClient::Announce { object: OBJECT });
    rig.submit(client, needy(1));
    rig.submit(client, task(2));
    let attempt = rig.assigns(worker, 2);
    rig.finish(worker, attempt);
    rig.ends(client, 2).unwrap();
    // The client releases the object before the value comes. The task still holds it.
    rig.client_says(client, FromClient::Release { thing: Referent::Object(OBJECT) });
    rig.client_says(client, resolve(Ok(value("late"))));
    let (attempt, values) = rig.gives(worker, 1, true);
    assert_eq!(values, [value("late")]);
    rig.finish(worker, attempt);
    rig.ends(client, 1).unwrap();
    rig.nothing_left();
}

#[test]
fn a_task_fails_with_the_error_of_its_announced_input() {
    let mut rig = Rig::new();
    let client = rig.client(1);
    rig.client_says(client, FromClient::Announce { object: OBJECT });
    rig.submit(client, needy(1));
    rig.client_says(client, resolve(Err(Error::cancelled("it was"))));
    let error = rig.ends(client, 1).unwrap_err();
    assert_eq!((error.kind(), error.is_passed_on()), (ErrorKind::Cancelled, true));
    // A second resolution changes nothing, and tasks that come later fail, too.
    rig.client_says(client, resolve(Ok(value("late"))));
    rig.submit(client, needy(2));
    assert_eq!(rig.ends(client, 2).unwrap_err().kind(), ErrorKind::Cancelled);
    rig.nothing_left();
}

#[test]
fn a_task_that_waits_for_an_announced_object_can_be_cancelled() {
    let mut rig = Rig::new();
    let client = rig.client(1);
    rig.client_says(client, FromClient::Announce { object: OBJECT });
    rig.submit(client, needy(1));
    rig.client_says(client, FromClient::Cancel { task: task_id(1), mode: CancelMode::Graceful });
    assert_eq!(rig.ends(client, 1).unwrap_err().kind(), ErrorKind::Cancelled);
    rig.client_says(client, FromClient::Release { thing: Referent::Object(OBJECT) });
    rig.client_says(client, resolve(Ok(value("late"))));
    assert_eq!(
        rig.controller.object_count_and_inline_bytes(),
        (1, 0),
        "nothing holds the announced object: only the error of the task is kept"
    );
    rig.nothing_left();
}

#[test]
fn an_announced_object_is_lost_if_its_announcer_ends() {
    let mut rig = Rig::new();
    let (client, other) = (rig.client(1), rig.client(3));
    rig.client_says(client, FromClient::Announce { object: OBJECT });
    rig.client_says(other, FromClient::Hold { thing: Referent::Object(OBJECT) });
    rig.client_says(other, FromClient::Fetch { object: OBJECT });
    rig.client_says(other, resolve(Ok(value("another's")))); // It did not announce the object.
    rig.submit(other, needy(1));
    rig.nothing_left();
    rig.dies(client);
    let ToClient::ObjectReady { value: Err(error), .. } = rig.next_to_client(other) else {
        panic!("the client is answered")
    };
    assert_eq!(
        (error.kind(), error.what_is_gone()),
        (ErrorKind::Gone, Some(Referent::Object(OBJECT)))
    );
    assert!(error.message().contains(&OBJECT.to_string()), "{error}");
    assert_eq!(rig.ends(other, 1).unwrap_err().kind(), ErrorKind::Gone);
    rig.nothing_left();
}

#[test]
fn an_announced_object_with_too_large_a_value_resolves_to_an_error() {
    let mut rig = Rig::with(Config { max_payload_bytes: 4, ..Config::default() });
    let client = rig.client(1);
    rig.client_says(client, FromClient::Announce { object: OBJECT });
    rig.client_says(client, resolve(Ok(value("fours"))));
    rig.client_says(client, FromClient::Fetch { object: OBJECT });
    let ToClient::ObjectReady { value: Err(error), .. } = rig.next_to_client(client) else {
        panic!("it is too large")
    };
    assert_eq!(error.kind(), ErrorKind::TooLarge);
    rig.nothing_left();
}

/// Starts a task whose process has put a value, and has announced an answer that refers to it.
fn about_to_answer(rig: &mut Rig) -> (Session, Session, Session, AttemptId, ObjectId) {
    let (client, worker, executor) = (rig.client(1), rig.worker(2, 1), rig.client(3));
    rig.submit(client, once(1));
    let attempt = rig.assigns(worker, 1);
    let object = ObjectId::of(task_id(90), 0);
    rig.client_says(executor, FromClient::Put { object, value: value("deep"), at: None });
    let things = vec![Referent::Object(object)];
    rig.client_says(executor, FromClient::Enclose { call: attempt, item: None, things });
    // The answer takes another route than the process's own messages, so this `Release` arrives
    // first.
    rig.client_says(executor, FromClient::Release { thing: Referent::Object(object) });
    (client, worker, executor, attempt, object)
}

fn naming(object: ObjectId) -> Value {
    Value { referents: vec![Referent::Object(object)], ..value("a reference") }
}

#[test]
fn an_enclosed_object_is_held_until_its_result_is_released() {
    let mut rig = Rig::new();
    let (client, worker, _, attempt, object) = about_to_answer(&mut rig);
    assert!(rig.controller.value(object).is_some());
    rig.end(worker, attempt, AttemptEnd::Finished(vec![naming(object)]), None);
    rig.ends(client, 1).unwrap();
    assert!(rig.controller.value(object).is_some(), "the result names it");
    let result = Referent::Object(ObjectId::of(task_id(1), 0));
    rig.client_says(client, FromClient::Release { thing: result });
    assert_eq!(rig.controller.object_count_and_inline_bytes(), (0, 0));
    rig.nothing_left();
}

#[test]
fn enclosing_objects_in_the_result_of_another_process_releases_nothing() {
    let mut rig = Rig::new();
    let (client, worker, _, attempt, object) = about_to_answer(&mut rig);
    let other = rig.client(4);
    rig.client_says(other, FromClient::Enclose { call: attempt, item: None, things: Vec::new() });
    rig.dies(other);
    assert!(rig.controller.value(object).is_some());
    rig.end(worker, attempt, AttemptEnd::Finished(vec![naming(object)]), None);
    rig.ends(client, 1).unwrap();
    assert!(rig.controller.value(object).is_some());
}

#[test]
fn an_enclosed_object_is_released_if_its_process_ends_before_the_result() {
    let mut rig = Rig::new();
    let (_, worker, executor, attempt, object) = about_to_answer(&mut rig);
    rig.dies(executor);
    assert_eq!(rig.controller.value(object), None);
    rig.end(worker, attempt, AttemptEnd::Lost(crashed()), None);
    assert_eq!(rig.controller.holds().all_things().count(), 1, "the result, which failed");
}

#[test]
fn an_enclosed_object_is_released_when_its_task_fails() {
    let mut rig = Rig::new();
    let (client, worker, _, attempt, object) = about_to_answer(&mut rig);
    rig.end(worker, attempt, AttemptEnd::Failed(raised("ValueError")), None);
    rig.ends(client, 1).unwrap_err();
    assert_eq!(rig.controller.value(object), None);
}

#[test]
fn objects_enclosed_in_a_direct_result_are_held_until_the_caller_accepts() {
    let mut rig = Rig::new();
    let (client, worker, executor) = (rig.client(1), rig.worker(2, 1), rig.client(3));
    let instance = rig.create(client, worker, actor(7));
    let call = AttemptId { task: task_id(5), attempt: Attempt(1) };
    let object = ObjectId::of(task_id(90), 0);
    let thing = Referent::Object(object);
    rig.client_says(executor, FromClient::Put { object, value: value("deep"), at: None });
    rig.client_says(executor, FromClient::Enclose { call, item: None, things: vec![thing] });
    rig.client_says(executor, FromClient::Release { thing });
    let (contains, kept) = (vec![thing], Vec::new());
    let stored = vec![];
    let entrust = FromWorker::Entrust { call, to: client, contains, stored, instance, kept };
    rig.worker_says(worker, entrust);
    assert_eq!(rig.next_to_worker(worker), ToWorker::Entrusted { call });
    assert!(rig.controller.value(object).is_some(), "it is on its way to the client");
    rig.client_says(client, FromClient::Accept { call });
    assert_eq!(rig.controller.value(object), None);
    // The answer comes, and no caller waits for it: nothing is held any more.
    rig.client_says(executor, FromClient::Put { object, value: value("deep"), at: None });
    rig.client_says(executor, FromClient::Enclose { call, item: None, things: vec![thing] });
    rig.client_says(executor, FromClient::Release { thing });
    let (contains, kept) = (Vec::new(), Vec::new());
    let stored = vec![];
    let entrust = FromWorker::Entrust { call, to: worker, contains, stored, instance, kept };
    rig.worker_says(worker, entrust);
    assert_eq!(rig.controller.value(object), None);
}
