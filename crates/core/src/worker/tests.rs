//! Stories of a worker: what happens to it, and what it then asks for.

use super::*;
use crate::account::Grant;
use crate::error::{Error, ErrorKind, Failure, Ran};
use crate::id::{ActorEpoch, Attempt, ObjectId, SessionEpoch, SessionId, Thing};
use crate::lease::Terms;
use crate::message::{End, FromHost, FromWorker, Instance, Leave, Manner, Refusal};
use crate::message::{ToHost, ToWorker};
use crate::payload::{Payload, Value};
use crate::resources::Resources;
use crate::spec::{
    ActorOptions, ActorSpec, Checkpoints, SAVE_METHOD, Target, TaskOptions, TaskSpec,
};
use std::sync::Arc;

const SECOND: Duration = Duration::from_secs(1);
const SESSION: Session = session(1);
const CALLER: Session = session(2);
const ACTOR: Instance = Instance { actor: ActorId::from_u128(7), epoch: ActorEpoch(1) };

/// A worker that joined at time 0, the time, and what it asked for that no test has looked at yet.
struct Rig {
    worker: Worker,
    now: Time,
    effects: Vec<Effect>,
}

impl Rig {
    fn new() -> Rig {
        // Most stories are shorter without executors that start ahead.
        Rig::with(Config { spare_executors: 0, ..Config::default() })
    }

    fn with(config: Config) -> Rig {
        let (now, effects) = (Time::ZERO, Vec::new());
        let mut rig = Rig { worker: Worker::new(config), now, effects };
        rig.happens(Event::Joined { session: SESSION, terms: Terms::default(), asked_at: now });
        assert_eq!(rig.take(), [tell(FromWorker::Joined)]);
        rig
    }

    /// Something happens; the worker's state must add up after it.
    fn happens(&mut self, event: Event) {
        self.worker.handle(self.now, event, &mut self.effects);
        self.worker.check_invariants();
    }

    fn controller_says(&mut self, message: ToWorker) {
        self.happens(Event::ControllerSaid { session: SESSION, message });
    }

    fn caller_says(&mut self, message: ToHost) {
        self.happens(Event::CallerSaid { session: CALLER, message });
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        self.happens(Event::TimePassed);
    }

