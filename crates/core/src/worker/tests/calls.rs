//! Calls of a worker's actors: their order, their callers, and their ends.

use super::*;

#[test]
fn calls_start_in_order_and_at_most_max_concurrency_run_at_a_time() {
    let mut rig = Rig::new();
    let executor = rig.host(ActorOptions { max_concurrency: 2, ..ActorOptions::default() });
    rig.call(method(13), 0);
    rig.trust_caller();
    rig.call(method(12), 1);
    rig.call(method(11), 2);
    assert_eq!(rig.take(), [calls(executor, method(13)), calls(executor, method(12))]);
    rig.call_ends(executor, 12, value());
    assert_eq!(rig.take(), [answered(12, value()), calls(executor, method(11))]);

    // Direct calls are reported to the controller in batches.
    rig.call_ends(executor, 11, value());
    assert_eq!(rig.take(), [answered(11, value())]);
    rig.pass(SECOND);
    let [Effect::ToController(FromWorker::CallsEnded(reports))] = &rig.take()[..] else {
        panic!("calls are reported")
    };
    let calls: Vec<TaskId> = reports.iter().map(|report| report.task).collect();
    assert_eq!(calls, [task_id(12), task_id(11)]);
}

#[test]
fn an_executor_prefetches_at_most_16_calls() {
    let mut rig = Rig::new();
    let executor = rig.host(ActorOptions::default());
    rig.call(method(0), 0);
    rig.trust_caller();
    for number in 1..=18 {
        rig.call(method(number.into()), number);
    }
    let given: Vec<Effect> = (0..=16).map(|number| calls(executor, method(number))).collect();
    assert_eq!(rig.take(), given, "one runs, 16 are prefetched, two wait");
    rig.call_ends(executor, 0, value());
    assert_eq!(rig.take(), [answered(0, value()), calls(executor, method(17))]);
}

#[test]
fn the_timeout_of_a_prefetched_call_counts_from_its_turn() {
    let mut rig = Rig::new();
    let executor = rig.host(ActorOptions::default());
    rig.call(method(1), 0);
    rig.trust_caller();
    let hurried = TaskSpec { options: hurried(2, SECOND).options, ..method(2) };
    rig.call(hurried, 1);
    rig.take();
    rig.pass(SECOND * 2);
    rig.call_ends(executor, 1, value());
    rig.take();
    rig.pass(SECOND / 2);
    let late = |effect: &Effect| matches!(effect, Effect::Interrupt { .. });
    assert!(!rig.take().iter().any(late));
    rig.pass(SECOND / 2);
    assert!(rig.take().iter().any(late));
}

#[test]
fn a_cancelled_prefetched_call_is_answered_at_once_and_only_once() {
    let mut rig = Rig::new();
    let executor = rig.host(ActorOptions::default());
    rig.call(method(1), 0);
    rig.trust_caller();
    rig.call(method(2), 1);
    rig.call(method(3), 2);
    rig.take();
    rig.caller_says(ToHost::CancelCall { call: task_id(2), mode: CancelMode::Force });
    let effects = rig.take();
    let [stop, Effect::ToCaller { message: FromHost::CallEnded { outcome: Err(error), .. }, .. }] =
        &effects[..]
    else {
        panic!("it is answered: {effects:?}")
    };
    assert_eq!(
        *stop,
        Effect::Interrupt { executor, task: task_id(2), alone: false },
        "no executor is killed"
    );
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    rig.call_ends(executor, 1, value());
    assert_eq!(rig.take(), [answered(1, value())]);
    rig.call_ends(executor, 2, value());
    assert_eq!(rig.take(), [], "the call was answered before");
    rig.call_ends(executor, 3, value());
    assert_eq!(rig.take(), [answered(3, value())]);
}

#[test]
fn calls_are_parked_until_their_caller_is_known_alive_and_fenced_if_not() {
    let mut rig = Rig::new();
    let executor = rig.host(ActorOptions::default());
    rig.call(method(1), 0);
    rig.call(method(2), 1);
    assert_eq!(rig.take(), [tell(FromWorker::Watch { session: CALLER })], "the worker asks once");
    rig.controller_says(ToWorker::Watched { session: CALLER, alive: false });
    assert_eq!(rig.take(), [Effect::FenceCaller(CALLER)]);
    assert_eq!(rig.worker.counters().fenced, 2);

    rig.call(method(3), 0);
    rig.trust_caller();
    assert_eq!(rig.take(), [calls(executor, method(3))]);
}

