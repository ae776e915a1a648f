//! Executors: the processes of a worker that run user code. User code returns, raises, crashes,
//! blocks or ignores a cancel. Each executor watches the lease of its worker, and exits when the
//! lease is over, even if the worker is frozen.

use crate::process::{Input, ProcessId};
use crate::world::{SimEvent, World};
use bytes::Bytes;
use marline_core::error::{Error, Failure, Ran};
use marline_core::id::{ActorEpoch, Attempt, ObjectId, Referent, TaskId};
use marline_core::message::{Instance, SystemLimit};
use marline_core::payload::{Payload, Value};
use marline_core::spec::{ActorSpec, TaskSpec};
use marline_core::time::Time;
use marline_core::worker::{Event, ExecutorId, UserCodeResult};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// The behavior of user code. The first byte of its arguments is the index in
/// [`ALL`](Self::ALL).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UserCodeBehavior {
    /// Returns a result.
    Return,
    /// Raises an error.
    Raise,
    /// Kills its executor.
    Crash,
    /// Returns a value that names all referents that it was called with.
    PassOn,
    /// Blocks on other work for a while.
    Block,
    /// Takes long, and ignores a cancel.
    Ignore,
    /// In a call, holds the referents that it was called with, and releases them some time later.
    /// In a task, returns a result.
    Keep,
}

impl UserCodeBehavior {
    pub const ALL: [UserCodeBehavior; 7] = [
        UserCodeBehavior::Return,
        UserCodeBehavior::Raise,
        UserCodeBehavior::Crash,
        UserCodeBehavior::PassOn,
        UserCodeBehavior::Block,
        UserCodeBehavior::Ignore,
        UserCodeBehavior::Keep,
    ];

    pub fn args(self) -> Payload {
        Payload::raw(vec![
            UserCodeBehavior::ALL.iter().position(|deed| *deed == self).expect("it is one") as u8,
        ])
    }

    fn of(payload: &Payload) -> UserCodeBehavior {
        // Calls that the worker itself makes, such as saving state, have no arguments.
        payload
            .inline
            .first()
            .map_or(UserCodeBehavior::Return, |deed| UserCodeBehavior::ALL[*deed as usize])
    }
}

/// The next step of an executor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExecutorStep {
    Ready,
    Die,
    End {
        task: TaskId,
        attempt: Attempt,
    },
    Constructed,
    /// User code begins to wait for other work (`blocks`), or goes on.
    Block {
        task: TaskId,
        attempt: Attempt,
        blocks: bool,
    },
    /// The task cannot start: one of its inputs did not arrive.
    NotBegun {
        task: TaskId,
    },
    /// A task yields the next item of its stream, if there is room for it.
    Give {
        task: TaskId,
        attempt: Attempt,
    },
    /// User code releases the referents that [`Keep`](UserCodeBehavior::Keep) held.
    LetGo,
}

#[derive(Debug)]
struct Executor {
    /// The work that runs now: one task, or calls of an actor.
    running: BTreeMap<TaskId, (Arc<TaskSpec>, Attempt)>,
    /// The calls that wait for the one that runs, in order. The flag: whether the call was
    /// cancelled before its start.
    ahead: VecDeque<(Arc<TaskSpec>, Attempt, bool)>,
    actor: Option<(Arc<ActorSpec>, Instance)>,
    /// The state of its actor: how many calls the actor has run. A restarted instance counts on
    /// from its checkpoint.
    state: u64,
    /// The actor has ended itself. It starts no further calls.
    exited: bool,
    kept: Vec<Referent>,
    /// How many items were consumed of each stream that runs here, or that is about to.
    took: BTreeMap<TaskId, u32>,
    /// The streams that run here.
    streams: BTreeMap<TaskId, Giving>,
}

/// The progress of a stream that runs in an executor.
#[derive(Debug, Default)]
struct Giving {
    given: u32,
    /// User code waits, because there was no room for the next item.
    waits: bool,
    /// The task was asked to stop.
    stopped: bool,
}

