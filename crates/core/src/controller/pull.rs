//! Data that a worker is told to bring before anybody there asks for it: what only workers have that are about to
//! leave, and what is durable and in no store any more.
//!
//! ```text
//!   Draining: what it has alone ──▶ brought elsewhere, a few at a time ──▶ Emptied, and nothing is left: Leave
//!   lost, durable: somebody looks for it ──▶ brought from where it was saved ──▶ a copy like any other
//! ```
//!
//! A worker that cannot bring something is not asked for it again; another is. When none is left, what was to be moved
//! goes with its worker, and what was saved is made anew, if that can be; if not, whoever looks for it next has it
//! tried again. What was saved waits for a worker that can read it.
//!
//! A worker answers each `Bring` once: `Copied` if it has the data by then, however it got it, else `NotBrought`. It may
//! make the data itself meanwhile, and pass it on. Until it has answered, it is not told to forget that data: its
//! `Copied` may be on its way already, and would count for a copy that the `Forget` removes.

use super::query::WorkerState;
use super::task::Task;
use super::worker::WorkerRecord;
use super::{Controller, Effect};
use crate::error::Error;
use crate::id::{Attempt, ObjectId, Session, SessionId};
use crate::message::ToWorker;
use crate::time::Time;

/// Of what a worker has alone that is about to leave, so much is on its way at a time.
const MAX_MOVING: usize = 4;
/// So many saved values wait to be erased while no worker can; of more than that, the files stay.
const MAX_TO_ERASE: usize = 100_000;
/// Of what a worker was told to erase, so much is said to another when it is gone: the latest, which it may not have heard of.
const MAX_ERASING: usize = 1_000;

/// Somebody brings the data of an object.
#[derive(Debug)]
pub(super) struct PendingPull {
    at: SessionId,
    /// Who could not.
    tried: Vec<SessionId>,
    /// The worker that is about to leave and has it; nothing if it is brought since it is lost.
    leaving: Option<SessionId>,
}

impl Controller {
    /// Has the data of an object brought: to `first`, if that can. Says whether there is anybody who can.
    fn start_pull(
        &mut self,
        id: ObjectId,
        first: Option<SessionId>,
        leaving: Option<SessionId>,
        tried: Vec<SessionId>,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let Some(to) = self.bringer(id, first, &tried) else { return false };
        let from = self.copies(id).unwrap_or_default();
        self.pulls.insert(id, PendingPull { at: to.id, tried, leaving });
        let worker = self.workers.get_mut(&to.id).expect("it was found");
        worker.bringing.insert(id);
        if worker.unanswered.insert(id) {
            effects.push(Effect::ToWorker { to, message: ToWorker::Bring { object: id, from } });
        }
        true
    }

    /// Who can bring the data of an object.
    fn bringer(
        &self,
        id: ObjectId,
        first: Option<SessionId>,
        tried: &[SessionId],
    ) -> Option<Session> {
        let lost = self.objects.get(&id).is_none_or(|object| object.is_lost());
        let able = self.workers.values().filter(|worker| {
            matches!(worker.state, WorkerState::Healthy | WorkerState::Suspect)
                && worker.info.store.is_some()
                && (worker.info.durable || !lost)
                && !tried.contains(&worker.session.id)
                && !self.has_copy(worker.session.id, id)
        });
        let order = |worker: &&WorkerRecord| {
            let here = worker.session.id;
            let healthy = worker.state == WorkerState::Healthy;
            let busy = worker.unanswered.contains(&id);
            (!healthy, busy, first != Some(here), worker.bringing.len(), here)
        };
        able.min_by_key(order).map(|worker| worker.session)
    }

    /// Nobody need bring this any more.
    fn end_pull(&mut self, id: ObjectId) -> Option<PendingPull> {
        let bringing = self.pulls.remove(&id)?;
        if let Some(worker) = self.workers.get_mut(&bringing.at) {
            worker.bringing.remove(&id);
        }
        if let Some(leaving) = bringing.leaving.and_then(|id| self.workers.get_mut(&id)) {
            leaving.moving -= 1;
        }
        Some(bringing)
    }

    /// A worker has it now, or nobody holds it any more.
    pub(super) fn stop_bringing(&mut self, id: ObjectId, effects: &mut Vec<Effect>) {
        self.saved_to_pull.remove(&id);
        if let Some(leaving) = self.end_pull(id).and_then(|bringing| bringing.leaving) {
            self.continue_moving_copies(leaving, effects);
        }
    }

