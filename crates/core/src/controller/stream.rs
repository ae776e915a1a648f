//! Streams: the items that tasks and calls yield while they run, and how many of them were
//! consumed.
//!
//! - An item is an object. The consumer holds it before it learns of it. The consumer is the owner
//!   of the task, or the caller of the direct call.
//! - The controller does not remember which items came. A task that runs again yields the same
//!   items once more; the consumer counts them and releases those that it had.
//! - The controller remembers how many items were consumed, and tells the worker of each attempt.
//!   Otherwise the next attempt would wait for reports that do not come again.
//! - A stream that has ended may run again to recompute items whose data was lost. Then there is no
//!   consumer: items that are lost and held get their data back, the others are dropped, and there
//!   is always room for the next.

use super::task::{Task, TaskPhase};
use super::{Controller, Effect, Owner};
use crate::error::{Error, Ran};
use crate::hold::Holder;
use crate::id::{ObjectId, Referent, Session, TaskId};
use crate::message::{AttemptId, ToClient, ToWorker};
use crate::payload::{Outcome, Value};
use crate::spec::{DEFAULT_MAX_UNCONSUMED, MAX_ITEMS, TaskSpec, consumed_report_step};
use crate::time::Time;
use std::collections::BTreeSet;

/// The receiver of an item.
enum Consumer {
    Session(Session),
    /// No session: the stream runs again to recompute lost items.
    Recompute,
    /// No session: the attempt is not current, does not stream, or has no owner.
    Nobody,
}

impl Controller {
    /// Fails if a task streams and its owner is not a session with a link: no session could get the
    /// items.
    pub(super) fn check_consumer(&self, owner: Owner, spec: &TaskSpec) -> Result<(), Error> {
        let reachable = match owner {
            Owner::Session(session) => self.is_reachable(session),
            Owner::Cluster | Owner::Recompute => false,
        };
        if spec.stream_window.is_none() || reachable {
            return Ok(());
        }
        Err(Error::invalid(
            "the items of a task that streams go to a client that is connected: submit it from one",
        ))
    }

    /// Handles an item that user code yielded: gives it to the caller `to` of a direct call,
    /// otherwise to the owner of the task.
    pub(super) fn yielded(
        &mut self,
        now: Time,
        worker: Session,
        attempt: AttemptId,
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
            Consumer::Session(to) if index < MAX_ITEMS && self.is_reachable(to) => {
                self.deliver(now, worker, to, attempt.task, index, value, effects);
            }
            Consumer::Recompute if index < MAX_ITEMS => {
                self.item_recomputed(now, worker, attempt.task, index, value, effects);
            }
            Consumer::Session(_) | Consumer::Recompute | Consumer::Nobody => {
                self.discard([&value], Some(worker), effects);
            }
        }
        self.item_came(attempt, index);
    }

    /// Handles an item of a stream that runs again because data was lost.
    fn item_recomputed(
        &mut self,
        now: Time,
        worker: Session,
        id: TaskId,
        index: u32,
        value: Value,
        effects: &mut Vec<Effect>,
    ) {
        self.item_made(now, worker, ObjectId::item(id, index), value, effects);
        let task = self.tasks.get_mut(&id).expect("the task has not ended");
        // No session consumes the items, so the controller reports them as consumed itself. After
        // an earlier attempt that came further, `items_taken` may be the larger number.
        if task.items_given.saturating_sub(task.items_taken)
            >= consumed_report_step(task.spec.stream_window.unwrap_or(DEFAULT_MAX_UNCONSUMED))
        {
            task.items_taken = task.items_given;
            self.tell_took(id, effects);
        }
    }

    /// Fails the work and the sessions that wait for lost items of a stream that has ended without
    /// yielding those items again.
    pub(super) fn fail_missing_items(
        &mut self,
        task: &Task,
        outcome: &Outcome,
        effects: &mut Vec<Effect>,
    ) {
        for item in (0..task.stored_items_end).map(|item| ObjectId::item(task.spec.id, item)) {
            let object = self.objects.get(&item);
            if object.is_some_and(|object| object.is_lost() && object.is_looked_for()) {
                let error = outcome.as_ref().err().cloned();
                let error =
                    error.unwrap_or_else(|| self.lost_data_error(item, "it was not yielded again"));
                self.recompute_failed(item, &error, effects);
            }
        }
    }

    /// Releases what was announced for an item that has come. The object that the item became holds
    /// what it refers to.
    fn item_came(&mut self, call: AttemptId, index: u32) {
        let Some(announced) = self.enclosed_answers.remove(&call) else { return };
        let (came, rest): (BTreeSet<_>, BTreeSet<_>) =
            announced.into_iter().partition(|(item, _)| *item == Some(index));
        if !rest.is_empty() {
            self.enclosed_answers.insert(call, rest);
        }
        for (item, by) in came {
            self.enclosed_came(call, item, by);
        }
    }

    /// Counts an item of this attempt, and returns its consumer.
    fn consumer(&mut self, worker: Session, attempt: AttemptId, is_stored: bool) -> Consumer {
        if !self.has_current_attempt(worker, attempt) {
            return Consumer::Nobody;
        }
        let task = self.tasks.get_mut(&attempt.task).expect("the worker has it");
        if task.spec.stream_window.is_none() {
            return Consumer::Nobody;
        }
        task.items_given = task.items_given.saturating_add(1).min(MAX_ITEMS);
        if is_stored {
            task.stored_items_end = task.stored_items_end.max(task.items_given);
        }
        match task.owner {
            Owner::Session(session) => Consumer::Session(session),
            Owner::Recompute => Consumer::Recompute,
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
        self.holds.hold(Holder::Session(to.id), Referent::Object(object));
        self.item_made(now, worker, object, value, effects);
        let made = self.objects.get(&object).and_then(|known| known.value(object));
        let value = made.expect("a held item is kept");
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
        self.object_resolved(now, object, 0, item, Some(worker), effects);
    }

    /// Notes that the consumer has taken `count` items in all, and tells the worker.
    pub(super) fn took(
        &mut self,
        session: Session,
        id: TaskId,
        count: u32,
        effects: &mut Vec<Effect>,
    ) {
        if let Some(task) = self.tasks.get_mut(&id)
            && task.owner == Owner::Session(session)
            && count > task.items_taken
        {
            task.items_taken = count;
            self.tell_took(id, effects);
        }
    }

    /// Tells the worker that has a task how many of its items were taken, if any were.
    pub(super) fn tell_took(&self, id: TaskId, effects: &mut Vec<Effect>) {
        let task = &self.tasks[&id];
        if let TaskPhase::Placed { worker, .. } = &task.state
            && task.items_taken > 0
            && !crate::planted!(TookLost)
        {
            let to = self.workers[worker].session;
            let attempt = AttemptId { task: id, attempt: task.attempt };
            let message = ToWorker::Took { attempt, count: task.items_taken };
            effects.push(Effect::ToWorker { to, message });
        }
    }
}
