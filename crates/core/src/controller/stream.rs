//! Streams: what tasks and calls give while they run, item by item, and how far it was taken.
//!
//! An item is an object that its consumer holds before it hears of it: whoever owns the task, or makes the direct
//! call. Nothing is remembered here of which items came: a task that runs again gives the same ones once more, and
//! its consumer, who counts them, lets go of those that it had. What is remembered is how many were taken, so
//! that whoever runs it next need not wait for what it will not be told again.

use super::task::State;
use super::{Controller, Effect, Owner};
use crate::error::Error;
use crate::hold::Holder;
use crate::id::{ObjectId, Session, TaskId, Thing};
use crate::message::{ToClient, ToWorker, Try};
use crate::payload::Value;
use crate::spec::{MAX_ITEMS, TaskSpec};
use crate::time::Time;
use std::collections::BTreeSet;

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
            Some(caller) => Some(caller),
            None => self.consumer(worker, attempt),
        };
        match consumer.filter(|to| index < MAX_ITEMS && self.listens(*to)) {
            Some(to) => self.deliver(now, worker, to, attempt.task, index, value, effects),
            None => self.discard([&value], Some(worker), effects),
        }
        self.item_came(attempt, index);
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

    /// Who gets what this attempt gives, if it is current.
    fn consumer(&mut self, worker: Session, attempt: Try) -> Option<Session> {
        if !self.has(worker, attempt) {
            return None;
        }
        let task = &self.tasks[&attempt.task];
        match task.owner {
            Owner::Session(session) => task.spec.stream.map(|_| session),
            Owner::Cluster | Owner::Restoring => None,
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
        let size = self.check_size("the item's bytes", value.payload.len());
        let value = size.map(|()| value);
        self.object_made(now, object, 0, value, Some(worker), effects);
        let made = self.objects.get(&object).and_then(|known| known.value(object));
        let value = made.expect("it is held, so it was kept");
        let message = ToClient::Yielded { task, index, value };
        effects.push(Effect::ToClient { to, message });
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
