//! Tasks and their attempts: from submission to exactly one end.
//!
//! A task is in `tasks` until it ends, and in the history after that; ending it takes it out, so it
//! cannot end twice. An attempt belongs to one worker; what a worker says of an attempt that it does
//! not have changes nothing.

use super::query::TaskState;
use super::{Controller, Effect, Timer};
use crate::account::Grant;
use crate::error::{Error, ErrorKind, Ran};
use crate::hold::Holder;
use crate::id::{ActorEpoch, Attempt, Session, SessionId, TaskId, Thing};
use crate::message::{End, Instance, Refusal, ShapeId, ToClient, ToWorker, Try};
use crate::payload::{Outcome, Value};
use crate::schedule::{Demand, Step, Ticket, Work, WorkerSlot};
use crate::spec::{self, Target, TaskSpec};
use crate::time::Time;
use std::sync::Arc;
use std::time::Duration;

/// Whose a task is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// A session's: it is told of the end, and holds the results.
    Session(Session),
    /// Nobody's: the results are kept for a while.
    Cluster,
}

#[derive(Debug)]
pub(super) struct Task {
    pub spec: Arc<TaskSpec>,
    pub owner: Owner,
    pub state: State,
    /// The current attempt, or the last; 0 before the first.
    pub attempt: Attempt,
    /// Retries that were paid for.
    pub spent: u32,
    /// Whether it is to stop.
    pub cancelled: bool,
    pub created: Time,
    pub started: Option<Time>,
}

#[derive(Debug)]
pub(super) enum State {
    /// So many of the values it needs are missing.
    Waiting { missing: u32 },
    /// It runs again when the time has come.
    Delayed,
    /// It waits for a worker.
    Queued(Ticket),
    /// It waits for its actor, as this one of the calls through the controller.
    AwaitingActor { number: u64 },
    /// It is with a worker.
    Placed { worker: SessionId, place: Place, running: bool },
}

/// What a task has at its worker.
#[derive(Debug)]
pub(super) enum Place {
    /// A grant. `lent` while it waits for other work.
    Slot { shape: ShapeId, grant: Grant, lent: bool },
    /// A place in the backlog.
    Backlog { shape: ShapeId },
    /// It was asked back from the backlog, for this worker.
    Returning { idle: WorkerSlot },
    /// A place with its actor, as this one of the calls through the controller.
    Mailbox { epoch: ActorEpoch, number: u64 },
}

