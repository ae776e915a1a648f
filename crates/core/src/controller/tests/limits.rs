//! Limits: each is named, and nothing is lost beyond it.

use super::*;

#[test]
fn submissions_beyond_the_limit_are_exhausted_and_name_the_limit() {
    let mut rig = Rig::with(Config { max_pending_tasks: 1, ..Config::default() });
    let worker = rig.worker(2, 1);
    rig.submit_ownerless(task(1)).unwrap();
    let attempt = rig.assigns(worker, 1);
    let error = rig.submit_ownerless(task(2)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exhausted);
    assert!(error.message().contains("the limit is 1 (max_pending_tasks)"), "{error}");

    // A client is told the same, and is promised room as soon as there is some.
    let client = rig.client(1);
    rig.submit(client, task(3));
    assert_eq!(rig.ends(client, 3).unwrap_err().kind(), ErrorKind::Exhausted);
    rig.finish(worker, attempt);
    assert_eq!(rig.tells(client), ToClient::Credit { total: 1 });
    rig.nothing_left();
}

#[test]
fn submitting_ended_tasks_again_uses_up_no_credit() {
    let mut rig = Rig::with(Config { submit_window: 2, ..Config::default() });
    let (client, worker) = (rig.client(1), rig.worker(2, 1)); // Two are welcome.
    rig.submit(client, task(1));
    let attempt = rig.assigns(worker, 1);
    assert_eq!(rig.tells(client), ToClient::Credit { total: 3 });
    rig.finish(worker, attempt);
    rig.ends(client, 1).unwrap();

    for total in 4..=9 {
        rig.submit(client, task(1));
        assert_eq!(rig.tells(client), ToClient::Credit { total });
        rig.ends(client, 1).unwrap();
        rig.nothing_left();
    }
    rig.submit(client, task(2));
    rig.assigns(worker, 2);
    assert_eq!(rig.tells(client), ToClient::Credit { total: 10 });
    rig.nothing_left();
}

#[test]
fn payloads_may_be_as_large_as_the_limit_and_not_one_byte_more() {
    let mut rig = Rig::with(Config { max_payload_bytes: 4, ..Config::default() });
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    rig.submit(client, TaskSpec { args: Payload::raw("fours"), ..task(1) });
    let error = rig.ends(client, 1).unwrap_err();
    assert_eq!((error.kind(), error.may_have_run()), (ErrorKind::TooLarge, false));
    assert!(error.message().contains("5 bytes, the limit is 4 (max_payload_bytes)"), "{error}");

    for (number, result, fits) in [(2, "four", true), (3, "fours", false)] {
        rig.submit(client, TaskSpec { args: Payload::raw("four"), ..task(number) });
        let attempt = rig.assigns(worker, number);
        rig.end(worker, attempt, End::Finished(vec![value(result)]), None);
        let error = rig.ends(client, number).err();
        let said = error.map(|error| (error.kind(), error.may_have_run()));
        assert_eq!(said, (!fits).then_some((ErrorKind::TooLarge, true)));
    }

    let object = ObjectId::of(task_id(90), 0);
    rig.client_says(client, FromClient::Put { object, value: value("fours"), at: None });
    let ToClient::ObjectReady { value: Err(error), .. } = rig.tells(client) else {
        panic!("it is too large")
    };
    assert_eq!(error.kind(), ErrorKind::TooLarge);
    rig.nothing_left();
}

#[test]
fn results_without_an_owner_are_kept_for_their_ttl() {
    let mut rig = Rig::new();
    let worker = rig.worker(2, 1);
    rig.submit_ownerless(task(1)).unwrap();
    let not_yet = rig.controller.task_result(task_id(1)).unwrap_err();
    assert_eq!(not_yet.kind(), ErrorKind::NotReady);
    let attempt = rig.assigns(worker, 1);
    rig.finish(worker, attempt);

    let ttl = rig.controller.config().result_ttl;
    rig.pass(ttl - SECOND);
    assert_eq!(rig.controller.task_result(task_id(1)), Ok(Ok(vec![value("done")])));
    rig.pass(SECOND);
    let dropped = rig.controller.task_result(task_id(1)).unwrap_err();
    assert_eq!(dropped.kind(), ErrorKind::NotFound);
    assert_eq!(rig.controller.kept(), (0, 0));
    rig.nothing_left();
}

#[test]
fn the_oldest_kept_results_make_room_for_new_ones() {
    // Half of this is for them: two of four bytes each, with what an object takes besides.
    let mut rig = Rig::with(Config { max_result_bytes: 1_000, ..Config::default() });
    let worker = rig.worker(2, 1);
    for number in 1..=3 {
        rig.submit_ownerless(task(number)).unwrap();
        let attempt = rig.assigns(worker, number);
        rig.finish(worker, attempt);
    }
    assert_eq!(rig.controller.kept(), (2, 8));
    let kept = |number| rig.controller.task_result(task_id(number)).is_ok();
    assert_eq!([kept(1), kept(2), kept(3)], [false, true, true]);
    rig.nothing_left();
}

#[test]
fn only_what_a_session_holds_is_fetched() {
    let mut rig = Rig::new();
    let (holder, other) = (rig.client(1), rig.client(2));
    rig.submit(holder, task(1));
    let object = ObjectId::of(task_id(1), 0);
    rig.client_says(other, FromClient::Fetch { object });
    let Effect::ToClient { to, message: ToClient::ObjectReady { value: Err(error), .. } } =
        rig.next()
    else {
        panic!("the other is answered")
    };
    assert_eq!((to, error.kind()), (other, ErrorKind::Gone));
    rig.client_says(other, FromClient::Hold { thing: Thing::Object(object) });
    rig.client_says(other, FromClient::Fetch { object });
    rig.nothing_left();
}

#[test]
fn arguments_and_the_values_that_go_along_fit_into_one_message_or_the_task_fails() {
    let mut rig = Rig::with(Config { max_input_bytes: 10, ..Config::default() });
    let (client, worker) = (rig.client(1), rig.worker(2, 2));
    let objects = [91, 92].map(|number| ObjectId::of(task_id(number), 0));
    for object in objects {
        rig.client_says(client, FromClient::Put { object, value: value("four"), at: None });
    }
    let both = |args: &'static str, number| TaskSpec {
        args: Payload::raw(args),
        needs: objects.to_vec(),
        ..task(number)
    };
    rig.submit(client, both("it", 1));
    let attempt = rig.assigns(worker, 1);
    rig.finish(worker, attempt);
    rig.ends(client, 1).unwrap();

    rig.submit(client, both("too", 2));
    let error = rig.ends(client, 2).unwrap_err();
    assert_eq!((error.kind(), error.may_have_run()), (ErrorKind::TooLarge, false));
    assert!(error.message().contains("11 bytes, the limit is 10 (max_input_bytes)"), "{error}");
    rig.nothing_left();
}
