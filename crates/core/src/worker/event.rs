//! What happens to a worker.

use super::ExecutorId;
use crate::error::Error;
use crate::id::{ObjectId, Session, TaskId, Thing};
use crate::lease::{Ping, Terms};
use crate::message::{Lack, ToHost, ToWorker};
use crate::output::{Output, Source};
use crate::payload::Value;
use crate::time::Time;
use std::time::Duration;

/// What user code gave back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CallEnd {
    /// Its results, or its error.
    pub outcome: Result<Vec<Value>, Error>,
    /// Things that its executor kept references to.
    pub kept: Vec<Thing>,
}

/// What happened, as seen by a worker.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // Of fields only: each variant's sentence names its own.
pub enum Event {
    /// The controller opened a session, which was asked for at `asked_at`.
    Joined { session: Session, terms: Terms, asked_at: Time },
    /// The controller asks whether this worker lives.
    PingReceived { session: Session, ping: Ping },
    /// The controller said that this session is over.
    Fenced { session: Session },
    /// The controller said something on this session's link.
    ControllerSaid { session: Session, message: ToWorker },
    /// A caller said something on its direct link.
    CallerSaid { session: Session, message: ToHost },
    /// User code gave an item of its stream.
    Yielded { executor: ExecutorId, task: TaskId, index: u32, value: Value },
    /// An executor is up.
    ExecutorReady { executor: ExecutorId },
    /// An executor could not be started for want of something that may come back; of what, if that is known.
    ExecutorRefused { executor: ExecutorId, lack: Option<Lack> },
    /// An executor is gone, and how.
    ExecutorDied { executor: ExecutorId, error: Error },
    /// User code of a task ended.
    RunEnded { executor: ExecutorId, task: TaskId, end: CallEnd },
    /// A task could not begin where it is: something that it is given could not be brought there.
    NotBegun { executor: ExecutorId, task: TaskId, error: Error },
    /// An actor's constructor ended.
    Constructed { executor: ExecutorId, result: Result<(), Error> },
    /// A call to an actor ended.
    CallFinished { executor: ExecutorId, call: TaskId, end: CallEnd },
    /// The task in this executor waits for others.
    Blocked { executor: ExecutorId },
    /// It goes on.
    Resumed { executor: ExecutorId },
    /// The actor in this executor let go of things it kept.
    Dropped { executor: ExecutorId, things: Vec<Thing> },
    /// The actor in this executor ends by itself, for good: no call begins any more.
    ActorExited { executor: ExecutorId },
    /// Memory runs short: what is used of what there is, in bytes, and what executors take of it.
    MemoryShort { used: u64, limit: u64, taken: Vec<(ExecutorId, u64)> },
    /// User code printed something.
    Printed { source: Source, output: Output },
    /// Somebody looks for the data of an object, which the store does not have.
    DataMissing { object: ObjectId },
    /// The store has copied the data of an object from another's.
    DataCopied { object: ObjectId },
    /// The store could not bring the data of an object that it was told to bring.
    DataNotBrought { object: ObjectId, error: Error },
    /// The store has lost the data of an object that it kept.
    DataLost { object: ObjectId, error: Error },
    /// The worker is to finish and leave.
    DrainAsked { grace: Duration },
    /// The time has come that [`next_wake`](super::Worker::next_wake) named, or later.
    TimePassed,
}