    /// A worker could not bring what it was told to.
    pub(super) fn not_brought(
        &mut self,
        now: Time,
        worker: Session,
        id: ObjectId,
        error: Error,
        effects: &mut Vec<Effect>,
    ) {
        self.workers.get_mut(&worker.id).expect("it speaks").unanswered.remove(&id);
        if self.pulls.get(&id).is_some_and(|bringing| bringing.at == worker.id)
            && !self.bring_again(id, effects)
        {
            self.not_read(now, id, error, effects);
        }
    }

    /// A worker is gone that was to bring this.
    pub(super) fn bringer_gone(&mut self, id: ObjectId, effects: &mut Vec<Effect>) {
        if !self.bring_again(id, effects) {
            self.saved_to_pull.insert(id);
        }
    }

    /// Another is told to bring what one could not. Says whether there is one; of what is moved, it does not matter.
    fn bring_again(&mut self, id: ObjectId, effects: &mut Vec<Effect>) -> bool {
        let PendingPull { at, mut tried, leaving } = self.end_pull(id).expect("it is brought");
        tried.push(at);
        let Some(leaving) = leaving else { return self.start_pull(id, None, None, tried, effects) };
        if self.has_only_lasting_copy(leaving, id)
            && self.start_pull(id, None, Some(leaving), tried, effects)
        {
            self.workers.get_mut(&leaving).expect("it has it").moving += 1;
        } else {
            self.continue_moving_copies(leaving, effects);
        }
        true
    }

    /// The data of an object that is lost is brought from where it was saved, to `first` if that can, or when there is a
    /// worker that can. Says whether it comes.
    pub(super) fn bring_saved(
        &mut self,
        id: ObjectId,
        first: Option<SessionId>,
        effects: &mut Vec<Effect>,
    ) -> bool {
        if !self.objects.get(&id).is_some_and(|object| object.is_durable()) {
            return false;
        }
        if !self.pulls.contains_key(&id) && !self.start_pull(id, first, None, Vec::new(), effects) {
            self.saved_to_pull.insert(id);
        }
        true
    }

    /// What was saved can be read by nobody who is here: it is made anew, if that can be.
    fn not_read(&mut self, now: Time, id: ObjectId, error: Error, effects: &mut Vec<Effect>) {
        let object = self.objects.get_mut(&id).expect("it is brought for somebody");
        if !object.is_lost() {
            return; // It was made anew meanwhile.
        }
        object.add_pending().last_copy_error = Some(error);
        if let Err(error) = self.recompute(now, id, effects) {
            self.recompute_failed(id, &error, effects);
        }
    }

    /// A worker is here that may read what nobody could.
    fn pull_unread_saved(&mut self, worker: Session, effects: &mut Vec<Effect>) {
        let mut unread: Vec<ObjectId> =
            std::mem::take(&mut self.saved_to_pull).into_iter().collect();
        unread.sort_unstable();
        for id in unread {
            if self.objects.get(&id).is_some_and(|object| object.is_lost()) {
                self.bring_saved(id, Some(worker.id), effects);
            }
        }
    }

    /// A worker is about to leave: what nobody else has goes elsewhere.
    pub(super) fn move_data(&mut self, id: SessionId, effects: &mut Vec<Effect>) {
        let worker = self.workers.get_mut(&id).expect("it drains");
        let stored = worker.stored.iter().map(|row| *self.objects.at(*row).0);
        let mut stored: Vec<ObjectId> = stored.collect();
        stored.sort_unstable();
        worker.to_move = stored.into();
        self.continue_moving_copies(id, effects);
    }

    /// A worker that was about to leave is gone. What is on its way may still come; if not, it is lost like any other.
    pub(super) fn stop_moving(&mut self, id: SessionId) {
        let moved = self.pulls.iter().filter(|(_, one)| one.leaving == Some(id));
        let moved: Vec<ObjectId> = moved.map(|(object, _)| *object).collect();
        for object in moved {
            self.end_pull(object);
        }
    }

    /// A worker that is about to leave has one value more.
    pub(super) fn move_too(&mut self, worker: Session, id: ObjectId, effects: &mut Vec<Effect>) {
        let row = self.objects.row(&id);
        let record = self.workers.get_mut(&worker.id).filter(|record| record.is_draining());
        let has = |record: &&mut WorkerRecord| row.is_some_and(|row| record.stored.contains(&row));
        if let Some(record) = record.filter(has) {
            record.to_move.push_back(id);
            self.continue_moving_copies(worker.id, effects);
        }
    }

    /// A worker that is about to leave has nothing more to do.
    pub(super) fn emptied(&mut self, id: SessionId, effects: &mut Vec<Effect>) {
        self.workers.get_mut(&id).expect("it speaks").emptied = true;
        let able = |worker: &WorkerRecord| worker.info.durable && !worker.emptied;
        if self.shutting_down && !self.workers.values().any(able) {
            self.erase_all(effects); // The cluster ends with this one.
        }
        // Who had the rest when it began to leave may be gone since, and others may have come.
        self.move_data(id, effects);
    }

