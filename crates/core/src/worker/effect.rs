//! What a worker asks of its shell.

use super::ExecutorId;
use crate::account::Grant;
use crate::error::Error;
use crate::id::{ActorEpoch, Attempt, ObjectId, Session, TaskId};
use crate::lease::Pong;
use crate::message::{CopyLocation, FromHost, FromWorker};
use crate::payload::{Payload, Value};
use crate::spec::{ActorSpec, TaskSpec};
use std::sync::Arc;

/// What is to be done, in this order.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // Of fields only: each variant's sentence names its own.
pub enum Effect {
    /// Answer a ping, ahead of everything else.
    Pong(Pong),
    /// Send this to the controller.
    ToController(FromWorker),
    /// Send this to a caller.
    ToCaller { to: Session, message: FromHost },
    /// This caller's session is over: drop its link.
    FenceCaller(Session),
    /// Start an executor of this runtime: the scheme of the names it is to run, empty for the worker's
    /// own program.
    Spawn { executor: ExecutorId, runtime: Arc<str> },
    /// Run a task in an idle executor.
    Run {
        executor: ExecutorId,
        spec: Arc<TaskSpec>,
        attempt: Attempt,
        values: Vec<Value>,
        grant: Grant,
    },
    /// Make an actor in an idle executor, from the newest of these checkpoints that can be read.
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
    /// Ask what runs under this id to stop, alone or with what it has submitted.
    Interrupt { executor: ExecutorId, task: TaskId, alone: bool },
    /// Of the items of what this executor runs under this id, or is about to, so many were taken in all.
    ReportConsumed { executor: ExecutorId, task: TaskId, count: u32 },
    /// This task may not wait for others: as many as may do already. Its wait fails, naming the limit.
    RefuseBlock { executor: ExecutorId, task: TaskId, limit: usize },
    /// End this executor by force. [`ExecutorDied`](super::Event::ExecutorDied) follows unless the
    /// session is over.
    Kill { executor: ExecutorId },
    /// The store keeps the data of this object until it is to forget it.
    Retain { object: ObjectId },
    /// The store need not keep it any more.
    Forget { object: ObjectId },
    /// Where the data of an object is that was looked for, or why it is nowhere.
    Located { object: ObjectId, copies: Result<Vec<CopyLocation>, Error> },
    /// Bring the data of this object, from one of these, or from where it was saved.
    Pull { object: ObjectId, from: Vec<CopyLocation> },
    /// Erase what was saved of this object.
    Erase { object: ObjectId },
    /// The session is over for this worker; the store keeps nothing, every executor was killed. Join again.
    Stopped(Session),
    /// The worker has drained; its process may go when what it said was acknowledged.
    Drained,
}
