//! Stories of a worker: its events, and the effects that follow.

mod calls;
mod checkpoints;
mod executors;
mod leaving;
mod sessions;
mod starting;
mod streams;
mod tasks;

use super::*;
use crate::account::Grant;
use crate::error::{Error, ErrorKind, Failure, Ran};
use crate::id::{ActorEpoch, Attempt, ObjectId, Referent, SessionEpoch, SessionId};
use crate::lease::{LeaseTerms, Ping};
use crate::message::{
    ActorExitReason, AttemptEnd, CancelMode, FromHost, FromWorker, Instance, Refusal,
};
use crate::message::{ToHost, ToWorker};
use crate::payload::{Payload, Value};
use crate::resources::Resources;
use crate::spec::{
    ActorOptions, ActorSpec, Budget, CheckpointPolicy, SAVE_METHOD, Target, TaskOptions, TaskSpec,
};
use std::sync::Arc;

const SECOND: Duration = Duration::from_secs(1);
const SESSION: Session = session(1);
const CALLER: Session = session(2);
const ACTOR: Instance = Instance { actor: ActorId::from_u128(7), epoch: ActorEpoch(1) };

/// A worker that joined at time 0, the time, and the effects that no test has taken yet.
struct Rig {
    worker: Worker,
    now: Time,
    effects: Vec<Effect>,
}

impl Rig {
    fn new() -> Rig {
        // Most stories are shorter without spare executors.
        Rig::with(Config { spare_executors: 0, ..Config::default() })
    }

    fn with(config: Config) -> Rig {
        let (now, effects) = (Time::ZERO, Vec::new());
        let mut rig = Rig { worker: Worker::new(config), now, effects };
        rig.happens(Event::Joined {
            session: SESSION,
            terms: LeaseTerms::default(),
            asked_at: now,
        });
        assert_eq!(rig.take(), [tell(FromWorker::Joined)]);
        rig
    }

    /// Delivers an event and checks the invariants.
    fn happens(&mut self, event: Event) {
        self.worker.handle(self.now, event, &mut self.effects);
        self.worker.check_invariants();
    }

    fn controller_says(&mut self, message: ToWorker) {
        self.happens(Event::ControllerMessageReceived { session: SESSION, message });
    }

    fn caller_says(&mut self, message: ToHost) {
        self.happens(Event::CallerMessageReceived { session: CALLER, message });
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        self.happens(Event::TimePassed);
    }

    /// Takes the effects since the last call.
    fn take(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    fn assign(&mut self, spec: TaskSpec, grant: Option<Grant>) {
        let (spec, attempt, shape) = (Arc::new(spec), Attempt(1), ShapeId(0));
        self.controller_says(ToWorker::Assign { spec, attempt, values: Vec::new(), shape, grant });
    }

    /// Assigns a task with a grant and starts it in a new executor. Returns that executor.
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

    /// Creates [`ACTOR`] in a new executor. Returns that executor.
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

    /// Sends a call of [`CALLER`] to [`ACTOR`], with this number.
    fn call(&mut self, spec: TaskSpec, number: u64) {
        let (spec, attempt, epoch) = (Arc::new(spec), Attempt(1), ACTOR.epoch);
        self.caller_says(ToHost::Call {
            spec,
            attempt,
            epoch,
            number,
            values: Vec::new(),
            took: 0,
        });
    }

    /// Confirms that the session of [`CALLER`] is alive, as the worker asked at its first call.
    fn trust_caller(&mut self) {
        assert_eq!(self.take(), [tell(FromWorker::Watch { session: CALLER })]);
        self.controller_says(ToWorker::Watched { session: CALLER, alive: true });
    }

    fn ends(&mut self, executor: ExecutorId, task: u128, outcome: Result<Vec<Value>, Error>) {
        let end = UserCodeResult { outcome, still_held: Vec::new() };
        self.happens(Event::TaskEnded { executor, task: task_id(task), end });
    }

    fn call_ends(&mut self, executor: ExecutorId, call: u128, value: Value) {
        let end = UserCodeResult { outcome: Ok(vec![value]), still_held: Vec::new() };
        self.happens(Event::CallEnded { executor, call: task_id(call), end });
    }

    fn dies(&mut self, executor: ExecutorId) {
        self.happens(Event::ExecutorDied { executor, error: crashed() });
    }
}

const fn session(number: u128) -> Session {
    Session { id: SessionId::from_u128(number), epoch: SessionEpoch(1) }
}

fn say(message: ToWorker) -> Event {
    Event::ControllerMessageReceived { session: SESSION, message }
}

fn task_id(number: u128) -> TaskId {
    TaskId::from_u128(number)
}

fn tried(number: u128) -> AttemptId {
    AttemptId { task: task_id(number), attempt: Attempt(1) }
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
        referents: Vec::new(),
        returns: 1,
        stream_window: None,
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
        referents: Vec::new(),
        name: None,
        namespace: "".into(),
        options: Arc::new(options),
        interface: Default::default(),
    }
}

fn raised() -> Error {
    Error::failed("it was not meant to be", Failure::default())
}

fn crashed() -> Error {
    Error::unavailable(Ran::Maybe, "its executor died: killed by signal 9")
}

// Expected effects.

fn tell(message: FromWorker) -> Effect {
    Effect::ToController(message)
}

fn started(task: TaskId) -> Effect {
    tell(FromWorker::Started { attempt: AttemptId { task, attempt: Attempt(1) } })
}

fn ended(task: u128, end: AttemptEnd, ran_for: Duration) -> Effect {
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
    answer(FromHost::CallEnded { attempt: tried(call), outcome: Ok(vec![value]), items: 0 })
}
