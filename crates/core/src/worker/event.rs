//! The events of a worker.

use super::ExecutorId;
use crate::error::Error;
use crate::id::{ObjectId, Referent, Session, TaskId};
use crate::lease::{LeaseTerms, Ping};
use crate::message::{SystemLimit, ToHost, ToWorker};
use crate::output::{OutputSource, PrintedLines};
use crate::payload::Value;
use crate::recent_events::{EventSummary, Subject};
use crate::time::Time;
use std::time::Duration;

/// The result of a run of user code.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UserCodeResult {
    /// The results or the error.
    pub outcome: Result<Vec<Value>, Error>,
    /// The referents that the executor still holds references to.
    pub still_held: Vec<Referent>,
}

/// An event, from the worker's point of view.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // Of fields only: each variant's sentence names its own.
pub enum Event {
    /// The controller opened a session, which the worker requested at `asked_at`.
    Joined { session: Session, terms: LeaseTerms, asked_at: Time },
    /// The controller pings this worker.
    PingReceived { session: Session, ping: Ping },
    /// The controller says that this session is over.
    Fenced { session: Session },
    /// A message from the controller arrived on this session's link.
    ControllerMessageReceived { session: Session, message: ToWorker },
    /// A message from a caller arrived on its direct link.
    CallerMessageReceived { session: Session, message: ToHost },
    /// User code yielded an item.
    Yielded { executor: ExecutorId, task: TaskId, index: u32, value: Value },
    /// An executor has started.
    ExecutorReady { executor: ExecutorId },
    /// An executor could not be started, because a limit of the system was reached. Trying again
    /// later may help. `lack` is that limit, if it is known.
    ExecutorRefused { executor: ExecutorId, lack: Option<SystemLimit> },
    /// An executor died, for this reason.
    ExecutorDied { executor: ExecutorId, error: Error },
    /// User code of a task ended.
    TaskEnded { executor: ExecutorId, task: TaskId, end: UserCodeResult },
    /// A task could not start in its executor: one of its inputs could not be pulled to this node.
    InputsUnavailable { executor: ExecutorId, task: TaskId, error: Error },
    /// The constructor of an actor ended.
    Constructed { executor: ExecutorId, result: Result<(), Error> },
    /// A call to an actor ended.
    CallEnded { executor: ExecutorId, call: TaskId, end: UserCodeResult },
    /// The task in this executor waits for other tasks.
    Blocked { executor: ExecutorId },
    /// The task in this executor goes on after it was blocked.
    Resumed { executor: ExecutorId },
    /// The actor in this executor released references that it held.
    ReferencesReleased { executor: ExecutorId, things: Vec<Referent> },
    /// The actor in this executor ends itself for good. It starts no further calls.
    ActorExited { executor: ExecutorId },
    /// Memory runs short: `used` of `limit` bytes are in use, and `taken` are the bytes of each
    /// executor.
    MemoryShort { used: u64, limit: u64, taken: Vec<(ExecutorId, u64)> },
    /// User code printed something.
    Printed { source: OutputSource, output: PrintedLines },
    /// A process asked for a blob that the object store does not have.
    DataMissing { object: ObjectId },
    /// The object store has pulled a copy of a blob.
    DataCopied { object: ObjectId },
    /// The object store could not pull a blob that it was told to pull.
    DataPullFailed { object: ObjectId, error: Error },
    /// The object store has lost a blob that it retained.
    DataLost { object: ObjectId, error: Error },
    /// The worker is to drain and leave.
    DrainRequested { grace: Duration },
    /// The time that [`next_wake`](super::Worker::next_wake) returned has come.
    TimePassed,
}

impl Event {
    /// Returns the name of the event, or of the message that it brings, and the ids that it is
    /// about.
    pub fn summary(&self) -> EventSummary {
        let (name, subject) = match self {
            Event::ControllerMessageReceived { session, message } => {
                return message.summary().from(*session);
            }
            Event::CallerMessageReceived { session, message } => {
                return message.summary().from(*session);
            }
            Event::Joined { session, .. } => ("Joined", Subject::Session(*session)),
            Event::PingReceived { session, .. } => ("PingReceived", Subject::Session(*session)),
            Event::Fenced { session } => ("Fenced", Subject::Session(*session)),
            Event::Yielded { executor, task, .. } => ("Yielded", Subject::TaskIn(*executor, *task)),
            Event::ExecutorReady { executor } => ("ExecutorReady", Subject::Executor(*executor)),
            Event::ExecutorRefused { executor, .. } => {
                ("ExecutorRefused", Subject::Executor(*executor))
            }
            Event::ExecutorDied { executor, .. } => ("ExecutorDied", Subject::Executor(*executor)),
            Event::TaskEnded { executor, task, .. } => {
                ("TaskEnded", Subject::TaskIn(*executor, *task))
            }
            Event::InputsUnavailable { executor, task, .. } => {
                ("InputsUnavailable", Subject::TaskIn(*executor, *task))
            }
            Event::Constructed { executor, .. } => ("Constructed", Subject::Executor(*executor)),
            Event::CallEnded { executor, call, .. } => {
                ("CallEnded", Subject::TaskIn(*executor, *call))
            }
            Event::Blocked { executor } => ("Blocked", Subject::Executor(*executor)),
            Event::Resumed { executor } => ("Resumed", Subject::Executor(*executor)),
            Event::ReferencesReleased { executor, .. } => {
                ("ReferencesReleased", Subject::Executor(*executor))
            }
            Event::ActorExited { executor } => ("ActorExited", Subject::Executor(*executor)),
            Event::MemoryShort { .. } => ("MemoryShort", Subject::Nothing),
            Event::Printed { source, .. } => ("Printed", (*source).into()),
            Event::DataMissing { object } => ("DataMissing", Subject::Object(*object)),
            Event::DataCopied { object } => ("DataCopied", Subject::Object(*object)),
            Event::DataPullFailed { object, .. } => ("DataPullFailed", Subject::Object(*object)),
            Event::DataLost { object, .. } => ("DataLost", Subject::Object(*object)),
            Event::DrainRequested { .. } => ("DrainRequested", Subject::Nothing),
            Event::TimePassed => ("TimePassed", Subject::Nothing),
        };
        EventSummary::of(name, subject)
    }
}
