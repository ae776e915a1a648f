//! Workers: what is with them, and what happens to it when they go.

use super::query::WorkerState;
use super::{Controller, Effect, SessionEndCause, Timer, WorkerInfo};
use crate::account::Grant;
use crate::error::{Error, Ran};
use crate::hold::Holder;
use crate::id::{ActorEpoch, ActorId, ObjectId, Session, SessionEpoch, SessionId, TaskId};
use crate::map::{Map, Set};
use crate::message::{
    ActorExitReason, AttemptId, FromWorker, Instance, Refusal, ShapeId, SystemLimit, ToWorker,
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
    /// No work until then: it could not start an executor.
    paused_until: Option<Time>,
    /// Why it could not, until it starts something.
    lack: Option<SystemLimit>,
    /// Runtimes of which no executor starts there, and why.
    pub unable: BTreeMap<Arc<str>, Error>,
    /// Tasks that are with it.
    pub attempts: Set<TaskId>,
    /// Those of them that have no grant yet, in order.
    pub backlog: Map<ShapeId, VecDeque<TaskId>>,
    /// Actors that are with it, or may still be.
    pub actors: Map<ActorId, HostedInstance>,
    /// Objects whose data its store has, by where they stand among all.
    pub stored: Set<Row>,
    /// Objects whose data it is to bring.
    pub bringing: Set<ObjectId>,
    /// Objects that it was told to bring and has not answered for, whether or not they are still wanted.
    pub unanswered: Set<ObjectId>,
    /// If it is about to leave: what else is to be looked at that it may have alone, how much is moved at the
    /// moment, and whether it has nothing more to do and waits for that.
    pub to_move: VecDeque<ObjectId>,
    pub moving: usize,
    /// It has nothing more to do.
    pub emptied: bool,
    /// What it was told to erase lately: if it is gone, it may not have heard of it.
    pub erasing: VecDeque<ObjectId>,
    /// It was told that it may leave.
    pub may_leave: bool,
}

/// Of so many runtimes a worker may say that it is unable to run them; it is tried with others.
const MAX_UNABLE: usize = 1_000;

