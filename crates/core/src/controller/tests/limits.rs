//! Limits: each error names its limit, and nothing is lost beyond it.

use super::*;
use crate::controller::credit::{FIRST_BYTES, FIRST_TASKS};

#[test]
fn submissions_beyond_max_pending_tasks_fail_and_name_the_limit() {
    let mut rig = Rig::with(Config { max_pending_tasks: 1, ..Config::default() });
    let worker = rig.worker(2, 1);
    rig.submit_ownerless(task(1)).unwrap();
    let attempt = rig.assigns(worker, 1);
    let error = rig.submit_ownerless(task(2)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exhausted);
    assert!(error.message().contains("the limit is 1 (max_pending_tasks)"), "{error}");

    // A client may always have a few tasks pending. One more fails with the same error. The client
    // is promised more room as soon as there is some.
    let client = rig.client(1);
    for number in 0..=u128::from(FIRST_TASKS) {
        rig.submit(client, task(10 + number));
    }
    let error = rig.ends(client, 10 + u128::from(FIRST_TASKS)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exhausted);
    rig.finish(worker, attempt);
    let attempt = rig.assigns(worker, 10);
    rig.nothing_left();
    rig.finish(worker, attempt);
    rig.ends(client, 10).unwrap();
    assert_eq!(tasks_promised(rig.next_to_client(client)), FIRST_TASKS + 1);
    rig.assigns(worker, 11);
    rig.nothing_left();
}

/// Returns for how many tasks a client is promised room, in all.
fn tasks_promised(message: ToClient) -> u64 {
    let ToClient::Credit { tasks, .. } = message else { panic!("no promise: {message:?}") };
    tasks
}

/// Returns for how many bytes of arguments a client is promised room, in all.
fn bytes_promised(message: ToClient) -> u64 {
    let ToClient::Credit { bytes, .. } = message else { panic!("no promise: {message:?}") };
    bytes
}

fn task_of(number: u128, bytes: usize) -> TaskSpec {
    TaskSpec { args: Payload::raw(vec![0; bytes]), ..task(number) }
}

fn small_bytes(max_pending_bytes: u64, max_session_bytes: u64) -> Config {
    Config { max_pending_bytes, max_session_bytes, submit_window_bytes: 1_000, ..Config::default() }
}

#[test]
fn arguments_beyond_max_pending_bytes_fail_and_name_the_figures() {
    let mut rig = Rig::with(small_bytes(100, 100));
    let worker = rig.worker(2, 1);
    rig.submit_ownerless(task_of(1, 60)).unwrap();
    let attempt = rig.assigns(worker, 1);
    let error = rig.submit_ownerless(task_of(2, 41)).unwrap_err();
    assert_eq!((error.kind(), error.may_have_run()), (ErrorKind::Exhausted, false));
    let figures = "pending tasks and actors keep 60 of at most 100 (max_pending_bytes)";
    assert!(error.message().contains(figures), "{error}");
    rig.submit_ownerless(task_of(3, 40)).unwrap();
    rig.finish(worker, attempt);
    let attempt = rig.assigns(worker, 3);
    rig.finish(worker, attempt);
    rig.submit_ownerless(task_of(4, 100)).unwrap();
    rig.assigns(worker, 4);
    rig.nothing_left();
}

#[test]
fn a_client_gets_credit_for_at_most_max_session_bytes() {
    let mut rig = Rig::with(small_bytes(1_000_000, 300));
    let worker = rig.worker(2, 1);
    let client = rig.promised_client(1);
    assert_eq!(bytes_promised(rig.next_to_client(client)), 300);
    rig.submit(client, task_of(1, 200));
    let attempt = rig.assigns(worker, 1);
    rig.nothing_left();
    // A hundred bytes are left of the promise: one more task may go, however large it is.
    rig.submit(client, task_of(2, 5_000));
    rig.nothing_left();
    rig.submit(client, task_of(3, 0));
    let error = rig.ends(client, 3).unwrap_err();
    assert!(error.message().contains("(max_session_bytes)"), "{error}");
    rig.finish(worker, attempt);
    rig.ends(client, 1).unwrap();
    let attempt = rig.assigns(worker, 2);
    rig.nothing_left(); // Still too many bytes are pending.
    rig.finish(worker, attempt);
    rig.ends(client, 2).unwrap();
    assert_eq!(bytes_promised(rig.next_to_client(client)), 5_200 + 300);
    rig.nothing_left();
}

