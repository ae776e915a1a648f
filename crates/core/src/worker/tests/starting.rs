//! Executors that fail to start.

use super::*;

impl Rig {
    /// Lets the controller ping the worker, so that its lease goes on.
    fn keep_lease(&mut self) {
        for (number, heard) in [(1, 0), (2, 1)] {
            let ping = Ping { number, last_pong: heard };
            self.happens(Event::PingReceived { session: SESSION, ping });
        }
        assert!(self.take().iter().all(|effect| matches!(effect, Effect::Pong(_))));
    }

    /// Assigns a task whose executor dies before it is ready. Returns the effects of that death.
    fn fails_to_start(&mut self, number: u128) -> Vec<Effect> {
        self.assign(task(number), Some(one_cpu()));
        let [Effect::Spawn { executor, .. }] = self.take()[..] else {
            panic!("an executor starts")
        };
        self.dies(executor);
        self.take()
    }
}

fn refused(number: u128) -> Effect {
    let attempt = AttemptId { task: task_id(number), attempt: Attempt(1) };
    tell(FromWorker::Refused { attempt, reason: Refusal::NotStarted })
}

fn unable() -> Effect {
    tell(FromWorker::Unable { runtime: "".into(), error: crashed() })
}

#[test]
fn failed_starts_refuse_their_tasks_and_three_make_the_worker_unable() {
    let mut rig = Rig::new();
    assert_eq!(rig.fails_to_start(1), [refused(1)]);
    assert_eq!(rig.fails_to_start(2), [refused(2)]);
    assert_eq!(rig.fails_to_start(3), [refused(3), unable()]);
    assert_eq!(
        rig.fails_to_start(4),
        [refused(4)],
        "it was on its way, and the worker has reported `Unable` before"
    );

    // The worker tries by itself, with pauses that double, and reports when one has started.
    for pause in [5, 10] {
        rig.pass(pause * SECOND - Duration::from_millis(1));
        assert_eq!(rig.take(), []);
        rig.pass(Duration::from_millis(1));
        let [Effect::Spawn { executor, .. }] = rig.take()[..] else { panic!("it tries") };
        rig.dies(executor);
        assert_eq!(rig.take(), [], "the controller knows already");
    }
    rig.keep_lease();
    rig.pass(20 * SECOND);
    let [Effect::Spawn { executor, .. }] = rig.take()[..] else { panic!("it tries") };
    rig.happens(Event::ExecutorReady { executor });
    assert_eq!(rig.take(), [tell(FromWorker::Able { runtime: "".into() })]);
    rig.assign(task(9), Some(one_cpu()));
    assert_eq!(rig.take(), [started(task_id(9)), run(executor, task(9))]);
}

#[test]
fn failed_starts_that_are_not_in_a_row_do_not_make_a_worker_unable() {
    let mut rig = Rig::new();
    for number in [1, 11, 21, 31] {
        assert_eq!(rig.fails_to_start(number), [refused(number)]);
        assert_eq!(rig.fails_to_start(number + 1), [refused(number + 1)]);
        let executor = rig.start(task(number + 2));
        rig.dies(executor);
        let lost = rig.take();
        assert!(matches!(
            &lost[..],
            [Effect::ToController(FromWorker::Ended { end: AttemptEnd::Lost(_), .. })]
        ));
    }
}

#[test]
fn an_actor_whose_executor_fails_to_start_is_refused() {
    let mut rig = Rig::new();
    let spec = Arc::new(actor(ActorOptions::default()));
    let (epoch, values, grant) = (ACTOR.epoch, Vec::new(), Grant::default());
    let checkpoints = Vec::new();
    rig.controller_says(ToWorker::Instantiate { spec, epoch, values, grant, checkpoints });
    let [Effect::Spawn { executor, .. }] = rig.take()[..] else { panic!("an executor starts") };
    rig.dies(executor);
    let reason = Refusal::NotStarted;
    assert_eq!(rig.take(), [tell(FromWorker::ActorRefused { instance: ACTOR, reason })]);
}

