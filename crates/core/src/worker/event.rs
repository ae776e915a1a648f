//! What happens to a worker.

use super::ExecutorId;
use crate::error::Error;
use crate::id::{ObjectId, Referent, Session, TaskId};
use crate::lease::{LeaseTerms, Ping};
use crate::message::{SystemLimit, ToHost, ToWorker};
use crate::output::{OutputSource, PrintedLines};
use crate::payload::Value;
use crate::time::Time;
use std::time::Duration;

/// What user code gave back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UserCodeResult {
    /// Its results, or its error.
    pub outcome: Result<Vec<Value>, Error>,
    /// Things that its executor kept references to.
    pub still_held: Vec<Referent>,
}

/// What happened, as seen by a worker.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // Of fields only: each variant's sentence names its own.
pub enum Event {
    /// The controller opened a session, which was asked for at `asked_at`.
    Joined { session: Session, terms: LeaseTerms, asked_at: Time },
    /// The controller asks whether this worker lives.
    PingReceived { session: Session, ping: Ping },
    /// The controller said that this session is over.
    Fenced { session: Session },
    /// The controller said something on this session's link.
    ControllerMessageReceived { session: Session, message: ToWorker },
    /// A caller said something on its direct link.
    CallerMessageReceived { session: Session, message: ToHost },
    /// User code gave an item of its stream.
    Yielded { executor: ExecutorId, task: TaskId, index: u32, value: Value },
    /// An executor is up.
    ExecutorReady { executor: ExecutorId },
    /// An executor could not be started for want of something that may come back; of what, if that is known.
    ExecutorRefused { executor: ExecutorId, lack: Option<SystemLimit> },
    /// An executor is gone, and how.
    ExecutorDied { executor: ExecutorId, error: Error },
    /// User code of a task ended.
    TaskEnded { executor: ExecutorId, task: TaskId, end: UserCodeResult },
    /// A task could not begin where it is: something that it is given could not be brought there.
    InputsUnavailable { executor: ExecutorId, task: TaskId, error: Error },
    /// An actor's constructor ended.
    Constructed { executor: ExecutorId, result: Result<(), Error> },
    /// A call to an actor ended.
    CallEnded { executor: ExecutorId, call: TaskId, end: UserCodeResult },
    /// The task in this executor waits for others.
    Blocked { executor: ExecutorId },
    /// It goes on.
    Resumed { executor: ExecutorId },
    /// The actor in this executor let go of things it kept.
    ReferencesReleased { executor: ExecutorId, things: Vec<Referent> },
    /// The actor in this executor ends by itself, for good: no call begins any more.
    ActorExited { executor: ExecutorId },
    /// Memory runs short: what is used of what there is, in bytes, and what executors take of it.
    MemoryShort { used: u64, limit: u64, taken: Vec<(ExecutorId, u64)> },
    /// User code printed something.
    Printed { source: OutputSource, output: PrintedLines },
    /// Somebody looks for the data of an object, which the store does not have.
    DataMissing { object: ObjectId },
    /// The store has copied the data of an object from another's.
    DataCopied { object: ObjectId },
    /// The store could not bring the data of an object that it was told to bring.
    DataPullFailed { object: ObjectId, error: Error },
    /// The store has lost the data of an object that it kept.
    DataLost { object: ObjectId, error: Error },
    /// The worker is to finish and leave.
    DrainRequested { grace: Duration },
    /// The time has come that [`next_wake`](super::Worker::next_wake) named, or later.
    TimePassed,
}
