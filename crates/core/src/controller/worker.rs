//! Workers: the record of each, when they get work (suspicion, pauses, draining), and what happens
//! to their work when they leave or are lost.

use super::query::WorkerState;
use super::{Controller, Effect, SessionEndCause, Timer, WorkerInfo};
use crate::account::Grant;
use crate::error::{Error, Ran};
use crate::hold::Holder;
use crate::id::{ActorEpoch, ActorId, ObjectId, Session, SessionEpoch, SessionId, TaskId};
use crate::map::{Map, Set};
use crate::message::{
    ActorExitReason, AttemptId, Instance, Refusal, ShapeId, SystemLimit, ToWorker,
};
use crate::schedule::{WorkerCapabilities, WorkerIndex};
use crate::table::Row;
use crate::time::Time;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

#[derive(Debug)]
pub(super) struct WorkerRecord {
    pub session: Session,
    pub info: WorkerInfo,
    pub index: WorkerIndex,
    pub state: WorkerState,
    pub joined: Time,
    /// Until when the worker gets no work, since it could not start an executor.
    paused_until: Option<Time>,
    /// Which system limit kept it from starting an executor. Cleared when it starts one.
    system_limit: Option<SystemLimit>,
    /// Runtimes of which no executor starts at this worker, each with the reason.
    pub unable: BTreeMap<Arc<str>, Error>,
    /// Tasks and calls that the worker has.
    pub attempts: Set<TaskId>,
    /// Tasks among `attempts` that have no grant yet, in order.
    pub backlog: Map<ShapeId, VecDeque<TaskId>>,
    /// Actor instances that the worker hosts, or may still host.
    pub actors: Map<ActorId, HostedInstance>,
    /// Objects whose data is in the worker's store, by their row in the table of all objects.
    pub stored: Set<Row>,
    /// Objects whose data the worker is to pull.
    pub pulls: Set<ObjectId>,
    /// Objects that the worker was told to pull and has not answered for, even if they are not
    /// wanted any more.
    pub unanswered: Set<ObjectId>,
    /// While the worker drains: objects that are still to be checked. Those that only draining
    /// workers have are moved.
    pub to_move: VecDeque<ObjectId>,
    /// While the worker drains: how many objects are being moved to other workers.
    pub moving: usize,
    /// Whether the worker drains and has no more work. It waits until its objects are moved.
    pub emptied: bool,
    /// The objects that the worker was told to erase last. If the worker is lost, the message may
    /// not have arrived.
    pub erasing: VecDeque<ObjectId>,
    /// Whether the worker was told that it may leave.
    pub may_leave: bool,
}

/// The most runtimes that a worker can report as unable to run. Beyond that, reports are ignored,
/// and work of those runtimes is still placed there.
const MAX_UNABLE: usize = 1_000;

/// An instance of an actor at a worker, with its grant.
#[derive(Debug)]
pub(super) struct HostedInstance {
    pub epoch: ActorEpoch,
    pub shape: ShapeId,
    pub grant: Grant,
}

impl WorkerRecord {
    pub fn is_draining(&self) -> bool {
        self.state == WorkerState::Draining
    }

    pub fn leave_backlog(&mut self, shape: ShapeId, task: TaskId) {
        let backlog = self.backlog.get_mut(&shape).expect("the shape has a backlog");
        let index = backlog.iter().position(|other| *other == task).expect("the task is in it");
        backlog.remove(index);
        if backlog.is_empty() {
            self.backlog.remove(&shape);
        }
    }
}

impl Controller {
    pub(super) fn worker_joined(&mut self, now: Time, session: Session, info: WorkerInfo) {
        let slot = self.schedule.add_worker(info.provides.clone(), info.resources.clone());
        let index = slot.0 as usize;
        if self.session_by_index.len() <= index {
            self.session_by_index.resize(index + 1, SessionId::default());
        }
        self.session_by_index[index] = session.id;
        let worker = WorkerRecord {
            session,
            info,
            index: slot,
            state: WorkerState::Joining,
            joined: now,
            paused_until: None,
            system_limit: None,
            unable: BTreeMap::new(),
            attempts: Set::default(),
            backlog: Map::default(),
            actors: Map::default(),
            stored: Set::default(),
            pulls: Set::default(),
            unanswered: Set::default(),
            to_move: VecDeque::new(),
            moving: 0,
            emptied: false,
            erasing: VecDeque::new(),
            may_leave: false,
        };
        self.workers.insert(session.id, worker);
    }