/// All executors that are alive.
#[derive(Debug, Default)]
pub struct Executors {
    alive: BTreeMap<(ProcessId, ExecutorId), Executor>,
    /// When the lease of each worker is over, in the world's time.
    leases: BTreeMap<ProcessId, u64>,
    /// Workers whose executors fail to start, and until when.
    broken: BTreeMap<ProcessId, u64>,
}

/// How long a message from an executor to its worker takes.
const HOP: Duration = Duration::from_micros(50);

impl World {
    /// Writes the end of a lease into the file that a worker shares with its executors.
    pub fn share_lease(&mut self, worker: ProcessId, ends_at: Option<Time>) {
        let Some(ends_at) = ends_at else {
            self.executors.leases.remove(&worker);
            return;
        };
        let at = self.processes[worker.0].clock.when(ends_at);
        if self.executors.leases.insert(worker, at) != Some(at) {
            self.schedule(at, SimEvent::Watchdog { worker });
        }
    }

    pub fn watchdog(&mut self, worker: ProcessId) {
        if self.executors.leases.get(&worker).is_some_and(|at| *at <= self.now) {
            self.kill_executors(worker);
        }
    }

    /// Kills all executors of a worker.
    pub fn kill_executors(&mut self, worker: ProcessId) {
        let mine = self.executors.alive.keys().filter(|(owner, _)| *owner == worker);
        for (_, executor) in mine.copied().collect::<Vec<_>>() {
            self.executor_dies(worker, executor);
        }
    }

    pub fn spawn(&mut self, worker: ProcessId, executor: ExecutorId) {
        if self.faults && self.random.one_in(60) {
            let lack = Some(SystemLimit::Descriptors);
            return self.tell(worker, Event::ExecutorRefused { executor, lack });
        }
        let (running, ahead) = (BTreeMap::new(), VecDeque::new());
        let (state, exited, kept) = (0, false, Vec::new());
        let (took, streams) = (BTreeMap::new(), BTreeMap::new());
        let new = Executor { running, ahead, actor: None, state, exited, kept, took, streams };
        self.executors.alive.insert((worker, executor), new);
        let wait = self.random.up_to(Duration::from_millis(20));
        let turn = if self.starts_fail(worker) { ExecutorStep::Die } else { ExecutorStep::Ready };
        self.act(wait, worker, executor, turn);
    }

    /// Returns whether executors of this worker fail to start now. May begin such a fault, which
    /// lasts for a while.
    fn starts_fail(&mut self, worker: ProcessId) -> bool {
        if self.faults && self.random.one_in(150) {
            let lasts = self.random.up_to(Duration::from_secs(20));
            let until = self.now + lasts.as_nanos() as u64;
            self.executors.broken.insert(worker, until);
        }
        self.faults && self.executors.broken.get(&worker).is_some_and(|until| *until > self.now)
    }

    fn act(&mut self, wait: Duration, worker: ProcessId, executor: ExecutorId, turn: ExecutorStep) {
        self.schedule_in(wait, SimEvent::Executor { worker, executor, turn });
    }

    pub fn tell(&mut self, worker: ProcessId, event: Event) {
        self.schedule_in(HOP, SimEvent::Arrive { to: worker, input: Input::Executor(event) });
    }

    fn duration(&mut self) -> Duration {
        if self.hasty && !self.random.one_in(40) {
            return Duration::from_micros(20) + self.random.up_to(Duration::from_micros(100));
        }
        let most = match self.random.below(4) {
            0 | 1 => Duration::from_micros(500),
            2 => Duration::from_millis(300),
            _ => Duration::from_secs(6),
        };
        self.random.up_to(most)
    }