impl Controller {
    /// Takes a task on. Submitting the same id again is no error and changes nothing.
    pub fn submit(
        &mut self,
        now: Time,
        owner: Owner,
        spec: Arc<TaskSpec>,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Error> {
        if self.was_submitted(&spec) {
            return Ok(());
        }
        spec.validate()?;
        self.check_size("the arguments", spec.args.len())?;
        if owner == Owner::Cluster {
            self.check_room()?;
        }
        self.admit(now, owner, spec, effects);
        self.dispatch(now, effects);
        Ok(())
    }

    /// A client's submission: what is wrong with it is its outcome.
    pub(super) fn client_submits(
        &mut self,
        now: Time,
        session: Session,
        spec: Arc<TaskSpec>,
        effects: &mut Vec<Effect>,
    ) {
        // Calls are bounded by what their actor lets wait.
        let is_call = matches!(spec.target, Target::Method { .. });
        let promised = is_call || self.use_promise(session.id);
        let room = if promised { Ok(()) } else { self.check_room() };
        let owner = Owner::Session(session);
        if !self.tasks.contains_key(&spec.id) && self.was_submitted(&spec) {
            // It ended before: this session is told how.
            let outcome = self.task_result(spec.id).and_then(|outcome| outcome);
            let message = ToClient::TaskEnded { task: spec.id, outcome };
            return effects.push(Effect::ToClient { to: session, message });
        }
        if let Err(error) = room.and_then(|()| self.submit(now, owner, spec.clone(), effects)) {
            for object in spec.results() {
                self.holds.hold(Holder::Session(session.id), Thing::Object(object));
                self.object_made(now, object, Err(error.clone()), effects);
            }
            let message = ToClient::TaskEnded { task: spec.id, outcome: Err(error) };
            effects.push(Effect::ToClient { to: session, message });
        }
        self.promise(session.id, effects);
    }

    pub(super) fn check_size(&self, what: &str, bytes: usize) -> Result<(), Error> {
        let limit = self.config.max_payload_bytes;
        if bytes <= limit {
            return Ok(());
        }
        Err(Error::too_large(format!(
            "{what} are {bytes} bytes, the limit is {limit} (max_payload_bytes)"
        )))
    }

    fn admit(&mut self, now: Time, owner: Owner, spec: Arc<TaskSpec>, effects: &mut Vec<Effect>) {
        self.counters.submitted += 1;
        let id = spec.id;
        let results = match owner {
            Owner::Session(session) => {
                self.sessions.get_mut(&session.id).expect("it speaks").tasks.insert(id);
                Holder::Session(session.id)
            }
            Owner::Cluster => Holder::Cluster,
        };
        for object in spec.results() {
            self.holds.hold(results, Thing::Object(object));
        }
        let missing_thing = spec.held().find(|thing| !self.exists(*thing));
        let waits = self.wait_for(Work::Task(id), &spec.needs);
        let task = Task {
            spec: spec.clone(),
            owner,
            state: State::Waiting { missing: *waits.as_ref().unwrap_or(&0) },
            attempt: Attempt(0),
            spent: 0,
            cancelled: false,
            created: now,
            started: None,
        };
        self.tasks.insert(id, task);
        self.hold_all(Holder::Task(id), spec.held());
        if let Some(thing) = missing_thing {
            let error =
                Error::gone(format!("{thing:?}, which the task needs, is gone or never was"));
            self.end_task(now, id, Err(error), effects);
        } else if let Err(cause) = waits {
            self.end_task(now, id, Err(fed_by_failure(cause)), effects);
        } else if let Ok(0) = waits {
            self.make_ready(now, id, effects);
        }
    }

    /// A value that the task needs arrived.
    pub(super) fn need_met(&mut self, now: Time, id: TaskId, effects: &mut Vec<Effect>) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        let State::Waiting { missing } = &mut task.state else { return };
        *missing -= 1;
        if *missing == 0 && !crate::planted!(WaitingTaskNeverWoken) {
            self.make_ready(now, id, effects);
        }
    }

    /// A value that the task needs will never be.
    pub(super) fn need_failed(
        &mut self,
        now: Time,
        id: TaskId,
        cause: Error,
        effects: &mut Vec<Effect>,
    ) {
        if self.tasks.get(&id).is_some_and(|task| matches!(task.state, State::Waiting { .. })) {
            self.end_task(now, id, Err(fed_by_failure(cause)), effects);
        }
    }

    /// Nothing is missing: the task waits for a worker, or for its actor.
    fn make_ready(&mut self, now: Time, id: TaskId, effects: &mut Vec<Effect>) {
        let task = self.tasks.get_mut(&id).expect("a ready task exists");
        match &task.spec.target {
            Target::Function(name) => {
                let name = name.clone();
                if !self.workers.is_empty() && !self.schedule.knows(&name) {
                    let error = Error::not_found(format!(
                        "no worker provides the function {:?}: register it in a worker's program",
                        &*name
                    ));
                    return self.end_task(now, id, Err(error), effects);
                }
                self.queue(id, false);
            }
            Target::Method { actor, .. } => {
                let actor = *actor;
                self.call_is_ready(now, actor, id, effects);
            }
        }
    }

    fn queue(&mut self, id: TaskId, again: bool) {
        let task = self.tasks.get_mut(&id).expect("a queued task exists");
        let options = &task.spec.options;
        let demand = Demand {
            requires: task.spec.target.name().clone(),
            resources: options.resources.clone(),
            takes: None,
            preemptible: options.preemptible,
        };
        task.state = State::Queued(self.schedule.enqueue(Work::Task(id), demand, again));
    }

