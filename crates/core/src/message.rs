//! Everything that one role says to another. Messages ride on [links](crate::link), so each arrives
//! once and in order while both sessions live; inside one process they are handed over as they are.
#![allow(missing_docs)] // Of fields only: each variant's sentence names its own.

use crate::account::Grant;
use crate::error::Error;
use crate::id::{ActorEpoch, ActorId, Attempt, ObjectId, Referent, Session, TaskId};
use crate::output::{AttributedOutput, Audience, OutputSource, PrintedLines};
use crate::payload::{Outcome, Payload, Value};
use crate::spec::{ActorOptions, ActorSpec, TaskSpec};
use bytes::Bytes;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A class of tasks that can follow one another in a slot: same demand, same workers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ShapeId(pub u32);

/// One try at one task.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct AttemptId {
    /// The task.
    pub task: TaskId,
    /// Which try at it.
    pub attempt: Attempt,
}

/// One life of one actor.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Instance {
    /// The actor.
    pub actor: ActorId,
    /// Which of its lives.
    pub epoch: ActorEpoch,
}

/// How something is stopped.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CancelMode {
    /// It is asked to, and what it has submitted stops with it. It is killed if it does not in time.
    Graceful,
    /// The same; what it has submitted goes on.
    GracefulAlone,
    /// It is killed at once. What it has submitted ends with it: nobody is left who waits for that.
    Force,
}

impl CancelMode {
    /// What somebody wants who can only say whether it is to be at once.
    pub fn from_force(force: bool) -> CancelMode {
        CancelMode::of(force, false)
    }

    /// What somebody wants who also says whether what was submitted goes on, unless it is at once.
    pub fn of(force: bool, alone: bool) -> CancelMode {
        match (force, alone) {
            (true, _) => CancelMode::Force,
            (false, true) => CancelMode::GracefulAlone,
            (false, false) => CancelMode::Graceful,
        }
    }
}

/// From a client to the controller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FromClient {
    /// Run this; the sender holds its results.
    Submit(Arc<TaskSpec>),
    /// Stop this.
    Cancel { task: TaskId, mode: CancelMode },
    /// Keep this value; the sender holds it. If its data is in a store, that is the one of this worker, which is
    /// told to keep it.
    Put { object: ObjectId, value: Value, at: Option<Session> },
    /// This has a value once I say it; the sender holds it.
    Announce { object: ObjectId },
    /// The value of what I announced, or why it has none.
    Resolve { object: ObjectId, value: Result<Value, Error> },
    /// Tell me when this has a value.
    Fetch { object: ObjectId },
    /// Who has the data of this? I have no store that would ask.
    Locate { object: ObjectId },
    /// I hold this too: a value that I hold, or an answer that was entrusted to me, named it.
    Hold { thing: Referent },
    /// The answer of this, or this one of its items, which I am about to give to my worker, names these: they are
    /// held until it has come, whenever I let go of them.
    Enclose { call: AttemptId, item: Option<u32>, things: Vec<Referent> },
    /// The answer of this call arrived, or never will: what was entrusted to me with it is let go.
    Accept { call: AttemptId },
    /// I hold this no longer.
    Release { thing: Referent },
    /// Of the items of this task, so many were taken in all: there is room for more.
    Took { task: TaskId, count: u32 },
    /// Create this; the sender holds it.
    CreateActor(Arc<ActorSpec>),
    /// Which actor has this name? The sender holds it, if there is one.
    FindActor { request: u64, namespace: Arc<str>, name: Arc<str> },
    /// Tell me where this is, now and whenever that changes.
    WatchActor { actor: ActorId },
    /// End this.
    DeleteActor { actor: ActorId },
    /// End this life of it; it lives on if it may be restarted.
    KillActor { actor: ActorId },
    /// Tell me when this session ends, at once if it has: I speak to it directly.
    Watch { session: Session },
    /// Tell me when all that I said before is done: somebody else may speak of it next.
    Sync { request: u64 },
    /// This is who is shown what work prints that I submit, or actors that I create, from now on.
    ShowOutput { to: Audience },
}

/// From the controller to a client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ToClient {
    /// In all, so many submissions are welcome, and so many bytes of arguments; the last submission may exceed those.
    Credit { tasks: u64, bytes: u64 },
    /// A task that this client submitted ended.
    TaskEnded { task: TaskId, outcome: Outcome },
    /// A task or call of this client's gave an item, which this client holds.
    Yielded { task: TaskId, index: u32, value: Result<Value, Error> },
    /// An object that this client asked for has a value, or never will.
    ObjectReady { object: ObjectId, value: Result<Value, Error> },
    /// The answer to `Locate`: who has its data, or why nobody has.
    Located { object: ObjectId, copies: Result<Vec<CopyLocation>, Error> },
    /// The answer to `CreateActor`: the actor that was created, or found under its name.
    ActorCreated { requested: ActorId, actor: Result<ActorId, Error> },
    /// The answer to `FindActor`.
    ActorFound { request: u64, actor: Result<FoundActor, Error> },
    /// Where an actor is.
    ActorChanged { actor: ActorId, place: ActorPlace },
    /// A session that this client watches is over.
    SessionEnded { session: Session },
    /// The answer to `Sync`.
    Synced { request: u64 },
    /// Something that its user should know, in words: what it asked for cannot be placed.
    Warning { words: String },
    /// Its work printed something.
    Printed(AttributedOutput),
}

