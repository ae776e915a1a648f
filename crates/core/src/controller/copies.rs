//! Copies: which workers' stores have the data of which objects.
//!
//! - The data of a large value does not pass through the controller. It is in the store of the
//!   worker whose executor made it, or into which a client put it, and in the stores of workers
//!   that have copied it since.
//! - The copies are kept while anything holds the object. When the last hold goes, the controller
//!   tells the workers to forget the data.
//! - A worker that goes takes its copies along. The loss of the last copy is discovered when work
//!   or a session looks for the data.

use super::object::missing_referent_error;
use super::object_record::Copies;
use super::{Controller, Effect};
use crate::error::{Error, Ran};
use crate::hold::Holder;
use crate::id::{ObjectId, Referent, Session, SessionId};
use crate::map::Set;
use crate::message::{AttemptId, CopyLocation, ToClient, ToWorker};
use crate::payload::Value;
use crate::schedule::WorkerIndex;
use crate::table::Row;
use crate::time::Time;

impl Controller {
    /// Checks a value whose data is said to be in the store of `at`: the data must belong to this
    /// object, and `at` must be a worker that is here, unless the data was also saved.
    pub(super) fn check_stored(
        &self,
        id: ObjectId,
        value: Value,
        at: Option<Session>,
    ) -> Result<Value, Error> {
        match value.payload.stored_object() {
            None => Ok(value),
            Some(other) if other != id => Err(Error::invalid(format!(
                "the data of {id} is stored as that of {other}: each object needs its own"
            ))),
            Some(_) if at.is_some_and(|at| self.is_worker(at)) => Ok(value),
            Some(_) if value.payload.is_durable() => Ok(value),
            Some(_) => Err(lost_value_error(
                id,
                None,
                Some("the worker that had it is gone"),
                "no other worker has it",
            )),
        }
    }

    fn is_worker(&self, session: Session) -> bool {
        self.workers.get(&session.id).is_some_and(|worker| worker.session == session)
    }

    /// Notes that an object which is about to be resolved to this value has its data at this
    /// worker.
    pub(super) fn copy_made(
        &mut self,
        id: ObjectId,
        value: &Result<Value, Error>,
        at: Option<Session>,
    ) {
        let stored = value.as_ref().is_ok_and(|value| value.payload.stored.is_some());
        if let Some(at) = at.filter(|at| stored && self.is_worker(*at)) {
            self.objects.get_or_default(id).copies = Copies::One(at.id);
            let row = self.objects.row(&id).expect("the object was added");
            self.workers.get_mut(&at.id).expect("the worker is here").stored.insert(row);
        }
    }