    /// Does what the schedule says until it has nothing to say.
    pub(super) fn dispatch(&mut self, now: Time, effects: &mut Vec<Effect>) {
        while let Some(step) = self.schedule.step() {
            match step {
                Step::Place { work: Work::Task(id), shape, worker, grant } => {
                    self.assign(id, shape, worker, grant, effects);
                }
                Step::Place { work: Work::Actor(id), shape, worker, grant } => {
                    let grant = grant.expect("an actor is never put in a backlog");
                    self.instantiate(now, id, shape, worker, grant, effects);
                }
                Step::TakeBack { from, shape, idle } => self.take_back(from, shape, idle, effects),
            }
        }
    }

    fn assign(
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
        task.state = State::Placed { worker, place, running: false };
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
    }

    /// The values of objects that are known to have one.
    pub(super) fn values_of(&self, needs: &[crate::id::ObjectId]) -> Vec<Value> {
        needs
            .iter()
            .map(|object| self.value(*object).expect("a ready task has its values"))
            .collect()
    }

    fn take_back(
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
        let to = record.session;
        self.schedule.leave_backlog(from, shape);
        let task = self.tasks.get_mut(&id).expect("what is placed exists");
        let State::Placed { place, .. } = &mut task.state else { panic!("{id} is placed") };
        *place = Place::Returning { idle };
        let message = ToWorker::TakeBack(Try { task: id, attempt: task.attempt });
        effects.push(Effect::ToWorker { to, message });
    }

    /// Whether this attempt is with this worker.
    fn has(&mut self, worker: Session, attempt: Try) -> bool {
        let current = self.tasks.get(&attempt.task).is_some_and(|task| {
            task.attempt == attempt.attempt
                && matches!(&task.state, State::Placed { worker: at, .. } if *at == worker.id)
        });
        self.counters.stale += u64::from(!current);
        current
    }