    /// The link of a worker that has joined works. The worker gets work from now on.
    pub(super) fn worker_is_ready(&mut self, session: Session, effects: &mut Vec<Effect>) {
        let worker = self.workers.get_mut(&session.id).expect("the worker is here");
        if worker.state == WorkerState::Joining {
            worker.state = WorkerState::Healthy;
            self.set_open(session.id);
            self.forget_unknown();
            self.see_to_saved(session, effects);
        }
    }

    /// Opens a worker for new work if it is healthy and not paused, and closes it otherwise.
    pub(super) fn set_open(&mut self, id: SessionId) {
        let worker = &self.workers[&id];
        self.schedule.set_open(
            worker.index,
            worker.state == WorkerState::Healthy && worker.paused_until.is_none(),
        );
    }

    /// Notes that no executor of a runtime starts at a worker. The worker gets no work of that
    /// runtime.
    pub(super) fn runtime_unable(&mut self, worker: Session, runtime: Arc<str>, error: Error) {
        let record = self.workers.get_mut(&worker.id).expect("the worker is here");
        if record.unable.len() < MAX_UNABLE || record.unable.contains_key(&runtime) {
            record.unable.insert(runtime, error.bounded());
            self.set_able(worker);
        }
    }

    /// Notes that an executor of a runtime has started at a worker that was unable to start one.
    pub(super) fn runtime_able(&mut self, worker: Session, runtime: &Arc<str>) {
        let record = self.workers.get_mut(&worker.id).expect("the worker is here");
        if record.unable.remove(runtime).is_some() {
            self.set_able(worker);
            self.forget_unknown();
        }
    }

    fn set_able(&mut self, worker: Session) {
        let record = &self.workers[&worker.id];
        let unable = record.unable.keys().cloned().collect();
        let provides = WorkerCapabilities { unable, ..(*record.info.provides).clone() };
        self.schedule.set_provides(record.index, Arc::new(provides));
    }

    /// Gives a worker that has not answered for a while no new work.
    pub(super) fn suspect(&mut self, now: Time, id: SessionId, effects: &mut Vec<Effect>) {
        let Some(worker) = self.workers.get_mut(&id) else { return };
        if worker.state == WorkerState::Healthy {
            worker.state = WorkerState::Suspect;
            self.set_open(id);
            if crate::planted!(TwoEpochs) {
                self.restart_suspects(now, id, effects);
            }
        }
    }

    /// Gives a suspected worker work again: it has answered.
    pub(super) fn trust(&mut self, id: SessionId) {
        let Some(worker) = self.workers.get_mut(&id) else { return };
        if worker.state == WorkerState::Suspect {
            worker.state = WorkerState::Healthy;
            self.set_open(id);
        }
    }

    /// Gives a worker that could not start an executor no new work for a while.
    pub(super) fn pause(&mut self, now: Time, id: SessionId) {
        let worker = self.workers.get_mut(&id).expect("the worker is here");
        let until = now + self.config.full_pause;
        worker.paused_until = Some(until);
        let epoch = worker.session.epoch;
        self.set_open(id);
        self.timers.insert((until, Timer::Reopen(id, epoch)));
    }

    pub(super) fn reopen(&mut self, now: Time, id: SessionId, epoch: SessionEpoch) {
        let Some(worker) = self.workers.get_mut(&id).filter(|worker| worker.session.epoch == epoch)
        else {
            return;
        };
        if worker.paused_until.is_some_and(|until| until <= now) {
            worker.paused_until = None;
            self.set_open(id);
        }
    }

    /// Notes that a worker has started an executor.
    pub(super) fn clear_system_limit(&mut self, worker: Session) {
        if let Some(worker) = self.workers.get_mut(&worker.id) {
            worker.system_limit = None;
        }
    }

    /// Returns why no healthy worker can start an executor, if all of them have reported a system
    /// limit.
    pub(super) fn why_nothing_starts(&self) -> Option<String> {
        let healthy = || self.workers.values().filter(|one| one.state == WorkerState::Healthy);
        if healthy().any(|worker| worker.system_limit.is_none()) {
            return None;
        }
        let worker = healthy().next()?;
        let (system_limit, host) = (worker.system_limit?, &worker.info.hostname);
        Some(format!(
            "no worker can start an executor: the one at {host:?} says that {system_limit}"
        ))
    }

