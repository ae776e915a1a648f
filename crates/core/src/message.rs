//! All messages between the roles. Between processes they ride on [links](crate::link), so each
//! message arrives once and in order while both sessions live. Inside one process they are passed
//! on as they are.
//!
//! The messages to the controller are [`FromClient`] and [`FromWorker`], those from it [`ToClient`]
//! and [`ToWorker`]. A client and the worker that hosts an actor exchange [`ToHost`] and
//! [`FromHost`].
#![allow(missing_docs)] // Only fields have none: the sentence of each variant names its fields.

mod summary;

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

/// Names a class of tasks that can follow one another in a slot: they have the same demand and fit
/// the same workers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ShapeId(pub u32);

/// One attempt at one task.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct AttemptId {
    /// The task.
    pub task: TaskId,
    /// The number of the attempt.
    pub attempt: Attempt,
}

/// One instance of an actor.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Instance {
    /// The actor.
    pub actor: ActorId,
    /// Which of the actor's instances this is.
    pub epoch: ActorEpoch,
}

/// How a task or call is stopped.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CancelMode {
    /// User code is asked to stop, and the work that it submitted is cancelled too. User code that
    /// does not stop in time is killed.
    Graceful,
    /// As `Graceful`, but the work that it submitted goes on.
    GracefulAlone,
    /// User code is killed at once. The work that it submitted ends too, since nothing is left that
    /// waits for that work.
    Force,
}

impl CancelMode {
    /// Returns the mode for a caller that can only choose whether to force.
    pub fn from_force(force: bool) -> CancelMode {
        CancelMode::of(force, false)
    }

    /// Returns the mode for a caller that also chooses whether submitted work goes on (`alone`). A
    /// forced stop ignores `alone`.
    pub fn of(force: bool, alone: bool) -> CancelMode {
        match (force, alone) {
            (true, _) => CancelMode::Force,
            (false, true) => CancelMode::GracefulAlone,
            (false, false) => CancelMode::Graceful,
        }
    }
}

/// A message from a client to the controller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FromClient {
    /// Submits a task. The sender holds its results.
    Submit(Arc<TaskSpec>),
    /// Cancels a task.
    Cancel { task: TaskId, mode: CancelMode },
    /// Stores a value. The sender holds it. If the data is in an object store, `at` is the worker
    /// of that store, and the controller tells it to retain the blob.
    Put { object: ObjectId, value: Value, at: Option<Session> },
    /// Announces an object whose value comes later, with `Resolve`. The sender holds it.
    Announce { object: ObjectId },
    /// Gives an announced object its value, or the error why it has none.
    Resolve { object: ObjectId, value: Result<Value, Error> },
    /// Asks for an object's value. The answer comes when the object has one.
    Fetch { object: ObjectId },
    /// Asks which workers have a copy of an object. Sent by a client that has no object store of
    /// its own to ask.
    Locate { object: ObjectId },
    /// Holds a referent. A value that the sender holds, or an answer that is held for the sender,
    /// names the referent.
    Hold { thing: Referent },
    /// Holds `things`: the referents that the answer of `call`, or one of its items, names. The
    /// sender is about to pass that answer to its worker. The holds last until the answer has
    /// reached the controller through the worker, even if the sender releases its own holds first.
    Enclose { call: AttemptId, item: Option<u32>, things: Vec<Referent> },
    /// Reports that the answer of a call arrived, or never will. Releases what was held for the
    /// sender with that answer.
    Accept { call: AttemptId },
    /// Releases a referent.
    Release { thing: Referent },
    /// Reports how many items of a task the sender has consumed in all. The producer has room for
    /// as many more.
    Took { task: TaskId, count: u32 },
    /// Creates an actor. The sender holds it.
    CreateActor(Arc<ActorSpec>),
    /// Asks for the actor with this name. The sender holds it, if it exists.
    FindActor { request: u64, namespace: Arc<str>, name: Arc<str> },
    /// Asks for the place of an actor, now and after every change.
    WatchActor { actor: ActorId },
    /// Deletes an actor for good.
    DeleteActor { actor: ActorId },
    /// Kills the current instance of an actor. The actor restarts if it may.
    KillActor { actor: ActorId },
    /// Asks for a message when a session ends, or at once if it has ended. The sender has a direct
    /// link to it.
    Watch { session: Session },
    /// Asks for an answer when the controller has processed all earlier messages of the sender.
    /// After that, other processes may refer to the objects and actors in those messages.
    Sync { request: u64 },
    /// Sets the audience of printed output: of the tasks that the sender submits from now on, and
    /// of the actors that it creates from now on.
    ShowOutput { to: Audience },
}