#[test]
fn a_session_may_have_a_few_pending_tasks_even_if_others_use_up_the_limit() {
    let mut rig = Rig::with(Config { max_pending_tasks: 1, ..small_bytes(100, 100) });
    let worker = rig.worker(2, 1);
    rig.submit_ownerless(task_of(1, 100)).unwrap();
    let parent = rig.assigns(worker, 1);
    let nested = rig.promised_client(1);
    assert_eq!(rig.next_to_client(nested), ToClient::Credit { tasks: FIRST_TASKS, bytes: 100 });
    rig.submit(nested, task_of(2, 5_000));
    rig.worker_says(worker, FromWorker::Blocked { attempt: parent });
    let child = rig.assigns(worker, 2);
    rig.nothing_left();
    rig.finish(worker, child);
    rig.ends(nested, 2).unwrap();
    let ToClient::Credit { tasks, bytes } = rig.next_to_client(nested) else { panic!("a promise") };
    assert!(tasks > 1 && bytes > 5_000, "{tasks} tasks, {bytes} bytes");
    rig.nothing_left();
}

#[test]
fn unused_credit_of_idle_sessions_does_not_stop_other_sessions() {
    let limits = small_bytes(10_000, 5_000);
    let mut rig = Rig::with(Config { max_pending_tasks: 100, submit_window: 50, ..limits });
    for number in 1..=50 {
        rig.client(number);
    }
    let worker = rig.worker(91, 1);
    let client = rig.promised_client(90);
    let mut promised = rig.next_to_client(client);
    for number in 100..200 {
        let ToClient::Credit { tasks, bytes } = promised else { panic!("a promise") };
        assert!(tasks > number - 100 && bytes > 50 * (number - 100), "{number}");
        rig.submit(client, task_of(u128::from(number), 50));
        let attempt = rig.assigns(worker, u128::from(number));
        rig.finish(worker, attempt);
        while let Some(Effect::ToClient { message, .. }) = rig.effects.pop_front() {
            promised = if matches!(message, ToClient::Credit { .. }) { message } else { promised };
        }
    }
}

#[test]
fn unused_credit_of_idle_sessions_leaves_room_for_a_few_tasks_at_a_time() {
    let limits = small_bytes(10_000, 5_000);
    let mut rig = Rig::with(Config { max_pending_tasks: 100, submit_window: 50, ..limits });
    for number in 1..=50 {
        rig.client(number);
    }
    let worker = rig.worker(91, FIRST_TASKS as u32);
    let client = rig.promised_client(90);
    let mut promised = rig.next_to_client(client);
    let mut submitted = 0;
    for _ in 0..10 {
        let mut running = Vec::new();
        for _ in 0..FIRST_TASKS {
            let ToClient::Credit { tasks, bytes } = promised else { panic!("a promise") };
            assert!(tasks > submitted && bytes > 50 * submitted, "{submitted}: {promised:?}");
            let number = u128::from(100 + submitted);
            rig.submit(client, task_of(number, 50));
            submitted += 1;
            running.push(rig.assigns(worker, number));
            while let Some(Effect::ToClient { message, .. }) = rig.effects.pop_front() {
                promised = message;
            }
        }
        for attempt in running {
            rig.finish(worker, attempt);
        }
        while let Some(Effect::ToClient { message, .. }) = rig.effects.pop_front() {
            promised = if matches!(message, ToClient::Credit { .. }) { message } else { promised };
        }
    }
}

#[test]
fn a_session_with_max_session_bytes_0_may_submit_a_task() {
    let mut rig = Rig::with(small_bytes(1_000, 0));
    let worker = rig.worker(2, 1);
    let client = rig.promised_client(1);
    assert_eq!(bytes_promised(rig.next_to_client(client)), 1);
    rig.submit(client, task_of(1, 60));
    rig.assigns(worker, 1);
    rig.nothing_left();
}

#[test]
fn room_freed_by_a_finished_task_is_offered_to_waiting_clients() {
    let limit = FIRST_TASKS as usize + 1;
    let mut rig = Rig::with(Config { max_pending_tasks: limit, ..Config::default() });
    let worker = rig.worker(2, 1);
    rig.submit_ownerless(task(1)).unwrap();
    let other = rig.assigns(worker, 1);
    let client = rig.client(1);
    for number in 0..u128::from(FIRST_TASKS) {
        rig.submit(client, task(10 + number));
    }
    rig.nothing_left();
    rig.finish(worker, other);
    assert_eq!(tasks_promised(rig.next_to_client(client)), FIRST_TASKS + 1);
    rig.assigns(worker, 10);
    rig.nothing_left();
}

