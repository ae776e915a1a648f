//! What can be asked: statuses, and the record of what ended. Nothing here changes anything.

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

/// What a task is doing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TaskState {
    /// It waits: for values, for a worker, for its actor, or before a retry.
    Pending,
    /// A worker has it.
    Assigned,
    /// User code runs.
    Running,
    /// It has its results.
    Finished,
    /// It has an error.
    Failed,
    /// It was cancelled.
    Cancelled,
}

/// What a worker is doing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WorkerState {
    /// Its session is open, its link is not known to work.
    Joining,
    /// It gets work.
    Healthy,
    /// It has not answered for a while: no new work.
    Suspect,
    /// It finishes what it has and leaves.
    Draining,
}

/// What is known of a task.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TaskStatus {
    /// The task.
    pub id: TaskId,
    /// Its function or method.
    pub name: Arc<str>,
    /// The actor, if it is a call.
    pub actor: Option<ActorId>,
    /// What it is doing.
    pub state: TaskState,
    /// Where it is, or ran last.
    pub worker: Option<SessionId>,
    /// How many results it gives.
    pub returns: u32,
    /// How often it was tried.
    pub attempts: Attempt,
    /// When it was taken on.
    pub created: Time,
    /// When it first ran.
    pub started: Option<Time>,
    /// When it ended.
    pub finished: Option<Time>,
    /// What it failed with.
    pub error: Option<Error>,
    /// Why it waits.
    pub waits_for: Option<String>,
}

/// What is known of an actor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ActorStatus {
    /// What was asked for.
    pub spec: Arc<ActorSpec>,
    /// What it is doing.
    pub state: ActorState,
    /// Why it is gone, if it is.
    pub error: Option<Error>,
    /// Where it is.
    pub worker: Option<SessionId>,
    /// The address at which that worker listens.
    pub worker_address: Option<Arc<str>>,
    /// Of its current instance, or its last.
    pub epoch: ActorEpoch,
    /// How often it was restarted after a loss.
    pub restarts: u32,
    /// When it was taken on.
    pub created: Time,
    /// When it was last called, as far as is known here.
    pub last_used: Time,
    /// Calls through the controller that have not ended.
    pub pending_calls: usize,
    /// Why it waits.
    pub waits_for: Option<String>,
}

/// What is known of a worker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WorkerStatus {
    /// Its session.
    pub session: Session,
    /// What it said of itself.
    pub info: WorkerInfo,
    /// What it is doing.
    pub state: WorkerState,
    /// When it joined.
    pub joined: Time,
    /// What is free there.
    pub free: Resources,
    /// Tasks and calls that are with it.
    pub tasks: usize,
    /// Actors that are with it.
    pub actors: usize,
    /// Runtimes of which no executor starts there, and why.
    pub unable: Vec<(Arc<str>, Error)>,
}

/// Tasks that ended, the latest of them.
#[derive(Debug)]
pub(super) struct History {
    limit: usize,
    order: VecDeque<TaskId>,
    ended: Map<TaskId, EndedTask>,
    /// Calls that went direct: there are many more of them, so they have a list of their own.
    calls: VecDeque<TaskId>,
    ended_calls: Map<TaskId, EndedTask>,
}

#[derive(Debug)]
struct EndedTask {
    status: TaskStatus,
    /// Who is shown what it has left that prints.
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

    /// A task runs again: what is known of it is not the last word.
    pub fn forget(&mut self, id: TaskId) {
        if self.ended.remove(&id).is_some() {
            self.order.retain(|other| *other != id);
        }
    }

    pub fn get(&self, id: TaskId) -> Option<&TaskStatus> {
        let ended = self.ended.get(&id).or_else(|| self.ended_calls.get(&id))?;
        Some(&ended.status)
    }

    /// What a task that has ended is called, and who is shown what it has left that prints.
    pub fn listener(&self, id: TaskId) -> Option<(&Arc<str>, &Arc<Session>)> {
        let ended = self.ended.get(&id)?;
        Some((&ended.status.name, ended.audience.as_ref()?))
    }

    /// All of them, the latest first: tasks and calls through the controller, then direct calls.
    pub fn latest(&self) -> impl Iterator<Item = &TaskStatus> {
        let tasks = self.order.iter().rev().map(|id| &self.ended[id].status);
        tasks.chain(self.calls.iter().rev().map(|id| &self.ended_calls[id].status))
    }
}

/// Keeps one, and the latest others up to the limit.
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
        let forgotten = order.pop_front().expect("it has one");
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
    /// Whether this task was submitted before. A call that went direct and is known to have ended was
    /// not: its caller lost the answer, and may send it again.
    pub(super) fn was_submitted(&self, spec: &TaskSpec) -> bool {
        let is_function = matches!(spec.target, Target::Function(_));
        self.tasks.contains_key(&spec.id) || is_function && self.has_ended(spec.id)
    }

    /// Whether this task or call ended here, as far as is known.
    pub(super) fn has_ended(&self, id: TaskId) -> bool {
        self.history.ended.contains_key(&id) || self.objects.contains_key(&ObjectId::of(id, 0))
    }

    /// What is known of a task.
    pub fn task_status(&self, id: TaskId) -> Result<TaskStatus, Error> {
        if let Some(task) = self.tasks.get(&id) {
            let mut status = status_of(task);
            status.waits_for = self.why_waits(task);
            return Ok(status);
        }
        self.history.get(id).cloned().ok_or_else(|| {
            Error::not_found(format!("no task {id} is known: it never was, or ended too long ago"))
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
        // Others may have room: that is of no use to it.
        if !self.schedule.is_provided_everywhere(&demand.requires) {
            why += &format!(" that provides {:?}", &*demand.requires);
        }
        why
    }

    /// How a task ended: `NotReady` if it has not, `NotFound` if its results are not kept.
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

    /// How a task ended that the record has forgotten, if somebody still holds its results.
    fn kept_results_of(&self, id: TaskId) -> Option<Outcome> {
        let returns = self.objects.get(&ObjectId::of(id, 0))?.returns;
        let results = (0..returns).map(|index| ObjectId::of(id, index));
        let outcome: Option<Outcome> =
            results.map(|result| self.objects.get(&result)?.value(result)).collect();
        outcome.filter(|_| returns > 0)
    }

    /// What is known of an actor.
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

    /// All workers, in the order of their ids.
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

    /// Whether this task is known and has not ended.
    pub fn is_pending(&self, id: TaskId) -> bool {
        self.tasks.contains_key(&id)
    }

    /// How many tasks have not ended.
    pub fn pending_tasks(&self) -> usize {
        self.tasks.len()
    }

    /// How many objects are kept, and the bytes of their payloads.
    pub fn object_count_and_inline_bytes(&self) -> (usize, usize) {
        let bytes = self.objects.values().map(|object| object.inline_bytes()).sum();
        (self.objects.len(), bytes)
    }

    /// How many objects are kept, and the bytes they take with all that belongs to them. Unlike
    /// [`kept`](Controller::kept) it looks at none of them.
    pub fn object_count_and_bytes(&self) -> (usize, usize) {
        (self.objects.len(), self.object_bytes)
    }

    /// How many sessions are open.
    pub fn session_count(&self) -> usize {
        self.sessions.len()
    }

    /// Who holds what.
    pub fn holds(&self) -> &crate::hold::Holds {
        &self.holds
    }
}