/// A message from the controller to a client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ToClient {
    /// Allows the client `tasks` submissions in all, with `bytes` bytes of arguments in all. The
    /// last submission may exceed the bytes.
    Credit { tasks: u64, bytes: u64 },
    /// A task that this client submitted ended.
    TaskEnded { task: TaskId, outcome: Outcome },
    /// A task or call of this client yielded an item. The client holds it.
    Yielded { task: TaskId, index: u32, value: Result<Value, Error> },
    /// An object that this client fetches has a value, or never will.
    ObjectReady { object: ObjectId, value: Result<Value, Error> },
    /// The answer to `Locate`: the copies, or the error why there are none.
    Located { object: ObjectId, copies: Result<Vec<CopyLocation>, Error> },
    /// The answer to `CreateActor`: the actor that was created, or found under its name.
    ActorCreated { requested: ActorId, actor: Result<ActorId, Error> },
    /// The answer to `FindActor`.
    ActorFound { request: u64, actor: Result<FoundActor, Error> },
    /// Where an actor is now.
    ActorChanged { actor: ActorId, place: ActorPlace },
    /// A session that this client watches is over.
    SessionEnded { session: Session },
    /// The answer to `Sync`.
    Synced { request: u64 },
    /// A warning for the user, in words: the work that it describes cannot be placed.
    Warning { words: String },
    /// The client's work printed something.
    Printed(AttributedOutput),
}

/// An actor that was found by its name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FoundActor {
    /// The actor.
    pub id: ActorId,
    /// The creator's description of the actor's methods.
    pub interface: Bytes,
}

/// Where an actor is, as its callers see it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ActorPlace {
    /// It is being created or restarted. Calls wait.
    Nowhere,
    /// It is ready for calls.
    Ready {
        /// Which of the actor's instances this is.
        epoch: ActorEpoch,
        /// The session of the worker that hosts it.
        host: Session,
        /// The address at which that worker listens. `None` if calls go through the controller.
        address: Option<Arc<str>>,
        /// The actor's options. Callers need some of them.
        options: Arc<ActorOptions>,
    },
    /// It is gone for good, for this reason.
    Dead(Error),
}

