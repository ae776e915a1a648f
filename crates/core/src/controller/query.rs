//! Status queries for tasks, actors and workers, and the history of ended tasks. The queries change
//! nothing.

use super::actor::{ActorPhase, ActorState};
use super::task::{Task, TaskPhase, TaskPlace};
use super::{Controller, WorkerInfo};
use crate::error::Error;
use crate::id::{ActorEpoch, ActorId, Attempt, ObjectId, Session, SessionId, TaskId};
use crate::map::Map;
use crate::message::CallReport;
use crate::payload::Outcome;
use crate::resources::Resources;
use crate::schedule::Demand;
use crate::spec::{ActorSpec, Target, TaskSpec};
use crate::time::Time;
use std::collections::VecDeque;
use std::sync::Arc;

/// The state of a task, as users see it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TaskState {
    /// The task waits: for values, for a worker, for its actor, or before a retry.
    Pending,
    /// A worker has the task.
    Assigned,
    /// User code runs.
    Running,
    /// The task has its results.
    Finished,
    /// The task has an error.
    Failed,
    /// The task was cancelled.
    Cancelled,
}

/// The state of a worker.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WorkerState {
    /// The session is open. The worker has not reported that its link works.
    Joining,
    /// The worker gets work.
    Healthy,
    /// The worker has not answered for a while, and gets no new work.
    Suspect,
    /// The worker finishes what it has, and leaves.
    Draining,
}

/// The status of a task.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TaskStatus {
    /// The task.
    pub id: TaskId,
    /// Its function or method.
    pub name: Arc<str>,
    /// The actor, if the task is a call.
    pub actor: Option<ActorId>,
    /// Its state.
    pub state: TaskState,
    /// The worker that has the task, or ran it last.
    pub worker: Option<SessionId>,
    /// How many results the task returns.
    pub returns: u32,
    /// How many attempts were made.
    pub attempts: Attempt,
    /// When the task was admitted.
    pub created: Time,
    /// When user code first ran.
    pub started: Option<Time>,
    /// When the task ended.
    pub finished: Option<Time>,
    /// The error that the task failed with.
    pub error: Option<Error>,
    /// Why the task waits.
    pub waits_for: Option<String>,
}

/// The status of an actor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ActorStatus {
    /// The specification that its creator submitted.
    pub spec: Arc<ActorSpec>,
    /// Its state.
    pub state: ActorState,
    /// Why the actor is dead, if it is.
    pub error: Option<Error>,
    /// The worker that hosts or creates its instance.
    pub worker: Option<SessionId>,
    /// The address at which that worker listens.
    pub worker_address: Option<Arc<str>>,
    /// The epoch of its current instance, or of its last one.
    pub epoch: ActorEpoch,
    /// How many times the actor was restarted after a loss.
    pub restarts: u32,
    /// When the actor was admitted.
    pub created: Time,
    /// When the actor was last called, as far as the controller knows.
    pub last_used: Time,
    /// How many calls through the controller have not ended.
    pub pending_calls: usize,
    /// Why the actor waits.
    pub waits_for: Option<String>,
}

/// The status of a worker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WorkerStatus {
    /// Its session.
    pub session: Session,
    /// Its description of itself.
    pub info: WorkerInfo,
    /// Its state.
    pub state: WorkerState,
    /// When the worker joined.
    pub joined: Time,
    /// The resources that are free there.
    pub free: Resources,
    /// How many tasks and calls the worker has.
    pub tasks: usize,
    /// How many actor instances the worker hosts.
    pub actors: usize,
    /// Runtimes of which no executor starts at the worker, each with the reason.
    pub unable: Vec<(Arc<str>, Error)>,
}

/// The latest tasks and calls that ended, up to `limit` of each.
#[derive(Debug)]
pub(super) struct History {
    limit: usize,
    /// Tasks and calls through the controller, oldest first.
    order: VecDeque<TaskId>,
    ended: Map<TaskId, EndedTask>,
    /// Direct calls, oldest first. There are many more of them, so they have a list of their own.
    calls: VecDeque<TaskId>,
    ended_calls: Map<TaskId, EndedTask>,
}

#[derive(Debug)]
struct EndedTask {
    status: TaskStatus,
    /// The client that is shown what the task's remaining threads and processes print.
    audience: Option<Arc<Session>>,
}

impl History {
    pub fn new(limit: usize) -> History {
        History {
            limit,
            order: VecDeque::new(),
            ended: Map::default(),
            calls: VecDeque::new(),
            ended_calls: Map::default(),
        }
    }

    pub fn push(&mut self, now: Time, task: &Task, state: TaskState, error: Option<&Error>) {
        let mut status = status_of(task);
        status.state = state;
        status.finished = Some(now);
        status.error = error.cloned();
        let audience = task.audience.clone();
        let ended = EndedTask { status, audience };
        remember(&mut self.order, &mut self.ended, ended, self.limit);
    }

