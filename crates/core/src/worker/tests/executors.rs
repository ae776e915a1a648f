//! Executors: reuse, spares, deaths.

use super::*;
use crate::message::SystemLimit;

#[test]
fn an_executor_is_used_again_for_the_next_task() {
    let mut rig = Rig::new();
    let executor = rig.start(task(1));
    rig.pass(SECOND);
    rig.ends(executor, 1, Ok(vec![value()]));
    assert_eq!(rig.take(), [ended(1, AttemptEnd::Finished(vec![value()]), SECOND)]);
    rig.assign(task(2), Some(one_cpu()));
    assert_eq!(rig.take(), [started(task_id(2)), run(executor, task(2))]);
}

#[test]
fn the_executor_that_was_idle_longest_is_killed_when_too_many_are_idle() {
    let mut rig =
        Rig::with(Config { spare_executors: 0, max_idle_executors: 2, ..Config::default() });
    let in_runtime = |number: u128, runtime: &str| {
        let target = Target::Function(format!("{runtime}:f").into());
        TaskSpec { target, ..task(number) }
    };
    let runtimes = ["python", "python/1", "python/2"];
    let executors: Vec<ExecutorId> = (1..)
        .zip(runtimes)
        .map(|(number, runtime)| rig.start(in_runtime(number, runtime)))
        .collect();
    for (number, executor) in (1..).zip(&executors) {
        rig.ends(*executor, number, Ok(vec![value()]));
    }
    let killed = rig.take().into_iter().filter(|effect| matches!(effect, Effect::Kill { .. }));
    let killed: Vec<Effect> = killed.collect();
    assert_eq!(killed, [Effect::Kill { executor: executors[0] }]);
    for (number, (runtime, executor)) in (4..).zip(runtimes.iter().zip(&executors).skip(1)) {
        rig.assign(in_runtime(number, runtime), Some(one_cpu()));
        let again = run(*executor, in_runtime(number, runtime));
        assert_eq!(rig.take(), [started(task_id(number)), again]);
    }
}

#[test]
fn the_executor_for_the_next_actor_is_started_ahead() {
    let mut rig = Rig::with(Config::default());
    let make = |rig: &mut Rig, number: u128| {
        let spec = Arc::new(ActorSpec {
            id: ActorId::from_u128(number),
            ..actor(ActorOptions::default())
        });
        let (epoch, values, grant) = (ActorEpoch(1), Vec::new(), Grant::default());
        let checkpoints = Vec::new();
        rig.controller_says(ToWorker::Instantiate { spec, epoch, values, grant, checkpoints });
        rig.take()
    };
    let [Effect::Spawn { executor: first, .. }, Effect::Spawn { executor: spare, .. }] =
        make(&mut rig, 1)[..]
    else {
        panic!("one for the actor, one spare")
    };
    // The next actor takes the spare before it is ready, and another spare starts.
    let [Effect::Spawn { executor: other, .. }] = make(&mut rig, 2)[..] else {
        panic!("one more spare")
    };
    rig.happens(Event::ExecutorReady { executor: spare });
    assert!(matches!(rig.take()[..], [Effect::Construct { executor, .. }] if executor == spare));
    rig.happens(Event::ExecutorReady { executor: first });
    rig.take();
    rig.happens(Event::ExecutorReady { executor: other });
    assert_eq!(rig.take(), [], "the executor is idle");
    let effects = make(&mut rig, 3);
    let [Effect::Construct { executor, .. }, Effect::Spawn { .. }] = effects[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(executor, other, "the idle executor is ready at once");
}

#[test]
fn an_executor_is_killed_after_it_has_run_one_command() {
    let mut rig = Rig::new();
    let command = TaskSpec { target: Target::Function("command:make".into()), ..task(1) };
    let executor = rig.start(command);
    rig.ends(executor, 1, Ok(vec![value()]));
    let over = ended(1, AttemptEnd::Finished(vec![value()]), Duration::ZERO);
    assert_eq!(rig.take(), [Effect::Kill { executor }, over]);
}

#[test]
fn an_executor_that_was_given_gpus_is_not_used_again() {
    let mut rig = Rig::new();
    let executor = rig.start(task(1));
    rig.ends(executor, 1, Ok(vec![value()]));
    rig.take();
    let grant = Grant { gpus: vec![1], ..one_cpu() };
    rig.assign(task(2), Some(grant));
    rig.take();
    rig.ends(executor, 2, Ok(vec![value()]));
    let over = ended(2, AttemptEnd::Finished(vec![value()]), Duration::ZERO);
    assert_eq!(rig.take(), [Effect::Kill { executor }, over]);
}

#[test]
fn a_dead_executor_loses_its_attempt_and_an_unstartable_one_refuses_it() {
    let mut rig = Rig::new();
    let executor = rig.start(task(1));
    rig.dies(executor);
    assert_eq!(rig.take(), [ended(1, AttemptEnd::Lost(crashed()), Duration::ZERO)]);

    rig.assign(task(2), Some(one_cpu()));
    let [Effect::Spawn { executor, .. }] = rig.take()[..] else { panic!("an executor starts") };
    rig.happens(Event::ExecutorRefused { executor, lack: None });
    assert_eq!(rig.take(), [refused(2, Refusal::Full)]);

    rig.assign(task(3), Some(one_cpu()));
    let [Effect::Spawn { executor, .. }] = rig.take()[..] else { panic!("an executor starts") };
    rig.happens(Event::ExecutorRefused { executor, lack: Some(SystemLimit::Descriptors) });
    assert_eq!(rig.take(), [refused(3, Refusal::SystemLimit(SystemLimit::Descriptors))]);
}

#[test]
fn prestarted_executors_start_when_the_worker_joins() {
    let config = Config { prestarted: Some(("python".into(), 2)), ..Config::default() };
    let mut worker = Worker::new(config);
    let joined =
        Event::Joined { session: SESSION, terms: LeaseTerms::default(), asked_at: Time::ZERO };
    let mut effects = Vec::new();
    worker.handle(Time::ZERO, joined, &mut effects);
    worker.check_invariants();
    let spawn = |id| Effect::Spawn { executor: ExecutorId(id), runtime: "python".into() };
    assert_eq!(effects, [tell(FromWorker::Joined), spawn(0), spawn(1)]);
}

#[test]
fn a_memory_shortage_kills_one_executor_and_the_error_says_why() {
    let mut rig = Rig::new();
    let (first, second) = (rig.start(task(1)), rig.start(task(2)));
    let taken = vec![(first, 60 << 20), (second, 50 << 20)];
    let short = Event::MemoryShort { used: 120 << 20, limit: 125 << 20, taken };
    rig.happens(short.clone());
    assert_eq!(rig.take(), [Effect::Kill { executor: second }], "the newest of the same function");
    rig.happens(short);
    assert_eq!(rig.take(), [], "one executor is dying, which may be enough");
    rig.dies(second);
    let effects = rig.take();
    let Effect::ToController(FromWorker::Ended { end: AttemptEnd::Lost(error), .. }) = &effects[0]
    else {
        panic!("the attempt is lost: {effects:?}")
    };
    assert_eq!((error.kind(), error.may_have_run()), (ErrorKind::Exhausted, true));
    for words in ["120 MiB of 125 MiB", "50 MiB"] {
        assert!(error.message().contains(words), "{error}");
    }
}
