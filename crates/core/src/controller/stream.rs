//! Streams: what tasks and calls give while they run, item by item, and how far it was taken.
//!
//! An item is an object that its consumer holds before it hears of it: whoever owns the task, or makes the direct
//! call. Nothing is remembered here of which items came: a task that runs again gives the same ones once more, and
//! its consumer, who counts them, lets go of those that it had. What is remembered is how many were taken, so
//! that whoever runs it next need not wait for what it will not be told again.
//!
//! A stream that has ended may run again to make items anew whose data was lost. Then nobody takes them: those that are
//! lost and held become what they were, the others are dropped, and there is always room for the next.

use super::task::{State, Task};
use super::{Controller, Effect, Owner};
use crate::error::{Error, Ran};
use crate::hold::Holder;
use crate::id::{ObjectId, Session, TaskId, Thing};
use crate::message::{ToClient, ToWorker, Try};
use crate::payload::{Outcome, Value};
use crate::spec::{MAX_ITEMS, TaskSpec, UNCONSUMED, took_step};
use crate::time::Time;
use std::collections::BTreeSet;

/// Who gets an item.
enum Consumer {
    Session(Session),
    /// Whoever lost it.
    Restoring,
    Nobody,
}

impl Controller {
    /// Says so if nobody could be told of the items of this.
    pub(super) fn check_consumer(&self, owner: Owner, spec: &TaskSpec) -> Result<(), Error> {
        let told = match owner {
            Owner::Session(session) => self.listens(session),
            Owner::Cluster | Owner::Restoring => false,
        };
        if spec.stream.is_none() || told {
            return Ok(());
        }
        Err(Error::invalid(
            "the items of a task that streams go to a client that is connected: submit it from one",
        ))
    }

    /// A worker passes on an item.
    pub(super) fn yielded(
        &mut self,
        now: Time,
        worker: Session,
        attempt: Try,
        to: Option<Session>,
        index: u32,
        value: Value,
        effects: &mut Vec<Effect>,
    ) {
        let consumer = match to {
            Some(caller) => Consumer::Session(caller),
            None => self.consumer(worker, attempt, value.payload.stored.is_some()),
        };
        match consumer {
            Consumer::Session(to) if index < MAX_ITEMS && self.listens(to) => {
                self.deliver(now, worker, to, attempt.task, index, value, effects);
            }
            Consumer::Restoring if index < MAX_ITEMS => {
                self.give_again(now, worker, attempt.task, index, value, effects);
            }
            Consumer::Session(_) | Consumer::Restoring | Consumer::Nobody => {
                self.discard([&value], Some(worker), effects);
            }
        }
        self.item_came(attempt, index);
    }

    /// An item of a stream that runs again because data was lost.
    fn give_again(
        &mut self,
        now: Time,
        worker: Session,
        id: TaskId,
        index: u32,
        value: Value,
        effects: &mut Vec<Effect>,
    ) {
        self.item_made(now, worker, ObjectId::item(id, index), value, effects);
        let task = self.tasks.get_mut(&id).expect("it gives");
        // An earlier attempt may have come further.
        if task.given.saturating_sub(task.took) >= took_step(task.spec.stream.unwrap_or(UNCONSUMED))
        {
            task.took = task.given;
            self.tell_took(id, effects);
        }
    }

    /// A stream has ended: whoever waits for items that were lost, and that it has not given again, is told.
    pub(super) fn items_not_given(
        &mut self,
        task: &Task,
        outcome: &Outcome,
        effects: &mut Vec<Effect>,
    ) {
        for item in (0..task.items).map(|item| ObjectId::item(task.spec.id, item)) {
            let object = self.objects.get(&item);
            if object.is_some_and(|object| object.is_lost() && object.is_looked_for()) {
                let error = outcome.as_ref().err().cloned();
                let error = error.unwrap_or_else(|| self.lost(item, "it was not given again"));
                self.not_made_anew(item, &error, effects);
            }
        }
    }

    /// An item has come: what it names is held by whatever it became.
    fn item_came(&mut self, call: Try, index: u32) {
        let Some(said) = self.enclosing.remove(&call) else { return };
        let (came, rest): (BTreeSet<_>, BTreeSet<_>) =
            said.into_iter().partition(|(item, _)| *item == Some(index));
        if !rest.is_empty() {
            self.enclosing.insert(call, rest);
        }
        for (item, by) in came {
            self.enclosed_came(call, item, by);
        }
    }

    /// Who gets the next that this attempt gives, if it is current.
    fn consumer(&mut self, worker: Session, attempt: Try, is_stored: bool) -> Consumer {
        if !self.has(worker, attempt) {
            return Consumer::Nobody;
        }
        let task = self.tasks.get_mut(&attempt.task).expect("the worker has it");
        if task.spec.stream.is_none() {
            return Consumer::Nobody;
        }
        task.given = task.given.saturating_add(1).min(MAX_ITEMS);
        if is_stored {
            task.items = task.items.max(task.given);
        }
        match task.owner {
            Owner::Session(session) => Consumer::Session(session),
            Owner::Restoring => Consumer::Restoring,
            Owner::Cluster => Consumer::Nobody,
        }
    }

    fn deliver(
        &mut self,
        now: Time,
        worker: Session,
        to: Session,
        task: TaskId,
        index: u32,
        value: Value,
        effects: &mut Vec<Effect>,
    ) {
        let object = ObjectId::item(task, index);
        self.holds.hold(Holder::Session(to.id), Thing::Object(object));
        self.item_made(now, worker, object, value, effects);
        let made = self.objects.get(&object).and_then(|known| known.value(object));
        let value = made.expect("it is held, so it was kept");
        let message = ToClient::Yielded { task, index, value };
        effects.push(Effect::ToClient { to, message });
    }

    fn item_made(
        &mut self,
        now: Time,
        worker: Session,
        object: ObjectId,
        value: Value,
        effects: &mut Vec<Effect>,
    ) {
        let size = self.check_size("the item's bytes", value.payload.len());
        let item = size.map(|()| value).map_err(|error| error.ran(Ran::Maybe));
        self.object_made(now, object, 0, item, Some(worker), effects);
    }

    /// The consumer has taken so many items in all.
    pub(super) fn took(
        &mut self,
        session: Session,
        id: TaskId,
        count: u32,
        effects: &mut Vec<Effect>,
    ) {
        if let Some(task) = self.tasks.get_mut(&id)
            && task.owner == Owner::Session(session)
            && count > task.took
        {
            task.took = count;
            self.tell_took(id, effects);
        }
    }

    /// Whoever has a task is told how many of its items were taken, if any were.
    pub(super) fn tell_took(&self, id: TaskId, effects: &mut Vec<Effect>) {
        let task = &self.tasks[&id];
        if let State::Placed { worker, .. } = &task.state
            && task.took > 0
            && !crate::planted!(TookLost)
        {
            let to = self.workers[worker].session;
            let attempt = Try { task: id, attempt: task.attempt };
            let message = ToWorker::Took { attempt, count: task.took };
            effects.push(Effect::ToWorker { to, message });
        }
    }
}