/// A message from the controller to a worker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ToWorker {
    /// Assigns a task. With a grant the task starts now. Without one it waits in the backlog, until
    /// a task of the same shape ends and passes its grant on.
    Assign {
        spec: Arc<TaskSpec>,
        attempt: Attempt,
        values: Vec<Value>,
        shape: ShapeId,
        grant: Option<Grant>,
    },
    /// Runs a method of an actor that the worker hosts.
    Execute { spec: Arc<TaskSpec>, attempt: Attempt, epoch: ActorEpoch, values: Vec<Value> },
    /// Asks for an attempt back, if it has not started.
    TakeBack(AttemptId),
    /// Cancels an attempt.
    CancelAttempt { attempt: AttemptId, mode: CancelMode },
    /// Reports how many items of a task its consumer has consumed in all. Some of them may come
    /// from an earlier attempt.
    Took { attempt: AttemptId, count: u32 },
    /// Creates an instance of an actor. If there are checkpoints, it starts from the newest that
    /// can be read.
    Instantiate {
        spec: Arc<ActorSpec>,
        epoch: ActorEpoch,
        values: Vec<Value>,
        grant: Grant,
        checkpoints: Vec<Payload>,
    },
    /// Destroys an instance. The worker reports when it has ended.
    Destroy(Instance),
    /// Kills the executor of an instance. The actor may restart in another executor.
    Kill(Instance),
    /// The answer to `Checkpoint`: the checkpoint is stored.
    Checkpointed { instance: Instance, sequence: u64 },
    /// The answer to `Watch`.
    Watched { session: Session, alive: bool },
    /// A session that this worker watches is over.
    SessionEnded { session: Session },
    /// The answer to `Entrust`: the holds are in place.
    Entrusted { call: AttemptId },
    /// Retains the blob of an object, which a client put into the worker's object store.
    Keep { object: ObjectId },
    /// Evicts the blob of an object: nothing in the cluster holds the object any more.
    Forget { object: ObjectId },
    /// The answer to `Locate`: the copies, or the error why there are none.
    Located { object: ObjectId, copies: Result<Vec<CopyLocation>, Error> },
    /// Pulls the data of an object into the worker's object store, from one of these copies, or
    /// from where it was saved if `from` is empty. The worker answers with `Copied` or
    /// `NotBrought`.
    Bring { object: ObjectId, from: Vec<CopyLocation> },
    /// Erases the saved data of an object: nothing in the cluster holds the object any more.
    Erase { object: ObjectId },
    /// Lets the worker leave: no data is left that only it has.
    Leave,
    /// Drains the worker: it takes no new work, and after `grace` it gives up work that still runs.
    /// Then it leaves for good.
    Drain { grace: Duration },
    /// Drains the worker because the controller is about to end. Afterwards the worker joins the
    /// next controller.
    WindUp { grace: Duration },
}

/// Where a copy of an object is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CopyLocation {
    /// The worker whose object store has it.
    pub worker: Session,
    /// The address at which that worker listens, if it listens.
    pub address: Option<Arc<str>>,
}

/// Why a worker refuses work that it was assigned. A refusal costs the task no retry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Refusal {
    /// The controller asked for it back, and it had not started.
    TakenBack,
    /// The worker is about to leave.
    Draining,
    /// The worker cannot start an executor now.
    Full,
    /// The worker cannot start an executor now, because its system is at this limit.
    SystemLimit(SystemLimit),
    /// The executor for it did not start.
    NotStarted,
    /// The worker hosts no such instance.
    NotHere,
}

/// A limit of the operating system that keeps a worker from starting an executor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SystemLimit {
    /// No file descriptor is left.
    Descriptors,
    /// No process is left.
    Processes,
    /// No memory is left.
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

/// Why an instance ended without a failure.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ActorExitReason {
    /// The controller destroyed it, or its worker leaves.
    Requested,
    /// It was not called for its `idle_ttl`.
    Idle,
    /// Its own code ended it.
    Exited,
}

/// How an attempt ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AttemptEnd {
    /// User code returned.
    Finished(Vec<Value>),
    /// User code failed, or exceeded its timeout.
    Failed(Error),
    /// It was cancelled.
    Cancelled,
    /// The executor was lost, for this reason.
    Lost(Error),
}

