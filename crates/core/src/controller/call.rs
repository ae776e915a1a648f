//! Calls that go through the controller: tasks whose target is a method of an actor.
//!
//! A call gets its number when its arguments are there, and calls are sent in the order of their
//! numbers. When an instance is lost, the calls that may be repeated go to the next instance in
//! their old order. Direct calls do not come through here; the controller only records how they
//! ended.

use super::actor::{Actor, ActorPhase, DeathCause};
use super::query::TaskState;
use super::task::{Task, TaskPhase, TaskPlace};
use super::{Controller, Effect};
use crate::error::{Error, Ran};
use crate::id::{ActorEpoch, ActorId, Referent, Session, TaskId};
use crate::message::{AttemptEnd, CallReport, ToWorker};
use crate::spec::{Budget, Target, TaskSpec};
use crate::time::Time;
use std::collections::BTreeMap;

impl Controller {
    pub(super) fn retry_budget(&self, spec: &TaskSpec) -> Budget {
        match spec.target {
            Target::Function(_) => spec.options.max_retries,
            Target::Method { actor, .. } => {
                let allowed =
                    self.actors.get(&actor).map(|actor| actor.spec.options.max_task_retries);
                allowed.unwrap_or(Budget::Times(0)).min(spec.options.max_retries)
            }
        }
    }

    /// Gives a call that has its arguments its number, and sends it if the actor is ready.
    pub(super) fn enqueue_call(
        &mut self,
        now: Time,
        id: ActorId,
        call: TaskId,
        effects: &mut Vec<Effect>,
    ) {
        let refused = match self.actors.get(&id) {
            None => Some(Error::not_found(format!("no actor {id} is here"))),
            Some(Actor { phase: ActorPhase::Dead { error, .. }, .. }) => Some(error.clone()),
            Some(_) => {
                self.check_pending_calls(id).and_then(|()| self.check_call_cycle(call, id)).err()
            }
        };
        if let Some(error) = refused {
            let ran = ran_before(&self.tasks[&call]);
            return self.end_task(now, call, Err(error.ran(ran)), effects);
        }
        let actor = self.actors.get_mut(&id).expect("the actor is known");
        actor.last_number += 1;
        actor.last_used = now;
        let number = actor.last_number;
        actor.waiting_calls.insert(number, call);
        self.tasks.get_mut(&call).expect("a ready call exists").state =
            TaskPhase::AwaitingActor { number };
        self.send_calls(id, effects);
    }

    /// Fails with `Exhausted` if no more calls may wait for this actor.
    pub(super) fn check_pending_calls(&self, id: ActorId) -> Result<(), Error> {
        let actor = &self.actors[&id];
        let limit = actor.spec.options.max_pending_calls as usize;
        let pending = actor.waiting_calls.len() + actor.sent_calls.len();
        if pending < limit {
            return Ok(());
        }
        Err(Error::exhausted(format!(
            "{pending} calls wait for actor {id}, the limit is {limit} (max_pending_calls)"
        )))
    }

    /// Sends the waiting calls, if the actor is ready.
    pub(super) fn send_calls(&mut self, id: ActorId, effects: &mut Vec<Effect>) {
        let actor = self.actors.get_mut(&id).expect("the actor is known");
        let ActorPhase::Ready { worker, .. } = actor.phase else { return };
        if actor.stalled {
            return;
        }
        let epoch = actor.epoch;
        let calls = std::mem::take(&mut actor.waiting_calls);
        actor.sent_calls.extend(calls.iter().map(|(number, call)| (*number, *call)));
        let record = self.workers.get_mut(&worker).expect("a ready actor has a worker");
        let to = record.session;
        record.attempts.extend(calls.values());
        for (number, call) in calls {
            let task = self.tasks.get_mut(&call).expect("a call that waits exists");
            task.attempt = task.attempt.next();
            let place = TaskPlace::Mailbox { epoch, number };
            task.state = TaskPhase::Placed { worker, place, running: false };
            task.worker = Some(worker);
            let (spec, attempt) = (task.spec.clone(), task.attempt);
            let values = self.values_of(&spec.needs);
            effects.push(Effect::ToWorker {
                to,
                message: ToWorker::Execute { spec, attempt, epoch, values },
            });
            self.tell_took(call, effects);
        }
    }