#[test]
fn the_first_of_too_many_unable_runtimes_is_reported_able_again() {
    let mut rig = Rig::new();
    let (mut unable, mut forgotten) = (0, 0);
    for number in 0..1_001 {
        for _ in 0..3 {
            let target = Target::Function(format!("python/{number}:f").into());
            rig.assign(TaskSpec { target, ..task(number + 1) }, Some(one_cpu()));
            let [Effect::Spawn { executor, .. }] = rig.take()[..] else { panic!("it starts") };
            rig.dies(executor);
            let effects = rig.take();
            let is_unable = |effect: &&Effect| {
                matches!(effect, Effect::ToController(FromWorker::Unable { .. }))
            };
            unable += effects.iter().filter(is_unable).count();
            let able = tell(FromWorker::Able { runtime: "python/0".into() });
            let first_is_forgotten = number == 1_000 && effects.contains(&able);
            forgotten += usize::from(first_is_forgotten);
        }
    }
    assert_eq!(forgotten, 1);
    assert_eq!(unable, 1_001);
}

#[test]
fn a_start_that_the_system_refuses_is_tried_again() {
    let mut rig = Rig::new();
    for number in [1, 2, 3] {
        rig.fails_to_start(number);
    }
    for pause in [5, 10] {
        rig.pass(pause * SECOND);
        let [Effect::Spawn { executor, .. }] = rig.take()[..] else { panic!("it tries") };
        rig.happens(Event::ExecutorRefused { executor, lack: None });
        assert_eq!(rig.take(), []);
    }
}

#[test]
fn a_worker_that_has_executors_of_a_runtime_is_not_unable_to_run_it() {
    let mut rig = Rig::new();
    let executor = rig.start(task(1));
    for number in [2, 3, 4, 5] {
        let attempt = AttemptId { task: task_id(number), attempt: Attempt(1) };
        let full = tell(FromWorker::Refused { attempt, reason: Refusal::Full });
        assert_eq!(rig.fails_to_start(number), [full]);
    }
    rig.dies(executor);
    rig.take();
    assert_eq!(rig.fails_to_start(6), [refused(6)], "now none is left");
}

#[test]
fn a_runtime_that_was_reported_unable_is_forgotten_last() {
    let mut rig = Rig::new();
    for number in 0..1_001 {
        for _ in 0..if number == 0 { 3 } else { 1 } {
            let target = Target::Function(format!("python/{number}:f").into());
            rig.assign(TaskSpec { target, ..task(number + 1) }, Some(one_cpu()));
            let [Effect::Spawn { executor, .. }] = rig.take()[..] else { panic!("it starts") };
            rig.dies(executor);
            let able = tell(FromWorker::Able { runtime: "python/0".into() });
            assert!(!rig.take().contains(&able), "an unable runtime is forgotten last: {number}");
        }
    }
}

#[test]
fn no_second_try_begins_while_an_executor_is_still_starting() {
    let mut rig = Rig::new();
    for number in [1, 2, 3] {
        rig.fails_to_start(number);
    }
    rig.pass(5 * SECOND);
    let [Effect::Spawn { executor, .. }] = rig.take()[..] else { panic!("it tries") };
    rig.pass(10 * SECOND);
    assert_eq!(rig.take(), [], "an executor is starting already");
    rig.dies(executor);
    rig.keep_lease();
    rig.pass(20 * SECOND);
    assert!(matches!(rig.take()[..], [Effect::Spawn { .. }]), "the worker tries once more");
}

#[test]
fn pauses_between_tries_are_limited_and_a_draining_worker_stops_trying() {
    let mut rig = Rig::new();
    for number in [1, 2, 3] {
        rig.fails_to_start(number);
    }
    let mut pings = 0;
    let mut seconds = |rig: &mut Rig, count| {
        let mut tries = 0;
        for _ in 0..count {
            pings += 1;
            let ping = Ping { number: pings, last_pong: pings - 1 };
            rig.happens(Event::PingReceived { session: SESSION, ping });
            rig.pass(SECOND);
            for effect in rig.take() {
                if let Effect::Spawn { executor, .. } = effect {
                    tries += 1;
                    rig.dies(executor);
                }
            }
        }
        tries
    };
    assert_eq!(seconds(&mut rig, 5 + 10 + 20 + 40 + 80 + 160 + 300 + 300), 8);
    rig.controller_says(ToWorker::Drain { grace: SECOND });
    assert_eq!(seconds(&mut rig, 301), 0);
}