#[test]
fn room_freed_by_a_deleted_actor_is_offered_to_waiting_clients() {
    let limits = Config { max_pending_bytes: 2 * FIRST_BYTES, ..Config::default() };
    let mut rig = Rig::with(limits);
    let options = ActorOptions { lifetime: Lifetime::Detached, ..ActorOptions::default() };
    let args = Payload::raw(vec![0; FIRST_BYTES as usize]);
    let spec = Arc::new(ActorSpec { args, ..actor_with(5, options) });
    let actor = rig
        .ask(|controller, now, effects| controller.create_actor(now, Owner::Cluster, spec, effects))
        .unwrap();
    let client = rig.promised_client(1);
    assert_eq!(bytes_promised(rig.next_to_client(client)), FIRST_BYTES);
    rig.submit(client, task_of(1, FIRST_BYTES as usize));
    rig.nothing_left();
    rig.ask(|controller, now, effects| controller.delete_actor(now, actor, effects)).unwrap();
    assert_eq!(bytes_promised(rig.next_to_client(client)), 2 * FIRST_BYTES);
    rig.nothing_left();
}

#[test]
fn waiting_shapes_are_limited_and_tasks_of_a_waiting_shape_are_not() {
    let mut rig = Rig::with(Config { max_waiting_shapes: 2, ..Config::default() });
    let client = rig.client(1);
    rig.worker(2, 1);
    let needs = |number, cpus| {
        task_with(
            number,
            TaskOptions { resources: Resources::cpus(cpus), ..TaskOptions::default() },
        )
    };
    rig.submit(client, needs(1, 7));
    rig.submit(client, needs(2, 8));
    rig.submit(client, needs(3, 8));
    rig.nothing_left();
    rig.submit(client, needs(4, 9));
    let error = rig.ends(client, 4).unwrap_err();
    assert_eq!((error.kind(), error.may_have_run()), (ErrorKind::Exhausted, false));
    assert!(
        error.message().contains("2 kinds of work")
            && error.message().contains("(max_waiting_shapes)"),
        "{error}"
    );
    rig.nothing_left();
}

#[test]
fn max_actors_limits_live_actors_and_dead_actors_keep_no_arguments() {
    let mut rig = Rig::with(Config { max_actors: 1, ..small_bytes(100, 100) });
    let create = |rig: &mut Rig, number, bytes| {
        let options = ActorOptions { lifetime: Lifetime::Detached, ..ActorOptions::default() };
        let args = Payload::raw(vec![0; bytes]);
        let spec = Arc::new(ActorSpec { args, ..actor_with(number, options) });
        rig.ask(|controller, now, effects| {
            controller.create_actor(now, Owner::Cluster, spec, effects)
        })
    };
    let too_large = create(&mut rig, 1, 101).unwrap_err();
    assert!(too_large.message().contains("(max_pending_bytes)"), "{too_large}");
    let first = create(&mut rig, 2, 100).unwrap();
    let error = create(&mut rig, 3, 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exhausted);
    assert!(error.message().contains("1 actors live, the limit is 1 (max_actors)"), "{error}");
    rig.ask(|controller, now, effects| controller.delete_actor(now, first, effects)).unwrap();
    create(&mut rig, 4, 100).unwrap();
}

#[test]
fn submitting_ended_tasks_again_uses_up_no_credit() {
    let mut rig = Rig::with(Config { submit_window: 2, ..Config::default() });
    let (client, worker) = (rig.client(1), rig.worker(2, 1)); // Two tasks are promised room.
    rig.submit(client, task(1));
    let attempt = rig.assigns(worker, 1);
    assert_eq!(tasks_promised(rig.next_to_client(client)), 3);
    rig.finish(worker, attempt);
    rig.ends(client, 1).unwrap();

    for total in 4..=9 {
        rig.submit(client, task(1));
        assert_eq!(tasks_promised(rig.next_to_client(client)), total);
        rig.ends(client, 1).unwrap();
        rig.nothing_left();
    }
    rig.submit(client, task(2));
    rig.assigns(worker, 2);
    assert_eq!(tasks_promised(rig.next_to_client(client)), 10);
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
        rig.end(worker, attempt, AttemptEnd::Finished(vec![value(result)]), None);
        let error = rig.ends(client, number).err();
        let failed = error.map(|error| (error.kind(), error.may_have_run()));
        assert_eq!(failed, (!fits).then_some((ErrorKind::TooLarge, true)));
    }

    let object = ObjectId::of(task_id(90), 0);
    rig.client_says(client, FromClient::Put { object, value: value("fours"), at: None });
    let ToClient::ObjectReady { value: Err(error), .. } = rig.next_to_client(client) else {
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
    assert_eq!(rig.controller.object_count_and_inline_bytes(), (0, 0));
    rig.nothing_left();
}

