//! Attempts: one try at a task each, with one worker. What a worker says of an attempt that it does not
//! have changes nothing.

use super::task::{Place, State, cancelled};
use super::{Controller, Effect, Timer};
use crate::account::Grant;
use crate::error::Error;
use crate::hold::Holder;
use crate::id::{ActorEpoch, Attempt, Session, SessionId, TaskId, Thing};
use crate::message::{End, Instance, Refusal, ShapeId, ToWorker, Try};
use crate::payload::Value;
use crate::schedule::WorkerSlot;
use crate::spec::{self, Target};
use crate::time::Time;
use std::time::Duration;

impl Controller {
    pub(super) fn assign(
        &mut self,
        id: TaskId,
        shape: ShapeId,
        slot: WorkerSlot,
        grant: Option<Grant>,
        effects: &mut Vec<Effect>,
    ) {
        let worker = self.by_slot[slot.0 as usize];
        let task = self.tasks.get_mut(&id).expect("what is placed exists");
        let place = match grant.clone() {
            Some(grant) => Place::Slot { shape, grant, lent: false },
            None => Place::Backlog { shape },
        };
        task.attempt = task.attempt.next();
        task.given = 0;
        task.state = State::Placed { worker, place, running: false };
        task.worker = Some(worker);
        let (spec, attempt) = (task.spec.clone(), task.attempt);
        if crate::planted!(HoldReleasedTwice) {
            let _ = self.holds.release_all(Holder::Task(id));
        }
        let record = self.workers.get_mut(&worker).expect("a slot belongs to a worker");
        record.attempts.insert(id);
        if grant.is_none() {
            record.backlog.entry(shape).or_default().push_back(id);
        }
        let to = record.session;
        let values = self.values_of(&spec.needs);
        let message = ToWorker::Assign { spec, attempt, values, shape, grant };
        effects.push(Effect::ToWorker { to, message });
        self.tell_took(id, effects);
    }

    /// The values of objects that are known to have one.
    pub(super) fn values_of(&self, needs: &[crate::id::ObjectId]) -> Vec<Value> {
        needs
            .iter()
            .map(|object| self.value(*object).expect("a ready task has its values"))
            .collect()
    }

    pub(super) fn take_back(
        &mut self,
        from: WorkerSlot,
        shape: ShapeId,
        idle: WorkerSlot,
        effects: &mut Vec<Effect>,
    ) {
        let record = self
            .workers
            .get_mut(&self.by_slot[from.0 as usize])
            .expect("a slot belongs to a worker");
        let backlog = record.backlog.get_mut(&shape).expect("it has a backlog");
        let id = backlog.pop_back().expect("it has a backlog");
        if backlog.is_empty() {
            record.backlog.remove(&shape);
        }
        let to = record.session;
        self.schedule.leave_backlog(from, shape);
        let task = self.tasks.get_mut(&id).expect("what is placed exists");
        let State::Placed { place, .. } = &mut task.state else { panic!("{id} is placed") };
        *place = Place::Returning { shape, idle };
        let message = ToWorker::TakeBack(Try { task: id, attempt: task.attempt });
        effects.push(Effect::ToWorker { to, message });
    }

    /// Whether this attempt is with this worker.
    pub(super) fn has(&mut self, worker: Session, attempt: Try) -> bool {
        let current = self.tasks.get(&attempt.task).is_some_and(|task| {
            task.attempt == attempt.attempt
                && matches!(&task.state, State::Placed { worker: at, .. } if *at == worker.id)
        });
        self.counters.stale += u64::from(!current);
        current
    }

    /// Whether `next` waits at this worker for a grant like the one that `attempt` has.
    fn may_inherit(&mut self, worker: Session, attempt: Try, next: Try) -> bool {
        if !self.has(worker, next) {
            return false;
        }
        let place = |id: TaskId| match &self.tasks[&id].state {
            State::Placed { place, .. } => Some(place),
            State::Waiting { .. }
            | State::Delayed
            | State::Queued(_)
            | State::AwaitingActor { .. } => None,
        };
        let granted = match place(attempt.task) {
            Some(Place::Slot { shape, .. }) => Some(*shape),
            Some(Place::Backlog { .. } | Place::Returning { .. } | Place::Mailbox { .. })
            | None => None,
        };
        let waits = match place(next.task) {
            Some(Place::Backlog { shape } | Place::Returning { shape, .. }) => Some(*shape),
            Some(Place::Slot { .. } | Place::Mailbox { .. }) | None => None,
        };
        granted.is_some() && granted == waits
    }