    pub(super) fn attempt_started(&mut self, now: Time, worker: Session, attempt: Try) {
        if self.has(worker, attempt) {
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
        match reason {
            Refusal::Full => self.pause(now, worker.id),
            Refusal::Draining => self.is_draining(worker.id),
            Refusal::TakenBack | Refusal::NotHere => {}
        }
        let id = attempt.task;
        let mailbox = self.unplace(id, None);
        let task = self.tasks.get(&id).expect("the worker had it");
        if task.cancelled {
            self.end_task(now, id, Err(cancelled(&task.spec)), effects);
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
            return;
        }
        let id = attempt.task;
        let next = next.filter(|next| self.has(worker, *next));
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
            _ if task.cancelled => Err(cancelled(&task.spec)),
            End::Cancelled => Err(cancelled(&task.spec)),
            End::Failed(error) => {
                if task.spec.options.retry_on.covers(&error) && self.may_retry(id) {
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

    fn may_retry(&self, id: TaskId) -> bool {
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
    fn delay(&mut self, now: Time, id: TaskId) {
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
                    self.schedule.reclaim_cpu(slot, &grant);
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
            Place::Returning { idle } => {
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
    fn inherit(&mut self, worker: SessionId, heir: TaskId, shape: ShapeId, grant: Grant) {
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

    fn note_time(&mut self, id: TaskId, ran_for: Duration) {
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
        if let State::Placed { place: Place::Slot { grant, lent, .. }, .. } = &mut task.state
            && *lent != blocked
        {
            *lent = blocked;
            if blocked {
                self.schedule.lend_cpu(slot, grant);
            } else {
                self.schedule.reclaim_cpu(slot, grant);
            }
        }
    }

    /// Stops a task. Says whether it had not ended.
    pub fn cancel(
        &mut self,
        now: Time,
        id: TaskId,
        force: bool,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let Some(task) = self.tasks.get_mut(&id) else { return false };
        task.cancelled = true;
        match &task.state {
            State::Placed { worker, .. } => {
                let to = self.workers[worker].session;
                let attempt = Try { task: id, attempt: task.attempt };
                effects.push(Effect::ToWorker {
                    to,
                    message: ToWorker::CancelAttempt { attempt, force },
                });
            }
            State::Queued(ticket) => {
                let ticket = *ticket;
                self.schedule.leave(ticket);
                self.end_cancelled(now, id, effects);
            }
            State::AwaitingActor { number } => {
                let number = *number;
                self.call_left(id, number);
                self.end_cancelled(now, id, effects);
            }
            State::Waiting { .. } | State::Delayed => self.end_cancelled(now, id, effects),
        }
        true
    }

    fn end_cancelled(&mut self, now: Time, id: TaskId, effects: &mut Vec<Effect>) {
        let error = cancelled(&self.tasks[&id].spec);
        self.end_task(now, id, Err(error), effects);
    }

    /// The one end of a task: results are kept for those who hold them, its own holds go, whoever
    /// waits is told.
    pub(super) fn end_task(
        &mut self,
        now: Time,
        id: TaskId,
        outcome: Outcome,
        effects: &mut Vec<Effect>,
    ) {
        let task = self.tasks.remove(&id).expect("a task ends once");
        let outcome = outcome.and_then(|values| check_results(&task.spec, values));
        let outcome = outcome.and_then(|values| {
            let bytes = values.iter().map(|value| value.payload.len()).sum();
            self.check_size("the results", bytes).map(|()| values)
        });
        let state = match &outcome {
            Ok(_) => TaskState::Finished,
            Err(error) if error.kind() == ErrorKind::Cancelled => TaskState::Cancelled,
            Err(_) => TaskState::Failed,
        };
        match state {
            TaskState::Finished => self.counters.finished += 1,
            TaskState::Cancelled => self.counters.cancelled += 1,
            _ => self.counters.failed += 1,
        }
        self.history.push(now, &task, state, outcome.as_ref().err());
        match task.owner {
            Owner::Session(session) => {
                if self.is_alive(session) {
                    self.sessions.get_mut(&session.id).expect("it lives").tasks.remove(&id);
                    let message = ToClient::TaskEnded { task: id, outcome: outcome.clone() };
                    effects.push(Effect::ToClient { to: session, message });
                }
            }
            Owner::Cluster => effects.push(Effect::Ended(id)),
        }
        for object in task.spec.results() {
            let value = outcome.as_ref().map(|values| values[object.index as usize].clone());
            self.object_made(now, object, value.map_err(Clone::clone), effects);
        }
        if !crate::planted!(HoldNotReleased) {
            let free = self.holds.release_all(Holder::Task(id));
            self.free(now, free, effects);
        }
        self.promise_starved(effects);
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
        let placed = matches!(self.tasks[&attempt.task].state, State::Placed { .. });
        if placed {
            let _ = self.unplace(attempt.task, None);
            self.end_task(now, attempt.task, Ok(values.clone()), effects);
        }
        placed
    }
}

fn check_results(spec: &TaskSpec, values: Vec<Value>) -> Outcome {
    if values.len() == spec.returns as usize {
        return Ok(values);
    }
    Err(Error::invalid(format!(
        "{:?} returned {} values, {} were asked for",
        &**spec.target.name(),
        values.len(),
        spec.returns
    ))
    .ran(Ran::Maybe))
}

fn cancelled(spec: &TaskSpec) -> Error {
    Error::cancelled(format!("task {} ({}) was cancelled", spec.id, spec.target.name()))
        .ran(Ran::Maybe)
}

/// The error of a task whose input failed: that failure, seen from here.
pub(super) fn fed_by_failure(cause: Error) -> Error {
    let message = format!("a task that this one depends on failed: {}", cause.message());
    Error::new(cause.kind(), message).caused_by(cause)
}