#[test]
fn the_oldest_ownerless_results_make_room_for_new_ones() {
    // Half of this limit is for results without an owner: room for two of four bytes each, with the
    // overhead of their records.
    let mut rig = Rig::with(Config { max_result_bytes: 1_000, ..Config::default() });
    let worker = rig.worker(2, 1);
    for number in 1..=3 {
        rig.submit_ownerless(task(number)).unwrap();
        let attempt = rig.assigns(worker, number);
        rig.finish(worker, attempt);
    }
    assert_eq!(rig.controller.object_count_and_inline_bytes(), (2, 8));
    let kept = |number| rig.controller.task_result(task_id(number)).is_ok();
    assert_eq!([kept(1), kept(2), kept(3)], [false, true, true]);
    rig.nothing_left();
}

#[test]
fn a_session_can_fetch_only_objects_that_it_holds() {
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
    rig.client_says(other, FromClient::Hold { thing: Referent::Object(object) });
    rig.client_says(other, FromClient::Fetch { object });
    rig.nothing_left();
}

#[test]
fn a_task_whose_arguments_and_inputs_exceed_max_input_bytes_fails() {
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

#[test]
fn values_beyond_max_result_bytes_fail_and_withhold_credit_until_released() {
    let mut rig =
        Rig::with(Config { max_result_bytes: 100, submit_window: 1, ..Config::default() });
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    let [kept, refused] = [90, 91].map(|number| ObjectId::of(task_id(number), 0));
    rig.client_says(client, FromClient::Put { object: kept, value: value("kept"), at: None });
    rig.nothing_left();
    rig.client_says(client, FromClient::Put { object: refused, value: value("more"), at: None });
    let ToClient::ObjectReady { value: Err(error), .. } = rig.next_to_client(client) else {
        panic!("there is no room for it")
    };
    assert_eq!(error.kind(), ErrorKind::Exhausted);
    assert!(error.message().contains("the limit is 100 (max_result_bytes)"), "{error}");
    let error = rig.submit_ownerless(task(1)).unwrap_err();
    assert!(error.message().contains("(max_result_bytes)"), "{error}");

    // The task for which room was promised runs. Room for the next is promised when there is some.
    rig.submit(client, task(2));
    rig.assigns(worker, 2);
    rig.nothing_left();
    for object in [refused, kept] {
        rig.nothing_left();
        rig.client_says(client, FromClient::Release { thing: Referent::Object(object) });
    }
    assert_eq!(tasks_promised(rig.next_to_client(client)), 2);
    rig.nothing_left();
}

#[test]
fn the_arguments_of_calls_are_limited_by_max_session_bytes() {
    let mut rig = Rig::with(small_bytes(1_000, 300));
    let (client, worker) = (rig.client(1), rig.worker(2, 1));
    let instance = rig.create(client, worker, actor(5));
    let call_of = |number, bytes| TaskSpec {
        args: Payload::raw(vec![0; bytes]),
        ..call(number, instance.actor)
    };
    rig.submit(client, call_of(1, 200));
    rig.nothing_left();
    rig.submit(client, call_of(2, 101));
    let error = rig.ends(client, 2).unwrap_err();
    assert_eq!((error.kind(), error.may_have_run()), (ErrorKind::Exhausted, false));
    assert!(error.message().contains("(max_session_bytes)"), "{error}");
    rig.submit(client, call_of(3, 100));
    rig.nothing_left();
}

#[test]
fn an_actor_beyond_max_waiting_shapes_names_the_limit() {
    let mut rig = Rig::with(Config { max_waiting_shapes: 1, ..Config::default() });
    let client = rig.client(1);
    rig.worker(2, 1);
    let resources = Resources::cpus(7);
    rig.submit(client, task_with(1, TaskOptions { resources, ..TaskOptions::default() }));
    rig.nothing_left();
    let resources = Resources::cpus(8);
    let spec = actor_with(5, ActorOptions { resources, ..ActorOptions::default() });
    rig.client_says(client, FromClient::CreateActor(Arc::new(spec)));
    let effects: Vec<String> = rig.effects.drain(..).map(|effect| format!("{effect:?}")).collect();
    assert!(effects.iter().any(|effect| effect.contains("(max_waiting_shapes)")), "{effects:?}");
}