/// An instance of an actor at a worker.
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
        let backlog = self.backlog.get_mut(&shape).expect("it is in the backlog");
        let index = backlog.iter().position(|other| *other == task).expect("it is in the backlog");
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
            lack: None,
            unable: BTreeMap::new(),
            attempts: Set::default(),
            backlog: Map::default(),
            actors: Map::default(),
            stored: Set::default(),
            bringing: Set::default(),
            unanswered: Set::default(),
            to_move: VecDeque::new(),
            moving: 0,
            emptied: false,
            erasing: VecDeque::new(),
            may_leave: false,
        };
        self.workers.insert(session.id, worker);
    }

    pub(super) fn handle_worker_message(
        &mut self,
        now: Time,
        session: Session,
        message: FromWorker,
        effects: &mut Vec<Effect>,
    ) {
        if !self.workers.contains_key(&session.id) {
            return; // A client that speaks like a worker has nothing to say.
        }
        match message {
            FromWorker::Joined => {
                let worker = self.workers.get_mut(&session.id).expect("it speaks");
                if worker.state == WorkerState::Joining {
                    worker.state = WorkerState::Healthy;
                    self.set_open(session.id);
                    self.forget_unknown();
                    self.see_to_saved(session, effects);
                }
            }
            FromWorker::Refused { attempt, reason } => {
                self.attempt_refused(now, session, attempt, reason, effects);
            }
            FromWorker::Unable { runtime, error } => self.runtime_unable(session, runtime, error),
            FromWorker::Able { runtime } => self.runtime_able(session, &runtime),
            FromWorker::Started { attempt } => self.attempt_started(now, session, attempt),
            FromWorker::Ended { attempt, end, kept, ran_for, next } => {
                self.attempt_ended(now, session, attempt, end, kept, ran_for, next, effects);
            }
            FromWorker::Yielded { attempt, to, index, value } => {
                self.yielded(now, session, attempt, to, index, value, effects);
            }
            FromWorker::Blocked { attempt } => self.attempt_blocked(session, attempt, true),
            FromWorker::Resumed { attempt } => self.attempt_blocked(session, attempt, false),
            FromWorker::ActorReady { instance } => {
                self.actor_ready(now, session, instance, effects)
            }
            FromWorker::ActorFailed { instance, error } => {
                self.actor_failed(now, session, instance, error, effects);
            }
            FromWorker::ActorDied { instance, error } => {
                self.actor_died(now, session, instance, error, effects);
            }
            FromWorker::ActorDestroyed { instance, exit: why } => {
                self.actor_destroyed(now, session, instance, why, effects);
            }
            FromWorker::Checkpoint { instance, sequence, payload } => {
                self.checkpoint(session, instance, sequence, payload, effects);
            }
            FromWorker::Watch { session: watched } => {
                let alive = self.watch(session, watched);
                let message = ToWorker::Watched { session: watched, alive };
                effects.push(Effect::ToWorker { to: session, message });
            }
            FromWorker::ActorRefused { instance, reason } => {
                self.note_refusal(now, session, reason, effects);
                self.actor_destroyed(now, session, instance, ActorExitReason::Requested, effects);
            }
            FromWorker::Entrust { call, to, contains, stored, instance, kept } => {
                self.entrust(now, session, call, to, contains, stored, instance, kept, effects);
            }
            FromWorker::Locate { object } => self.locate(now, session, object, effects),
            FromWorker::Copied { object } => self.copied(session, object, effects),
            FromWorker::CopyLost { object, error } => self.copy_lost(session, object, error),
            FromWorker::NotBrought { object, error } => {
                self.not_brought(now, session, object, error, effects);
            }
            FromWorker::Dropped { instance, things } => self.dropped(instance, things),
            FromWorker::CallsEnded(reports) => self.calls_ended(now, session, reports),
            FromWorker::Printed { source, output } => {
                self.printed(session, source, output, effects);
            }
            FromWorker::Draining => self.start_draining(session.id, effects),
            FromWorker::Emptied => self.emptied(session.id, effects),
            FromWorker::Leaving => self.worker_leaves(now, session, effects),
        }
    }

    /// New work may be placed with a worker if it is healthy and could start what it was given.
    pub(super) fn set_open(&mut self, id: SessionId) {
        let worker = &self.workers[&id];
        self.schedule.open(
            worker.index,
            worker.state == WorkerState::Healthy && worker.paused_until.is_none(),
        );
    }

    /// No executor of a runtime starts at a worker: it is passed over for it.
    fn runtime_unable(&mut self, worker: Session, runtime: Arc<str>, error: Error) {
        let record = self.workers.get_mut(&worker.id).expect("it speaks");
        if record.unable.len() < MAX_UNABLE || record.unable.contains_key(&runtime) {
            record.unable.insert(runtime, error.bounded());
            self.set_able(worker);
        }
    }

    /// One has started.
    fn runtime_able(&mut self, worker: Session, runtime: &Arc<str>) {
        let record = self.workers.get_mut(&worker.id).expect("it speaks");
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

    /// It has not answered for a while: no new work.
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

    /// It answered.
    pub(super) fn trust(&mut self, id: SessionId) {
        let Some(worker) = self.workers.get_mut(&id) else { return };
        if worker.state == WorkerState::Suspect {
            worker.state = WorkerState::Healthy;
            self.set_open(id);
        }
    }

    /// It could not start an executor: no new work for a while.
    pub(super) fn pause(&mut self, now: Time, id: SessionId) {
        let worker = self.workers.get_mut(&id).expect("it speaks");
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

    /// It has started something.
    pub(super) fn clear_system_limit(&mut self, worker: Session) {
        if let Some(worker) = self.workers.get_mut(&worker.id) {
            worker.lack = None;
        }
    }

    /// Why no worker that is healthy can start an executor, if they say so.
    pub(super) fn why_nothing_starts(&self) -> Option<String> {
        let healthy = || self.workers.values().filter(|one| one.state == WorkerState::Healthy);
        if healthy().any(|worker| worker.lack.is_none()) {
            return None;
        }
        let worker = healthy().next()?;
        let (lack, host) = (worker.lack?, &worker.info.hostname);
        Some(format!("no worker can start an executor: of the one at {host:?}, {lack}"))
    }

    /// A worker gave something back: what that says of the worker.
    pub(super) fn note_refusal(
        &mut self,
        now: Time,
        worker: Session,
        reason: Refusal,
        effects: &mut Vec<Effect>,
    ) {
        match reason {
            Refusal::Full => self.pause(now, worker.id),
            Refusal::SystemLimit(lack) => {
                self.pause(now, worker.id);
                self.workers.get_mut(&worker.id).expect("it speaks").lack = Some(lack);
            }
            Refusal::Draining => self.start_draining(worker.id, effects),
            Refusal::TakenBack | Refusal::NotStarted | Refusal::NotHere => {}
        }
    }

    /// It is about to leave.
    pub(super) fn start_draining(&mut self, id: SessionId, effects: &mut Vec<Effect>) {
        let worker = self.workers.get_mut(&id).expect("it is here");
        if !worker.is_draining() {
            worker.state = WorkerState::Draining;
            self.set_open(id);
            self.move_data(id, effects);
        }
    }

    /// Has a worker finish what it has, move what is left after `grace`, and leave.
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

    /// A worker goes in good order: what was on its way there never started, and costs nothing.
    fn worker_leaves(&mut self, now: Time, session: Session, effects: &mut Vec<Effect>) {
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
            // One that went may have taken others with it.
            let Some(attempt) = self.tasks.get(&task).map(|known| known.attempt) else { continue };
            let attempt = AttemptId { task, attempt };
            self.attempt_refused(now, session, attempt, Refusal::Draining, effects);
        }
        for instance in actors {
            self.actor_destroyed(now, session, instance, ActorExitReason::Requested, effects);
        }
        self.end_session(now, session.id, SessionEndCause::Closed, effects);
    }

    /// A worker's session is over. What it had is lost, or was never started; nothing of it can come
    /// back, since whatever it says now is fenced.
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
        let mut bringing: Vec<ObjectId> = worker.bringing.into_iter().collect();
        bringing.sort_unstable();
        for object in bringing {
            self.bringer_gone(object, effects);
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