    pub fn exec_run(
        &mut self,
        worker: ProcessId,
        id: ExecutorId,
        spec: Arc<TaskSpec>,
        attempt: Attempt,
    ) {
        if self.faults && !spec.needs.is_empty() && self.random.one_in(50) {
            let wait = self.duration();
            return self.act(wait, worker, id, ExecutorStep::NotBegun { task: spec.id });
        }
        if let Some(executor) = self.executors.alive.get_mut(&(worker, id)) {
            executor.running.insert(spec.id, (spec.clone(), attempt));
            self.oracle.task_starts(&spec);
            self.begin(worker, id, &spec, attempt);
        }
    }

    pub fn exec_call(
        &mut self,
        worker: ProcessId,
        id: ExecutorId,
        spec: Arc<TaskSpec>,
        attempt: Attempt,
    ) {
        let Some(executor) = self.executors.alive.get_mut(&(worker, id)) else { return };
        let (actor, _) = executor.actor.as_ref().expect("calls go to actors");
        if executor.exited {
            return;
        }
        if actor.options.max_concurrency == 1 && !executor.running.is_empty() {
            executor.ahead.push_back((spec, attempt, false));
        } else {
            self.begin_call(worker, id, spec, attempt);
        }
    }

    fn begin_call(
        &mut self,
        worker: ProcessId,
        id: ExecutorId,
        spec: Arc<TaskSpec>,
        attempt: Attempt,
    ) {
        let host = self.worker_shell(worker).upstream.session;
        let executor = self.executors.alive.get_mut(&(worker, id)).expect("it runs calls");
        executor.running.insert(spec.id, (spec.clone(), attempt));
        let (actor, instance) = executor.actor.clone().expect("calls go to actors");
        if spec.id.as_u128() != actor.id.as_u128() {
            self.oracle.call_starts(&spec, &actor, instance, host);
        }
        self.begin(worker, id, &spec, attempt);
    }

    /// Starts the next call after one has ended. A call that was cancelled meanwhile ends without
    /// running.
    fn begin_next(&mut self, worker: ProcessId, id: ExecutorId) {
        while let Some(executor) = self.executors.alive.get_mut(&(worker, id))
            && let Some((spec, attempt, stop)) = executor.ahead.pop_front()
        {
            if !stop {
                return self.begin_call(worker, id, spec, attempt);
            }
            executor.took.remove(&spec.id);
            let outcome = Err(Error::cancelled("the work was cancelled before it ran"));
            let end = UserCodeResult { outcome, still_held: Vec::new() };
            self.tell(worker, Event::CallEnded { executor: id, call: spec.id, end });
        }
    }

    fn begin(&mut self, worker: ProcessId, id: ExecutorId, spec: &TaskSpec, attempt: Attempt) {
        let task = spec.id;
        let mut wait = self.duration();
        match UserCodeBehavior::of(&spec.args) {
            UserCodeBehavior::Crash => {
                self.act(wait, worker, id, ExecutorStep::Die);
                if spec.stream_window.is_none() {
                    return;
                }
            }
            UserCodeBehavior::Block => {
                self.act(wait, worker, id, ExecutorStep::Block { task, attempt, blocks: true });
                wait += self.random.up_to(Duration::from_secs(3));
                self.act(wait, worker, id, ExecutorStep::Block { task, attempt, blocks: false });
                wait += Duration::from_millis(1);
            }
            UserCodeBehavior::Ignore => wait += Duration::from_secs(3),
            UserCodeBehavior::Return
            | UserCodeBehavior::Raise
            | UserCodeBehavior::PassOn
            | UserCodeBehavior::Keep => {}
        }
        if self.faults && self.random.one_in(30) {
            self.act(wait / 2, worker, id, ExecutorStep::Die);
            if spec.stream_window.is_none() {
                return;
            }
        }
        if spec.stream_window.is_some() {
            let executor = self.executors.alive.get_mut(&(worker, id)).expect("it begins");
            executor.streams.insert(task, Giving::default());
            return self.act(wait / 8, worker, id, ExecutorStep::Give { task, attempt });
        }
        self.act(wait, worker, id, ExecutorStep::End { task, attempt });
    }

