//! Tasks and calls: requests to submit one, filters, and statuses.

use super::super::field::{or_default, unknown, within};
use super::{
    Detail, SessionRequest, args, check_version, error, id, id_or_new, objects, optional_session,
    prefix,
};
use crate::v1;
use crate::wall_clock::WallClock;
use marline_core::Error;
use marline_core::controller::{TaskFilter, TaskState, TaskStatus};
use marline_core::id::{Session, TaskId};
use marline_core::spec::{Target, TaskSpec};
use marline_core::worker::WorkerTaskStatus;
use std::sync::Arc;

/// How many results a task has if the request does not say.
const DEFAULT_RETURNS: u32 = 1;

/// Decodes a request to submit a task. `new_id` gives it an id if the request names none.
pub fn decode_task(
    wire: v1::SubmitTaskRequest,
    new_id: impl FnOnce() -> TaskId,
) -> Result<SessionRequest<Arc<TaskSpec>>, Error> {
    check_version(&wire.protocol)?;
    let spec = TaskSpec {
        id: id_or_new(&wire.task_id, "SubmitTaskRequest.task_id", new_id)?,
        target: Target::Function(wire.function.into()),
        args: args(wire.args, "SubmitTaskRequest.args")?,
        needs: objects(&wire.needs, "SubmitTaskRequest.needs")?,
        referents: Vec::new(),
        returns: wire.returns.unwrap_or(DEFAULT_RETURNS),
        stream_window: None,
        options: Arc::new(or_default(wire.options, "SubmitTaskRequest.options")?),
    };
    let session = optional_session(wire.session, "SubmitTaskRequest.session")?;
    Ok(SessionRequest { session, spec: Arc::new(spec) })
}

/// Decodes a request to call a method. `new_id` gives the call an id if the request names none.
pub fn decode_call(
    wire: v1::CallActorRequest,
    new_id: impl FnOnce() -> TaskId,
) -> Result<SessionRequest<Arc<TaskSpec>>, Error> {
    check_version(&wire.protocol)?;
    let actor = id(&wire.actor_id, "CallActorRequest.actor_id")?;
    let spec = TaskSpec {
        id: id_or_new(&wire.task_id, "CallActorRequest.task_id", new_id)?,
        target: Target::Method { actor, method: wire.method.into() },
        args: args(wire.args, "CallActorRequest.args")?,
        needs: objects(&wire.needs, "CallActorRequest.needs")?,
        referents: Vec::new(),
        returns: wire.returns.unwrap_or(DEFAULT_RETURNS),
        stream_window: None,
        options: Arc::new(or_default(wire.options, "CallActorRequest.options")?),
    };
    let session = optional_session(wire.session, "CallActorRequest.session")?;
    Ok(SessionRequest { session, spec: Arc::new(spec) })
}

/// Decodes which tasks are to be listed.
pub fn decode_filter(wire: &v1::ListTasksRequest) -> Result<TaskFilter, Error> {
    let (states, actor) = (&wire.states, &wire.actor_id);
    let states = states.iter().map(|state| task_state(*state)).collect::<Result<_, Error>>();
    let states = states.map_err(|error| within("ListTasksRequest.states", error))?;
    let actor = (!actor.is_empty()).then(|| id(actor, "ListTasksRequest.actor_id")).transpose()?;
    let prefix = prefix(&wire.id_prefix, "ListTasksRequest.id_prefix")?;
    Ok(TaskFilter { states, actor, prefix })
}

macro_rules! states {
    ($($state:ident)+) => {
        fn encode_state(state: TaskState) -> i32 {
            match state {
                $(TaskState::$state => v1::TaskState::$state.into(),)+
            }
        }

        fn task_state(number: i32) -> Result<TaskState, Error> {
            match v1::TaskState::try_from(number) {
                $(Ok(v1::TaskState::$state) => Ok(TaskState::$state),)+
                Ok(v1::TaskState::Unspecified) | Err(_) => Err(unknown("TaskState", number)),
            }
        }
    };
}

states! { Pending Assigned Running Finished Failed Cancelled }

/// Encodes the controller's status of a task.
pub fn encode_task(status: TaskStatus, detail: Detail, wall: WallClock) -> v1::TaskStatus {
    v1::TaskStatus {
        task_id: status.id.to_string(),
        name: status.name.to_string(),
        actor_id: status.actor.map(|actor| actor.to_string()).unwrap_or_default(),
        state: encode_state(status.state),
        worker_id: status.worker.map(|worker| worker.to_string()).unwrap_or_default(),
        attempts: status.attempts.0,
        returns: status.returns,
        created_at: Some(wall.unix_millis(status.created)),
        started_at: status.started.map(|time| wall.unix_millis(time)),
        finished_at: status.finished.map(|time| wall.unix_millis(time)),
        error: error(status.error, detail),
        waits_for: status.waits_for.unwrap_or_default(),
    }
}

/// Encodes what a worker knows of a task that it has.
pub fn encode_task_here(
    worker: Option<Session>,
    task: &WorkerTaskStatus,
    wall: WallClock,
) -> v1::TaskStatus {
    let actor = task.spec.target.actor();
    v1::TaskStatus {
        task_id: task.spec.id.to_string(),
        name: task.spec.target.name().to_string(),
        actor_id: actor.map(|actor| actor.to_string()).unwrap_or_default(),
        state: encode_state(task.state),
        worker_id: worker.map(|worker| worker.id.to_string()).unwrap_or_default(),
        attempts: task.attempt.0,
        returns: task.spec.returns,
        started_at: task.since.map(|time| wall.unix_millis(time)),
        ..v1::TaskStatus::default()
    }
}