/// A worker with two parked calls of a caller, numbers 0 and 1. It rejected number 2, above the
/// limit.
fn crowded() -> (Rig, ExecutorId) {
    let config = Config { spare_executors: 0, max_parked_messages: 2, ..Config::default() };
    let mut rig = Rig::with(config);
    let executor = rig.host(ActorOptions::default());
    for number in 0..3 {
        rig.call(method(number.into()), number);
    }
    let [watch, refused] = &rig.take()[..] else { panic!("it asks, and rejects the third") };
    assert_eq!(*watch, tell(FromWorker::Watch { session: CALLER }));
    let Effect::ToCaller { message: FromHost::CallEnded { attempt, outcome, .. }, .. } = refused
    else {
        panic!("the third call ends")
    };
    let kind = outcome.as_ref().unwrap_err().kind();
    assert_eq!((*attempt, kind), (tried(2), ErrorKind::Exhausted));
    (rig, executor)
}

#[test]
fn a_parked_call_can_be_cancelled_even_above_the_limit() {
    let (mut rig, executor) = crowded();
    let cancel = |mode| ToHost::CancelCall { call: task_id(1), mode };
    rig.caller_says(cancel(CancelMode::Graceful));
    rig.caller_says(ToHost::CancelCall { call: task_id(2), mode: CancelMode::Graceful });
    assert_eq!(rig.take(), []);
    rig.controller_says(ToWorker::Watched { session: CALLER, alive: true });
    let effects = rig.take();
    assert_eq!(effects[..2], [calls(executor, method(0)), calls(executor, method(1))]);
    let interrupt = Effect::Interrupt { executor, task: task_id(1), alone: false };
    assert!(effects.contains(&interrupt), "{effects:?}");
    let ended = |effect: &Effect| {
        matches!(effect, Effect::ToCaller { message: FromHost::CallEnded { attempt, outcome, .. }, .. }
            if *attempt == tried(1) && outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::Cancelled))
    };
    assert_eq!(effects.iter().filter(|effect| ended(effect)).count(), 1, "{effects:?}");
    assert_eq!(rig.worker.counters().stale, 0, "the rejected call was answered before");

    // The number of the rejected call is used up.
    rig.call(method(3), 3);
    assert_eq!(rig.take(), [calls(executor, method(3))]);
}

#[test]
fn a_parked_call_is_killed_if_any_of_its_cancels_was_forced() {
    let (mut rig, executor) = crowded();
    for mode in [CancelMode::Force, CancelMode::Graceful] {
        rig.caller_says(ToHost::CancelCall { call: task_id(0), mode });
    }
    rig.controller_says(ToWorker::Watched { session: CALLER, alive: true });
    assert!(rig.take().contains(&Effect::Kill { executor }));
}

#[test]
fn items_consumed_while_a_call_is_parked_are_counted() {
    let (mut rig, executor) = crowded();
    for count in [3, 2] {
        rig.caller_says(ToHost::Took { call: task_id(1), count });
    }
    rig.controller_says(ToWorker::Watched { session: CALLER, alive: true });
    let took = Effect::ReportConsumed { executor, task: task_id(1), count: 3 };
    assert_eq!(rig.take(), [calls(executor, method(0)), calls(executor, method(1)), took]);
}

#[test]
fn the_calls_of_a_caller_are_interrupted_when_its_session_ends() {
    let mut rig = Rig::new();
    let executor = rig.host(ActorOptions::default());
    rig.call(method(1), 0);
    rig.trust_caller();
    rig.call(method(2), 1);
    rig.take();

    rig.controller_says(ToWorker::SessionEnded { session: CALLER });
    let interrupt = |call| Effect::Interrupt { executor, task: task_id(call), alone: false };
    assert_eq!(rig.take(), [Effect::FenceCaller(CALLER), interrupt(1), interrupt(2)]);
    rig.call_ends(executor, 1, value());
    rig.call_ends(executor, 2, value());
    assert_eq!(rig.take(), [], "no caller is left");
}