    pub fn exec_construct(
        &mut self,
        worker: ProcessId,
        id: ExecutorId,
        spec: Arc<ActorSpec>,
        epoch: ActorEpoch,
        checkpoint: Option<&Payload>,
    ) {
        if let Some(executor) = self.executors.alive.get_mut(&(worker, id)) {
            let instance = Instance { actor: spec.id, epoch };
            let state = checkpoint.map(|saved| saved.inline[..].try_into().expect("a state"));
            executor.state = state.map_or(0, u64::from_le_bytes);
            self.oracle.state_restored(&spec, executor.state);
            executor.actor = Some((spec, instance));
            self.oracle.instance_begins(instance);
            let wait = self.random.up_to(Duration::from_millis(200));
            self.act(wait, worker, id, ExecutorStep::Constructed);
        }
    }

    pub fn exec_interrupt(&mut self, worker: ProcessId, id: ExecutorId, task: TaskId) {
        let Some(executor) = self.executors.alive.get_mut(&(worker, id)) else { return };
        for (spec, _, stop) in &mut executor.ahead {
            *stop |= spec.id == task;
        }
        let Some((spec, attempt)) = executor.running.get(&task) else { return };
        let giving = executor.streams.get_mut(&task);
        let waits = giving.is_some_and(|giving| {
            giving.stopped = true;
            giving.waits
        });
        if waits || UserCodeBehavior::of(&spec.args) != UserCodeBehavior::Ignore {
            let attempt = *attempt;
            let wait = self.random.up_to(Duration::from_millis(5));
            self.act(wait, worker, id, ExecutorStep::End { task, attempt });
        }
    }

    pub fn exec_go_on(&mut self, worker: ProcessId, id: ExecutorId) {
        self.tell(worker, Event::Resumed { executor: id });
    }

    pub fn exec_kill(&mut self, worker: ProcessId, id: ExecutorId) {
        let wait = self.random.up_to(Duration::from_micros(500));
        self.act(wait, worker, id, ExecutorStep::Die);
    }

    fn executor_dies(&mut self, worker: ProcessId, id: ExecutorId) {
        let Some(executor) = self.executors.alive.remove(&(worker, id)) else { return };
        if let Some((_, instance)) = executor.actor {
            self.oracle.instance_ends(instance);
        }
        let error = Error::unavailable(Ran::Maybe, "executor was killed by signal 9");
        self.tell(worker, Event::ExecutorDied { executor: id, error });
    }

    pub fn executor_acts(&mut self, worker: ProcessId, id: ExecutorId, turn: ExecutorStep) {
        let Some(executor) = self.executors.alive.get_mut(&(worker, id)) else { return };
        match turn {
            ExecutorStep::Ready => self.tell(worker, Event::ExecutorReady { executor: id }),
            ExecutorStep::Die => self.executor_dies(worker, id),
            ExecutorStep::NotBegun { task } => {
                let error = Error::unavailable(Ran::No, "an input did not arrive");
                self.tell(worker, Event::InputsUnavailable { executor: id, task, error });
            }
            ExecutorStep::Constructed => {
                let (spec, _) = executor.actor.as_ref().expect("it constructs one");
                let result = match UserCodeBehavior::of(&spec.args) {
                    UserCodeBehavior::Raise => Err(raised()),
                    _ => Ok(()),
                };
                self.tell(worker, Event::Constructed { executor: id, result });
            }
            ExecutorStep::Block { task, attempt, blocks } => {
                if executor.running.get(&task).is_some_and(|(_, current)| *current == attempt) {
                    let event = if blocks {
                        Event::Blocked { executor: id }
                    } else {
                        Event::Resumed { executor: id }
                    };
                    self.tell(worker, event);
                }
            }
            ExecutorStep::Give { task, attempt } => self.executor_gives(worker, id, task, attempt),
            ExecutorStep::End { task, attempt } => self.executor_ends(worker, id, task, attempt),
            ExecutorStep::LetGo => {
                let things = std::mem::take(&mut executor.kept);
                if executor.actor.is_some() && !things.is_empty() {
                    self.tell(worker, Event::ReferencesReleased { executor: id, things });
                }
            }
        }
    }