    pub(super) fn attempt_started(&mut self, now: Time, worker: Session, attempt: Try) {
        if self.has(worker, attempt) {
            self.lacks_nothing(worker);
            let task = self.tasks.get_mut(&attempt.task).expect("the worker has it");
            task.started.get_or_insert(now);
            if let State::Placed { running, .. } = &mut task.state {
                *running = true;
            }
        }
    }

    /// A worker gives an attempt back. That costs the task nothing.
    pub(super) fn attempt_refused(
        &mut self,
        now: Time,
        worker: Session,
        attempt: Try,
        reason: Refusal,
        effects: &mut Vec<Effect>,
    ) {
        if !self.has(worker, attempt) {
            return;
        }
        self.counters.refused += 1;
        self.note_refusal(now, worker, reason, effects);
        let id = attempt.task;
        let mailbox = self.unplace(id, None);
        let task = self.tasks.get(&id).expect("the worker had it");
        if task.cancelled.is_some() {
            self.end_task(now, id, Err(cancelled(task)), effects);
        } else if let Some((epoch, number)) = mailbox {
            self.call_refused(now, id, epoch, number, effects);
        } else {
            self.queue(id, true);
        }
    }

    /// An attempt ended, and perhaps `next` has its grant now.
    pub(super) fn attempt_ended(
        &mut self,
        now: Time,
        worker: Session,
        attempt: Try,
        end: End,
        kept: Vec<Thing>,
        ran_for: Duration,
        next: Option<Try>,
        effects: &mut Vec<Effect>,
    ) {
        if !self.has(worker, attempt) {
            if let End::Finished(values) = &end {
                self.discard(values, Some(worker), effects);
            }
            return self.answer_came(attempt);
        }
        let id = attempt.task;
        let next = next.filter(|next| *next != attempt && self.may_inherit(worker, attempt, *next));
        self.note_time(id, ran_for);
        let mailbox = self.unplace(id, next.map(|next| next.task));
        if let Some(next) = next {
            let task = self.tasks.get_mut(&next.task).expect("the worker has it");
            task.started.get_or_insert(now);
        }
        let target = &self.tasks[&id].spec.target;
        let instance = match (target, mailbox) {
            (Target::Method { actor, .. }, Some((epoch, _))) => {
                Some(Instance { actor: *actor, epoch })
            }
            (Target::Method { .. } | Target::Function(_), _) => None,
        };
        self.keep(worker, instance, kept);
        self.settle_attempt(now, id, end, effects);
        self.answer_came(attempt);
    }

    /// What the end of an attempt means for its task.
    pub(super) fn settle_attempt(
        &mut self,
        now: Time,
        id: TaskId,
        end: End,
        effects: &mut Vec<Effect>,
    ) {
        let task = self.tasks.get(&id).expect("its attempt ended");
        let outcome = match end {
            End::Finished(values) => Ok(values),
            _ if task.cancelled.is_some() => Err(cancelled(task)),
            End::Cancelled => Err(cancelled(task)),
            End::Failed(error) => {
                // What a method says is final: calls are repeated only when they were lost.
                let function = matches!(task.spec.target, Target::Function(_));
                if function && task.spec.options.retry_on.covers(&error) && self.may_retry(id) {
                    return self.delay(now, id);
                }
                Err(error)
            }
            End::Lost(error) => {
                self.counters.lost += 1;
                if self.may_retry(id) {
                    return self.delay(now, id);
                }
                Err(error)
            }
        };
        self.end_task(now, id, outcome, effects);
    }

    pub(super) fn may_retry(&self, id: TaskId) -> bool {
        let task = &self.tasks[&id];
        self.retry_budget(&task.spec).allows(task.spent) || crate::planted!(RetryPastBudget)
    }

    /// These were with a worker that is gone. Calls are settled with their actor's instance instead, in
    /// their old order.
    pub(super) fn attempts_lost(
        &mut self,
        now: Time,
        tasks: Vec<TaskId>,
        error: &Error,
        effects: &mut Vec<Effect>,
    ) {
        let mut lost = Vec::new();
        for id in tasks {
            let task = self.tasks.get_mut(&id).expect("it was with the worker");
            if !matches!(task.state, State::Placed { place: Place::Mailbox { .. }, .. }) {
                task.state = State::Delayed;
                lost.push(id);
            }
        }
        for id in lost {
            self.settle_attempt(now, id, End::Lost(error.clone()), effects);
        }
    }

    /// The task runs again after a while.
    pub(super) fn delay(&mut self, now: Time, id: TaskId) {
        let task = self.tasks.get_mut(&id).expect("it is tried again");
        let delay = spec::retry_delay(task.spec.options.retry_delay, task.spent, &mut self.random);
        task.spent += 1;
        task.state = State::Delayed;
        self.timers.insert((now + delay, Timer::Retry(id, task.attempt)));
    }