    pub fn push_call(&mut self, now: Time, worker: SessionId, report: CallReport) {
        let status = TaskStatus {
            id: report.task,
            name: report.method,
            actor: Some(report.instance.actor),
            state: if report.error.is_some() { TaskState::Failed } else { TaskState::Finished },
            worker: Some(worker),
            returns: 1,
            attempts: Attempt(1),
            created: now - report.ran_for,
            started: Some(now - report.ran_for),
            finished: Some(now),
            error: report.error,
            waits_for: None,
        };
        let ended = EndedTask { status, audience: None };
        remember(&mut self.calls, &mut self.ended_calls, ended, self.limit);
    }

    /// Removes a task that runs again.
    pub fn forget(&mut self, id: TaskId) {
        if self.ended.remove(&id).is_some() {
            self.order.retain(|other| *other != id);
        }
    }

    pub fn get(&self, id: TaskId) -> Option<&TaskStatus> {
        let ended = self.ended.get(&id).or_else(|| self.ended_calls.get(&id))?;
        Some(&ended.status)
    }

    /// Returns the name of an ended task, and the client that is shown what its remaining threads
    /// and processes print.
    pub fn listener(&self, id: TaskId) -> Option<(&Arc<str>, &Arc<Session>)> {
        let ended = self.ended.get(&id)?;
        Some((&ended.status.name, ended.audience.as_ref()?))
    }

    /// Returns the whole history: tasks and calls through the controller, then direct calls, each
    /// latest first.
    pub fn latest(&self) -> impl Iterator<Item = &TaskStatus> {
        let tasks = self.order.iter().rev().map(|id| &self.ended[id].status);
        tasks.chain(self.calls.iter().rev().map(|id| &self.ended_calls[id].status))
    }
}

/// Adds an ended task, and drops the oldest if there are more than `limit`.
fn remember(
    order: &mut VecDeque<TaskId>,
    known: &mut Map<TaskId, EndedTask>,
    ended: EndedTask,
    limit: usize,
) {
    let id = ended.status.id;
    if known.insert(id, ended).is_none() {
        order.push_back(id);
    }
    if order.len() > limit {
        let forgotten = order.pop_front().expect("the list is not empty");
        known.remove(&forgotten);
    }
}

pub(super) fn status_of(task: &Task) -> TaskStatus {
    TaskStatus {
        id: task.spec.id,
        name: task.spec.target.name().clone(),
        actor: task.spec.target.actor(),
        state: task.state.public_state(),
        worker: task.worker,
        returns: task.spec.returns,
        attempts: task.attempt,
        created: task.created,
        started: task.started,
        finished: None,
        error: None,
        waits_for: None,
    }
}

impl Controller {
    /// Returns whether this task was submitted before. Returns `false` for a call that went direct
    /// and has ended: its caller lost the answer, and may send the call again.
    pub(super) fn was_submitted(&self, spec: &TaskSpec) -> bool {
        let is_function = matches!(spec.target, Target::Function(_));
        self.tasks.contains_key(&spec.id) || is_function && self.has_ended(spec.id)
    }

    /// Returns whether this task or call is known to have ended. A task that the history has
    /// forgotten still counts if its first result is kept.
    pub(super) fn has_ended(&self, id: TaskId) -> bool {
        self.history.ended.contains_key(&id) || self.objects.contains_key(&ObjectId::of(id, 0))
    }

    /// Returns the status of a task. Fails with `NotFound` if the task is unknown or forgotten.
    pub fn task_status(&self, id: TaskId) -> Result<TaskStatus, Error> {
        if let Some(task) = self.tasks.get(&id) {
            let mut status = status_of(task);
            status.waits_for = self.why_waits(task);
            return Ok(status);
        }
        self.history.get(id).cloned().ok_or_else(|| {
            Error::not_found(format!(
                "no task {id} is known: it never existed, or ended too long ago"
            ))
        })
    }

    pub(super) fn why_waits(&self, task: &Task) -> Option<String> {
        match &task.state {
            TaskPhase::Waiting { missing } => Some(format!("{missing} values that it needs")),
            TaskPhase::Delayed => Some("the delay before its next attempt".into()),
            TaskPhase::AwaitingActor { .. } => Some("its actor to be ready".into()),
            TaskPhase::Queued(_) => Some(self.why_queued(&self.demand(&task.spec))),
            TaskPhase::Placed { place: TaskPlace::Backlog { .. }, .. } => {
                Some("a slot at its worker".into())
            }
            TaskPhase::Placed { .. } => None,
        }
    }