    /// Tells an executor how many items of a stream were consumed.
    pub fn exec_took(&mut self, worker: ProcessId, id: ExecutorId, task: TaskId, count: u32) {
        let Some(executor) = self.executors.alive.get_mut(&(worker, id)) else { return };
        executor.took.insert(task, count);
        if let Some((_, attempt)) = executor.running.get(&task)
            && let Some(giving) = executor.streams.get_mut(&task)
            && std::mem::take(&mut giving.waits)
        {
            let turn = ExecutorStep::Give { task, attempt: *attempt };
            self.act(HOP, worker, id, turn);
        }
    }

    fn executor_gives(
        &mut self,
        worker: ProcessId,
        id: ExecutorId,
        task: TaskId,
        attempt: Attempt,
    ) {
        let executor = self.executors.alive.get_mut(&(worker, id)).expect("it acts");
        let Some((spec, current)) = executor.running.get(&task) else { return };
        if *current != attempt {
            return;
        }
        let spec = spec.clone();
        let giving = executor.streams.get_mut(&task).expect("it streams");
        let window = spec.stream_window.expect("it streams");
        let took = executor.took.get(&task).copied().unwrap_or_default();
        let index = giving.given;
        if index >= items_of(&spec) || giving.stopped && index >= took + window {
            return self.act(HOP, worker, id, ExecutorStep::End { task, attempt });
        }
        giving.waits = index >= took + window;
        if giving.waits {
            return;
        }
        giving.given += 1;
        self.oracle.gives(&spec, index);
        let mut value = item_of(task, attempt, index);
        if UserCodeBehavior::of(&spec.args) == UserCodeBehavior::PassOn {
            value.referents = spec.referents.clone();
        }
        if self.random.one_in(3) {
            self.store_item(worker, id, ObjectId::item(task, index), &mut value);
        }
        self.tell(worker, Event::Yielded { executor: id, task, index, value });
        let wait = self.duration() / 8;
        self.act(wait, worker, id, ExecutorStep::Give { task, attempt });
    }