    fn erase_all(&mut self, effects: &mut Vec<Effect>) {
        let durable = self.objects.iter().filter(|(_, object)| object.is_durable());
        let mut durable: Vec<ObjectId> = durable.map(|(id, _)| *id).collect();
        durable.sort_unstable();
        for object in durable {
            self.erase(object, effects);
        }
    }

    /// Has as much moved as may be at a time; when nothing is left that could be, it may leave.
    fn continue_moving_copies(&mut self, id: SessionId, effects: &mut Vec<Effect>) {
        loop {
            let Some(worker) = self.workers.get_mut(&id) else { return };
            if worker.moving >= MAX_MOVING {
                return;
            }
            let Some(object) = worker.to_move.pop_front() else { break };
            if self.has_only_lasting_copy(id, object)
                && !self.pulls.contains_key(&object)
                && self.start_pull(object, None, Some(id), Vec::new(), effects)
            {
                self.workers.get_mut(&id).expect("it has it").moving += 1;
            }
        }
        let worker = self.workers.get_mut(&id).expect("it was looked at");
        if worker.emptied && worker.moving == 0 && !worker.may_leave {
            worker.may_leave = true;
            effects.push(Effect::ToWorker { to: worker.session, message: ToWorker::Leave });
        }
    }

    /// Whether a worker has the data of an object that would be lost if all went that are about to leave.
    fn has_only_lasting_copy(&self, id: SessionId, object: ObjectId) -> bool {
        let Some(object) = self.objects.get(&object) else { return false };
        let stays = |at: &SessionId| !self.workers[at].is_draining();
        let copies = object.copies.all();
        copies.contains(&id) && !object.is_durable() && !copies.iter().any(stays)
    }

    /// A value that was saved is nothing to anybody any more.
    pub(super) fn erase(&mut self, object: ObjectId, effects: &mut Vec<Effect>) {
        let able = self.workers.values().filter(|worker| worker.info.durable);
        let order = |worker: &&WorkerRecord| {
            (worker.may_leave, worker.state != WorkerState::Healthy, worker.session)
        };
        match able.min_by_key(order).map(|worker| worker.session) {
            Some(to) => {
                let told = &mut self.workers.get_mut(&to.id).expect("it was found").erasing;
                told.push_back(object);
                if told.len() > MAX_ERASING {
                    told.pop_front();
                }
                effects.push(Effect::ToWorker { to, message: ToWorker::Erase { object } });
            }
            None if self.to_erase.len() < MAX_TO_ERASE => self.to_erase.push(object),
            None => {}
        }
    }

    /// A task has failed that may have saved results in an earlier attempt, of whose end nobody has heard.
    pub(super) fn erase_earlier(&mut self, task: &Task, effects: &mut Vec<Effect>) {
        if task.spec.options.durable && task.attempt > Attempt(1) {
            for object in task.output_objects() {
                if !self.objects.get(&object).is_some_and(|object| object.is_durable()) {
                    self.erase(object, effects);
                }
            }
        }
    }

    /// A worker that can sees to what was saved, and could not be read or erased before.
    pub(super) fn see_to_saved(&mut self, to: Session, effects: &mut Vec<Effect>) {
        if self.workers[&to.id].info.durable {
            self.pull_unread_saved(to, effects);
            for object in std::mem::take(&mut self.to_erase) {
                self.erase(object, effects);
            }
        }
    }

    /// Panics if what is brought, by whom and for whom, does not add up.
    pub(super) fn check_bringing(&self) {
        for (id, bringing) in &self.pulls {
            assert!(self.objects.contains_key(id), "{id} is brought for nobody");
            let at = self.workers.get(&bringing.at);
            assert!(at.is_some_and(|at| at.bringing.contains(id)), "nobody brings {id}");
            assert!(
                at.is_some_and(|at| at.unanswered.contains(id)),
                "nobody was told to bring {id}"
            );
        }
        for id in &self.saved_to_pull {
            assert!(self.objects.contains_key(id), "{id} is to be read for nobody");
        }
        let brought: usize = self.workers.values().map(|worker| worker.bringing.len()).sum();
        assert_eq!(brought, self.pulls.len(), "what is brought, counted from both sides");
        for (id, worker) in &self.workers {
            let moving = self.pulls.values().filter(|one| one.leaving == Some(*id)).count();
            assert_eq!(moving, worker.moving, "what is moved away from {id}");
            assert!(worker.is_draining() || worker.to_move.is_empty(), "{id} stays");
        }
    }
}
