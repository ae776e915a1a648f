//! Values and holds: which objects and actors are kept, for which holder, and what happens when the
//! last hold goes.
//!
//! The record of one object is in `object_record.rs`. Where the data of large values is, is in
//! `copies.rs`.

use super::actor::DeathCause;
use super::object_record::ObjectRecord;
use super::{Controller, Effect, SessionEndCause, Timer};
use crate::error::{Error, Ran};
use crate::hold::Holder;
use crate::id::{ActorId, ObjectId, Referent, Session, SessionId};
use crate::message::{AttemptId, Instance, ToClient, ToWorker};
use crate::payload::Value;
use crate::schedule::Work;
use crate::spec::Lifetime;
use crate::time::Time;

impl Controller {
    /// Returns whether an object or actor can be held: an object that has a value or may get one,
    /// or an actor that is known.
    pub(super) fn exists(&self, thing: Referent) -> bool {
        match thing {
            Referent::Object(object) => {
                let task = self.tasks.get(&object.origin);
                self.objects.contains_key(&object)
                    || task.is_some_and(|task| object.index < task.spec.returns)
            }
            Referent::Actor(actor) => self.actors.contains_key(&actor),
        }
    }

    /// Returns an object's value, if it has one.
    pub fn value(&self, object: ObjectId) -> Option<Value> {
        self.objects.get(&object)?.value(object)?.ok()
    }

    /// Returns what is known of an object: `None` if it is unknown, `Some(None)` if it is not
    /// resolved yet, otherwise its value or the error that it was resolved with.
    pub fn object(&self, object: ObjectId) -> Option<Option<Result<Value, Error>>> {
        match self.objects.get(&object) {
            Some(known) => Some(known.value(object)),
            None => self.tasks.contains_key(&object.origin).then_some(None),
        }
    }

    /// Makes `work` wait for each object that has no value, or whose data is lost. Starts to
    /// recover lost data. Returns how many objects are missing, or the error of an object that
    /// failed.
    pub(super) fn wait_for(
        &mut self,
        now: Time,
        work: Work,
        data: impl Iterator<Item = ObjectId>,
        effects: &mut Vec<Effect>,
    ) -> Result<u32, Error> {
        let mut missing = 0;
        for id in data {
            match self.objects.get(&id).and_then(|object| object.resolution()) {
                Some(Ok(_)) if self.objects[&id].is_lost() => {
                    // `work` must wait before the recovery starts: that may fail at once, and
                    // `work` must hear of it.
                    self.objects
                        .get_mut(&id)
                        .expect("a lost object is known")
                        .boxed_mut()
                        .waiting_work
                        .insert(work);
                    self.recover_data(now, id, None, effects)?;
                    missing += 1;
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error.clone()),
                None if self.exists(Referent::Object(id)) => {
                    self.objects.get_or_default(id).boxed_mut().waiting_work.insert(work);
                    missing += 1;
                }
                None => {}
            }
        }
        Ok(missing)
    }

    /// Returns whether data that `work` reads is lost. Such work is not placed until the data is
    /// there again: the task that recomputes the data may need the very resources that this work
    /// would get.
    pub(super) fn lacks_data(&self, work: Work) -> bool {
        let is_lost = |id: ObjectId| self.objects.get(&id).is_some_and(|object| object.is_lost());
        match work {
            Work::Task(id) => self.tasks[&id].spec.input_objects().any(is_lost),
            Work::Actor(id) => self.actors[&id].spec.input_objects().any(is_lost),
        }
    }

    /// Removes `work` from the work that waits for these objects.
    pub(super) fn stop_waiting(&mut self, work: Work, data: impl Iterator<Item = ObjectId>) {
        for id in data {
            if let Some(object) = self.objects.get_mut(&id) {
                object.take(|pending| pending.waiting_work.remove(&work));
            }
        }
    }