    fn executor_ends(&mut self, worker: ProcessId, id: ExecutorId, task: TaskId, attempt: Attempt) {
        let executor = self.executors.alive.get_mut(&(worker, id)).expect("it acts");
        if executor.running.get(&task).is_none_or(|(_, current)| *current != attempt) {
            return;
        }
        let (spec, _) = executor.running.remove(&task).expect("it runs");
        executor.took.remove(&task);
        let giving = executor.streams.remove(&task);
        let cut_short = giving.is_some_and(|giving| giving.given < items_of(&spec));
        let mut end = UserCodeResult {
            outcome: Ok(vec![result_of(task, attempt); spec.returns as usize]),
            still_held: vec![],
        };
        if let Some((actor, _)) = &executor.actor {
            if spec.id.as_u128() == actor.id.as_u128() {
                let state = executor.state.to_le_bytes().to_vec();
                end.outcome = Ok(vec![Payload::raw(state).into()]);
                if self.random.one_in(20) {
                    self.oracle.save_failed(actor.id);
                    end.outcome = Err(raised());
                }
            } else {
                executor.state += 1;
                self.oracle.state_changed(actor.id, executor.state);
            }
        }
        match UserCodeBehavior::of(&spec.args) {
            UserCodeBehavior::Raise if spec.stream_window.is_some() => {
                end.outcome = Err(raised_in_stream())
            }
            UserCodeBehavior::Raise => end.outcome = Err(raised()),
            UserCodeBehavior::PassOn => {
                for value in end.outcome.iter_mut().flatten() {
                    value.referents = spec.referents.clone();
                }
            }
            UserCodeBehavior::Keep if executor.actor.is_some() => {
                end.still_held = spec.referents.clone();
                executor.kept.extend(&end.still_held);
                let wait = self.random.up_to(Duration::from_secs(20));
                self.act(wait, worker, id, ExecutorStep::LetGo);
            }
            UserCodeBehavior::Keep
            | UserCodeBehavior::Return
            | UserCodeBehavior::Crash
            | UserCodeBehavior::Block
            | UserCodeBehavior::Ignore => {}
        }
        if cut_short {
            end.outcome = Err(Error::cancelled("it stopped as asked"));
        }
        let saves = self.executors.alive[&(worker, id)].actor.as_ref();
        let saves = saves.is_some_and(|(actor, _)| actor.id.as_u128() == task.as_u128());
        if let Ok(values) = &mut end.outcome
            && !saves
            && self.random.one_in(3)
        {
            self.store_results(worker, id, values);
        }
        let executor = &self.executors.alive[&(worker, id)];
        let event = match executor.actor {
            Some(_) => Event::CallEnded { executor: id, call: task, end },
            None => Event::TaskEnded { executor: id, task, end },
        };
        let exits = executor.actor.is_some() && self.faults && self.random.one_in(200);
        self.tell(worker, event);
        if exits {
            self.executors.alive.get_mut(&(worker, id)).expect("it acts").exited = true;
            return self.tell(worker, Event::ActorExited { executor: id });
        }
        self.begin_next(worker, id);
    }
}

/// Returns the result of this attempt. It names the task and the attempt.
fn result_of(task: TaskId, attempt: Attempt) -> Value {
    let mut bytes = task.as_u128().to_le_bytes().to_vec();
    bytes.extend(attempt.0.to_le_bytes());
    Payload::raw(Bytes::from(bytes)).into()
}

/// Returns how many items the task yields, each time it runs.
pub fn items_of(spec: &TaskSpec) -> u32 {
    items_of_task(spec.id)
}

/// Returns how many items the task with this id yields. The number depends on the id alone, so
/// every attempt yields as many.
pub fn items_of_task(task: TaskId) -> u32 {
    (task.as_u128() % 14) as u32
}

/// Returns the item with this index of this attempt. It names the task, the attempt and the index.
fn item_of(task: TaskId, attempt: Attempt, index: u32) -> Value {
    let mut bytes = result_of(task, attempt).payload.inline.to_vec();
    bytes.extend(index.to_le_bytes());
    Payload::raw(Bytes::from(bytes)).into()
}

/// Returns the task that yielded this item, and the index of the item.
pub fn item_made_by(value: &Value) -> (TaskId, u32) {
    let bytes = &value.payload.inline;
    let task = u128::from_le_bytes(bytes[..16].try_into().expect("an item names its task"));
    let index = u32::from_le_bytes(bytes[24..].try_into().expect("an item names its index"));
    (TaskId::from_u128(task), index)
}

/// Returns the task that returned this value, and the attempt.
pub fn made_by(value: &Value) -> (TaskId, Attempt) {
    let bytes = &value.payload.inline;
    let task = u128::from_le_bytes(bytes[..16].try_into().expect("a result names its task"));
    let attempt = u64::from_le_bytes(bytes[16..].try_into().expect("a result names its attempt"));
    (TaskId::from_u128(task), Attempt(attempt))
}

/// The class of the error that user code raises after it has yielded all its items.
pub const RAISED_IN_STREAM: &str = "StreamError";

fn raised_in_stream() -> Error {
    let failure = Failure { class: RAISED_IN_STREAM.into(), ..Failure::default() };
    Error::failed("user code raised after its items", failure)
}

fn raised() -> Error {
    let failure = Failure { class: "ValueError".into(), ..Failure::default() };
    Error::failed("user code raised", failure)
}
