//! Attempts. An attempt is one try at one task, at one worker. A worker's report about an attempt
//! that it does not have changes nothing; it only counts as stale.
//!
//! Attempts of tasks and of calls through the controller end here alike. What else concerns calls
//! is in `call.rs`.

use super::task::{TaskPhase, TaskPlace, cancelled};
use super::{Controller, Effect, Timer};
use crate::account::Grant;
use crate::error::Error;
use crate::hold::Holder;
use crate::id::{ActorEpoch, Attempt, Referent, Session, SessionId, TaskId};
use crate::message::{AttemptEnd, AttemptId, Instance, Refusal, ShapeId, ToWorker};
use crate::payload::Value;
use crate::schedule::WorkerIndex;
use crate::spec::{self, Target};
use crate::time::Time;
use std::time::Duration;

impl Controller {
    pub(super) fn assign(
        &mut self,
        id: TaskId,
        shape: ShapeId,
        slot: WorkerIndex,
        grant: Option<Grant>,
        effects: &mut Vec<Effect>,
    ) {
        let worker = self.session_by_index[slot.0 as usize];
        let task = self.tasks.get_mut(&id).expect("placed work exists");
        let place = match grant.clone() {
            Some(grant) => TaskPlace::Slot { shape, grant, lent: false },
            None => TaskPlace::Backlog { shape },
        };
        task.attempt = task.attempt.next();
        task.items_given = 0;
        task.state = TaskPhase::Placed { worker, place, running: false };
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

    /// Returns the values of objects, all of which must have one.
    pub(super) fn values_of(&self, needs: &[crate::id::ObjectId]) -> Vec<Value> {
        needs
            .iter()
            .map(|object| self.value(*object).expect("a ready task has its values"))
            .collect()
    }

    pub(super) fn take_back(
        &mut self,
        from: WorkerIndex,
        shape: ShapeId,
        idle: WorkerIndex,
        effects: &mut Vec<Effect>,
    ) {
        let record = self
            .workers
            .get_mut(&self.session_by_index[from.0 as usize])
            .expect("a slot belongs to a worker");
        let backlog = record.backlog.get_mut(&shape).expect("the worker has a backlog");
        let id = backlog.pop_back().expect("the worker has a backlog");
        if backlog.is_empty() {
            record.backlog.remove(&shape);
        }
        let to = record.session;
        self.schedule.leave_backlog(from, shape);
        let task = self.tasks.get_mut(&id).expect("placed work exists");
        let TaskPhase::Placed { place, .. } = &mut task.state else { panic!("{id} is placed") };
        *place = TaskPlace::Returning { shape, idle };
        let message = ToWorker::TakeBack(AttemptId { task: id, attempt: task.attempt });
        effects.push(Effect::ToWorker { to, message });
    }

    /// Returns whether this attempt is current and this worker has it. Counts the report as stale
    /// if not.
    pub(super) fn has_current_attempt(&mut self, worker: Session, attempt: AttemptId) -> bool {
        let current = self.tasks.get(&attempt.task).is_some_and(|task| {
            task.attempt == attempt.attempt
                && matches!(&task.state, TaskPhase::Placed { worker: at, .. } if *at == worker.id)
        });
        self.counters.stale += u64::from(!current);
        current
    }

    /// Returns whether `next` waits at this worker for a grant of the shape that `attempt` has.
    fn may_inherit(&mut self, worker: Session, attempt: AttemptId, next: AttemptId) -> bool {
        if !self.has_current_attempt(worker, next) {
            return false;
        }
        let place = |id: TaskId| match &self.tasks[&id].state {
            TaskPhase::Placed { place, .. } => Some(place),
            TaskPhase::Waiting { .. }
            | TaskPhase::Delayed
            | TaskPhase::Queued(_)
            | TaskPhase::AwaitingActor { .. } => None,
        };
        let granted = match place(attempt.task) {
            Some(TaskPlace::Slot { shape, .. }) => Some(*shape),
            Some(
                TaskPlace::Backlog { .. } | TaskPlace::Returning { .. } | TaskPlace::Mailbox { .. },
            )
            | None => None,
        };
        let waits = match place(next.task) {
            Some(TaskPlace::Backlog { shape } | TaskPlace::Returning { shape, .. }) => Some(*shape),
            Some(TaskPlace::Slot { .. } | TaskPlace::Mailbox { .. }) | None => None,
        };
        granted.is_some() && granted == waits
    }

    pub(super) fn attempt_started(&mut self, now: Time, worker: Session, attempt: AttemptId) {
        if self.has_current_attempt(worker, attempt) {
            self.clear_system_limit(worker);
            let task = self.tasks.get_mut(&attempt.task).expect("the worker has it");
            task.started.get_or_insert(now);
            if let TaskPhase::Placed { running, .. } = &mut task.state {
                *running = true;
            }
        }
    }

    /// Handles an attempt that a worker gave back. The refusal costs the task no retry: the task is
    /// queued again, or ends if it was cancelled.
    pub(super) fn attempt_refused(
        &mut self,
        now: Time,
        worker: Session,
        attempt: AttemptId,
        reason: Refusal,
        effects: &mut Vec<Effect>,
    ) {
        if !self.has_current_attempt(worker, attempt) {
            return;
        }
        self.counters.refused += 1;
        self.note_refusal(now, worker, reason, effects);
        let id = attempt.task;
        let mailbox = self.unplace(id, None);
        let task = self.tasks.get(&id).expect("the worker had it");
        if task.cancel_reason.is_some() {
            self.end_task(now, id, Err(cancelled(task)), effects);
        } else if let Some((epoch, number)) = mailbox {
            self.call_refused(now, id, epoch, number, effects);
        } else {
            self.queue(id, true);
        }
    }

    /// Handles the end of an attempt. If the worker named a `next`, that attempt has its grant now.
    pub(super) fn attempt_ended(
        &mut self,
        now: Time,
        worker: Session,
        attempt: AttemptId,
        end: AttemptEnd,
        kept: Vec<Referent>,
        ran_for: Duration,
        next: Option<AttemptId>,
        effects: &mut Vec<Effect>,
    ) {
        if !self.has_current_attempt(worker, attempt) {
            if let AttemptEnd::Finished(values) = &end {
                self.discard(values, Some(worker), effects);
            }
            return self.release_enclosed_answer(attempt);
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
        self.hold_for_executor(worker, instance, kept);
        self.settle_attempt(now, id, end, effects);
        self.release_enclosed_answer(attempt);
    }

    /// Ends or retries a task according to the end of its attempt.
    pub(super) fn settle_attempt(
        &mut self,
        now: Time,
        id: TaskId,
        end: AttemptEnd,
        effects: &mut Vec<Effect>,
    ) {
        let task = self.tasks.get(&id).expect("the task has not ended");
        let outcome = match end {
            AttemptEnd::Finished(values) => Ok(values),
            _ if task.cancel_reason.is_some() => Err(cancelled(task)),
            AttemptEnd::Cancelled => Err(cancelled(task)),
            AttemptEnd::Failed(error) => {
                // A call that failed is never retried: calls are repeated only when they were lost.
                let function = matches!(task.spec.target, Target::Function(_));
                if function && task.spec.options.retry_on.covers(&error) && self.may_retry(id) {
                    return self.delay(now, id);
                }
                Err(error)
            }
            AttemptEnd::Lost(error) => {
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
        self.retry_budget(&task.spec).allows(task.retries_spent) || crate::planted!(RetryPastBudget)
    }

    /// Settles the attempts of a worker that is gone. Its calls are settled together with the
    /// instance of their actor instead, in their old order.
    pub(super) fn attempts_lost(
        &mut self,
        now: Time,
        tasks: Vec<TaskId>,
        error: &Error,
        effects: &mut Vec<Effect>,
    ) {
        let mut lost = Vec::new();
        for id in tasks {
            let task = self.tasks.get_mut(&id).expect("the task has not ended");
            if !matches!(task.state, TaskPhase::Placed { place: TaskPlace::Mailbox { .. }, .. }) {
                task.state = TaskPhase::Delayed;
                lost.push(id);
            }
        }
        for id in lost {
            self.settle_attempt(now, id, AttemptEnd::Lost(error.clone()), effects);
        }
    }

    /// Spends a retry, and sets the timer for the next attempt.
    pub(super) fn delay(&mut self, now: Time, id: TaskId) {
        let task = self.tasks.get_mut(&id).expect("the task has not ended");
        let delay =
            spec::retry_delay(task.spec.options.retry_delay, task.retries_spent, &mut self.random);
        task.retries_spent += 1;
        task.state = TaskPhase::Delayed;
        self.timers.insert((now + delay, Timer::Retry(id, task.attempt)));
    }

    pub(super) fn retry(
        &mut self,
        now: Time,
        id: TaskId,
        attempt: Attempt,
        effects: &mut Vec<Effect>,
    ) {
        let due = self.tasks.get(&id).is_some_and(|task| {
            task.attempt == attempt && matches!(task.state, TaskPhase::Delayed)
        });
        if !due {
            return;
        }
        let task = self.tasks.get_mut(&id).expect("the task has not ended");
        if let Target::Method { actor, .. } = task.spec.target {
            return self.enqueue_call(now, actor, id, effects);
        }
        self.queue(id, true);
    }

    /// Takes a task off its worker. Its grant goes to `heir`, or back to the worker's account. For
    /// a call, returns the epoch of the instance that had it, and its number.
    pub(super) fn unplace(
        &mut self,
        id: TaskId,
        heir: Option<TaskId>,
    ) -> Option<(ActorEpoch, u64)> {
        let task = self.tasks.get_mut(&id).expect("placed work exists");
        let state = std::mem::replace(&mut task.state, TaskPhase::Delayed);
        let TaskPhase::Placed { worker, place, .. } = state else { panic!("{id} is placed") };
        let record = self.workers.get_mut(&worker).expect("the worker is here");
        record.attempts.remove(&id);
        let slot = record.index;
        match place {
            TaskPlace::Slot { shape, grant, lent } => {
                if lent {
                    self.schedule.reclaim_cpu(slot, shape, &grant);
                }
                match heir {
                    Some(heir) => self.take_over_grant(worker, heir, shape, grant),
                    None if crate::planted!(LeakedResources) && self.random.one_in(8) => {}
                    None => self.schedule.give_back(slot, shape, &grant),
                }
                None
            }
            TaskPlace::Backlog { shape } => {
                record.leave_backlog(shape, id);
                self.schedule.leave_backlog(slot, shape);
                None
            }
            TaskPlace::Returning { idle, .. } => {
                self.schedule.recheck_worker(idle);
                None
            }
            TaskPlace::Mailbox { epoch, number } => {
                self.call_unsent(id, number);
                Some((epoch, number))
            }
        }
    }

    /// Moves the grant of a task that ended to `heir`, a task of the same worker's backlog.
    pub(super) fn take_over_grant(
        &mut self,
        worker: SessionId,
        heir: TaskId,
        shape: ShapeId,
        grant: Grant,
    ) {
        let record = self.workers.get_mut(&worker).expect("the worker is here");
        let slot = record.index;
        let task = self.tasks.get_mut(&heir).expect("the worker has it");
        let TaskPhase::Placed { place, running, .. } = &mut task.state else {
            panic!("{heir} is placed")
        };
        *running = true;
        let before = std::mem::replace(place, TaskPlace::Slot { shape, grant, lent: false });
        match before {
            TaskPlace::Backlog { shape } => {
                record.leave_backlog(shape, heir);
                self.schedule.take_over(slot, shape);
            }
            // It was asked back too late. `take_back` has taken it out of the backlog's count
            // already.
            TaskPlace::Returning { .. } => {}
            TaskPlace::Slot { .. } | TaskPlace::Mailbox { .. } => {
                panic!("{heir} had no need of a grant")
            }
        }
    }

    pub(super) fn note_time(&mut self, id: TaskId, ran_for: Duration) {
        if let TaskPhase::Placed { place: TaskPlace::Slot { shape, .. }, .. } =
            &self.tasks[&id].state
        {
            self.schedule.note_time(*shape, ran_for);
        }
    }

    /// Lends the CPUs of a task that waits for other work, or takes them back when the task goes
    /// on.
    pub(super) fn attempt_blocked(&mut self, worker: Session, attempt: AttemptId, blocked: bool) {
        if !self.has_current_attempt(worker, attempt) {
            return;
        }
        let slot = self.workers[&worker.id].index;
        let task = self.tasks.get_mut(&attempt.task).expect("the worker has it");
        if let TaskPhase::Placed { place: TaskPlace::Slot { shape, grant, lent }, .. } =
            &mut task.state
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

    /// A planted bug: accepts a result from a session that is over, for any attempt.
    pub(super) fn accept_stale(
        &mut self,
        now: Time,
        session: Session,
        message: &crate::message::FromWorker,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let crate::message::FromWorker::Ended {
            attempt, end: AttemptEnd::Finished(values), ..
        } = message
        else {
            return false;
        };
        if self.is_alive(session) || !self.tasks.contains_key(&attempt.task) {
            return false;
        }
        match self.tasks[&attempt.task].state {
            TaskPhase::Placed { .. } => drop(self.unplace(attempt.task, None)),
            TaskPhase::Queued(ticket) => self.schedule.withdraw(ticket),
            TaskPhase::Waiting { .. } | TaskPhase::Delayed => {}
            TaskPhase::AwaitingActor { .. } => return false,
        }
        self.end_task(now, attempt.task, Ok(values.clone()), effects);
        true
    }
}
