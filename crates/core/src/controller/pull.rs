//! Pulls that the controller starts itself. It tells a worker to pull data that nothing at that
//! worker asks for: data of which only draining workers have copies, and durable data that is in no
//! store any more. Other pulls are up to the workers; they only ask with `Locate`.
//!
//! ```text
//!   a worker drains: its only copies ──▶ pulled by others, a few at a time ──▶ none left: Leave
//!   lost durable data is looked for ──▶ pulled from where it was saved ──▶ a copy like any other
//! ```
//!
//! - A draining worker may leave when it has reported `Emptied` and no such copy is left to move.
//! - A worker that could not pull an object is not told to again; another one is.
//! - When no other worker is left, data that was to be moved is lost with its worker.
//! - When no worker can read saved data, the data is recomputed if possible. If not, the next
//!   session that looks for it makes the controller try again.
//! - Saved data waits while no worker is here that can read it.
//!
//! A worker answers each `Bring` once: `Copied` if it has the data by then, however it got it,
//! otherwise `NotBrought`. The worker may make the data itself meanwhile, and report it. Until the
//! worker has answered, the controller does not tell it to forget that data: its `Copied` may be on
//! its way already, and would count for a copy that the `Forget` removes.

use super::query::WorkerState;
use super::task::Task;
use super::worker::WorkerRecord;
use super::{Controller, Effect};
use crate::error::Error;
use crate::id::{Attempt, ObjectId, Session, SessionId};
use crate::message::ToWorker;
use crate::time::Time;

/// The most objects that are moved away from one draining worker at a time.
const MAX_MOVING: usize = 4;
/// The most saved values that wait to be erased while no worker can erase. The files of further
/// values stay.
const MAX_TO_ERASE: usize = 100_000;
/// The most erasures of one worker that are remembered. If the worker is lost, another one gets
/// these latest erasures, since the lost worker may not have received them.
const MAX_ERASING: usize = 1_000;

/// A pull that the controller started and that has not ended.
#[derive(Debug)]
pub(super) struct PendingPull {
    /// The worker that pulls.
    at: SessionId,
    /// The workers that could not pull the data.
    tried: Vec<SessionId>,
    /// The draining worker that has the data. `None` if the data is pulled because it is lost.
    leaving: Option<SessionId>,
}

impl Controller {
    /// Tells a worker, `first` if possible, to pull the data of an object. Returns `false` if no
    /// worker can.
    fn start_pull(
        &mut self,
        id: ObjectId,
        first: Option<SessionId>,
        leaving: Option<SessionId>,
        tried: Vec<SessionId>,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let Some(to) = self.worker_to_pull(id, first, &tried) else { return false };
        let from = self.copies(id).unwrap_or_default();
        self.pulls.insert(id, PendingPull { at: to.id, tried, leaving });
        let worker = self.workers.get_mut(&to.id).expect("the worker is here");
        worker.pulls.insert(id);
        if worker.unanswered.insert(id) {
            effects.push(Effect::ToWorker { to, message: ToWorker::Bring { object: id, from } });
        }
        true
    }