/// An actor that was found by its name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FoundActor {
    /// The actor.
    pub id: ActorId,
    /// What its creator says of its methods.
    pub interface: Bytes,
}

/// Where an actor is, as far as its callers care.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ActorPlace {
    /// Being created or restarted: wait.
    Nowhere,
    /// Ready for calls.
    Ready {
        /// Which of its lives.
        epoch: ActorEpoch,
        /// Whose worker.
        host: Session,
        /// Where that worker listens; nothing if calls go through the controller.
        address: Option<Arc<str>>,
        /// What callers must know of how it lives.
        options: Arc<ActorOptions>,
    },
    /// Gone for good, with the reason.
    Dead(Error),
}

/// From the controller to a worker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ToWorker {
    /// Run this. With a grant: now. Without: when a task of the same shape leaves its grant to it.
    Assign {
        spec: Arc<TaskSpec>,
        attempt: Attempt,
        values: Vec<Value>,
        shape: ShapeId,
        grant: Option<Grant>,
    },
    /// Run this method of an actor you host.
    Execute { spec: Arc<TaskSpec>, attempt: Attempt, epoch: ActorEpoch, values: Vec<Value> },
    /// If this has not started, give it back.
    TakeBack(AttemptId),
    /// Stop this attempt.
    CancelAttempt { attempt: AttemptId, mode: CancelMode },
    /// Of the items of this, so many were taken in all, perhaps of an earlier attempt.
    Took { attempt: AttemptId, count: u32 },
    /// Make this actor; from the newest of its checkpoints that can be read, if there are any.
    Instantiate {
        spec: Arc<ActorSpec>,
        epoch: ActorEpoch,
        values: Vec<Value>,
        grant: Grant,
        checkpoints: Vec<Payload>,
    },
    /// End this actor, and say when it has ended.
    Destroy(Instance),
    /// Kill the executor of this actor, which may live on in another.
    Kill(Instance),
    /// The answer to `Checkpoint`: it is stored.
    Checkpointed { instance: Instance, sequence: u64 },
    /// The answer to `Watch`.
    Watched { session: Session, alive: bool },
    /// A session that this worker watches is over.
    SessionEnded { session: Session },
    /// What `Entrust` asked for is done.
    Entrusted { call: AttemptId },
    /// The data of this, which a client put into your store, counts: keep it.
    Keep { object: ObjectId },
    /// Nobody holds this any more: its data need not be kept.
    Forget { object: ObjectId },
    /// The answer to `Locate`: who has its data, or why nobody has.
    Located { object: ObjectId, copies: Result<Vec<CopyLocation>, Error> },
    /// Bring the data of this into your store, from one of these, or from where it was saved if there is none; then
    /// say `Copied` or `NotBrought`.
    Bring { object: ObjectId, from: Vec<CopyLocation> },
    /// Nobody wants this any more: erase what was saved of it.
    Erase { object: ObjectId },
    /// Nothing is left that only you have: you may go.
    Leave,
    /// Take no new work; when `grace` is over, give up what still runs. Then go for good.
    Drain { grace: Duration },
    /// The controller is about to end: the same, but afterwards join the next one.
    WindUp { grace: Duration },
}

/// Where a copy of an object's data is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CopyLocation {
    /// Whose store.
    pub worker: Session,
    /// Where that worker listens, if it does.
    pub address: Option<Arc<str>>,
}

/// Why a worker gives work back. None of these costs the task anything.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Refusal {
    /// It was asked to, and the work had not started.
    TakenBack,
    /// It is about to leave.
    Draining,
    /// It cannot start an executor now.
    Full,
    /// It cannot start an executor now, because its system refuses it this.
    SystemLimit(SystemLimit),
    /// The executor that it was for did not start.
    NotStarted,
    /// It hosts no such instance.
    NotHere,
}

/// What a system refuses to a worker that starts an executor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SystemLimit {
    /// An open file.
    Descriptors,
    /// A process.
    Processes,
    /// Memory.
    Memory,
}

impl fmt::Display for SystemLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SystemLimit::Descriptors => "it has no file descriptor left (`ulimit -n` is the limit)",
            SystemLimit::Processes => {
                "it may have no more processes (`ulimit -u` is the limit, or pids.max of its cgroup)"
            }
            SystemLimit::Memory => "its system has no memory left",
        })
    }
}