    /// What was asked for since the last look.
    fn take(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    fn assign(&mut self, spec: TaskSpec, grant: Option<Grant>) {
        let (spec, attempt, shape) = (Arc::new(spec), Attempt(1), ShapeId(0));
        self.controller_says(ToWorker::Assign { spec, attempt, values: Vec::new(), shape, grant });
    }

    /// A task is assigned with a grant and starts in a new executor, which is this one.
    fn start(&mut self, spec: TaskSpec) -> ExecutorId {
        let id = spec.id;
        self.assign(spec.clone(), Some(one_cpu()));
        let [Effect::Spawn { executor, .. }] = self.take()[..] else {
            panic!("an executor starts")
        };
        self.happens(Event::ExecutorReady { executor });
        assert_eq!(self.take(), [started(id), run(executor, spec)]);
        executor
    }

    /// [`ACTOR`] is made in a new executor, which is this one.
    fn host(&mut self, options: ActorOptions) -> ExecutorId {
        let spec = Arc::new(actor(options));
        let (epoch, values, grant) = (ACTOR.epoch, Vec::new(), Grant::default());
        let checkpoints = Vec::new();
        self.controller_says(ToWorker::Instantiate { spec, epoch, values, grant, checkpoints });
        let [Effect::Spawn { executor, .. }] = self.take()[..] else {
            panic!("an executor starts")
        };
        self.happens(Event::ExecutorReady { executor });
        let [Effect::Construct { .. }] = self.take()[..] else { panic!("the constructor runs") };
        self.happens(Event::Constructed { executor, result: Ok(()) });
        assert_eq!(self.take(), [tell(FromWorker::ActorReady { instance: ACTOR })]);
        executor
    }

    /// [`CALLER`] calls [`ACTOR`], as its call of this number.
    fn call(&mut self, spec: TaskSpec, number: u64) {
        let (spec, attempt, epoch) = (Arc::new(spec), Attempt(1), ACTOR.epoch);
        self.caller_says(ToHost::Call { spec, attempt, epoch, number, values: Vec::new() });
    }

    /// The controller's word that [`CALLER`] lives, asked for at its first call.
    fn trust_caller(&mut self) {
        assert_eq!(self.take(), [tell(FromWorker::Watch { session: CALLER })]);
        self.controller_says(ToWorker::Watched { session: CALLER, alive: true });
    }

    fn ends(&mut self, executor: ExecutorId, task: u128, outcome: Result<Vec<Value>, Error>) {
        let end = CallEnd { outcome, kept: Vec::new() };
        self.happens(Event::RunEnded { executor, task: task_id(task), end });
    }

    fn call_ends(&mut self, executor: ExecutorId, call: u128, value: Value) {
        let end = CallEnd { outcome: Ok(vec![value]), kept: Vec::new() };
        self.happens(Event::CallFinished { executor, call: task_id(call), end });
    }

    fn dies(&mut self, executor: ExecutorId) {
        self.happens(Event::ExecutorDied { executor, error: crashed() });
    }
}

const fn session(number: u128) -> Session {
    Session { id: SessionId::from_u128(number), epoch: SessionEpoch(1) }
}

fn say(message: ToWorker) -> Event {
    Event::ControllerSaid { session: SESSION, message }
}

fn task_id(number: u128) -> TaskId {
    TaskId::from_u128(number)
}

fn tried(number: u128) -> Try {
    Try { task: task_id(number), attempt: Attempt(1) }
}

fn one_cpu() -> Grant {
    Grant { resources: Resources::one_cpu(), gpus: Vec::new() }
}

fn value() -> Value {
    Payload::raw("done").into()
}

fn task(number: u128) -> TaskSpec {
    TaskSpec {
        id: task_id(number),
        target: Target::Function("add".into()),
        args: Payload::default(),
        needs: Vec::new(),
        holds: Vec::new(),
        returns: 1,
        options: Arc::default(),
    }
}

fn hurried(number: u128, timeout: Duration) -> TaskSpec {
    let options = TaskOptions { timeout: Some(timeout), ..TaskOptions::default() };
    TaskSpec { options: Arc::new(options), ..task(number) }
}

fn method(number: u128) -> TaskSpec {
    TaskSpec { target: Target::Method { actor: ACTOR.actor, method: "get".into() }, ..task(number) }
}

fn actor(options: ActorOptions) -> ActorSpec {
    ActorSpec {
        id: ACTOR.actor,
        class: "Counter".into(),
        args: Payload::default(),
        needs: Vec::new(),
        holds: Vec::new(),
        name: None,
        namespace: "".into(),
        options: Arc::new(options),
    }
}

fn raised() -> Error {
    Error::failed("it was not meant to be", Failure::default())
}

fn crashed() -> Error {
    Error::unavailable(Ran::Maybe, "its executor died: killed by signal 9")
}

// Effects, as tests expect them.

fn tell(message: FromWorker) -> Effect {
    Effect::ToController(message)
}

fn started(task: TaskId) -> Effect {
    tell(FromWorker::Started { attempt: Try { task, attempt: Attempt(1) } })
}

fn ended(task: u128, end: End, ran_for: Duration) -> Effect {
    let (attempt, kept, next) = (tried(task), Vec::new(), None);
    tell(FromWorker::Ended { attempt, end, kept, ran_for, next })
}

fn refused(task: u128, reason: Refusal) -> Effect {
    tell(FromWorker::Refused { attempt: tried(task), reason })
}

fn run(executor: ExecutorId, spec: TaskSpec) -> Effect {
    let (spec, attempt, values, grant) = (Arc::new(spec), Attempt(1), Vec::new(), one_cpu());
    Effect::Run { executor, spec, attempt, values, grant }
}

fn calls(executor: ExecutorId, spec: TaskSpec) -> Effect {
    let (spec, attempt, values) = (Arc::new(spec), Attempt(1), Vec::new());
    Effect::Call { executor, spec, attempt, values }
}

fn answer(message: FromHost) -> Effect {
    Effect::ToCaller { to: CALLER, message }
}

fn answered(call: u128, value: Value) -> Effect {
    answer(FromHost::CallEnded { attempt: tried(call), outcome: Ok(vec![value]) })
}

// The session.

#[test]
fn a_lease_that_is_over_kills_every_executor_and_forgets_everything() {
    let mut rig = Rig::new();
    let runs = rig.start(task(1));
    rig.assign(task(2), None);
    let hosts = rig.host(ActorOptions::default());
    rig.call(method(3), 0);
    rig.trust_caller();
    rig.take();

    // Thirty seconds, less a tenth, from when the session was asked for.
    rig.pass(27 * SECOND);
    let kills = [runs, hosts].map(|executor| Effect::Kill { executor });
    let rest = [Effect::FenceCaller(CALLER), Effect::Stopped(SESSION)];
    assert_eq!(rig.take(), kills.into_iter().chain(rest).collect::<Vec<_>>());
    assert_eq!((rig.worker.session(), rig.worker.load()), (None, (0, 0)));

    rig.ends(runs, 1, Ok(vec![value()])); // Its last words, and an order that was under way.
    rig.assign(task(4), Some(one_cpu()));
    assert_eq!(rig.take(), []);
}

// Tasks.

#[test]
fn an_executor_is_used_again_for_the_next_task() {
    let mut rig = Rig::new();
    let executor = rig.start(task(1));
    rig.pass(SECOND);
    rig.ends(executor, 1, Ok(vec![value()]));
    assert_eq!(rig.take(), [ended(1, End::Finished(vec![value()]), SECOND)]);
    rig.assign(task(2), Some(one_cpu()));
    assert_eq!(rig.take(), [started(task_id(2)), run(executor, task(2))]);
}

#[test]
fn of_too_many_idle_executors_the_one_goes_that_was_idle_for_longest() {
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
        panic!("one for it, one for the next")
    };
    // The next takes it before it is up, and has another started.
    let [Effect::Spawn { executor: other, .. }] = make(&mut rig, 2)[..] else {
        panic!("one for the one after it")
    };
    rig.happens(Event::ExecutorReady { executor: spare });
    assert!(matches!(rig.take()[..], [Effect::Construct { executor, .. }] if executor == spare));
    rig.happens(Event::ExecutorReady { executor: first });
    rig.take();
    rig.happens(Event::ExecutorReady { executor: other });
    assert_eq!(rig.take(), [], "it is idle");
    let effects = make(&mut rig, 3);
    let [Effect::Construct { executor, .. }, Effect::Spawn { .. }] = effects[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(executor, other, "it is there at once");
}

#[test]
fn an_executor_runs_one_command_and_goes_with_what_it_left_behind() {
    let mut rig = Rig::new();
    let command = TaskSpec { target: Target::Function("command:make".into()), ..task(1) };
    let executor = rig.start(command);
    rig.ends(executor, 1, Ok(vec![value()]));
    let over = ended(1, End::Finished(vec![value()]), Duration::ZERO);
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
    let over = ended(2, End::Finished(vec![value()]), Duration::ZERO);
    assert_eq!(rig.take(), [Effect::Kill { executor }, over]);
}

#[test]
fn the_backlog_takes_over_the_grant() {
    let mut rig = Rig::new();
    let executor = rig.start(task(1));
    rig.assign(task(2), None);
    rig.assign(task(3), None);
    assert_eq!(rig.take(), [], "both wait");

    rig.ends(executor, 1, Err(raised()));
    let (attempt, end, kept) = (tried(1), End::Failed(raised()), Vec::new());
    let (ran_for, next) = (Duration::ZERO, Some(tried(2)));
    let over = tell(FromWorker::Ended { attempt, end, kept, ran_for, next });
    assert_eq!(rig.take(), [over, started(task_id(2)), run(executor, task(2))]);

    // What has not started can be taken back; what has, cannot.
    rig.controller_says(ToWorker::TakeBack(tried(2)));
    rig.controller_says(ToWorker::TakeBack(tried(3)));
    assert_eq!(rig.take(), [refused(3, Refusal::TakenBack)]);
}

#[test]
fn the_backlog_goes_back_when_nobody_can_leave_it_a_grant() {
    let mut rig = Rig::new();
    let executor = rig.start(task(1));
    rig.assign(task(2), None);
    rig.happens(Event::Blocked { executor });
    let blocked = tell(FromWorker::Blocked { attempt: tried(1) });
    assert_eq!(rig.take(), [blocked, refused(2, Refusal::TakenBack)]);

    rig.assign(task(3), None); // It was under way; the one it was to follow waits itself.
    assert_eq!(rig.take(), [refused(3, Refusal::TakenBack)]);
    rig.happens(Event::Resumed { executor });
    rig.assign(task(4), None);
    assert_eq!(rig.take(), [tell(FromWorker::Resumed { attempt: tried(1) })]);
}

#[test]
fn too_many_may_not_wait_for_others_at_a_time() {
    let mut rig = Rig::with(Config { max_blocked_executors: 1, ..Config::default() });
    let (first, second) = (rig.start(task(1)), rig.start(task(2)));
    rig.happens(Event::Blocked { executor: first });
    assert_eq!(rig.take(), [tell(FromWorker::Blocked { attempt: tried(1) })]);
    rig.happens(Event::Blocked { executor: second });
    let refuse = Effect::RefuseBlock { executor: second, task: task_id(2), limit: 1 };
    assert_eq!(rig.take(), [refuse]);
    rig.happens(Event::Resumed { executor: second }); // Its wait has failed; it was never counted.
    assert_eq!(rig.take(), []);

    // There is room again when one goes on, and when one ends that waits.
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
fn what_is_cancelled_alone_is_asked_so() {
    let mut rig = Rig::new();
    let executor = rig.start(task(1));
    rig.controller_says(ToWorker::CancelAttempt { attempt: tried(1), how: Manner::AskAlone });
    assert_eq!(rig.take(), [Effect::Interrupt { executor, task: task_id(1), alone: true }]);
    let mut rig = Rig::new();
    let executor = rig.host(ActorOptions::default());
    rig.call(method(1), 0);
    rig.trust_caller();
    rig.take();
    rig.caller_says(ToHost::CancelCall { call: task_id(1), how: Manner::AskAlone });
    assert_eq!(rig.take(), [Effect::Interrupt { executor, task: task_id(1), alone: true }]);
}

#[test]
fn a_cancel_that_is_ignored_ends_in_a_kill_after_the_grace() {
    let mut rig = Rig::new();
    let executor = rig.start(task(1));
    rig.controller_says(ToWorker::CancelAttempt { attempt: tried(1), how: Manner::Ask });
    assert_eq!(rig.take(), [Effect::Interrupt { executor, task: task_id(1), alone: false }]);
    rig.pass(4 * SECOND);
    assert_eq!(rig.take(), []);
    rig.pass(SECOND);
    assert_eq!(rig.take(), [Effect::Kill { executor }]);

    rig.ends(executor, 1, Ok(vec![value()])); // Who was told to die is not heard.
    assert_eq!(rig.take(), []);
    rig.dies(executor);
    assert_eq!(rig.take(), [ended(1, End::Cancelled, 5 * SECOND)]);
}

#[test]
fn a_cancel_in_the_backlog_or_before_the_start_needs_no_kill() {
    let mut rig = Rig::new();
    rig.assign(task(1), Some(one_cpu()));
    rig.assign(task(2), None);
    let [Effect::Spawn { executor, .. }] = rig.take()[..] else { panic!("an executor starts") };
    for number in [2, 1] {
        rig.controller_says(ToWorker::CancelAttempt { attempt: tried(number), how: Manner::Force });
        assert_eq!(rig.take(), [ended(number, End::Cancelled, Duration::ZERO)]);
    }
    rig.happens(Event::ExecutorReady { executor });
    rig.assign(task(3), Some(one_cpu()));
    assert_eq!(rig.take(), [started(task_id(3)), run(executor, task(3))], "it has another use");
}

#[test]
fn an_attempt_past_its_timeout_is_interrupted_and_fails() {
    let mut rig = Rig::new();
    let executor = rig.start(hurried(1, 2 * SECOND));
    rig.pass(2 * SECOND);
    assert_eq!(rig.take(), [Effect::Interrupt { executor, task: task_id(1), alone: false }]);
    rig.ends(executor, 1, Err(raised()));
    let [Effect::ToController(FromWorker::Ended { end: End::Failed(error), .. })] = &rig.take()[..]
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
    rig.controller_says(ToWorker::CancelAttempt { attempt: tried(1), how: Manner::Ask });
    assert_eq!(rig.take(), [Effect::Interrupt { executor, task: task_id(1), alone: false }]);
    rig.pass(SECOND);
    assert_eq!(rig.take(), [], "its timeout is over, its grace is not");
    rig.pass(3 * SECOND);
    assert_eq!(rig.take(), []);
    rig.pass(SECOND);
    assert_eq!(rig.take(), [Effect::Kill { executor }]);
    rig.dies(executor);
    assert_eq!(rig.take(), [ended(1, End::Cancelled, 14 * SECOND)]);
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
    assert_eq!(rig.take(), [], "the first would be late now");
    rig.pass(SECOND);
    assert_eq!(rig.take(), interrupt);
    rig.ends(executor, 1, Err(raised()));
    rig.take();

    start_again(&mut rig, Attempt(3)); // At 3.
    rig.pass(2 * SECOND);
    assert_eq!(rig.take(), interrupt);
    rig.pass(3 * SECOND);
    assert_eq!(rig.take(), [], "the second would be killed now");
    rig.pass(2 * SECOND);
    assert_eq!(rig.take(), [Effect::Kill { executor }]);
}

#[test]
fn a_dead_executor_is_a_lost_attempt_and_one_that_cannot_start_a_refused_one() {
    let mut rig = Rig::new();
    let executor = rig.start(task(1));
    rig.dies(executor);
    assert_eq!(rig.take(), [ended(1, End::Lost(crashed()), Duration::ZERO)]);

    rig.assign(task(2), Some(one_cpu()));
    let [Effect::Spawn { executor, .. }] = rig.take()[..] else { panic!("an executor starts") };
    rig.happens(Event::ExecutorRefused { executor });
    assert_eq!(rig.take(), [refused(2, Refusal::Full)]);
}

// Actors and callers.

#[test]
fn calls_reach_an_actor_one_at_a_time_and_in_order() {
    let mut rig = Rig::new();
    let executor = rig.host(ActorOptions { max_concurrency: 2, ..ActorOptions::default() });
    rig.call(method(13), 0);
    rig.trust_caller();
    rig.call(method(12), 1);
    rig.call(method(11), 2);
    assert_eq!(rig.take(), [calls(executor, method(13)), calls(executor, method(12))]);
    rig.call_ends(executor, 12, value());
    assert_eq!(rig.take(), [answered(12, value()), calls(executor, method(11))]);

    // Calls that went direct are reported to the controller in batches.
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
fn an_executor_has_the_next_calls_before_it_needs_them_and_no_more() {
    let mut rig = Rig::new();
    let executor = rig.host(ActorOptions::default());
    rig.call(method(0), 0);
    rig.trust_caller();
    for number in 1..=18 {
        rig.call(method(number.into()), number);
    }
    let given: Vec<Effect> = (0..=16).map(|number| calls(executor, method(number))).collect();
    assert_eq!(rig.take(), given, "one runs, 16 are ahead, two wait");
    rig.call_ends(executor, 0, value());
    assert_eq!(rig.take(), [answered(0, value()), calls(executor, method(17))]);
}

#[test]
fn the_timeout_of_a_call_ahead_counts_from_when_its_turn_came() {
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
fn a_call_ahead_that_is_cancelled_is_answered_at_once_and_its_turn_passes() {
    let mut rig = Rig::new();
    let executor = rig.host(ActorOptions::default());
    rig.call(method(1), 0);
    rig.trust_caller();
    rig.call(method(2), 1);
    rig.call(method(3), 2);
    rig.take();
    rig.caller_says(ToHost::CancelCall { call: task_id(2), how: Manner::Force });
    let effects = rig.take();
    let [stop, Effect::ToCaller { message: FromHost::CallEnded { outcome: Err(error), .. }, .. }] =
        &effects[..]
    else {
        panic!("it is answered: {effects:?}")
    };
    assert_eq!(
        *stop,
        Effect::Interrupt { executor, task: task_id(2), alone: false },
        "nothing else is killed"
    );
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    rig.call_ends(executor, 1, value());
    assert_eq!(rig.take(), [answered(1, value())]);
    rig.call_ends(executor, 2, value());
    assert_eq!(rig.take(), [], "it has been answered");
    rig.call_ends(executor, 3, value());
    assert_eq!(rig.take(), [answered(3, value())]);
}

#[test]
fn a_caller_is_parked_until_it_is_known_to_live_and_fenced_if_it_does_not() {
    let mut rig = Rig::new();
    let executor = rig.host(ActorOptions::default());
    rig.call(method(1), 0);
    rig.call(method(2), 1);
    assert_eq!(rig.take(), [tell(FromWorker::Watch { session: CALLER })], "asked once");
    rig.controller_says(ToWorker::Watched { session: CALLER, alive: false });
    assert_eq!(rig.take(), [Effect::FenceCaller(CALLER)]);
    assert_eq!(rig.worker.counters().fenced, 2);

    rig.call(method(3), 0);
    rig.trust_caller();
    assert_eq!(rig.take(), [calls(executor, method(3))]);
}

#[test]
fn the_calls_of_a_caller_go_with_its_session() {
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
    assert_eq!(rig.take(), [], "nobody wants the answers");
}

#[test]
fn an_answer_that_names_things_leaves_when_they_are_held_for_its_caller() {
    let mut rig = Rig::new();
    let executor = rig.host(ActorOptions::default());
    rig.call(method(1), 0);
    rig.trust_caller();
    rig.take();
    let contains = vec![Thing::Object(ObjectId::of(task_id(90), 0))];
    let named = Value { contains: contains.clone(), ..value() };
    rig.call_ends(executor, 1, named.clone());
    let (call, to, kept) = (tried(1), CALLER, Vec::new());
    let entrust = FromWorker::Entrust { call, to, contains, instance: ACTOR, kept };
    assert_eq!(rig.take(), [tell(entrust)]);
    rig.controller_says(ToWorker::Entrusted { call });
    assert_eq!(rig.take(), [answered(1, named)]);
}

#[test]
fn when_an_actor_dies_its_running_call_is_lost_and_those_that_wait_are_refused() {
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
fn an_actor_that_nobody_calls_ends_after_its_idle_time() {
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
        [tell(FromWorker::ActorDestroyed { instance: ACTOR, why: Leave::Idle })]
    );
}

// Leaving.

#[test]
fn a_draining_worker_finishes_what_runs_and_leaves() {
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
        [tell(FromWorker::ActorDestroyed { instance: ACTOR, why: Leave::Told })]
    );
    rig.ends(runs, 1, Ok(vec![value()]));
    let over = ended(1, End::Finished(vec![value()]), Duration::ZERO);
    assert_eq!(rig.take(), [kill(runs), over, tell(FromWorker::Leaving), Effect::Drained]);
}

#[test]
fn what_still_runs_when_the_grace_is_over_goes_back_at_no_cost() {
    let mut rig = Rig::new();
    let executor = rig.start(task(1));
    rig.happens(Event::DrainAsked { grace: 20 * SECOND });
    assert_eq!(rig.take(), [tell(FromWorker::Draining)]);
    rig.pass(20 * SECOND);
    let back = refused(1, Refusal::Draining);
    let leaves = [tell(FromWorker::Leaving), Effect::Drained];
    assert_eq!(
        rig.take(),
        [Effect::Kill { executor }],
        "it goes back only when nothing of it runs"
    );
    rig.dies(executor);
    assert_eq!(rig.take(), [vec![back], leaves.into()].concat());
}

#[test]
fn a_worker_whose_session_ends_while_it_drains_does_not_come_back() {
    let mut rig = Rig::new();
    let executor = rig.start(task(1));
    rig.happens(Event::DrainAsked { grace: 20 * SECOND });
    rig.take();
    rig.happens(Event::Fenced { session: SESSION });
    assert_eq!(rig.take(), [Effect::Kill { executor }, Effect::Drained, Effect::Stopped(SESSION)]);
}

#[test]
fn a_worker_whose_controller_winds_up_finishes_and_joins_the_next() {
    let mut rig = Rig::new();
    let executor = rig.start(task(1));
    rig.controller_says(ToWorker::WindUp { grace: 20 * SECOND });
    assert_eq!(rig.take(), [tell(FromWorker::Draining)]);
    rig.ends(executor, 1, Ok(vec![value()]));
    let over = ended(1, End::Finished(vec![value()]), Duration::ZERO);
    assert_eq!(rig.take(), [Effect::Kill { executor }, over, tell(FromWorker::Leaving)]);
    rig.happens(Event::ExecutorDied { executor, error: crashed() });
    rig.happens(Event::Fenced { session: SESSION });
    assert_eq!(rig.take(), [Effect::Stopped(SESSION)]);
    assert!(!rig.worker.is_draining());
}

#[test]
fn a_worker_whose_controller_winds_up_before_it_has_finished_joins_the_next() {
    let mut rig = Rig::new();
    let executor = rig.start(task(1));
    rig.controller_says(ToWorker::WindUp { grace: 20 * SECOND });
    rig.take();
    rig.happens(Event::Fenced { session: SESSION });
    assert_eq!(rig.take(), [Effect::Kill { executor }, Effect::Stopped(SESSION)]);
}

#[test]
fn a_worker_that_is_to_go_while_its_controller_winds_up_goes() {
    let grace = 20 * SECOND;
    let asked = [Event::DrainAsked { grace }, say(ToWorker::Drain { grace })];
    for asked in asked {
        for after in [false, true] {
            let mut rig = Rig::new();
            let executor = rig.start(task(1));
            rig.controller_says(ToWorker::WindUp { grace });
            if after {
                rig.ends(executor, 1, Ok(vec![value()]));
            }
            rig.take();
            rig.happens(asked.clone());
            if !after {
                rig.ends(executor, 1, Ok(vec![value()]));
            }
            assert_eq!(rig.take().last(), Some(&Effect::Drained), "{after}");
            rig.controller_says(ToWorker::WindUp { grace });
            assert_eq!(rig.take(), []);
        }
    }
}

#[test]
fn what_is_here_can_be_asked() {
    let mut rig = Rig::new();
    let executor = rig.start(task(1));
    rig.host(ActorOptions::default());
    rig.assign(task(2), None);
    rig.call(method(3), 0);
    rig.trust_caller();
    let filter = crate::controller::TaskFilter::default();
    let listed = |rig: &Rig, limit| {
        let tasks = rig.worker.list_tasks(limit, &filter).into_iter();
        tasks.map(|task| (task.spec.id.as_u128(), task.since.is_some())).collect::<Vec<_>>()
    };
    assert_eq!(listed(&rig, 10), [(3, true), (2, false), (1, true)]);
    assert_eq!(listed(&rig, 1), [(3, true)]);
    let actors = rig.worker.list_actors(10);
    assert_eq!((actors.len(), actors[0].pending_calls, actors[0].ready), (1, 1, true));
    assert_eq!(rig.worker.free(&Resources::cpus(4)), Resources::cpus(3));
    rig.happens(Event::Blocked { executor });
    assert_eq!(rig.worker.free(&Resources::cpus(4)), Resources::cpus(4), "it lends its CPU");
}

#[test]
fn a_call_that_runs_when_its_actor_is_deleted_is_told_so() {
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
    // What its executor said after it was told to die is not heard: the second may have begun.
    for message in [ran, ahead] {
        let FromHost::CallEnded { outcome: Err(error), .. } = message else {
            panic!("{message:?}")
        };
        assert_eq!((error.kind(), error.may_have_run()), (ErrorKind::Gone, true));
        let expected = format!("actor {} was deleted while this call ran", ACTOR.actor);
        assert_eq!(error.message(), expected);
    }
}

#[test]
fn a_call_that_runs_when_the_grace_of_its_worker_is_over_is_lost_by_the_move() {
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
fn what_is_to_be_ready_is_started_when_the_worker_has_joined() {
    let config = Config { prestarted: Some(("python".into(), 2)), ..Config::default() };
    let mut worker = Worker::new(config);
    let joined = Event::Joined { session: SESSION, terms: Terms::default(), asked_at: Time::ZERO };
    let mut effects = Vec::new();
    worker.handle(Time::ZERO, joined, &mut effects);
    worker.check_invariants();
    let spawn = |id| Effect::Spawn { executor: ExecutorId(id), runtime: "python".into() };
    assert_eq!(effects, [tell(FromWorker::Joined), spawn(0), spawn(1)]);
}

// Checkpoints, and actors that end themselves.

/// An actor that is saved after every `calls` calls.
fn saved_every(calls: u32) -> ActorOptions {
    let checkpoints = Some(Checkpoints { every_calls: Some(calls), interval: None });
    ActorOptions { checkpoints, ..ActorOptions::default() }
}

/// The id of the call by which a worker saves [`ACTOR`].
const SAVE: u128 = ACTOR.actor.as_u128();

fn is_save(effect: &Effect) -> bool {
    matches!(effect, Effect::Call { spec, .. } if &**spec.target.name() == SAVE_METHOD)
}

fn stored(sequence: u64) -> ToWorker {
    ToWorker::Checkpointed { instance: ACTOR, sequence }
}

#[test]
fn after_so_many_calls_nothing_begins_before_the_state_is_stored() {
    let mut rig = Rig::new();
    let executor = rig.host(saved_every(2));
    rig.call(method(1), 0);
    rig.trust_caller();
    rig.call(method(2), 1);
    rig.call(method(3), 2);
    assert_eq!(rig.take(), [calls(executor, method(1)), calls(executor, method(2))]);
    rig.call_ends(executor, 1, value());
    assert_eq!(rig.take(), [answered(1, value())]);
    rig.call_ends(executor, 2, value());
    let effects = rig.take();
    assert!(effects.len() == 2 && is_save(&effects[1]), "{effects:?}");
    rig.call_ends(executor, SAVE, value());
    let payload = value().payload;
    let checkpoint = FromWorker::Checkpoint { instance: ACTOR, sequence: 0, payload };
    assert_eq!(rig.take(), [tell(checkpoint)]);
    rig.controller_says(stored(0));
    assert_eq!(rig.take(), [calls(executor, method(3))]);
}

#[test]
fn a_state_that_cannot_be_saved_does_not_stop_the_actor() {
    let mut rig = Rig::new();
    let executor = rig.host(saved_every(1));
    rig.call(method(1), 0);
    rig.trust_caller();
    rig.call(method(2), 1);
    rig.call_ends(executor, 1, value());
    rig.take();
    let end = CallEnd { outcome: Err(raised()), kept: Vec::new() };
    rig.happens(Event::CallFinished { executor, call: task_id(SAVE), end });
    assert_eq!(rig.take(), [calls(executor, method(2))]);
}

#[test]
fn who_asks_for_a_checkpoint_is_answered_when_it_is_stored() {
    let mut rig = Rig::new();
    let executor = rig.host(saved_every(10));
    let target = Target::Method { actor: ACTOR.actor, method: SAVE_METHOD.into() };
    rig.call(TaskSpec { target, ..method(1) }, 0);
    rig.trust_caller();
    rig.take();
    rig.call_ends(executor, 1, value());
    assert!(matches!(rig.take()[..], [Effect::ToController(FromWorker::Checkpoint { .. })]));
    rig.controller_says(stored(0));
    assert_eq!(rig.take(), [answered(1, value())]);
}

#[test]
fn the_state_is_saved_when_its_time_has_come_if_there_were_calls() {
    let mut rig = Rig::new();
    let checkpoints = Some(Checkpoints { every_calls: None, interval: Some(SECOND) });
    let executor = rig.host(ActorOptions { checkpoints, ..ActorOptions::default() });
    rig.pass(SECOND);
    assert_eq!(rig.take(), [], "nothing has happened to it");
    rig.call(method(1), 0);
    rig.trust_caller();
    rig.call_ends(executor, 1, value());
    rig.take();
    rig.pass(SECOND);
    assert!(rig.take().iter().any(is_save));
}

#[test]
fn an_actor_of_a_draining_worker_is_saved_before_it_moves() {
    let mut rig = Rig::new();
    let executor = rig.host(saved_every(10));
    rig.call(method(1), 0);
    rig.trust_caller();
    rig.call_ends(executor, 1, value());
    rig.take();
    rig.controller_says(ToWorker::Drain { grace: SECOND });
    assert!(rig.take().iter().any(is_save));
    rig.call_ends(executor, SAVE, value());
    rig.take();
    rig.controller_says(stored(0));
    assert_eq!(rig.take(), [Effect::Kill { executor }]);
}

#[test]
fn an_actor_that_ends_itself_begins_nothing_and_does_not_come_back() {
    let mut rig = Rig::new();
    let executor = rig.host(ActorOptions::default());
    rig.call(method(1), 0);
    rig.trust_caller();
    rig.call(method(2), 1);
    rig.take();
    rig.call_ends(executor, 1, value());
    rig.happens(Event::ActorExited { executor });
    assert_eq!(rig.take(), [answered(1, value()), Effect::Kill { executor }]);
    rig.dies(executor);
    let waited = FromHost::CallRefused { attempt: tried(2), reason: Refusal::NotHere };
    let gone = FromWorker::ActorDestroyed { instance: ACTOR, why: Leave::Exited };
    assert_eq!(rig.take(), [answer(waited), tell(gone)]);
}

// Memory.

#[test]
fn when_memory_runs_short_one_executor_goes_and_says_why() {
    let mut rig = Rig::new();
    let (first, second) = (rig.start(task(1)), rig.start(task(2)));
    let taken = vec![(first, 60 << 20), (second, 50 << 20)];
    let short = Event::MemoryShort { used: 120 << 20, limit: 125 << 20, taken };
    rig.happens(short.clone());
    assert_eq!(rig.take(), [Effect::Kill { executor: second }], "the newest of the same function");
    rig.happens(short);
    assert_eq!(rig.take(), [], "it may be enough");
    rig.dies(second);
    let effects = rig.take();
    let Effect::ToController(FromWorker::Ended { end: End::Lost(error), .. }) = &effects[0] else {
        panic!("it is lost: {effects:?}")
    };
    assert_eq!((error.kind(), error.may_have_run()), (ErrorKind::Exhausted, true));
    for words in ["120 MiB of 125 MiB", "50 MiB"] {
        assert!(error.message().contains(words), "{error}");
    }
}