    /// Discards values that nothing needs: tells this worker to forget their data, and erases their
    /// saved data. Data that is an object's copy already, or its saved data, stays.
    pub(super) fn discard<'v>(
        &mut self,
        values: impl IntoIterator<Item = &'v Value>,
        at: Option<Session>,
        effects: &mut Vec<Effect>,
    ) {
        let at = at.filter(|at| self.is_worker(*at));
        for stored in values.into_iter().filter_map(|value| value.payload.stored.as_ref()) {
            let object = stored.object;
            // A worker that pulls the data for the controller keeps it: see `pull.rs`.
            let brings = |at: &Session| self.workers[&at.id].unanswered.contains(&object);
            if let Some(to) = at.filter(|at| !self.has_copy(at.id, object) && !brings(at)) {
                effects.push(Effect::ToWorker { to, message: ToWorker::Forget { object } });
            }
            if stored.durable
                && !self.objects.get(&object).is_some_and(|object| object.is_durable())
            {
                self.erase(object, effects);
            }
        }
    }

    /// Tells a worker to keep the data that a client put into its store, if the value was accepted.
    pub(super) fn keep_put(
        &mut self,
        object: ObjectId,
        at: Option<Session>,
        effects: &mut Vec<Effect>,
    ) {
        let Some(to) = at.filter(|at| self.is_worker(*at)) else { return };
        if self.has_copy(to.id, object) {
            effects.push(Effect::ToWorker { to, message: ToWorker::Keep { object } });
        }
    }

    /// Registers the values of a direct call's answer whose data is in the worker's store as
    /// objects, and holds them for the caller.
    pub(super) fn entrust_stored(
        &mut self,
        now: Time,
        host: Session,
        call: AttemptId,
        to: Session,
        stored: Vec<Value>,
        effects: &mut Vec<Effect>,
    ) {
        for value in stored {
            let id = value.payload.stored_object().filter(|id| id.origin == call.task);
            let Some(id) = id else { continue };
            if let Some(by) =
                self.objects.get_mut(&id).and_then(|known| known.take(|it| it.announced_by.take()))
                && let Some(member) = self.sessions.get_mut(&by.id)
            {
                member.announced.remove(&id); // Its value comes from the worker instead.
            }
            if self.is_alive(to) {
                self.holds.hold(Holder::Message { call, to: to.id }, Referent::Object(id));
            }
            self.object_resolved(now, id, 0, Ok(value), Some(host), effects);
        }
    }

    /// Notes that a worker has copied the data. Tells it to forget the data if nothing holds the
    /// object any more.
    pub(super) fn copied(&mut self, worker: Session, id: ObjectId, effects: &mut Vec<Effect>) {
        let row = self.objects.row(&id);
        let record = self.workers.get_mut(&worker.id).expect("the worker is here");
        record.unanswered.remove(&id);
        match row.map(|row| (row, self.objects.at_mut(row))).filter(|(_, it)| it.is_stored()) {
            Some((row, object)) => {
                if record.stored.insert(row) {
                    object.copies.push(worker.id);
                }
                // The data may have been lost, and work or sessions may wait for it.
                let waiting = object.take(|pending| std::mem::take(&mut pending.waiting_work));
                self.resolved_work.extend(waiting.into_iter().map(|work| (work, Ok(()))));
                self.tell_seekers(id, effects);
                self.stop_pull(id, effects);
                self.move_too(worker, id, effects);
            }
            None => {
                let message = ToWorker::Forget { object: id };
                effects.push(Effect::ToWorker { to: worker, message });
            }
        }
    }

    /// Returns whether a worker's store has the data of an object.
    pub(super) fn has_copy(&self, worker: SessionId, id: ObjectId) -> bool {
        self.objects.get(&id).is_some_and(|object| object.copies.all().contains(&worker))
    }

    /// Notes that a worker does not have the data any more.
    pub(super) fn copy_lost(&mut self, worker: Session, id: ObjectId, error: Error) {
        let record = self.workers.get_mut(&worker.id).expect("the worker is here");
        if let Some(row) = self.objects.row(&id).filter(|row| record.stored.remove(row)) {
            self.objects.at_mut(row).copy_gone(worker.id, &error);
        }
    }

    /// Removes all copies of a worker that is gone.
    pub(super) fn all_copies_gone(&mut self, worker: SessionId, stored: &Set<Row>, why: &Error) {
        for row in stored {
            self.objects.at_mut(*row).copy_gone(worker, why);
        }
    }

    /// Tells the workers that have copies of a freed object to forget them, and erases its saved
    /// data. `row` is where the object was in the table of objects.
    pub(super) fn forget_copies(
        &mut self,
        id: ObjectId,
        row: Row,
        copies: &[SessionId],
        durable: bool,
        effects: &mut Vec<Effect>,
    ) {
        for at in copies {
            let worker = self.workers.get_mut(at).expect("a copy is at a worker");
            worker.stored.remove(&row);
            if crate::planted!(DataNeverForgotten) {
                continue;
            }
            let message = ToWorker::Forget { object: id };
            effects.push(Effect::ToWorker { to: worker.session, message });
        }
        self.stop_pull(id, effects);
        if durable {
            self.erase(id, effects);
        }
    }

    /// Tells a worker or a client where the data of an object is. Recovers lost data first, if
    /// possible.
    pub(super) fn locate(
        &mut self,
        now: Time,
        seeker: Session,
        id: ObjectId,
        effects: &mut Vec<Effect>,
    ) {
        let lost = self.objects.get(&id).is_some_and(|object| object.is_lost());
        if lost {
            match self.recover_data(now, id, Some(seeker.id), effects) {
                // The task may have ended at once, and the object may be resolved or gone with it.
                Ok(()) => {
                    if let Some(object) = self.objects.get_mut(&id).filter(|one| one.is_lost()) {
                        return object.boxed_mut().locate_waiters.push(seeker);
                    }
                }
                Err(error) => return self.tell_lost(id, &[seeker], &error, effects),
            }
        }
        let copies = self.copies(id);
        self.tell_where(seeker, id, copies, effects);
    }

    /// Tells the sessions that look for the data of an object where it is now, or why it is
    /// nowhere.
    pub(super) fn tell_seekers(&mut self, id: ObjectId, effects: &mut Vec<Effect>) {
        let Some(object) = self.objects.get_mut(&id) else { return };
        for seeker in object.take(|pending| std::mem::take(&mut pending.locate_waiters)) {
            let copies = self.copies(id);
            self.tell_where(seeker, id, copies, effects);
        }
    }

    /// Fails the work and the sessions that wait for lost data, since its recomputation failed. The
    /// data stays lost. Work that got the object among its values learns of it when it looks for
    /// the data.
    pub(super) fn recompute_failed(
        &mut self,
        id: ObjectId,
        error: &Error,
        effects: &mut Vec<Effect>,
    ) {
        let object = self.objects.get_mut(&id).expect("a lost object is known");
        let waiting = object.take(|pending| std::mem::take(&mut pending.waiting_work));
        let locate_waiters = object.take(|pending| std::mem::take(&mut pending.locate_waiters));
        self.resolved_work.extend(waiting.into_iter().map(|work| (work, Err(error.clone()))));
        self.tell_lost(id, &locate_waiters, error, effects);
    }

    pub(super) fn tell_lost(
        &self,
        id: ObjectId,
        seekers: &[Session],
        error: &Error,
        effects: &mut Vec<Effect>,
    ) {
        for seeker in seekers {
            self.tell_where(*seeker, id, Err(error.clone()), effects);
        }
    }

    fn tell_where(
        &self,
        to: Session,
        object: ObjectId,
        copies: Result<Vec<CopyLocation>, Error>,
        effects: &mut Vec<Effect>,
    ) {
        if self.is_worker(to) {
            effects.push(Effect::ToWorker { to, message: ToWorker::Located { object, copies } });
        } else if self.is_reachable(to) {
            effects.push(Effect::ToClient { to, message: ToClient::Located { object, copies } });
        }
    }

    /// Returns where the data of an object is, or why it is nowhere.
    pub fn copies(&self, id: ObjectId) -> Result<Vec<CopyLocation>, Error> {
        let Some(object) = self.objects.get(&id) else {
            return Err(missing_referent_error(Referent::Object(id), ""));
        };
        match object.resolution() {
            Some(Ok(())) if !object.is_stored() => {
                let words = format!("value {id} was recomputed and is in no store now: ask again");
                return Err(Error::unavailable(Ran::Maybe, words));
            }
            Some(Ok(())) => {}
            Some(Err(_)) | None => return Err(missing_referent_error(Referent::Object(id), "")),
        }
        if object.copies.all().is_empty() {
            return Err(self.lost_data_error(id, "it is not recomputed"));
        }
        let at = |at: &SessionId| {
            let worker = &self.workers[at];
            CopyLocation { worker: worker.session, address: worker.info.address.clone() }
        };
        Ok(object.copies.all().iter().map(at).collect())
    }

    /// Returns the worker that has the most bytes of this data. Returns `None` if no worker has any
    /// of it, or there are fewer than two workers.
    pub(super) fn preferred_worker(
        &self,
        data: impl Iterator<Item = ObjectId>,
    ) -> Option<WorkerIndex> {
        if self.workers.len() < 2 {
            return None;
        }
        let mut found: Vec<(SessionId, u64)> = Vec::new();
        for object in data.filter_map(|id| self.objects.get(&id)) {
            for at in object.copies.all() {
                match found.iter_mut().find(|(worker, _)| worker == at) {
                    Some((_, bytes)) => *bytes += object.size(),
                    None => found.push((*at, object.size())),
                }
            }
        }
        let (most, _) = found.into_iter().max_by_key(|(worker, bytes)| (*bytes, *worker))?;
        Some(self.workers[&most].index)
    }

    /// Returns all objects that have copies, each with the places of its copies, in no order.
    pub fn all_copies(&self) -> Vec<(ObjectId, Vec<CopyLocation>)> {
        let stored = self.objects.iter().filter(|(_, object)| !object.copies.all().is_empty());
        stored.map(|(id, _)| (*id, self.copies(*id).expect("the object has copies"))).collect()
    }

    /// Panics if the copies in the records of objects and in those of workers differ.
    pub(super) fn check_copies(&self) {
        let mut copies = 0;
        for (id, object) in self.objects.iter() {
            let (all, row) =
                (object.copies.all(), self.objects.row(id).expect("the object is known"));
            copies += all.len();
            assert!(all.is_empty() || object.is_stored(), "{id} has copies, and no data");
            for at in all {
                let knows = self.workers.get(at).is_some_and(|worker| worker.stored.contains(&row));
                assert!(knows, "{at} does not list its copy of {id}");
            }
        }
        let stored: usize = self.workers.values().map(|worker| worker.stored.len()).sum();
        assert_eq!(copies, stored, "copies, counted from both sides");
    }
}

/// Returns the error for an object whose data is lost.
pub(super) fn lost_value_error(
    id: ObjectId,
    made_by: Option<&str>,
    where_it_was: Option<&str>,
    why_not: &str,
) -> Error {
    let made_by = made_by.map_or(String::new(), |name| format!(", which {name:?} made,"));
    let gone = where_it_was.map_or(String::new(), |words| format!(": {words}"));
    let words =
        format!("value {id}{made_by} is lost with its last copy{gone}; {why_not}: make it again");
    Error::gone(Referent::Object(id), words)
}
