//! Tasks at a worker.

use super::*;

#[test]
fn the_backlog_takes_over_the_grant() {
    let mut rig = Rig::new();
    let executor = rig.start(task(1));
    rig.assign(task(2), None);
    rig.assign(task(3), None);
    assert_eq!(rig.take(), [], "both wait");

    rig.ends(executor, 1, Err(raised()));
    let (attempt, end, kept) = (tried(1), AttemptEnd::Failed(raised()), Vec::new());
    let (ran_for, next) = (Duration::ZERO, Some(tried(2)));
    let over = tell(FromWorker::Ended { attempt, end, kept, ran_for, next });
    assert_eq!(rig.take(), [over, started(task_id(2)), run(executor, task(2))]);

    // An attempt that has not started can be taken back; a running one cannot.
    rig.controller_says(ToWorker::TakeBack(tried(2)));
    rig.controller_says(ToWorker::TakeBack(tried(3)));
    assert_eq!(rig.take(), [refused(3, Refusal::TakenBack)]);
}

#[test]
fn an_attempt_whose_inputs_are_unavailable_is_lost_unless_cancelled() {
    let error = || Error::unavailable(Ran::No, "its argument did not arrive");
    for (number, stop) in [(1, false), (2, true)] {
        let mut rig = Rig::new();
        let executor = rig.start(task(number));
        if stop {
            rig.controller_says(ToWorker::CancelAttempt {
                attempt: tried(number),
                mode: CancelMode::Graceful,
            });
        }
        rig.take();
        let task = task_id(number);
        rig.happens(Event::InputsUnavailable { executor, task, error: error() });
        let end = if stop { AttemptEnd::Cancelled } else { AttemptEnd::Lost(error()) };
        let (attempt, kept, ran_for) = (tried(number), Vec::new(), Duration::ZERO);
        let over = FromWorker::Ended { attempt, end, kept, ran_for, next: None };
        assert_eq!(rig.take(), [tell(over)]);
        rig.happens(Event::InputsUnavailable { executor, task, error: error() });
        assert_eq!(rig.take(), [], "the attempt has ended");
    }
}

#[test]
fn the_backlog_is_refused_while_the_attempt_before_it_is_blocked() {
    let mut rig = Rig::new();
    let executor = rig.start(task(1));
    rig.assign(task(2), None);
    rig.happens(Event::Blocked { executor });
    let blocked = tell(FromWorker::Blocked { attempt: tried(1) });
    assert_eq!(rig.take(), [blocked, refused(2, Refusal::TakenBack)]);

    rig.assign(task(3), None); // It was on its way, but the attempt before it is blocked.
    assert_eq!(rig.take(), [refused(3, Refusal::TakenBack)]);
    rig.happens(Event::Resumed { executor });
    rig.assign(task(4), None);
    assert_eq!(rig.take(), [tell(FromWorker::Resumed { attempt: tried(1) })]);
}

#[test]
fn blocked_executors_are_limited_by_max_blocked_executors() {
    let mut rig = Rig::with(Config { max_blocked_executors: 1, ..Config::default() });
    let (first, second) = (rig.start(task(1)), rig.start(task(2)));
    rig.happens(Event::Blocked { executor: first });
    assert_eq!(rig.take(), [tell(FromWorker::Blocked { attempt: tried(1) })]);
    rig.happens(Event::Blocked { executor: second });
    let refuse = Effect::RefuseBlock { executor: second, task: task_id(2), limit: 1 };
    assert_eq!(rig.take(), [refuse]);
    rig.happens(Event::Resumed { executor: second }); // Its wait failed and was never counted.
    assert_eq!(rig.take(), []);

    // There is room again when a blocked task goes on or ends.
    rig.happens(Event::Resumed { executor: first });
    rig.happens(Event::Blocked { executor: second });
    let resumed = tell(FromWorker::Resumed { attempt: tried(1) });
    assert_eq!(rig.take(), [resumed, tell(FromWorker::Blocked { attempt: tried(2) })]);
    rig.ends(second, 2, Ok(vec![value()]));
    rig.take();
    rig.happens(Event::Blocked { executor: first });
    assert_eq!(rig.take(), [tell(FromWorker::Blocked { attempt: tried(1) })]);
}

#[test]
fn a_graceful_alone_cancel_interrupts_only_that_task_or_call() {
    let mut rig = Rig::new();
    let executor = rig.start(task(1));
    rig.controller_says(ToWorker::CancelAttempt {
        attempt: tried(1),
        mode: CancelMode::GracefulAlone,
    });
    assert_eq!(rig.take(), [Effect::Interrupt { executor, task: task_id(1), alone: true }]);
    let mut rig = Rig::new();
    let executor = rig.host(ActorOptions::default());
    rig.call(method(1), 0);
    rig.trust_caller();
    rig.take();
    rig.caller_says(ToHost::CancelCall { call: task_id(1), mode: CancelMode::GracefulAlone });
    assert_eq!(rig.take(), [Effect::Interrupt { executor, task: task_id(1), alone: true }]);
}