    /// Chooses the worker that is to pull the data of an object.
    fn worker_to_pull(
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
            (!healthy, busy, first != Some(here), worker.pulls.len(), here)
        };
        able.min_by_key(order).map(|worker| worker.session)
    }

    /// Removes a pull from the pending ones, with its counts at the workers.
    fn end_pull(&mut self, id: ObjectId) -> Option<PendingPull> {
        let pulls = self.pulls.remove(&id)?;
        if let Some(worker) = self.workers.get_mut(&pulls.at) {
            worker.pulls.remove(&id);
        }
        if let Some(leaving) = pulls.leaving.and_then(|id| self.workers.get_mut(&id)) {
            leaving.moving -= 1;
        }
        Some(pulls)
    }

    /// Ends the pull of an object, since a worker has its data now or nothing holds it any more.
    pub(super) fn stop_pull(&mut self, id: ObjectId, effects: &mut Vec<Effect>) {
        self.saved_to_pull.remove(&id);
        if let Some(leaving) = self.end_pull(id).and_then(|pulls| pulls.leaving) {
            self.continue_moving_copies(leaving, effects);
        }
    }

    /// Handles a worker's report that it could not pull the data of an object.
    pub(super) fn not_brought(
        &mut self,
        now: Time,
        worker: Session,
        id: ObjectId,
        error: Error,
        effects: &mut Vec<Effect>,
    ) {
        self.workers.get_mut(&worker.id).expect("the worker is here").unanswered.remove(&id);
        if self.pulls.get(&id).is_some_and(|pulls| pulls.at == worker.id)
            && !self.bring_again(id, effects)
        {
            self.not_read(now, id, error, effects);
        }
    }

    /// Moves the pull of a worker that is gone to another worker.
    pub(super) fn pulling_worker_gone(&mut self, id: ObjectId, effects: &mut Vec<Effect>) {
        if !self.bring_again(id, effects) {
            self.saved_to_pull.insert(id);
        }
    }

    /// Tells another worker to pull what the first one could not. Returns `false` if the data is
    /// lost and no other worker can pull it. Returns `true` for data that was being moved, in any
    /// case: it may go with its worker.
    fn bring_again(&mut self, id: ObjectId, effects: &mut Vec<Effect>) -> bool {
        let PendingPull { at, mut tried, leaving } = self.end_pull(id).expect("a pull is pending");
        tried.push(at);
        let Some(leaving) = leaving else { return self.start_pull(id, None, None, tried, effects) };
        if self.has_only_lasting_copy(leaving, id)
            && self.start_pull(id, None, Some(leaving), tried, effects)
        {
            self.workers.get_mut(&leaving).expect("the worker is here").moving += 1;
        } else {
            self.continue_moving_copies(leaving, effects);
        }
        true
    }

    /// Starts to pull the lost data of an object from where it was saved: to `first` if that worker
    /// can, otherwise to any worker, now or when one joins that can. Returns `false` if the data
    /// was not saved.
    pub(super) fn pull_saved(
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

    /// Recomputes saved data that no worker here can read, if possible.
    fn not_read(&mut self, now: Time, id: ObjectId, error: Error, effects: &mut Vec<Effect>) {
        let object = self.objects.get_mut(&id).expect("a pulled object is held");
        if !object.is_lost() {
            return; // It was recomputed meanwhile.
        }
        object.boxed_mut().last_copy_error = Some(error);
        if let Err(error) = self.recompute(now, id, effects) {
            self.recompute_failed(id, &error, effects);
        }
    }

    /// Tells a worker that joined to pull saved data that no other worker could read.
    fn pull_unread_saved(&mut self, worker: Session, effects: &mut Vec<Effect>) {
        let mut unread: Vec<ObjectId> =
            std::mem::take(&mut self.saved_to_pull).into_iter().collect();
        unread.sort_unstable();
        for id in unread {
            if self.objects.get(&id).is_some_and(|object| object.is_lost()) {
                self.pull_saved(id, Some(worker.id), effects);
            }
        }
    }

    /// Starts to move the objects of a draining worker that only draining workers have to other
    /// workers.
    pub(super) fn move_data(&mut self, id: SessionId, effects: &mut Vec<Effect>) {
        let worker = self.workers.get_mut(&id).expect("the worker is here");
        let stored = worker.stored.iter().map(|row| *self.objects.at(*row).0);
        let mut stored: Vec<ObjectId> = stored.collect();
        stored.sort_unstable();
        worker.to_move = stored.into();
        self.continue_moving_copies(id, effects);
    }

    /// Forgets the moves away from a draining worker that is gone. Data that is on its way may
    /// still arrive; otherwise it is lost.
    pub(super) fn stop_moving(&mut self, id: SessionId) {
        let moved = self.pulls.iter().filter(|(_, one)| one.leaving == Some(id));
        let moved: Vec<ObjectId> = moved.map(|(object, _)| *object).collect();
        for object in moved {
            self.end_pull(object);
        }
    }

    /// Adds an object that a draining worker just got to those that are moved away from it.
    pub(super) fn move_too(&mut self, worker: Session, id: ObjectId, effects: &mut Vec<Effect>) {
        let row = self.objects.row(&id);
        let record = self.workers.get_mut(&worker.id).filter(|record| record.is_draining());
        let has = |record: &&mut WorkerRecord| row.is_some_and(|row| record.stored.contains(&row));
        if let Some(record) = record.filter(has) {
            record.to_move.push_back(id);
            self.continue_moving_copies(worker.id, effects);
        }
    }

    /// Handles a draining worker's report that it has no more work: moves the rest of its data, and
    /// then lets it leave.
    pub(super) fn emptied(&mut self, id: SessionId, effects: &mut Vec<Effect>) {
        self.workers.get_mut(&id).expect("the worker is here").emptied = true;
        let able = |worker: &WorkerRecord| worker.info.durable && !worker.emptied;
        if self.shutting_down && !self.workers.values().any(able) {
            self.erase_all(effects); // The cluster ends with this worker.
        }
        // The workers that had other copies when it began to drain may be gone, and others may have
        // joined.
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

    /// Moves as many objects away from a draining worker as may be on their way at a time. Lets the
    /// worker leave when it has no more work and no object is left to move.
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
                self.workers.get_mut(&id).expect("the worker is here").moving += 1;
            }
        }
        let worker = self.workers.get_mut(&id).expect("the worker is here");
        if worker.emptied && worker.moving == 0 && !worker.may_leave {
            worker.may_leave = true;
            effects.push(Effect::ToWorker { to: worker.session, message: ToWorker::Leave });
        }
    }

    /// Returns whether a worker has data that would be lost if all draining workers left.
    fn has_only_lasting_copy(&self, id: SessionId, object: ObjectId) -> bool {
        let Some(object) = self.objects.get(&object) else { return false };
        let stays = |at: &SessionId| !self.workers[at].is_draining();
        let copies = object.copies.all();
        copies.contains(&id) && !object.is_durable() && !copies.iter().any(stays)
    }

    /// Tells a worker to erase the saved data of an object that nothing needs, or remembers to do
    /// so when a worker can.
    pub(super) fn erase(&mut self, object: ObjectId, effects: &mut Vec<Effect>) {
        let able = self.workers.values().filter(|worker| worker.info.durable);
        let order = |worker: &&WorkerRecord| {
            (worker.may_leave, worker.state != WorkerState::Healthy, worker.session)
        };
        match able.min_by_key(order).map(|worker| worker.session) {
            Some(to) => {
                let erasing =
                    &mut self.workers.get_mut(&to.id).expect("the worker is here").erasing;
                erasing.push_back(object);
                if erasing.len() > MAX_ERASING {
                    erasing.pop_front();
                }
                effects.push(Effect::ToWorker { to, message: ToWorker::Erase { object } });
            }
            None if self.to_erase.len() < MAX_TO_ERASE => self.to_erase.push(object),
            None => {}
        }
    }

    /// Erases the results that a failed task may have saved in an earlier attempt whose end was
    /// never reported.
    pub(super) fn erase_earlier(&mut self, task: &Task, effects: &mut Vec<Effect>) {
        if task.spec.options.durable && task.attempt > Attempt(1) {
            for object in task.output_objects() {
                if !self.objects.get(&object).is_some_and(|object| object.is_durable()) {
                    self.erase(object, effects);
                }
            }
        }
    }

    /// Tells a worker that joined to pull and erase the saved data that no worker could before, if
    /// this one can.
    pub(super) fn see_to_saved(&mut self, to: Session, effects: &mut Vec<Effect>) {
        if self.workers[&to.id].info.durable {
            self.pull_unread_saved(to, effects);
            for object in std::mem::take(&mut self.to_erase) {
                self.erase(object, effects);
            }
        }
    }

    /// Panics if the pending pulls and the records of workers and objects do not add up.
    pub(super) fn check_bringing(&self) {
        for (id, pulls) in &self.pulls {
            assert!(self.objects.contains_key(id), "{id} is pulled, and nothing holds it");
            let at = self.workers.get(&pulls.at);
            assert!(at.is_some_and(|at| at.pulls.contains(id)), "no worker lists the pull of {id}");
            assert!(
                at.is_some_and(|at| at.unanswered.contains(id)),
                "no worker was told to pull {id}"
            );
        }
        for id in &self.saved_to_pull {
            assert!(self.objects.contains_key(id), "{id} is to be pulled, and nothing holds it");
        }
        let brought: usize = self.workers.values().map(|worker| worker.pulls.len()).sum();
        assert_eq!(brought, self.pulls.len(), "pulls, counted from both sides");
        for (id, worker) in &self.workers {
            let moving = self.pulls.values().filter(|one| one.leaving == Some(*id)).count();
            assert_eq!(moving, worker.moving, "moves away from {id}");
            assert!(worker.is_draining() || worker.to_move.is_empty(), "{id} does not drain");
        }
    }
}