    /// Removes a call from the calls that wait for its actor.
    pub(super) fn call_left(&mut self, call: TaskId, number: u64) {
        if let Some(actor) = self.actor_of(call) {
            actor.waiting_calls.remove(&number);
        }
    }

    /// Removes a call from the calls that are with the instance.
    pub(super) fn call_unsent(&mut self, call: TaskId, number: u64) {
        if let Some(actor) = self.actor_of(call) {
            actor.sent_calls.remove(&number);
        }
    }

    pub(super) fn actor_of(&mut self, call: TaskId) -> Option<&mut Actor> {
        let Target::Method { actor, .. } = self.tasks[&call].spec.target else { return None };
        self.actors.get_mut(&actor)
    }

    /// Queues a call that never reached the instance for the next instance, in its old order.
    pub(super) fn call_refused(
        &mut self,
        now: Time,
        call: TaskId,
        epoch: ActorEpoch,
        number: u64,
        effects: &mut Vec<Effect>,
    ) {
        let Target::Method { actor: id, .. } = self.tasks[&call].spec.target else { return };
        if !self.is_living(id) {
            return self.enqueue_call(now, id, call, effects);
        }
        self.tasks.get_mut(&call).expect("the call has not ended").state =
            TaskPhase::AwaitingActor { number };
        let actor = self.actors.get_mut(&id).expect("the actor lives");
        actor.waiting_calls.insert(number, call);
        actor.stalled |= actor.epoch == epoch;
        self.send_calls(id, effects);
    }

    /// Settles the calls of an instance that is over. The calls that were with it may have run:
    /// those that may run again wait for the next instance in their old order, the others fail. If
    /// the actor is dead, the calls that wait for it fail, too.
    pub(super) fn calls_lost(
        &mut self,
        now: Time,
        id: ActorId,
        error: &Error,
        effects: &mut Vec<Effect>,
    ) {
        let dead = !self.is_living(id);
        let actor = self.actors.get_mut(&id).expect("the actor is known");
        let deleted = matches!(actor.phase, ActorPhase::Dead { cause: DeathCause::Deleted, .. });
        let sent = std::mem::take(&mut actor.sent_calls);
        let waiting = if dead { std::mem::take(&mut actor.waiting_calls) } else { BTreeMap::new() };
        for (number, call) in sent {
            let budget = self.retry_budget(&self.tasks[&call].spec);
            let task = self.tasks.get_mut(&call).expect("a sent call exists");
            if let TaskPhase::Placed { worker, .. } = &task.state
                && let Some(record) = self.workers.get_mut(worker)
            {
                record.attempts.remove(&call);
            }
            let ran = task.state.public_state() == TaskState::Running;
            task.state = TaskPhase::AwaitingActor { number };
            self.counters.lost += 1;
            if !dead && task.cancel_reason.is_none() && budget.allows(task.retries_spent) {
                task.retries_spent += 1;
                self.actors
                    .get_mut(&id)
                    .expect("the actor lives")
                    .waiting_calls
                    .insert(number, call);
            } else if task.cancel_reason.is_some() {
                self.settle_attempt(now, call, AttemptEnd::Cancelled, effects);
            } else if deleted && ran {
                self.end_task(now, call, Err(deleted_under(id)), effects);
            } else {
                self.end_task(now, call, Err(error.clone().ran(Ran::Maybe)), effects);
            }
        }
        for (_, call) in waiting {
            let ran = ran_before(&self.tasks[&call]);
            self.end_task(now, call, Err(error.clone().ran(ran)), effects);
        }
    }

    /// Records direct calls that ended in the history.
    pub(super) fn calls_ended(&mut self, now: Time, worker: Session, reports: Vec<CallReport>) {
        for report in reports {
            if let Some(actor) = self.actors.get_mut(&report.instance.actor) {
                actor.last_used = now;
            }
            self.history.push_call(now, worker.id, report);
        }
    }
}

/// Returns the error of a call that was running when its actor was deleted.
fn deleted_under(actor: ActorId) -> Error {
    let words = format!("actor {actor} was deleted while this call ran");
    Error::gone(Referent::Actor(actor), words).ran(Ran::Maybe)
}

/// Returns whether a waiting call may have run before.
fn ran_before(task: &Task) -> Ran {
    if task.retries_spent > 0 { Ran::Maybe } else { Ran::No }
}
