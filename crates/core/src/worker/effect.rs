//! The effects of a worker.

use super::ExecutorId;
use crate::account::Grant;
use crate::error::Error;
use crate::id::{ActorEpoch, Attempt, ObjectId, Session, TaskId};
use crate::lease::Pong;
use crate::message::{CopyLocation, FromHost, FromWorker};
use crate::payload::{Payload, Value};
use crate::spec::{ActorSpec, TaskSpec};
use std::sync::Arc;

/// An action that the shell carries out. The shell keeps the order of the effects.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // Of fields only: each variant's sentence names its own.
pub enum Effect {
    /// Answer a ping, ahead of all other messages.
    Pong(Pong),
    /// Send a message to the controller.
    ToController(FromWorker),
    /// Send a message to a caller.
    ToCaller { to: Session, message: FromHost },
    /// Drop the link of a caller whose session is over.
    FenceCaller(Session),
    /// Start an executor of this runtime. The runtime is the scheme of the names that it runs,
    /// empty for the worker's own program.
    Spawn { executor: ExecutorId, runtime: Arc<str> },
    /// Run a task in an idle executor.
    Run {
        executor: ExecutorId,
        spec: Arc<TaskSpec>,
        attempt: Attempt,
        values: Vec<Value>,
        grant: Grant,
    },
    /// Create an actor in an idle executor, from the newest of these checkpoints that can be read.
    Construct {
        executor: ExecutorId,
        spec: Arc<ActorSpec>,
        epoch: ActorEpoch,
        values: Vec<Value>,
        grant: Grant,
        checkpoints: Vec<Payload>,
    },
    /// Call the actor in this executor.
    Call { executor: ExecutorId, spec: Arc<TaskSpec>, attempt: Attempt, values: Vec<Value> },
    /// Ask the task or call in this executor to stop. If not `alone`, the work that it submitted is
    /// cancelled too.
    Interrupt { executor: ExecutorId, task: TaskId, alone: bool },
    /// Tell the executor how many items of this task or call were consumed in all. The executor
    /// runs the task or call, or is about to.
    ReportConsumed { executor: ExecutorId, task: TaskId, count: u32 },
    /// Fail this task's wait for other tasks, since `limit` executors wait already. The error names
    /// the limit.
    RefuseBlock { executor: ExecutorId, task: TaskId, limit: usize },
    /// Kill this executor. [`ExecutorDied`](super::Event::ExecutorDied) follows unless the session
    /// is over.
    Kill { executor: ExecutorId },
    /// Retain the blob of this object in the object store, until `Forget`.
    Retain { object: ObjectId },
    /// Evict the blob of this object.
    Forget { object: ObjectId },
    /// Answer `DataMissing`: the copies of a blob, or an error that says why there are none.
    Located { object: ObjectId, copies: Result<Vec<CopyLocation>, Error> },
    /// Pull the blob of this object from one of these copies, or from where it was saved.
    Pull { object: ObjectId, from: Vec<CopyLocation> },
    /// Erase the saved data of this object.
    Erase { object: ObjectId },
    /// The session is over. The object store retains nothing any more, and every executor was
    /// killed. Join again.
    Stopped(Session),
    /// The worker has drained. Its process may exit when its messages are acknowledged.
    Drained,
}