#[test]
fn a_cancel_that_is_ignored_ends_in_a_kill_after_the_grace() {
    let mut rig = Rig::new();
    let executor = rig.start(task(1));
    rig.controller_says(ToWorker::CancelAttempt { attempt: tried(1), mode: CancelMode::Graceful });
    assert_eq!(rig.take(), [Effect::Interrupt { executor, task: task_id(1), alone: false }]);
    rig.pass(4 * SECOND);
    assert_eq!(rig.take(), []);
    rig.pass(SECOND);
    assert_eq!(rig.take(), [Effect::Kill { executor }]);

    rig.ends(executor, 1, Ok(vec![value()])); // Messages of a killed executor are ignored.
    assert_eq!(rig.take(), []);
    rig.dies(executor);
    assert_eq!(rig.take(), [ended(1, AttemptEnd::Cancelled, 5 * SECOND)]);
}

#[test]
fn a_cancel_in_the_backlog_or_before_the_start_needs_no_kill() {
    let mut rig = Rig::new();
    rig.assign(task(1), Some(one_cpu()));
    rig.assign(task(2), None);
    let [Effect::Spawn { executor, .. }] = rig.take()[..] else { panic!("an executor starts") };
    for number in [2, 1] {
        rig.controller_says(ToWorker::CancelAttempt {
            attempt: tried(number),
            mode: CancelMode::Force,
        });
        assert_eq!(rig.take(), [ended(number, AttemptEnd::Cancelled, Duration::ZERO)]);
    }
    rig.happens(Event::ExecutorReady { executor });
    rig.assign(task(3), Some(one_cpu()));
    assert_eq!(rig.take(), [started(task_id(3)), run(executor, task(3))], "it runs another task");
}

#[test]
fn an_attempt_past_its_timeout_is_interrupted_and_fails() {
    let mut rig = Rig::new();
    let executor = rig.start(hurried(1, 2 * SECOND));
    rig.pass(2 * SECOND);
    assert_eq!(rig.take(), [Effect::Interrupt { executor, task: task_id(1), alone: false }]);
    rig.ends(executor, 1, Err(raised()));
    let [Effect::ToController(FromWorker::Ended { end: AttemptEnd::Failed(error), .. })] =
        &rig.take()[..]
    else {
        panic!("it failed")
    };
    assert_eq!((error.kind(), error.may_have_run()), (ErrorKind::Timeout, true));
    assert!(error.message().contains("its timeout of 2s"), "{error}");
}

#[test]
fn the_grace_of_a_cancel_is_not_cut_short_by_the_timeout() {
    let mut rig = Rig::new();
    let executor = rig.start(hurried(1, 10 * SECOND));
    rig.pass(9 * SECOND);
    rig.controller_says(ToWorker::CancelAttempt { attempt: tried(1), mode: CancelMode::Graceful });
    assert_eq!(rig.take(), [Effect::Interrupt { executor, task: task_id(1), alone: false }]);
    rig.pass(SECOND);
    assert_eq!(rig.take(), [], "its timeout is over, but not its grace");
    rig.pass(3 * SECOND);
    assert_eq!(rig.take(), []);
    rig.pass(SECOND);
    assert_eq!(rig.take(), [Effect::Kill { executor }]);
    rig.dies(executor);
    assert_eq!(rig.take(), [ended(1, AttemptEnd::Cancelled, 14 * SECOND)]);
}

#[test]
fn the_timers_of_an_earlier_attempt_do_not_touch_a_later_one() {
    let mut rig = Rig::new();
    let spec = hurried(1, 2 * SECOND);
    let executor = rig.start(spec.clone());
    let interrupt = [Effect::Interrupt { executor, task: task_id(1), alone: false }];
    let start_again = |rig: &mut Rig, attempt| {
        let (spec, values) = (Arc::new(spec.clone()), Vec::new());
        let (shape, grant) = (ShapeId(0), Some(one_cpu()));
        rig.controller_says(ToWorker::Assign { spec, attempt, values, shape, grant });
        let [_, Effect::Run { executor: runs, attempt: runs_as, .. }] = rig.take()[..] else {
            panic!("it starts")
        };
        assert_eq!((runs, runs_as), (executor, attempt));
    };
    rig.pass(SECOND);
    rig.ends(executor, 1, Err(raised()));
    rig.take();

    start_again(&mut rig, Attempt(2)); // At 1.
    rig.pass(SECOND);
    assert_eq!(rig.take(), [], "the first attempt has no timeout any more");
    rig.pass(SECOND);
    assert_eq!(rig.take(), interrupt);
    rig.ends(executor, 1, Err(raised()));
    rig.take();

    start_again(&mut rig, Attempt(3)); // At 3.
    rig.pass(2 * SECOND);
    assert_eq!(rig.take(), interrupt);
    rig.pass(3 * SECOND);
    assert_eq!(rig.take(), [], "the second attempt has no grace any more");
    rig.pass(2 * SECOND);
    assert_eq!(rig.take(), [Effect::Kill { executor }]);
}