    /// Resolves an object to a value, or to the error why it will never have one. The object is
    /// kept only if something holds it. If its data is in a store, that is the store of the worker
    /// `at`.
    pub(super) fn object_resolved(
        &mut self,
        now: Time,
        id: ObjectId,
        returns: u32,
        value: Result<Value, Error>,
        at: Option<Session>,
        effects: &mut Vec<Effect>,
    ) {
        let value = value.and_then(|value| self.check_stored(id, value, at));
        let before = self.objects.get(&id);
        let had_value = before.is_some_and(|object| object.resolution().is_some());
        let known = before.is_some_and(|object| had_value && !object.is_lost());
        if known || !self.holds.is_held(Referent::Object(id)) {
            self.discard(value.iter(), at, effects);
            // An object that had a value is about to be freed anyway, together with its record.
            if !had_value && let Some(object) = self.objects.remove(&id) {
                self.tell_gone(id, &object, effects);
            }
            return; // A value never changes.
        }
        if let Err(error) = &value
            && self.objects.get(&id).is_some_and(|object| object.is_lost())
        {
            return self.recompute_failed(id, error, effects);
        }
        if let Some(lost) = self.objects.get(&id).filter(|object| object.is_lost()) {
            let was_durable = lost.is_durable();
            // The recomputed value may refer to other objects and actors than before.
            let named = self.holds.release_all(Holder::Object(id));
            self.queue_freed(named);
            self.stop_pull(id, effects);
            if was_durable && !value.as_ref().is_ok_and(|value| value.payload.is_durable()) {
                self.erase(id, effects);
            }
        }
        self.hold_all(Holder::Object(id), value.iter().flat_map(|value| value.referents.clone()));
        self.copy_made(id, &value, at);
        let object = self.objects.get_or_default(id);
        self.object_bytes -= object.bytes();
        let came = value.as_ref().map(|_| ()).map_err(Clone::clone);
        let told: Vec<_> = object
            .take(|pending| std::mem::take(&mut pending.fetch_waiters))
            .into_iter()
            .map(|watcher| (watcher, value.clone()))
            .collect();
        object.set(id, value);
        object.returns = returns;
        let waiting = object.take(|pending| std::mem::take(&mut pending.waiting_work));
        self.object_bytes += object.bytes();
        for (watcher, value) in told {
            if self.is_alive(watcher) {
                let message = ToClient::ObjectReady { object: id, value };
                effects.push(Effect::ToClient { to: watcher, message });
            }
        }
        if self.holds.holds(Holder::Cluster, Referent::Object(id)) {
            self.hold_result_for_ttl(now, id);
        }
        self.tell_seekers(id, effects);
        if let Some(at) = at {
            self.move_too(at, id, effects);
        }
        self.resolved_work.extend(waiting.into_iter().map(|work| (work, came.clone())));
    }

    /// Frees the objects and actors whose last hold went, and wakes or fails work whose values were
    /// resolved, until both lists are empty.
    pub(super) fn process_freed_and_resolved(&mut self, now: Time, effects: &mut Vec<Effect>) {
        loop {
            if let Some(thing) = self.freed_referents.pop() {
                self.thing_freed(now, thing, effects);
            } else if let Some((work, came)) = self.resolved_work.pop_front() {
                match (work, came) {
                    (Work::Task(task), Ok(())) => self.task_value_ready(now, task, effects),
                    (Work::Task(task), Err(error)) => {
                        self.task_value_failed(now, task, &error, effects)
                    }
                    (Work::Actor(actor), Ok(())) => self.actor_value_ready(now, actor, effects),
                    (Work::Actor(actor), Err(error)) => {
                        self.actor_value_failed(now, actor, &error, effects);
                    }
                }
            } else {
                self.freed_by = None;
                return;
            }
        }
    }

