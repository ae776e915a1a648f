//! Tasks at a worker. A task starts with a grant, or waits in the backlog until a task of the same
//! shape ends and leaves it its grant.

use super::event::UserCodeResult;
use super::executor::Occupant;
use super::stream::StreamProgress;
use super::{Effect, ExecutorId, Timer, Worker};
use crate::account::Grant;
use crate::error::{Error, Ran};
use crate::id::{Attempt, Referent, TaskId};
use crate::message::{AttemptEnd, AttemptId, CancelMode, FromWorker, Refusal, ShapeId};
use crate::payload::Value;
use crate::spec::{Budget, TaskSpec};
use crate::time::Time;
use std::collections::VecDeque;
use std::sync::Arc;

/// An attempt that is at this worker.
#[derive(Debug)]
pub(super) struct LocalTask {
    pub spec: Arc<TaskSpec>,
    pub attempt: Attempt,
    values: Vec<Value>,
    pub shape: ShapeId,
    pub state: AttemptState,
    /// The progress of its items.
    pub stream: StreamProgress,
    /// Why it is to stop, if it is.
    stop: Option<StopReason>,
    /// The timers to remove when the attempt ends.
    timers: Vec<(Time, Timer)>,
}

#[derive(Debug)]
pub(super) enum AttemptState {
    Backlog,
    /// Its executor is starting.
    Starting {
        executor: ExecutorId,
        grant: Grant,
    },
    Running {
        executor: ExecutorId,
        grant: Grant,
        since: Time,
        blocked: bool,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum StopReason {
    Cancelled,
    TimedOut,
    /// A drain killed it. When its executor is dead, it is given back to the controller, or is lost
    /// if it must not run twice.
    GivenBack,
}

/// The attempts of one shape.
#[derive(Debug, Default)]
pub(super) struct Slots {
    /// How many attempts have a grant, and how many of these wait for other tasks.
    pub granted: u32,
    pub blocked: u32,
    /// The attempts that wait for a grant, in order.
    pub backlog: VecDeque<TaskId>,
}

impl Worker {
    pub(super) fn assigned(
        &mut self,
        now: Time,
        spec: Arc<TaskSpec>,
        attempt: Attempt,
        values: Vec<Value>,
        shape: ShapeId,
        grant: Option<Grant>,
        effects: &mut Vec<Effect>,
    ) {
        let id = spec.id;
        let attempt_id = AttemptId { task: id, attempt };
        if self.departure.has_begun() {
            return refuse(attempt_id, Refusal::Draining, effects);
        }
        let local = LocalTask {
            spec,
            attempt,
            values,
            shape,
            state: AttemptState::Backlog,
            stream: StreamProgress::default(),
            stop: None,
            timers: Vec::new(),
        };
        match grant {
            Some(grant) => {
                self.slots.entry(shape).or_default().granted += 1;
                self.attempts.insert(id, local);
                self.start(now, id, grant, effects);
            }
            // The attempt whose grant it was to take over has ended meanwhile, or waits for other
            // tasks itself.
            None if self.slots.get(&shape).is_none_or(|slots| slots.granted == slots.blocked) => {
                refuse(attempt_id, Refusal::TakenBack, effects);
            }
            None => {
                self.attempts.insert(id, local);
                self.slots.get_mut(&shape).expect("the shape has a grant").backlog.push_back(id);
            }
        }
    }

    fn start(&mut self, now: Time, id: TaskId, grant: Grant, effects: &mut Vec<Effect>) {
        let name = self.attempts[&id].spec.target.name().clone();
        let (executor, ready) = self.occupy(Occupant::Task(id), &name, effects);
        let local = self.attempts.get_mut(&id).expect("it starts");
        local.state = AttemptState::Starting { executor, grant };
        if ready {
            self.run(now, id, executor, effects);
        }
    }

    pub(super) fn run(
        &mut self,
        now: Time,
        id: TaskId,
        executor: ExecutorId,
        effects: &mut Vec<Effect>,
    ) {
        let local = self.attempts.get_mut(&id).expect("its executor started for it");
        let AttemptState::Starting { grant, .. } =
            std::mem::replace(&mut local.state, AttemptState::Backlog)
        else {
            panic!("{id} was to start")
        };
        local.state =
            AttemptState::Running { executor, grant: grant.clone(), since: now, blocked: false };
        if !grant.gpus.is_empty() {
            self.executors.get_mut(&executor).expect("it is ready").once = true;
        }
        let attempt = local.attempt;
        effects.push(Effect::ToController(FromWorker::Started {
            attempt: AttemptId { task: id, attempt },
        }));
        let values = std::mem::take(&mut local.values);
        effects.push(Effect::Run { executor, spec: local.spec.clone(), attempt, values, grant });
        effects.extend(local.stream.tells(executor, id));
        if let Some(timeout) = local.spec.options.timeout {
            let due = (now + timeout, Timer::Timeout(AttemptId { task: id, attempt }));
            local.timers.push(due);
            self.timers.insert(due);
        }
    }

    /// Handles the end of a task's user code.
    pub(super) fn task_ended(
        &mut self,
        now: Time,
        executor: ExecutorId,
        id: TaskId,
        end: UserCodeResult,
        effects: &mut Vec<Effect>,
    ) {
        let result = match end.outcome {
            Ok(values) => AttemptEnd::Finished(values),
            Err(error) => AttemptEnd::Failed(error),
        };
        self.task_ended_in(now, executor, id, result, end.still_held, effects);
    }

    /// Ends an attempt whose inputs could not be pulled to this node. A retry may succeed
    /// elsewhere.
    pub(super) fn inputs_unavailable(
        &mut self,
        now: Time,
        executor: ExecutorId,
        id: TaskId,
        error: Error,
        effects: &mut Vec<Effect>,
    ) {
        self.task_ended_in(now, executor, id, AttemptEnd::Lost(error), Vec::new(), effects);
    }

    /// Ends the attempt that an executor ran.
    fn task_ended_in(
        &mut self,
        now: Time,
        executor: ExecutorId,
        id: TaskId,
        end: AttemptEnd,
        kept: Vec<Referent>,
        effects: &mut Vec<Effect>,
    ) {
        if self.occupant(executor) != Occupant::Task(id) {
            return;
        }
        self.vacate(executor, effects);
        self.end_attempt(now, id, end, kept, effects);
    }

    /// Ends an attempt with `end`. If it was stopped and did not finish, the reason for the stop
    /// decides its end instead.
    fn end_attempt(
        &mut self,
        now: Time,
        id: TaskId,
        end: AttemptEnd,
        kept: Vec<Referent>,
        effects: &mut Vec<Effect>,
    ) {
        let end = match (end, self.attempts[&id].stop) {
            (AttemptEnd::Finished(values), _) => AttemptEnd::Finished(values),
            (_, Some(StopReason::Cancelled)) => AttemptEnd::Cancelled,
            (_, Some(StopReason::TimedOut)) => AttemptEnd::Failed(self.timed_out(id)),
            (AttemptEnd::Lost(error), Some(StopReason::GivenBack)) => {
                if !self.is_at_most_once(id) || !error.may_have_run() {
                    return self.refuse_attempt(id, Refusal::Draining, effects);
                }
                AttemptEnd::Lost(self.outlived_grace(id))
            }
            (end, Some(StopReason::GivenBack) | None) => end,
        };
        self.attempt_over(now, id, end, kept, effects);
    }

    /// Ends an attempt whose executor died.
    pub(super) fn run_died(
        &mut self,
        now: Time,
        id: TaskId,
        error: Error,
        effects: &mut Vec<Effect>,
    ) {
        self.end_attempt(now, id, AttemptEnd::Lost(error), Vec::new(), effects);
    }

    /// Returns whether a task that may have run must not run again.
    fn is_at_most_once(&self, id: TaskId) -> bool {
        self.attempts[&id].spec.options.max_retries == Budget::Times(0)
    }

    fn outlived_grace(&self, id: TaskId) -> Error {
        let label = self.attempts[&id].spec.target.label();
        let message = format!(
            "task {id} ({label}) had not ended when its worker left; with max_retries=0 it does \
             not run again"
        );
        Error::unavailable(Ran::Maybe, message)
    }

    fn timed_out(&self, id: TaskId) -> Error {
        let spec = &self.attempts[&id].spec;
        let timeout = spec.options.timeout.unwrap_or_default();
        let label = spec.target.label();
        let message = format!("task {id} ({label}) took longer than its timeout of {timeout:?}");
        Error::timeout(message).ran(Ran::Maybe)
    }

    /// Removes an ended attempt. The next attempt of its shape takes over its grant.
    fn attempt_over(
        &mut self,
        now: Time,
        id: TaskId,
        end: AttemptEnd,
        kept: Vec<Referent>,
        effects: &mut Vec<Effect>,
    ) {
        let local = self.attempts.remove(&id).expect("an attempt ends once");
        for timer in &local.timers {
            self.timers.remove(timer);
        }
        let attempt_id = AttemptId { task: id, attempt: local.attempt };
        let (grant, since, blocked) = match local.state {
            AttemptState::Backlog => panic!("{id} had not started"),
            AttemptState::Starting { grant, .. } => (grant, now, false),
            AttemptState::Running { grant, since, blocked, .. } => (grant, since, blocked),
        };
        let ran_for = now.since(since);
        let slots = self.slots.get_mut(&local.shape).expect("it had a grant");
        slots.granted -= 1;
        slots.blocked -= u32::from(blocked);
        self.blocked -= usize::from(blocked);
        let next = if self.departure.has_begun() { None } else { slots.backlog.pop_front() };
        let next = next.map(|next| AttemptId { task: next, attempt: self.attempts[&next].attempt });
        if let AttemptEnd::Finished(values) = &end {
            super::blob::retain_blobs(values, effects);
        }
        effects.push(Effect::ToController(FromWorker::Ended {
            attempt: attempt_id,
            end,
            kept,
            ran_for,
            next,
        }));
        if let Some(next) = next {
            self.slots.get_mut(&local.shape).expect("the backlog has the shape").granted += 1;
            self.start(now, next.task, grant, effects);
        }
        self.give_back_backlog(local.shape, Refusal::TakenBack, effects);
    }

    /// Refuses the attempts of a backlog that no running attempt could leave a grant to.
    fn give_back_backlog(&mut self, shape: ShapeId, reason: Refusal, effects: &mut Vec<Effect>) {
        let slots = self.slots.get_mut(&shape).expect("the shape has slots");
        if slots.granted == slots.blocked || self.departure.has_begun() {
            for id in std::mem::take(&mut slots.backlog) {
                let local = self.attempts.remove(&id).expect("it is in the backlog");
                refuse(AttemptId { task: id, attempt: local.attempt }, reason, effects);
            }
        }
        if slots.granted == 0 && slots.backlog.is_empty() {
            self.slots.remove(&shape);
        }
    }

    pub(super) fn give_back_backlogs(&mut self, effects: &mut Vec<Effect>) {
        let mut shapes: Vec<ShapeId> = self.slots.keys().copied().collect();
        shapes.sort_unstable();
        for shape in shapes {
            self.give_back_backlog(shape, Refusal::Draining, effects);
        }
    }

    /// Refuses an attempt, which costs its task no retry.
    pub(super) fn refuse_attempt(
        &mut self,
        id: TaskId,
        reason: Refusal,
        effects: &mut Vec<Effect>,
    ) {
        let local = self.attempts.remove(&id).expect("it is here");
        for timer in &local.timers {
            self.timers.remove(timer);
        }
        let blocked = matches!(local.state, AttemptState::Running { blocked: true, .. });
        let slots = self.slots.get_mut(&local.shape).expect("it had a grant");
        slots.granted -= 1;
        slots.blocked -= u32::from(blocked);
        self.blocked -= usize::from(blocked);
        let attempt_id = AttemptId { task: id, attempt: local.attempt };
        match local.stop {
            Some(StopReason::Cancelled | StopReason::TimedOut) => {
                effects.push(ended(attempt_id, AttemptEnd::Cancelled))
            }
            Some(StopReason::GivenBack) | None => refuse(attempt_id, reason, effects),
        }
        self.give_back_backlog(local.shape, Refusal::TakenBack, effects);
    }

    /// Kills all running attempts when the grace of a drain is over. Each is given back when its
    /// executor is dead.
    pub(super) fn give_back_everything(&mut self, effects: &mut Vec<Effect>) {
        let mut ids: Vec<TaskId> = self.attempts.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            let local = self.attempts.get_mut(&id).expect("it was listed");
            match local.state {
                AttemptState::Backlog => panic!("draining empties the backlogs"),
                AttemptState::Starting { executor, .. } => {
                    self.executors.get_mut(&executor).expect("it starts").occupant = Occupant::None;
                    self.kill(executor, effects);
                    self.refuse_attempt(id, Refusal::Draining, effects);
                }
                AttemptState::Running { executor, .. } => {
                    local.stop.get_or_insert(StopReason::GivenBack);
                    self.kill(executor, effects);
                }
            }
        }
    }

    /// Gives an attempt back to the controller, if it has not started.
    pub(super) fn taken_back(&mut self, attempt_id: AttemptId, effects: &mut Vec<Effect>) {
        if self.leave_backlog(attempt_id) {
            refuse(attempt_id, Refusal::TakenBack, effects);
        }
    }

    fn leave_backlog(&mut self, attempt_id: AttemptId) -> bool {
        let waits = self.attempts.get(&attempt_id.task).is_some_and(|local| {
            local.attempt == attempt_id.attempt && matches!(local.state, AttemptState::Backlog)
        });
        if waits {
            let local = self.attempts.remove(&attempt_id.task).expect("it waits");
            let slots = self.slots.get_mut(&local.shape).expect("it is in the backlog");
            slots.backlog.retain(|id| *id != attempt_id.task);
        }
        waits
    }

    pub(super) fn cancel(
        &mut self,
        now: Time,
        attempt_id: AttemptId,
        mode: CancelMode,
        effects: &mut Vec<Effect>,
    ) {
        if self.leave_backlog(attempt_id) {
            return effects.push(ended(attempt_id, AttemptEnd::Cancelled));
        }
        let Some(local) = self.attempts.get_mut(&attempt_id.task) else {
            return self.cancel_relayed(now, attempt_id, mode, effects);
        };
        if local.attempt == attempt_id.attempt {
            local.stop.get_or_insert(StopReason::Cancelled);
            self.stop_attempt(now, attempt_id.task, mode, effects);
        }
    }

    /// Asks an attempt to stop, and kills it if it does not.
    fn stop_attempt(&mut self, now: Time, id: TaskId, mode: CancelMode, effects: &mut Vec<Effect>) {
        match &self.attempts[&id].state {
            AttemptState::Backlog => panic!("{id} was removed from the backlog"),
            AttemptState::Starting { executor, .. } => {
                // No user code of the attempt runs yet. Its executor, when ready, runs other work.
                let executor = *executor;
                self.executors.get_mut(&executor).expect("it starts").occupant = Occupant::None;
                self.run_died(now, id, Error::cancelled("it had not started"), effects);
            }
            AttemptState::Running { executor, .. } => {
                let executor = *executor;
                if mode == CancelMode::Force {
                    self.kill(executor, effects);
                } else {
                    let alone = mode == CancelMode::GracefulAlone;
                    effects.push(Effect::Interrupt { executor, task: id, alone });
                    let local = self.attempts.get_mut(&id).expect("it runs");
                    let attempt = AttemptId { task: id, attempt: local.attempt };
                    let due = (now + self.config.cancel_grace, Timer::Grace(attempt));
                    local.timers.push(due);
                    self.timers.insert(due);
                }
            }
        }
    }

    /// Returns the attempt, if it runs.
    fn runs(&mut self, attempt: AttemptId) -> Option<&mut LocalTask> {
        let local = self.attempts.get_mut(&attempt.task)?;
        let runs = matches!(local.state, AttemptState::Running { .. });
        (local.attempt == attempt.attempt && runs).then_some(local)
    }

    /// Stops an attempt that exceeded its timeout.
    pub(super) fn attempt_timed_out(
        &mut self,
        now: Time,
        attempt: AttemptId,
        effects: &mut Vec<Effect>,
    ) {
        if let Some(local) = self.runs(attempt)
            && local.stop.is_none()
        {
            local.stop = Some(StopReason::TimedOut);
            self.stop_attempt(now, attempt.task, CancelMode::Graceful, effects);
        }
    }

    /// Kills an attempt that did not stop in time after it was asked to.
    pub(super) fn attempt_did_not_stop(&mut self, attempt: AttemptId, effects: &mut Vec<Effect>) {
        if let Some(local) = self.runs(attempt)
            && let AttemptState::Running { executor, .. } = local.state
        {
            self.kill(executor, effects);
        }
    }

    /// Notes that user code waits for other tasks, or goes on.
    pub(super) fn run_blocked(
        &mut self,
        executor: ExecutorId,
        blocks: bool,
        effects: &mut Vec<Effect>,
    ) {
        let Occupant::Task(id) = self.occupant(executor) else { return };
        let local = self.attempts.get_mut(&id).expect("it runs");
        let AttemptState::Running { blocked, .. } = &mut local.state else { return };
        if *blocked == blocks {
            return;
        }
        let limit = self.config.max_blocked_executors;
        if blocks && self.blocked >= limit {
            return effects.push(Effect::RefuseBlock { executor, task: id, limit });
        }
        *blocked = blocks;
        let attempt = AttemptId { task: id, attempt: local.attempt };
        let shape = local.shape;
        let slots = self.slots.get_mut(&shape).expect("it has a grant");
        let message = if blocks {
            slots.blocked += 1;
            self.blocked += 1;
            FromWorker::Blocked { attempt }
        } else {
            slots.blocked -= 1;
            self.blocked -= 1;
            FromWorker::Resumed { attempt }
        };
        effects.push(Effect::ToController(message));
        self.give_back_backlog(shape, Refusal::TakenBack, effects);
    }
}

pub(super) fn refuse(attempt: AttemptId, reason: Refusal, effects: &mut Vec<Effect>) {
    effects.push(Effect::ToController(FromWorker::Refused { attempt, reason }));
}

pub(super) fn ended(attempt: AttemptId, end: AttemptEnd) -> Effect {
    let (kept, ran_for, next) = (Vec::new(), std::time::Duration::ZERO, None);
    Effect::ToController(FromWorker::Ended { attempt, end, kept, ran_for, next })
}