    pub(super) fn why_queued(&self, demand: &Demand) -> String {
        if let Some(why) = self.why_not_placed(demand) {
            return why;
        }
        let mut why = format!("{} to be free at a worker", demand.resources);
        // Workers that do not provide it may have room, which does not help.
        if !self.schedule.is_provided_everywhere(&demand.requires) {
            why += &format!(" that provides {:?}", &*demand.requires);
        }
        why
    }

    /// Returns how a task ended. Fails with `NotReady` if the task has not ended, and with
    /// `NotFound` if its results are not kept.
    pub fn task_result(&self, id: TaskId) -> Result<Outcome, Error> {
        let status = match self.task_status(id) {
            Ok(status) => status,
            Err(unknown) => return self.kept_results_of(id).ok_or(unknown),
        };
        if status.finished.is_none() {
            return Err(Error::not_ready(format!("task {id} has not ended yet")));
        }
        if let Some(error) = status.error {
            return Ok(Err(error));
        }
        let values = (0..status.returns).map(|index| self.value(ObjectId::of(id, index)));
        let values = values.collect::<Option<Vec<_>>>();
        values.map(Ok).ok_or_else(|| {
            Error::not_found(format!("the results of task {id} are not kept any more"))
        })
    }

    /// Returns the outcome of a task that the history has forgotten, if its results are still held.
    fn kept_results_of(&self, id: TaskId) -> Option<Outcome> {
        let returns = self.objects.get(&ObjectId::of(id, 0))?.returns;
        let results = (0..returns).map(|index| ObjectId::of(id, index));
        let outcome: Option<Outcome> =
            results.map(|result| self.objects.get(&result)?.value(result)).collect();
        outcome.filter(|_| returns > 0)
    }

    /// Returns the status of an actor. Fails with `NotFound` if the actor is unknown or forgotten.
    pub fn actor_status(&self, id: ActorId) -> Result<ActorStatus, Error> {
        let Some(actor) = self.actors.get(&id) else {
            return Err(Error::not_found(format!("no actor {id} is known")));
        };
        Ok(ActorStatus {
            spec: actor.spec.clone(),
            state: actor.state(),
            error: actor.death().cloned(),
            worker: actor.worker(),
            worker_address: actor
                .worker()
                .and_then(|worker| self.workers.get(&worker)?.info.address.clone()),
            epoch: actor.epoch,
            restarts: actor.restarts,
            created: actor.created,
            last_used: actor.last_used,
            pending_calls: actor.waiting_calls.len() + actor.sent_calls.len(),
            waits_for: match actor.phase {
                ActorPhase::Waiting => Some("values that its constructor needs".into()),
                ActorPhase::Delayed => Some("the delay before its next instance".into()),
                ActorPhase::Queued(_) => Some(self.why_queued(&self.demand_of_actor(id))),
                ActorPhase::Instantiating { .. }
                | ActorPhase::Ready { .. }
                | ActorPhase::Dead { .. } => None,
            },
        })
    }

    /// Returns the status of all workers, in the order of their ids.
    pub fn list_workers(&self) -> Vec<WorkerStatus> {
        let mut workers: Vec<WorkerStatus> = self
            .workers
            .values()
            .map(|worker| WorkerStatus {
                session: worker.session,
                info: worker.info.clone(),
                state: worker.state,
                joined: worker.joined,
                free: self.schedule.account(worker.index).free(),
                tasks: worker.attempts.len(),
                actors: worker.actors.len(),
                unable: worker.unable.iter().map(|(one, why)| (one.clone(), why.clone())).collect(),
            })
            .collect();
        workers.sort_unstable_by_key(|worker| worker.session);
        workers
    }

    /// Returns whether this task is known and has not ended.
    pub fn is_pending(&self, id: TaskId) -> bool {
        self.tasks.contains_key(&id)
    }

    /// Returns how many tasks have not ended.
    pub fn pending_tasks(&self) -> usize {
        self.tasks.len()
    }

    /// Returns how many objects are kept, and the bytes of their inline payloads.
    pub fn object_count_and_inline_bytes(&self) -> (usize, usize) {
        let bytes = self.objects.values().map(|object| object.inline_bytes()).sum();
        (self.objects.len(), bytes)
    }

    /// Returns how many objects are kept, and the bytes that they take with their records. Unlike
    /// [`object_count_and_inline_bytes`](Controller::object_count_and_inline_bytes), this visits no
    /// object.
    pub fn object_count_and_bytes(&self) -> (usize, usize) {
        (self.objects.len(), self.object_bytes)
    }

    /// Returns how many sessions are open.
    pub fn session_count(&self) -> usize {
        self.sessions.len()
    }

    /// Returns all holds.
    pub fn holds(&self) -> &crate::hold::Holds {
        &self.holds
    }
}