    /// Pauses or drains a worker according to its reason for a refusal.
    pub(super) fn note_refusal(
        &mut self,
        now: Time,
        worker: Session,
        reason: Refusal,
        effects: &mut Vec<Effect>,
    ) {
        match reason {
            Refusal::Full => self.pause(now, worker.id),
            Refusal::SystemLimit(system_limit) => {
                self.pause(now, worker.id);
                self.workers.get_mut(&worker.id).expect("the worker is here").system_limit =
                    Some(system_limit);
            }
            Refusal::Draining => self.start_draining(worker.id, effects),
            Refusal::TakenBack | Refusal::NotStarted | Refusal::NotHere => {}
        }
    }

    /// Gives a worker that is about to leave no new work, and starts to move its data.
    pub(super) fn start_draining(&mut self, id: SessionId, effects: &mut Vec<Effect>) {
        let worker = self.workers.get_mut(&id).expect("the worker is here");
        if !worker.is_draining() {
            worker.state = WorkerState::Draining;
            self.set_open(id);
            self.move_data(id, effects);
        }
    }

    /// Drains a worker: it finishes what it has, gives up what still runs after `grace`, and
    /// leaves.
    pub fn drain(
        &mut self,
        now: Time,
        id: SessionId,
        grace: Duration,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Error> {
        let Some(worker) = self.workers.get(&id) else {
            return Err(Error::not_found(format!(
                "no worker {id} is here: `marline workers` lists them"
            )));
        };
        effects.push(Effect::ToWorker { to: worker.session, message: ToWorker::Drain { grace } });
        self.start_draining(id, effects);
        self.dispatch(now, effects);
        Ok(())
    }

    /// Handles the orderly end of a worker. Work that was on its way there never started, and loses
    /// nothing.
    pub(super) fn worker_leaves(&mut self, now: Time, session: Session, effects: &mut Vec<Effect>) {
        let worker = &self.workers[&session.id];
        let mut tasks: Vec<TaskId> = worker.attempts.iter().copied().collect();
        tasks.sort_unstable();
        let mut actors: Vec<Instance> = worker
            .actors
            .iter()
            .map(|(actor, hosted)| Instance { actor: *actor, epoch: hosted.epoch })
            .collect();
        actors.sort_unstable();
        for task in tasks {
            // The end of an earlier task may have ended this one, too.
            let Some(attempt) = self.tasks.get(&task).map(|known| known.attempt) else { continue };
            let attempt = AttemptId { task, attempt };
            self.attempt_refused(now, session, attempt, Refusal::Draining, effects);
        }
        for instance in actors {
            self.actor_destroyed(now, session, instance, ActorExitReason::Requested, effects);
        }
        self.end_session(now, session.id, SessionEndCause::Closed, effects);
    }

    /// Handles the end of a worker's session. Its work is lost or was never started. None of it can
    /// come back, since every later message from the worker is fenced.
    pub(super) fn worker_gone(
        &mut self,
        now: Time,
        id: SessionId,
        cause: &SessionEndCause,
        effects: &mut Vec<Effect>,
    ) {
        let worker = self.workers.remove(&id).expect("a worker goes once");
        self.schedule.remove_worker(worker.index);
        let error = || {
            let host = &worker.info.hostname;
            Error::unavailable(Ran::Maybe, format!("worker {id} on {host} was lost: {cause}"))
        };
        self.all_copies_gone(id, &worker.stored, &error());
        self.stop_moving(id);
        for object in worker.erasing {
            if !self.objects.get(&object).is_some_and(|object| object.is_durable()) {
                self.erase(object, effects);
            }
        }
        let mut pulls: Vec<ObjectId> = worker.pulls.into_iter().collect();
        pulls.sort_unstable();
        for object in pulls {
            self.pulling_worker_gone(object, effects);
        }
        let mut tasks: Vec<TaskId> = worker.attempts.into_iter().collect();
        tasks.sort_unstable();
        self.attempts_lost(now, tasks, &error(), effects);
        let mut actors: Vec<(ActorId, ActorEpoch)> =
            worker.actors.iter().map(|(actor, hosted)| (*actor, hosted.epoch)).collect();
        actors.sort_unstable();
        for (actor, epoch) in actors {
            let free = self.holds.release_all(Holder::Instance(Instance { actor, epoch }));
            self.queue_freed(free);
            self.instance_lost(now, actor, epoch, error(), effects);
        }
    }
}