/// Why an instance ended in good order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ActorExitReason {
    /// It was told to, or its worker leaves.
    Requested,
    /// Nobody called it for too long.
    Idle,
    /// It said so itself.
    Exited,
}

/// How an attempt ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AttemptEnd {
    /// User code returned.
    Finished(Vec<Value>),
    /// User code failed, or took too long.
    Failed(Error),
    /// It was cancelled.
    Cancelled,
    /// Its executor was lost, and how.
    Lost(Error),
}

/// From a worker to the controller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FromWorker {
    /// The link works; work is welcome.
    Joined,
    /// This goes back.
    Refused { attempt: AttemptId, reason: Refusal },
    /// No executor of this runtime starts here, for this reason: give me no work of it.
    Unable { runtime: Arc<str>, error: Error },
    /// One has started.
    Able { runtime: Arc<str> },
    /// User code runs.
    Started { attempt: AttemptId },
    /// An attempt ended. `next` has its grant now.
    Ended {
        attempt: AttemptId,
        end: AttemptEnd,
        kept: Vec<Referent>,
        ran_for: Duration,
        next: Option<AttemptId>,
    },
    /// User code gave an item: for the caller of a direct call, otherwise for whoever owns the task.
    Yielded { attempt: AttemptId, to: Option<Session>, index: u32, value: Value },
    /// User code waits for other tasks: its CPUs are free.
    Blocked { attempt: AttemptId },
    /// It goes on.
    Resumed { attempt: AttemptId },
    /// The actor is ready.
    ActorReady { instance: Instance },
    /// Its constructor failed.
    ActorFailed { instance: Instance, error: Error },
    /// Its executor was lost, and how.
    ActorDied { instance: Instance, error: Error },
    /// It ended in good order.
    ActorDestroyed { instance: Instance, exit: ActorExitReason },
    /// Its state, to start from after this life.
    Checkpoint { instance: Instance, sequence: u64, payload: Payload },
    /// Does this session live? Tell me when it ends.
    Watch { session: Session },
    /// The actor was not made here, for this reason; that costs it nothing.
    ActorRefused { instance: Instance, reason: Refusal },
    /// A call's answer names things. They are held for `to` until it accepts the answer, and `kept` by
    /// the instance; the answer leaves when this is done. `stored` are those of its values whose data is in my
    /// store: they are objects from now on.
    Entrust {
        call: AttemptId,
        to: Session,
        contains: Vec<Referent>,
        stored: Vec<Value>,
        instance: Instance,
        kept: Vec<Referent>,
    },
    /// An actor lets go of things it kept.
    Dropped { instance: Instance, things: Vec<Referent> },
    /// Who has the data of this?
    Locate { object: ObjectId },
    /// I have a copy of it now.
    Copied { object: ObjectId },
    /// I have it no more, for this reason.
    CopyLost { object: ObjectId, error: Error },
    /// I was told to bring it, and could not, for this reason.
    NotBrought { object: ObjectId, error: Error },
    /// Calls that went direct and ended.
    CallsEnded(Vec<CallReport>),
    /// User code printed something.
    Printed { source: OutputSource, output: PrintedLines },
    /// The worker is about to leave: no new work.
    Draining,
    /// The worker is about to leave, and has nothing more to do: when may it go?
    Emptied,
    /// Nothing is left here; the worker goes. What was on its way here never started.
    Leaving,
}

/// What the controller is told of a call that went direct.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CallReport {
    /// The call.
    pub task: TaskId,
    /// The method.
    pub method: Arc<str>,
    /// The actor it went to.
    pub instance: Instance,
    /// How long it ran.
    pub ran_for: Duration,
    /// What it failed with, if it failed.
    pub error: Option<Error>,
}

/// From a client to the worker that hosts an actor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ToHost {
    /// Run this method. Calls of one caller to one instance are numbered 0, 1, 2, … and run in that order.
    /// Of its items, so many were taken, of an earlier attempt.
    Call {
        spec: Arc<TaskSpec>,
        attempt: Attempt,
        epoch: ActorEpoch,
        number: u64,
        values: Vec<Value>,
        took: u32,
    },
    /// Stop this call.
    CancelCall { call: TaskId, mode: CancelMode },
    /// Of the items of this, so many were taken in all.
    Took { call: TaskId, count: u32 },
}

impl ToHost {
    /// The call that the message is about.
    pub fn call(&self) -> TaskId {
        match self {
            ToHost::Call { spec, .. } => spec.id,
            ToHost::CancelCall { call, .. } | ToHost::Took { call, .. } => *call,
        }
    }
}

/// From a worker to a client whose calls it hosts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FromHost {
    /// The call ended, after so many items. They come through the controller, perhaps later than this.
    CallEnded { attempt: AttemptId, outcome: Outcome, items: u32 },
    /// The call never reached the actor.
    CallRefused { attempt: AttemptId, reason: Refusal },
    /// The call is over because its actor's executor is; it may have run.
    CallLost { attempt: AttemptId, error: Error },
}
