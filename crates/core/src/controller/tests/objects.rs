//! Values that are announced before they come.

use super::*;

const OBJECT: ObjectId = ObjectId::of(TaskId::from_u128(90), 0);

fn needy(number: u128) -> TaskSpec {
    TaskSpec { needs: vec![OBJECT], ..task(number) }
}

fn resolve(value: Result<Value, Error>) -> FromClient {
    FromClient::Resolve { object: OBJECT, value }
}

#[test]
fn a_task_waits_for_what_was_announced_and_others_do_not() {
    let mut rig = Rig::new();
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    rig.client_says(client, FromClient::Announce { object: OBJECT });
    rig.submit(client, needy(1));
    rig.submit(client, task(2));
    let attempt = rig.assigns(worker, 2);
    rig.finish(worker, attempt);
    rig.ends(client, 2).unwrap();
    // It is let go before it comes: the task holds it.
    rig.client_says(client, FromClient::Release { thing: Thing::Object(OBJECT) });
    rig.client_says(client, resolve(Ok(value("late"))));
    let (attempt, values) = rig.gives(worker, 1, true);
    assert_eq!(values, [value("late")]);
    rig.finish(worker, attempt);
    rig.ends(client, 1).unwrap();
    rig.nothing_left();
}

#[test]
fn a_task_fails_as_what_was_announced_did() {
    let mut rig = Rig::new();
    let client = rig.client(1);
    rig.client_says(client, FromClient::Announce { object: OBJECT });
    rig.submit(client, needy(1));
    rig.client_says(client, resolve(Err(Error::cancelled("it was"))));
    let error = rig.ends(client, 1).unwrap_err();
    assert_eq!((error.kind(), error.is_passed_on()), (ErrorKind::Cancelled, true));
    // Later ones fail too, and what is said once more changes nothing.
    rig.client_says(client, resolve(Ok(value("late"))));
    rig.submit(client, needy(2));
    assert_eq!(rig.ends(client, 2).unwrap_err().kind(), ErrorKind::Cancelled);
    rig.nothing_left();
}

#[test]
fn a_task_that_waits_for_what_was_announced_can_be_cancelled() {
    let mut rig = Rig::new();
    let client = rig.client(1);
    rig.client_says(client, FromClient::Announce { object: OBJECT });
    rig.submit(client, needy(1));
    rig.client_says(client, FromClient::Cancel { task: task_id(1), how: Manner::Ask });
    assert_eq!(rig.ends(client, 1).unwrap_err().kind(), ErrorKind::Cancelled);
    rig.client_says(client, FromClient::Release { thing: Thing::Object(OBJECT) });
    rig.client_says(client, resolve(Ok(value("late"))));
    assert_eq!(rig.controller.kept(), (1, 0), "nobody holds it: only what the task left is kept");
    rig.nothing_left();
}

#[test]
fn what_was_announced_is_lost_with_whoever_was_to_say_it() {
    let mut rig = Rig::new();
    let (client, other) = (rig.client(1), rig.client(3));
    rig.client_says(client, FromClient::Announce { object: OBJECT });
    rig.client_says(other, FromClient::Hold { thing: Thing::Object(OBJECT) });
    rig.client_says(other, FromClient::Fetch { object: OBJECT });
    rig.client_says(other, resolve(Ok(value("another's")))); // Not its to say.
    rig.submit(other, needy(1));
    rig.nothing_left();
    rig.dies(client);
    let ToClient::ObjectReady { value: Err(error), .. } = rig.tells(other) else {
        panic!("it is told")
    };
    assert_eq!(
        (error.kind(), error.what_is_gone()),
        (ErrorKind::Gone, Some(Thing::Object(OBJECT)))
    );
    assert!(error.message().contains(&OBJECT.to_string()), "{error}");
    assert_eq!(rig.ends(other, 1).unwrap_err().kind(), ErrorKind::Gone);
    rig.nothing_left();
}

#[test]
fn what_is_too_large_when_it_comes_is_an_error_that_names_the_limit() {
    let mut rig = Rig::with(Config { max_payload_bytes: 4, ..Config::default() });
    let client = rig.client(1);
    rig.client_says(client, FromClient::Announce { object: OBJECT });
    rig.client_says(client, resolve(Ok(value("fours"))));
    rig.client_says(client, FromClient::Fetch { object: OBJECT });
    let ToClient::ObjectReady { value: Err(error), .. } = rig.tells(client) else {
        panic!("it is too large")
    };
    assert_eq!(error.kind(), ErrorKind::TooLarge);
    rig.nothing_left();
}
