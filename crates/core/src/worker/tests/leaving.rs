//! Workers that drain and leave.

use super::*;

const LEAVES: [Effect; 2] = [Effect::ToController(FromWorker::Leaving), Effect::Drained];

#[test]
fn a_draining_worker_finishes_its_running_task_and_leaves() {
    let mut rig = Rig::new();
    let runs = rig.start(task(1));
    rig.assign(task(2), None);
    let hosts = rig.host(ActorOptions::default());
    rig.controller_says(ToWorker::Drain { grace: 20 * SECOND });
    let backlog = refused(2, Refusal::Draining);
    let kill = |executor| Effect::Kill { executor };
    assert_eq!(rig.take(), [tell(FromWorker::Draining), backlog, kill(hosts)]);
    rig.assign(task(3), Some(one_cpu()));
    assert_eq!(rig.take(), [refused(3, Refusal::Draining)]);

    rig.dies(hosts);
    assert_eq!(
        rig.take(),
        [tell(FromWorker::ActorDestroyed { instance: ACTOR, exit: ActorExitReason::Requested })]
    );
    rig.ends(runs, 1, Ok(vec![value()]));
    let over = ended(1, AttemptEnd::Finished(vec![value()]), Duration::ZERO);
    assert_eq!(rig.take(), [kill(runs), over, tell(FromWorker::Emptied)]);
    rig.controller_says(ToWorker::Leave);
    assert_eq!(rig.take(), LEAVES);
}

#[test]
fn an_emptied_worker_that_is_not_told_to_leave_leaves_after_a_minute() {
    let mut rig = Rig::new();
    rig.controller_says(ToWorker::Leave);
    assert_eq!(rig.take(), [], "the worker does not drain");
    rig.happens(Event::DrainRequested { grace: 20 * SECOND });
    assert_eq!(rig.take(), [tell(FromWorker::Draining), tell(FromWorker::Emptied)]);
    for number in 1..=6 {
        assert_eq!(rig.take(), [], "{number}");
        rig.pass(10 * SECOND);
        rig.happens(Event::PingReceived {
            session: SESSION,
            ping: Ping { number, last_pong: number - 1 },
        });
        rig.effects.retain(|effect| !matches!(effect, Effect::Pong(_)));
    }
    assert_eq!(rig.take(), LEAVES);
    rig.controller_says(ToWorker::Leave);
    assert_eq!(rig.take(), [], "the worker leaves once");
}

#[test]
fn a_task_that_still_runs_after_the_grace_is_killed_and_refused() {
    let mut rig = Rig::new();
    let executor = rig.start(task(1));
    rig.happens(Event::DrainRequested { grace: 20 * SECOND });
    assert_eq!(rig.take(), [tell(FromWorker::Draining)]);
    rig.pass(20 * SECOND);
    let back = refused(1, Refusal::Draining);
    assert_eq!(
        rig.take(),
        [Effect::Kill { executor }],
        "it is given back only when its executor is dead"
    );
    rig.dies(executor);
    assert_eq!(rig.take(), [back, tell(FromWorker::Emptied)]);
    rig.controller_says(ToWorker::Leave);
    assert_eq!(rig.take(), LEAVES);
}

#[test]
fn a_draining_worker_whose_session_ends_does_not_register_again() {
    let mut rig = Rig::new();
    let executor = rig.start(task(1));
    rig.happens(Event::DrainRequested { grace: 20 * SECOND });
    rig.take();
    rig.happens(Event::Fenced { session: SESSION });
    assert_eq!(rig.take(), [Effect::Kill { executor }, Effect::Drained, Effect::Stopped(SESSION)]);
}

#[test]
fn a_worker_finishes_and_stays_when_its_controller_shuts_down() {
    let mut rig = Rig::new();
    let executor = rig.start(task(1));
    rig.controller_says(ToWorker::WindUp { grace: 20 * SECOND });
    assert_eq!(rig.take(), [tell(FromWorker::Draining)]);
    rig.ends(executor, 1, Ok(vec![value()]));
    let over = ended(1, AttemptEnd::Finished(vec![value()]), Duration::ZERO);
    assert_eq!(rig.take(), [Effect::Kill { executor }, over, tell(FromWorker::Emptied)]);
    rig.controller_says(ToWorker::Leave);
    assert_eq!(rig.take(), [tell(FromWorker::Leaving)]);
    rig.happens(Event::ExecutorDied { executor, error: crashed() });
    rig.happens(Event::Fenced { session: SESSION });
    assert_eq!(rig.take(), [Effect::Stopped(SESSION)]);
    assert!(!rig.worker.is_draining());
}

#[test]
fn a_worker_stays_if_its_controller_shuts_down_before_it_has_finished() {
    let mut rig = Rig::new();
    let executor = rig.start(task(1));
    rig.controller_says(ToWorker::WindUp { grace: 20 * SECOND });
    rig.take();
    rig.happens(Event::Fenced { session: SESSION });
    assert_eq!(rig.take(), [Effect::Kill { executor }, Effect::Stopped(SESSION)]);
}

#[test]
fn a_worker_that_is_drained_while_its_controller_shuts_down_leaves() {
    let grace = 20 * SECOND;
    let asked = [Event::DrainRequested { grace }, say(ToWorker::Drain { grace })];
    for asked in asked {
        for after in [false, true] {
            let mut rig = Rig::new();
            let executor = rig.start(task(1));
            rig.controller_says(ToWorker::WindUp { grace });
            if after {
                rig.ends(executor, 1, Ok(vec![value()]));
                rig.controller_says(ToWorker::Leave);
            }
            rig.take();
            rig.happens(asked.clone());
            if !after {
                rig.ends(executor, 1, Ok(vec![value()]));
                rig.controller_says(ToWorker::Leave);
            }
            assert_eq!(rig.take().last(), Some(&Effect::Drained), "{after}");
            rig.controller_says(ToWorker::WindUp { grace });
            assert_eq!(rig.take(), []);
        }
    }
}

#[test]
fn a_call_that_still_runs_after_the_grace_of_its_worker_is_lost() {
    let mut rig = Rig::new();
    let executor = rig.host(ActorOptions::default());
    rig.call(method(1), 0);
    rig.trust_caller();
    rig.controller_says(ToWorker::Drain { grace: SECOND });
    rig.pass(SECOND);
    rig.take();
    rig.dies(executor);
    let effects = rig.take();
    let Effect::ToCaller { message: FromHost::CallLost { error, .. }, .. } = &effects[0] else {
        panic!("it is answered: {effects:?}")
    };
    assert_eq!((error.kind(), error.may_have_run()), (ErrorKind::Unavailable, true));
    assert!(error.message().contains("its worker leaves"), "{error}");
}

#[test]
fn a_running_task_with_max_retries_0_is_lost_when_the_grace_of_a_drain_is_over() {
    let mut rig = Rig::new();
    let once = TaskOptions { max_retries: Budget::Times(0), ..TaskOptions::default() };
    let executor = rig.start(TaskSpec { options: Arc::new(once), ..task(1) });
    rig.happens(Event::DrainRequested { grace: 20 * SECOND });
    rig.pass(20 * SECOND);
    rig.take();
    rig.dies(executor);
    let effects = rig.take();
    let [Effect::ToController(FromWorker::Ended { end: AttemptEnd::Lost(error), .. }), emptied] =
        &effects[..]
    else {
        panic!("the task is lost: {effects:?}")
    };
    assert!(error.may_have_run() && error.message().contains("max_retries=0"), "{error}");
    assert_eq!(*emptied, tell(FromWorker::Emptied));
}