#[test]
fn an_evict_sent_before_the_controller_knew_a_new_blob_does_not_evict_it() {
    let mut rig = Rig::new();
    let executor = rig.host(ActorOptions::default());
    rig.call(method(1), 0);
    rig.trust_caller();
    rig.take();
    let object = ObjectId::of(task_id(1), 0);
    rig.call_ends(executor, 1, Payload::raw("large").stored_as(object).into());
    let effects = rig.take();
    assert_eq!(effects[0], Effect::Retain { object });
    assert!(matches!(effects[1], Effect::ToController(FromWorker::Entrust { .. })));
    // The controller sent this before it heard of the new blob. So it is about an earlier blob.
    rig.controller_says(ToWorker::Forget { object });
    assert_eq!(rig.take(), []);
    let other = ObjectId::of(task_id(2), 0);
    rig.controller_says(ToWorker::Forget { object: other });
    assert_eq!(rig.take(), [Effect::Forget { object: other }]);
    rig.controller_says(ToWorker::Entrusted { call: tried(1) });
    rig.take();
    rig.controller_says(ToWorker::Forget { object });
    assert_eq!(rig.take(), [Effect::Forget { object }]);
}

#[test]
fn an_answer_with_referents_leaves_only_after_they_are_held_for_its_caller() {
    let mut rig = Rig::new();
    let executor = rig.host(ActorOptions::default());
    rig.call(method(1), 0);
    rig.trust_caller();
    rig.take();
    let contains = vec![Referent::Object(ObjectId::of(task_id(90), 0))];
    let named = Value { referents: contains.clone(), ..value() };
    rig.call_ends(executor, 1, named.clone());
    let (call, to, kept) = (tried(1), CALLER, Vec::new());
    let stored = vec![];
    let entrust = FromWorker::Entrust { call, to, contains, stored, instance: ACTOR, kept };
    assert_eq!(rig.take(), [tell(entrust)]);
    rig.controller_says(ToWorker::Entrusted { call });
    assert_eq!(rig.take(), [answered(1, named)]);
}

#[test]
fn a_dead_actor_loses_its_running_call_and_refuses_its_waiting_calls() {
    let mut rig = Rig::new();
    let executor = rig.host(ActorOptions::default());
    rig.call(method(1), 0);
    rig.trust_caller();
    rig.call(method(2), 1);
    rig.take();
    rig.dies(executor);
    let lost = answer(FromHost::CallLost { attempt: tried(1), error: crashed() });
    let reason = Refusal::NotHere;
    let waited = answer(FromHost::CallRefused { attempt: tried(2), reason });
    let died = tell(FromWorker::ActorDied { instance: ACTOR, error: crashed() });
    assert_eq!(rig.take(), [lost, waited, died]);

    rig.call(method(3), 2);
    assert_eq!(rig.take(), [answer(FromHost::CallRefused { attempt: tried(3), reason })]);
}

#[test]
fn an_actor_without_calls_ends_after_its_idle_ttl() {
    let mut rig = Rig::new();
    let idle_ttl = Some(10 * SECOND);
    let executor = rig.host(ActorOptions { idle_ttl, ..ActorOptions::default() });
    rig.pass(8 * SECOND);
    rig.call(method(1), 0);
    rig.trust_caller();
    rig.call_ends(executor, 1, value());
    rig.take();
    rig.pass(2 * SECOND);
    assert!(!rig.take().contains(&Effect::Kill { executor }), "it was called two seconds ago");
    rig.pass(8 * SECOND);
    assert_eq!(rig.take(), [Effect::Kill { executor }]);
    rig.dies(executor);
    assert_eq!(
        rig.take(),
        [tell(FromWorker::ActorDestroyed { instance: ACTOR, exit: ActorExitReason::Idle })]
    );
}

#[test]
fn calls_of_a_deleted_actor_fail_with_gone_and_may_have_run() {
    let mut rig = Rig::new();
    let executor = rig.host(ActorOptions::default());
    rig.call(method(1), 0);
    rig.trust_caller();
    rig.call(method(2), 1);
    rig.take();
    rig.controller_says(ToWorker::Destroy(ACTOR));
    assert_eq!(rig.take(), [Effect::Kill { executor }]);
    rig.dies(executor);
    let effects = rig.take();
    let [Effect::ToCaller { message: ran, .. }, Effect::ToCaller { message: ahead, .. }, _] =
        &effects[..]
    else {
        panic!("both are answered: {effects:?}")
    };
    // Messages of a killed executor are ignored, so the second call may have started.
    for message in [ran, ahead] {
        let FromHost::CallEnded { outcome: Err(error), .. } = message else {
            panic!("{message:?}")
        };
        assert_eq!((error.kind(), error.may_have_run()), (ErrorKind::Gone, true));
        let expected = format!("actor {} was deleted while this call ran", ACTOR.actor);
        assert_eq!(error.message(), expected);
    }
}