    /// Plans the end of the cluster's hold on a result after `result_ttl`. The oldest such results
    /// are dropped earlier if room is needed.
    fn hold_result_for_ttl(&mut self, now: Time, id: ObjectId) {
        let until = now + self.config.result_ttl;
        if self.expiring_results.is_empty() {
            self.timers.insert((until, Timer::ExpireResults));
        }
        self.expiring_results.push_back((until, id));
        // These results take at most half of the room, so that they never keep a client from
        // submitting.
        let mut bytes = self.object_bytes;
        while bytes > self.config.max_result_bytes / 2 && self.expiring_results.len() > 1 {
            let (_, oldest) = self.expiring_results[0];
            bytes -= self.objects.get(&oldest).map_or(0, |object| object.bytes());
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        let (_, id) = self.expiring_results.pop_front().expect("a result is kept");
        if self.holds.release(Holder::Cluster, Referent::Object(id)) {
            self.queue_freed(vec![Referent::Object(id)]);
        }
    }

    pub(super) fn expire_results(&mut self, now: Time) {
        while let Some((until, _)) = self.expiring_results.front().copied() {
            if until > now {
                self.timers.insert((until, Timer::ExpireResults));
                return;
            }
            self.forget_oldest();
        }
    }

    /// Stores a value that a client put.
    pub(super) fn put(
        &mut self,
        now: Time,
        session: Session,
        object: ObjectId,
        value: Value,
        at: Option<Session>,
        effects: &mut Vec<Effect>,
    ) {
        if self.exists(Referent::Object(object)) {
            self.discard([&value], at, effects);
            return self.hold(session, Referent::Object(object));
        }
        let size = self.check_size("the value's bytes", value.payload.len());
        let value = match size.and_then(|()| self.check_bytes()) {
            Ok(()) => Ok(value),
            Err(error) => {
                self.discard([&value], at, effects);
                Err(error)
            }
        };
        if let Err(error) = &value {
            let message = ToClient::ObjectReady { object, value: Err(error.clone()) };
            effects.push(Effect::ToClient { to: session, message });
        }
        self.holds.hold(Holder::Session(session.id), Referent::Object(object));
        self.object_resolved(now, object, 0, value, at, effects);
        self.keep_put(object, at, effects);
    }

    /// Registers an object whose value a client will send later. From now on, work can need it.
    pub(super) fn announce(&mut self, session: Session, id: ObjectId) {
        if self.exists(Referent::Object(id)) {
            return self.hold(session, Referent::Object(id));
        }
        self.holds.hold(Holder::Session(session.id), Referent::Object(id));
        self.objects.get_or_default(id).boxed_mut().announced_by = Some(session);
        self.sessions.get_mut(&session.id).expect("the session is open").announced.insert(id);
    }

    /// Takes the value of an object that a client announced. Ignores it if nothing holds the object
    /// any more.
    pub(super) fn resolve(
        &mut self,
        now: Time,
        session: Session,
        id: ObjectId,
        value: Result<Value, Error>,
        effects: &mut Vec<Effect>,
    ) {
        let Some(object) = self.objects.get_mut(&id) else { return };
        let is_theirs = |by: &mut Session| *by == session;
        if object.take(|boxed| boxed.announced_by.take_if(is_theirs)).is_none() {
            return;
        }
        self.sessions.get_mut(&session.id).expect("the session is open").announced.remove(&id);
        let value = value.map_err(Error::bounded).and_then(|value| {
            let size = self.check_size("the value's bytes", value.payload.len());
            // The value may be the result of work that ran.
            let fits = size.and_then(|()| self.check_bytes());
            fits.map(|()| value).map_err(|error| error.ran(Ran::Maybe))
        });
        self.object_resolved(now, id, 0, value, None, effects);
    }

    /// Fails an object whose announcing client has ended.
    pub(super) fn never_resolved(&mut self, now: Time, id: ObjectId, effects: &mut Vec<Effect>) {
        let object = self.objects.get_mut(&id).expect("an announced object is known");
        object.take(|boxed| boxed.announced_by.take());
        let words = format!(
            "value {id} is lost: the process that waited for it, as the result of a call, has ended; make the \
             call from a process that lives longer"
        );
        let error = Error::gone(Referent::Object(id), words);
        self.object_resolved(now, id, 0, Err(error), None, effects);
    }

    /// Sends a client the value of an object, now or as soon as the object is resolved.
    pub(super) fn fetch(&mut self, session: Session, id: ObjectId, effects: &mut Vec<Effect>) {
        let value = match self.objects.get(&id).and_then(|object| object.value(id)) {
            _ if !self.holds.holds(Holder::Session(session.id), Referent::Object(id)) => {
                Err(missing_object_error(id))
            }
            Some(value) => value,
            None if self.exists(Referent::Object(id)) => {
                return self.objects.get_or_default(id).boxed_mut().fetch_waiters.push(session);
            }
            None => Err(missing_object_error(id)),
        };
        let message = ToClient::ObjectReady { object: id, value };
        effects.push(Effect::ToClient { to: session, message });
    }

    pub(super) fn hold(&mut self, session: Session, thing: Referent) {
        self.hold_all(Holder::Session(session.id), [thing]);
    }

    /// Holds the objects and actors that an answer refers to until that answer comes.
    ///
    /// The process that is about to give the answer announces it ahead. The answer goes through the
    /// process's worker, and the process's own messages take another route: its `Release` of these
    /// objects may arrive before the answer.
    pub(super) fn enclose(
        &mut self,
        session: Session,
        call: AttemptId,
        item: Option<u32>,
        things: Vec<Referent>,
    ) {
        self.enclosed_answers.entry(call).or_default().insert((item, session.id));
        self.sessions
            .get_mut(&session.id)
            .expect("the session is open")
            .enclosing
            .insert((call, item));
        self.hold_all(Holder::Enclosed { call, item, by: session.id }, things);
    }

    /// Releases what [`enclose`](Controller::enclose) held for an answer that has come. No further
    /// item comes either. The objects that the answer became hold what it refers to.
    pub(super) fn release_enclosed_answer(&mut self, call: AttemptId) {
        for (item, by) in self.enclosed_answers.remove(&call).into_iter().flatten() {
            self.enclosed_came(call, item, by);
        }
    }

    /// Releases what one process announced for an answer, or for one of its items, that has come.
    pub(super) fn enclosed_came(&mut self, call: AttemptId, item: Option<u32>, by: SessionId) {
        self.sessions.get_mut(&by).expect("the session is open").enclosing.remove(&(call, item));
        let free = self.holds.release_all(Holder::Enclosed { call, item, by });
        self.queue_freed(free);
    }

    /// Releases what was held for a caller until the answer of its direct call arrived. The answer
    /// has arrived, or never will.
    pub(super) fn accept(&mut self, session: Session, call: AttemptId) {
        let free = self.holds.release_all(Holder::Message { call, to: session.id });
        self.queue_freed(free);
    }

    pub(super) fn release(&mut self, holder: Holder, thing: Referent) {
        if self.holds.release(holder, thing) {
            self.queue_freed(vec![thing]);
        }
    }

    /// Queues objects and actors whose last hold went, to be freed.
    pub(super) fn queue_freed(&mut self, things: Vec<Referent>) {
        self.freed_referents.extend(things);
    }

    fn thing_freed(&mut self, now: Time, thing: Referent, effects: &mut Vec<Effect>) {
        if self.holds.is_held(thing) {
            return; // A later step of the same event holds it again.
        }
        match thing {
            Referent::Object(id) => {
                if let Some(row) = self.objects.row(&id) {
                    let object = self.objects.remove(&id).expect("the object is known");
                    let by = object.boxed().and_then(|boxed| boxed.announced_by);
                    if let Some(member) = by.and_then(|by| self.sessions.get_mut(&by.id)) {
                        member.announced.remove(&id);
                    }
                    self.object_bytes -= object.bytes();
                    self.tell_gone(id, &object, effects);
                    self.forget_copies(id, row, object.copies.all(), object.is_durable(), effects);
                    if let Some(boxed) = object.boxed() {
                        self.tell_lost(
                            id,
                            &boxed.locate_waiters,
                            &missing_object_error(id),
                            effects,
                        );
                    }
                    if object.in_lineage {
                        self.unused(id.origin);
                    }
                    let contained = self.holds.release_all(Holder::Object(id));
                    self.queue_freed(contained);
                    self.extend_credit_of_waiting(effects);
                }
                self.cancel_unneeded_recompute(now, id.origin, effects);
            }
            Referent::Actor(id) => self.last_handle_gone(now, id, effects),
        }
    }

    /// Tells the sessions that wait in `fetch` for an object that the object is gone.
    fn tell_gone(&self, id: ObjectId, object: &ObjectRecord, effects: &mut Vec<Effect>) {
        let watchers = object.boxed().into_iter().flat_map(|boxed| &boxed.fetch_waiters);
        for to in watchers.filter(|to| self.is_alive(**to)) {
            let value = Err(missing_object_error(id));
            effects.push(Effect::ToClient {
                to: *to,
                message: ToClient::ObjectReady { object: id, value },
            });
        }
    }

    /// Returns whether this worker hosts this instance.
    pub(super) fn hosts_instance(&self, host: Session, instance: Instance) -> bool {
        let hosted =
            self.workers.get(&host.id).and_then(|worker| worker.actors.get(&instance.actor));
        hosted.is_some_and(|hosted| hosted.epoch == instance.epoch)
    }

    /// Holds what the executor of an ended task still refers to: for the instance if the task was a
    /// call, otherwise for the worker's session. The holds of the task itself go in the same step.
    pub(super) fn hold_for_executor(
        &mut self,
        worker: Session,
        instance: Option<Instance>,
        kept: Vec<Referent>,
    ) {
        let holder = match instance {
            Some(instance) if !self.hosts_instance(worker, instance) => return,
            Some(instance) => Holder::Instance(instance),
            None => Holder::Session(worker.id),
        };
        self.hold_all(holder, kept);
    }

    /// Makes `holder` hold those of `things` that exist.
    pub(super) fn hold_all(&mut self, holder: Holder, things: impl IntoIterator<Item = Referent>) {
        for thing in things {
            if self.exists(thing) {
                self.holds.hold(holder, thing);
            }
        }
    }

    /// Holds what the answer of a direct call refers to: for the caller until it accepts the
    /// answer, and what the instance keeps for the instance. Then lets the worker send the answer.
    pub(super) fn entrust(
        &mut self,
        now: Time,
        host: Session,
        call: AttemptId,
        to: Session,
        contains: Vec<Referent>,
        stored: Vec<Value>,
        instance: Instance,
        kept: Vec<Referent>,
        effects: &mut Vec<Effect>,
    ) {
        // Must go first: until the worker has `Entrusted`, it takes `Forget` to mean an earlier
        // copy, and ignores it.
        effects.push(Effect::ToWorker { to: host, message: ToWorker::Entrusted { call } });
        self.entrust_stored(now, host, call, to, stored, effects);
        if self.is_alive(to) {
            self.hold_all(Holder::Message { call, to: to.id }, contains);
        }
        if self.hosts_instance(host, instance) {
            self.hold_all(Holder::Instance(instance), kept);
        }
        self.release_enclosed_answer(call);
    }

    pub(super) fn dropped(&mut self, instance: Instance, things: Vec<Referent>) {
        for thing in things {
            self.release(Holder::Instance(instance), thing);
        }
    }

    /// Ends an actor whose last handle went, unless it is detached.
    fn last_handle_gone(&mut self, now: Time, id: ActorId, effects: &mut Vec<Effect>) {
        let non_detached =
            self.is_living(id) && self.actors[&id].spec.options.lifetime == Lifetime::NonDetached;
        if non_detached {
            let words = match self
                .freed_by
                .as_ref()
                .filter(|cause| **cause != SessionEndCause::Closed)
            {
                None => format!("actor {id} ended with its last handle"),
                Some(cause) => format!(
                    "actor {id} ended with the session of the process that held its last handle: {cause}; make \
                     it detached if it is to live on"
                ),
            };
            let error = Error::gone(Referent::Actor(id), words);
            self.end_actor(now, id, DeathCause::OwnerGone, error, effects);
        }
    }
}

fn missing_object_error(id: ObjectId) -> Error {
    missing_referent_error(Referent::Object(id), "")
}

/// Returns the error for an object or actor that is not there. `needs` says in words what needs it.
pub(super) fn missing_referent_error(thing: Referent, needs: &str) -> Error {
    let why = match thing {
        Referent::Object(_) => {
            "is lost: its last holder released it or has ended; keep a reference to it for as long as it is \
             needed, or make it again"
        }
        Referent::Actor(_) => {
            "is gone or never existed: keep a handle to it for as long as it is needed, or make it detached"
        }
    };
    Error::gone(thing, format!("{thing}{needs} {why}"))
}