/// A message from a worker to the controller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FromWorker {
    /// The worker's link works. It accepts work.
    Joined,
    /// The worker refuses an attempt.
    Refused { attempt: AttemptId, reason: Refusal },
    /// No executor of this runtime starts at the worker, for this reason. The controller assigns it
    /// no work of that runtime.
    Unable { runtime: Arc<str>, error: Error },
    /// An executor of this runtime has started after all.
    Able { runtime: Arc<str> },
    /// User code of an attempt runs.
    Started { attempt: AttemptId },
    /// An attempt ended. `next` is the attempt that has its grant now. `kept` are the referents
    /// that its executor still has references to.
    Ended {
        attempt: AttemptId,
        end: AttemptEnd,
        kept: Vec<Referent>,
        ran_for: Duration,
        next: Option<AttemptId>,
    },
    /// User code yielded an item. `to` is the caller of a direct call. Otherwise the item goes to
    /// the owner of the task.
    Yielded { attempt: AttemptId, to: Option<Session>, index: u32, value: Value },
    /// User code waits for other tasks. Its CPUs are free.
    Blocked { attempt: AttemptId },
    /// User code goes on after it was blocked.
    Resumed { attempt: AttemptId },
    /// An instance of an actor is ready for calls.
    ActorReady { instance: Instance },
    /// The constructor of an actor failed.
    ActorFailed { instance: Instance, error: Error },
    /// The executor of an instance was lost, for this reason.
    ActorDied { instance: Instance, error: Error },
    /// An instance ended without a failure.
    ActorDestroyed { instance: Instance, exit: ActorExitReason },
    /// The state of an instance, from which the actor's next instance starts.
    Checkpoint { instance: Instance, sequence: u64, payload: Payload },
    /// Asks whether a session is alive, and for a message when it ends.
    Watch { session: Session },
    /// The worker did not create an instance, for this reason. The refusal costs the actor no
    /// restart.
    ActorRefused { instance: Instance, reason: Refusal },
    /// Asks for holds for a call's answer, which leaves when they are in place. The referents in
    /// `contains`, which the answer names, are held for `to` until `to` accepts the answer. The
    /// referents in `kept` are held by the instance. `stored` are the values of the answer whose
    /// data is in the worker's object store: each becomes an object.
    Entrust {
        call: AttemptId,
        to: Session,
        contains: Vec<Referent>,
        stored: Vec<Value>,
        instance: Instance,
        kept: Vec<Referent>,
    },
    /// An instance releases referents that it held.
    Dropped { instance: Instance, things: Vec<Referent> },
    /// Asks which workers have a copy of an object.
    Locate { object: ObjectId },
    /// The worker's object store has a copy of an object now.
    Copied { object: ObjectId },
    /// The worker's object store has lost its copy of an object, for this reason.
    CopyLost { object: ObjectId, error: Error },
    /// A `Bring` failed, for this reason.
    NotBrought { object: ObjectId, error: Error },
    /// Reports direct calls that ended.
    CallsEnded(Vec<CallReport>),
    /// User code printed something.
    Printed { source: OutputSource, output: PrintedLines },
    /// The worker is about to leave and takes no new work.
    Draining,
    /// The worker is about to leave, and no work is left on it. It waits for `Leave`.
    Emptied,
    /// The worker goes: no work is left on it. Attempts that were still on their way to it never
    /// started.
    Leaving,
}

/// A report to the controller about a direct call that ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CallReport {
    /// The call.
    pub task: TaskId,
    /// The method.
    pub method: Arc<str>,
    /// The instance that it was sent to.
    pub instance: Instance,
    /// How long it ran.
    pub ran_for: Duration,
    /// The error, if it failed.
    pub error: Option<Error>,
}

/// A message from a client to the worker that hosts an actor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ToHost {
    /// Runs a method. The calls of one caller to one instance are numbered 0, 1, 2, … and start in
    /// that order. `took` is how many items of an earlier attempt the caller has consumed.
    Call {
        spec: Arc<TaskSpec>,
        attempt: Attempt,
        epoch: ActorEpoch,
        number: u64,
        values: Vec<Value>,
        took: u32,
    },
    /// Cancels a call.
    CancelCall { call: TaskId, mode: CancelMode },
    /// Reports how many items of a call the caller has consumed in all.
    Took { call: TaskId, count: u32 },
}

impl ToHost {
    /// Returns the call that the message is about.
    pub fn call(&self) -> TaskId {
        match self {
            ToHost::Call { spec, .. } => spec.id,
            ToHost::CancelCall { call, .. } | ToHost::Took { call, .. } => *call,
        }
    }
}

/// A message from a worker to a client that calls one of its actors.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FromHost {
    /// The call ended after `items` items. The items come through the controller, perhaps later
    /// than this.
    CallEnded { attempt: AttemptId, outcome: Outcome, items: u32 },
    /// The call never reached the actor.
    CallRefused { attempt: AttemptId, reason: Refusal },
    /// The call was lost with the executor of its actor. It may have run.
    CallLost { attempt: AttemptId, error: Error },
}