    pub(super) fn retry(
        &mut self,
        now: Time,
        id: TaskId,
        attempt: Attempt,
        effects: &mut Vec<Effect>,
    ) {
        let due = self
            .tasks
            .get(&id)
            .is_some_and(|task| task.attempt == attempt && matches!(task.state, State::Delayed));
        if !due {
            return;
        }
        let task = self.tasks.get_mut(&id).expect("it is due");
        if let Target::Method { actor, .. } = task.spec.target {
            return self.call_is_ready(now, actor, id, effects);
        }
        self.queue(id, true);
    }

    /// Takes a task off its worker; its grant goes back, or to `heir`. Says with which instance it was,
    /// if it was a call.
    pub(super) fn unplace(
        &mut self,
        id: TaskId,
        heir: Option<TaskId>,
    ) -> Option<(ActorEpoch, u64)> {
        let task = self.tasks.get_mut(&id).expect("what is placed exists");
        let state = std::mem::replace(&mut task.state, State::Delayed);
        let State::Placed { worker, place, .. } = state else { panic!("{id} is placed") };
        let record = self.workers.get_mut(&worker).expect("it is with a worker");
        record.attempts.remove(&id);
        let slot = record.slot;
        match place {
            Place::Slot { shape, grant, lent } => {
                if lent {
                    self.schedule.reclaim_cpu(slot, shape, &grant);
                }
                match heir {
                    Some(heir) => self.inherit(worker, heir, shape, grant),
                    None if crate::planted!(LeakedResources) && self.random.one_in(8) => {}
                    None => self.schedule.give_back(slot, shape, &grant),
                }
                None
            }
            Place::Backlog { shape } => {
                record.leave_backlog(shape, id);
                self.schedule.leave_backlog(slot, shape);
                None
            }
            Place::Returning { idle, .. } => {
                self.schedule.look_again(idle);
                None
            }
            Place::Mailbox { epoch, number } => {
                self.call_unsent(id, number);
                Some((epoch, number))
            }
        }
    }

    /// A task of the backlog runs with the grant of one that ended.
    pub(super) fn inherit(
        &mut self,
        worker: SessionId,
        heir: TaskId,
        shape: ShapeId,
        grant: Grant,
    ) {
        let record = self.workers.get_mut(&worker).expect("it is with a worker");
        let slot = record.slot;
        let task = self.tasks.get_mut(&heir).expect("the worker has it");
        let State::Placed { place, running, .. } = &mut task.state else {
            panic!("{heir} is placed")
        };
        *running = true;
        let before = std::mem::replace(place, Place::Slot { shape, grant, lent: false });
        match before {
            Place::Backlog { shape } => {
                record.leave_backlog(shape, heir);
                self.schedule.take_over(slot, shape);
            }
            // It was asked back too late; it is out of the backlog's count already.
            Place::Returning { .. } => {}
            Place::Slot { .. } | Place::Mailbox { .. } => panic!("{heir} had no need of a grant"),
        }
    }

    pub(super) fn note_time(&mut self, id: TaskId, ran_for: Duration) {
        if let State::Placed { place: Place::Slot { shape, .. }, .. } = &self.tasks[&id].state {
            self.schedule.note_time(*shape, ran_for);
        }
    }

    /// A task waits for other tasks, or goes on.
    pub(super) fn attempt_blocked(&mut self, worker: Session, attempt: Try, blocked: bool) {
        if !self.has(worker, attempt) {
            return;
        }
        let slot = self.workers[&worker.id].slot;
        let task = self.tasks.get_mut(&attempt.task).expect("the worker has it");
        if let State::Placed { place: Place::Slot { shape, grant, lent }, .. } = &mut task.state
            && *lent != blocked
        {
            *lent = blocked;
            if blocked {
                self.schedule.lend_cpu(slot, *shape, grant);
            } else {
                self.schedule.reclaim_cpu(slot, *shape, grant);
            }
        }
    }

    /// Takes a result of any session for any attempt, as no controller should.
    pub(super) fn accept_stale(
        &mut self,
        now: Time,
        session: Session,
        message: &crate::message::FromWorker,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let crate::message::FromWorker::Ended { attempt, end: End::Finished(values), .. } = message
        else {
            return false;
        };
        if self.is_alive(session) || !self.tasks.contains_key(&attempt.task) {
            return false;
        }
        match self.tasks[&attempt.task].state {
            State::Placed { .. } => drop(self.unplace(attempt.task, None)),
            State::Queued(ticket) => self.schedule.leave(ticket),
            State::Waiting { .. } | State::Delayed => {}
            State::AwaitingActor { .. } => return false,
        }
        self.end_task(now, attempt.task, Ok(values.clone()), effects);
        true
    }
}
