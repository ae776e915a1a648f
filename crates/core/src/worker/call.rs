//! Actor calls on the worker that hosts the actor. Calls of one caller start in the order in which
//! they were sent, one at a time unless `max_concurrency` allows more.
//!
//! An executor that runs one call at a time gets the next calls ahead (it *prefetches* them), so
//! that it does not wait for its worker in between. It starts them in the order in which they
//! arrived, each after it has sent the answer to the call before. So the worker knows from the
//! answers alone which call runs, and which calls had not started when the executor died.

use super::actor::{HostedActor, InstanceEndReason, InstancePhase};
use super::event::UserCodeResult;
use super::executor::Occupant;
use super::stream::StreamProgress;
use super::task::refuse;
use super::{Effect, ExecutorId, Timer, Worker};
use crate::error::{Error, Ran};
use crate::id::{ActorEpoch, ActorId, Attempt, Referent, Session, TaskId};
use crate::message::{
    AttemptEnd, AttemptId, CallReport, CancelMode, FromHost, FromWorker, Instance, Refusal,
};
use crate::payload::Value;
use crate::spec::{Target, TaskSpec};
use crate::time::Time;
use std::sync::Arc;

/// The most calls that an executor holds besides the one that it runs. A few hide the round trip to
/// the worker. If the executor is killed, its prefetched calls count as started, so more would put
/// more calls at risk.
const MAX_PREFETCHED_CALLS: usize = 16;

/// A call that is at this worker.
#[derive(Debug)]
pub(super) struct Call {
    pub origin: CallOrigin,
    pub spec: Arc<TaskSpec>,
    attempt: Attempt,
    values: Vec<Value>,
    pub since: Time,
    /// The timers to remove when the call ends.
    timers: Vec<(Time, Timer)>,
    /// The caller has its answer, or its session ended: the result is dropped.
    pub answered: bool,
    pub cancelled: bool,
    /// The progress of its items.
    pub stream: StreamProgress,
}

/// Where a call came from, and so where its answer goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CallOrigin {
    Controller,
    Caller(Session),
    /// The worker itself calls the method that saves the actor's state. The answer goes to no
    /// caller.
    Worker,
}

impl CallOrigin {
    /// Returns the caller of a direct call.
    pub fn caller(self) -> Option<Session> {
        match self {
            CallOrigin::Caller(session) => Some(session),
            CallOrigin::Controller | CallOrigin::Worker => None,
        }
    }
}

impl Call {
    pub fn new(
        origin: CallOrigin,
        spec: Arc<TaskSpec>,
        attempt: Attempt,
        values: Vec<Value>,
        since: Time,
    ) -> Call {
        let (timers, answered, cancelled) = (Vec::new(), false, false);
        let stream = StreamProgress::default();
        Call { origin, spec, attempt, values, since, timers, answered, cancelled, stream }
    }

    pub fn attempt_id(&self) -> AttemptId {
        AttemptId { task: self.spec.id, attempt: self.attempt }
    }

    /// Sends the call to its executor, once.
    fn give_to(&mut self, executor: ExecutorId, effects: &mut Vec<Effect>) {
        let values = std::mem::take(&mut self.values);
        let (spec, attempt) = (self.spec.clone(), self.attempt);
        effects.push(Effect::Call { executor, spec, attempt, values });
        effects.extend(self.stream.tells(executor, self.spec.id));
    }
}

impl HostedActor {
    /// Sends the next call to the executor, if there is one and checkpoints allow it.
    fn hand_over(&mut self, effects: &mut Vec<Effect>) -> Option<Call> {
        if !self.accepts_call() {
            return None;
        }
        let mut call = self.mailbox.pop_front()?;
        call.give_to(self.executor, effects);
        self.count_unsaved_call();
        Some(call)
    }
}

impl Worker {
    /// Returns a call that never reached the actor to its caller.
    pub(super) fn refuse_call(&mut self, call: &Call, effects: &mut Vec<Effect>) {
        match call.origin {
            CallOrigin::Controller => refuse(call.attempt_id(), Refusal::NotHere, effects),
            CallOrigin::Caller(to) => {
                let message =
                    FromHost::CallRefused { attempt: call.attempt_id(), reason: Refusal::NotHere };
                self.send_to_caller(to, message, effects);
            }
            CallOrigin::Worker => {}
        }
    }

    /// Queues a call that arrived on a direct link.
    pub(super) fn direct_call_arrived(
        &mut self,
        now: Time,
        session: Session,
        call: Call,
        epoch: ActorEpoch,
        number: u64,
        effects: &mut Vec<Effect>,
    ) {
        let Some(hosted) = self.instance_of(&call, epoch) else {
            return self.refuse_call(&call, effects);
        };
        let taken = hosted.ids.contains(&call.spec.id);
        let next = hosted.next.entry(session).or_default();
        if *next != number {
            let error = Error::internal(format!("call {number} came instead of call {next}"));
            let message =
                FromHost::CallEnded { attempt: call.attempt_id(), outcome: Err(error), items: 0 };
            return self.send_to_caller(session, message, effects);
        }
        *next += 1;
        if taken {
            return self.reject_duplicate_call(&call, effects);
        }
        let limit = hosted.spec.options.max_pending_calls as usize;
        if hosted.prefetched.len() + hosted.mailbox.len() >= limit {
            let error = Error::exhausted(format!(
                "{limit} calls wait for actor {}, which is the limit (max_pending_calls)",
                hosted.spec.id
            ));
            let message =
                FromHost::CallEnded { attempt: call.attempt_id(), outcome: Err(error), items: 0 };
            return self.send_to_caller(session, message, effects);
        }
        self.post(now, call, effects);
    }

    /// Skips the numbers of `count` calls of this caller, which were answered without reaching
    /// their instance.
    pub(super) fn skip_numbers(&mut self, session: Session, instance: Instance, count: u64) {
        if let Some(hosted) = self.actors.get_mut(&instance.actor)
            && hosted.epoch == instance.epoch
            && hosted.life == InstancePhase::Ready
        {
            *hosted.next.entry(session).or_default() += count;
        }
    }

    /// Queues a call that arrived through the controller.
    pub(super) fn relayed_call_arrived(
        &mut self,
        now: Time,
        spec: Arc<TaskSpec>,
        attempt: Attempt,
        epoch: ActorEpoch,
        values: Vec<Value>,
        effects: &mut Vec<Effect>,
    ) {
        let origin = CallOrigin::Controller;
        let call = Call::new(origin, spec, attempt, values, now);
        match self.instance_of(&call, epoch) {
            Some(hosted) if hosted.ids.contains(&call.spec.id) => {
                self.reject_duplicate_call(&call, effects)
            }
            Some(_) => self.post(now, call, effects),
            None => self.refuse_call(&call, effects),
        }
    }

    /// Fails a call that has the same id as another call. Ids are chosen to be unique.
    fn reject_duplicate_call(&mut self, call: &Call, effects: &mut Vec<Effect>) {
        let error =
            Error::already_exists(format!("a call with the id {} exists already", call.spec.id));
        let attempt = call.attempt_id();
        match call.origin {
            CallOrigin::Caller(to) => {
                self.send_to_caller(
                    to,
                    FromHost::CallEnded { attempt, outcome: Err(error), items: 0 },
                    effects,
                );
            }
            CallOrigin::Controller => {
                effects.push(super::task::ended(attempt, AttemptEnd::Failed(error)))
            }
            CallOrigin::Worker => panic!("{attempt:?} is created only when no call runs"),
        }
    }

    /// Returns the instance that a call is for, if this worker hosts it and it accepts calls.
    pub(super) fn instance_of(
        &mut self,
        call: &Call,
        epoch: ActorEpoch,
    ) -> Option<&mut HostedActor> {
        let Target::Method { actor, .. } = call.spec.target else { return None };
        let hosted = self.actors.get_mut(&actor)?;
        (hosted.epoch == epoch && hosted.life == InstancePhase::Ready).then_some(hosted)
    }

    pub(super) fn post(&mut self, now: Time, call: Call, effects: &mut Vec<Effect>) {
        let Target::Method { actor, .. } = call.spec.target else { return };
        let hosted = self.actors.get_mut(&actor).expect("`instance_of` found it");
        hosted.last_used = now;
        hosted.ids.insert(call.spec.id);
        hosted.mailbox.push_back(call);
        self.start_calls(now, actor, effects);
    }

    /// Starts as many calls as may run, and sends the following ones ahead to the executor.
    pub(super) fn start_calls(&mut self, now: Time, id: ActorId, effects: &mut Vec<Effect>) {
        let hosted = self.actors.get_mut(&id).expect("an actor with calls is here");
        if !matches!(hosted.life, InstancePhase::Ready | InstancePhase::Leaving) {
            return;
        }
        let limit = hosted.spec.options.max_concurrency as usize;
        while hosted.running.len() < limit {
            let mut call = match hosted.prefetched.pop_front() {
                Some(call) => call,
                None => match hosted.hand_over(effects) {
                    Some(call) => call,
                    None => break,
                },
            };
            call.since = now;
            if call.origin == CallOrigin::Controller && !call.answered {
                effects
                    .push(Effect::ToController(FromWorker::Started { attempt: call.attempt_id() }));
            }
            if let Some(timeout) = call.spec.options.timeout.filter(|_| !call.answered) {
                let due = (now + timeout, Timer::Call(id, call.spec.id));
                call.timers.push(due);
                self.timers.insert(due);
            }
            hosted.running.insert(call.spec.id, call);
        }
        while limit == 1
            && hosted.prefetched.len() < MAX_PREFETCHED_CALLS
            && let Some(call) = hosted.hand_over(effects)
        {
            hosted.prefetched.push_back(call);
        }
        if let Some(mut save) = hosted.save_now(now) {
            save.give_to(hosted.executor, effects);
            hosted.ids.insert(save.spec.id);
            hosted.running.insert(save.spec.id, save);
        }
        if hosted.life == InstancePhase::Leaving && hosted.ids.is_empty() && hosted.is_saved() {
            self.end_instance(id, InstanceEndReason::WorkerDrained, effects);
        }
    }

    /// Handles the end of a call's user code.
    pub(super) fn call_finished(
        &mut self,
        now: Time,
        executor: ExecutorId,
        call: TaskId,
        end: UserCodeResult,
        effects: &mut Vec<Effect>,
    ) {
        let Occupant::Actor(id) = self.occupant(executor) else { return };
        let hosted = self.actors.get_mut(&id).expect("its executor has it");
        let instance = hosted.instance();
        hosted.last_used = now;
        let Some(call) = hosted.running.remove(&call) else {
            self.counters.stale += 1;
            return;
        };
        hosted.ids.remove(&call.spec.id);
        for timer in &call.timers {
            self.timers.remove(timer);
        }
        if let Some((call, end)) = self.checkpointed_by(id, call, end, effects) {
            self.settle_call(now, instance, call, end, effects);
        }
        if self.actors.contains_key(&id) {
            self.start_calls(now, id, effects);
        }
    }

    pub(super) fn settle_call(
        &mut self,
        now: Time,
        instance: Instance,
        call: Call,
        end: UserCodeResult,
        effects: &mut Vec<Effect>,
    ) {
        let ran_for = now.since(call.since);
        let outcome = match end.outcome {
            Err(_) if call.cancelled => Err(cancelled(&call.spec)),
            outcome => outcome.and_then(|values| call.spec.check_results(values)),
        };
        if call.answered {
            let names = outcome.iter().flatten().any(|value| !value.referents.is_empty());
            return self.entrust_kept(&call, instance, end.still_held, names, effects);
        }
        let attempt = call.attempt_id();
        match call.origin {
            CallOrigin::Worker => {}
            CallOrigin::Controller => {
                super::blob::retain_blobs(outcome.iter().flatten(), effects);
                let ended = match outcome {
                    Ok(values) => AttemptEnd::Finished(values),
                    Err(_) if call.cancelled => AttemptEnd::Cancelled,
                    Err(error) => AttemptEnd::Failed(error),
                };
                let message = FromWorker::Ended {
                    attempt,
                    end: ended,
                    kept: end.still_held,
                    ran_for,
                    next: None,
                };
                effects.push(Effect::ToController(message));
            }
            CallOrigin::Caller(to) => {
                let method = call.spec.target.name().clone();
                let error = outcome.as_ref().err().cloned();
                let report = CallReport { task: call.spec.id, method, instance, ran_for, error };
                self.note_call(now, report, effects);
                let values = outcome.iter().flatten();
                let contains: Vec<Referent> =
                    values.clone().flat_map(Value::referents_to_hold).collect();
                let stored: Vec<Value> =
                    values.filter(|value| value.payload.stored.is_some()).cloned().collect();
                super::blob::retain_blobs(&stored, effects);
                let message = FromHost::CallEnded { attempt, outcome, items: call.stream.yielded };
                if contains.is_empty() && end.still_held.is_empty() {
                    return self.send_to_caller(to, message, effects);
                }
                let kept = end.still_held;
                self.answers_awaiting_holds.insert(attempt, (to, message));
                let entrust =
                    FromWorker::Entrust { call: attempt, to, contains, stored, instance, kept };
                effects.push(Effect::ToController(entrust));
            }
        }
    }

    /// Reports the referents that an actor kept from a call whose answer no caller waits for. It
    /// also does so if the answer names referents, because these are held until the answer is known
    /// to have come.
    pub(super) fn entrust_kept(
        &mut self,
        call: &Call,
        instance: Instance,
        kept: Vec<Referent>,
        names: bool,
        effects: &mut Vec<Effect>,
    ) {
        if kept.is_empty() && !names {
            return;
        }
        let to = self.membership.session().expect("calls run only in a session");
        let (contains, stored) = (Vec::new(), Vec::new());
        let entrust =
            FromWorker::Entrust { call: call.attempt_id(), to, contains, stored, instance, kept };
        effects.push(Effect::ToController(entrust));
    }

    pub(super) fn note_call(&mut self, now: Time, report: CallReport, effects: &mut Vec<Effect>) {
        if self.reports.is_empty() {
            self.timers.insert((now + self.config.report_interval, Timer::Report));
        }
        self.reports.push(report);
        if self.reports.len() >= self.config.report_batch {
            self.report(effects);
        }
    }

    pub(super) fn report(&mut self, effects: &mut Vec<Effect>) {
        if !self.reports.is_empty() {
            let reports = std::mem::take(&mut self.reports);
            effects.push(Effect::ToController(FromWorker::CallsEnded(reports)));
        }
    }

    /// Cancels a call for its caller.
    pub(super) fn cancel_call(
        &mut self,
        now: Time,
        session: Session,
        call: TaskId,
        mode: CancelMode,
        effects: &mut Vec<Effect>,
    ) {
        self.stop_call(now, CallOrigin::Caller(session), call, mode, effects);
    }

    pub(super) fn cancel_relayed(
        &mut self,
        now: Time,
        attempt_id: AttemptId,
        mode: CancelMode,
        effects: &mut Vec<Effect>,
    ) {
        self.stop_call(now, CallOrigin::Controller, attempt_id.task, mode, effects);
    }

    pub(super) fn stop_call(
        &mut self,
        now: Time,
        origin: CallOrigin,
        id: TaskId,
        mode: CancelMode,
        effects: &mut Vec<Effect>,
    ) {
        let alone = mode == CancelMode::GracefulAlone;
        let mut actors: Vec<ActorId> = self.actors.keys().copied().collect();
        actors.sort_unstable();
        for actor in actors {
            let hosted = self.actors.get_mut(&actor).expect("it was listed");
            let waits =
                hosted.mailbox.iter().position(|call| call.spec.id == id && call.origin == origin);
            if let Some(index) = waits {
                let mut call = hosted.mailbox.remove(index).expect("it waits");
                let instance = hosted.instance();
                hosted.ids.remove(&id);
                call.cancelled = true;
                call.since = now;
                let end =
                    UserCodeResult { outcome: Err(cancelled(&call.spec)), still_held: Vec::new() };
                return self.settle_call(now, instance, call, end, effects);
            }
            if let Some(call) = hosted
                .prefetched
                .iter_mut()
                .find(|call| call.spec.id == id && call.origin == origin)
            {
                // The call may have started meanwhile. Then the executor asks it to stop like any
                // other.
                let error = cancelled(&call.spec);
                let answered = call.answered;
                call.cancelled = true;
                effects.push(Effect::Interrupt { executor: hosted.executor, task: id, alone });
                if !answered {
                    self.answer_early(now, actor, id, error, effects);
                }
                return;
            }
            if let Some(call) = hosted.running.get_mut(&id).filter(|call| call.origin == origin) {
                call.cancelled = true;
                let executor = hosted.executor;
                if mode == CancelMode::Force {
                    return self.kill(executor, effects);
                }
                effects.push(Effect::Interrupt { executor, task: id, alone });
                let due = (now + self.config.cancel_grace, Timer::CallGrace(actor, id));
                call.timers.push(due);
                self.timers.insert(due);
                return;
            }
        }
        self.counters.stale += 1;
    }

    /// Drops the calls of a caller whose session is over.
    pub(super) fn drop_calls_of(&mut self, now: Time, session: Session, effects: &mut Vec<Effect>) {
        let mut actors: Vec<ActorId> = self.actors.keys().copied().collect();
        actors.sort_unstable();
        for actor in actors {
            let hosted = self.actors.get_mut(&actor).expect("it was listed");
            hosted.next.remove(&session);
            hosted.mailbox.retain(|call| call.origin != CallOrigin::Caller(session));
            let waiting = hosted.waiting().map(|call| call.spec.id);
            hosted.ids = hosted.running.keys().copied().chain(waiting).collect();
            for call in hosted.running.values_mut().chain(&mut hosted.prefetched) {
                if call.origin == CallOrigin::Caller(session) {
                    (call.answered, call.cancelled) = (true, true);
                    let task = call.spec.id;
                    effects.push(Effect::Interrupt {
                        executor: hosted.executor,
                        task,
                        alone: false,
                    });
                }
            }
            self.start_calls(now, actor, effects);
        }
    }

    /// Answers a call that exceeded its timeout, and asks it to stop.
    pub(super) fn call_timed_out(
        &mut self,
        now: Time,
        actor: ActorId,
        id: TaskId,
        effects: &mut Vec<Effect>,
    ) {
        let Some(hosted) = self.actors.get(&actor) else { return };
        let Some(call) = hosted.running.get(&id).filter(|call| !call.answered && !call.cancelled)
        else {
            return;
        };
        let timeout = call.spec.options.timeout.unwrap_or_default();
        let name = call.spec.target.name();
        let message = format!("call {id} ({name}) took longer than its timeout of {timeout:?}");
        effects.push(Effect::Interrupt { executor: hosted.executor, task: id, alone: false });
        self.answer_early(now, actor, id, Error::timeout(message).ran(Ran::Maybe), effects);
    }

    /// Answers a call that did not stop in time after it was asked to.
    pub(super) fn call_did_not_stop(
        &mut self,
        now: Time,
        actor: ActorId,
        id: TaskId,
        effects: &mut Vec<Effect>,
    ) {
        let running = self.actors.get(&actor).and_then(|hosted| hosted.running.get(&id));
        if let Some(call) = running.filter(|call| !call.answered) {
            let error = cancelled(&call.spec);
            self.answer_early(now, actor, id, error, effects);
        }
    }

    /// Answers a call that its executor has. The call keeps its place at the actor until it
    /// returns, and its result is then dropped.
    fn answer_early(
        &mut self,
        now: Time,
        actor: ActorId,
        id: TaskId,
        error: Error,
        effects: &mut Vec<Effect>,
    ) {
        let hosted = self.actors.get_mut(&actor).expect("it runs a call");
        let instance = hosted.instance();
        let ahead = hosted.prefetched.iter_mut().find(|call| call.spec.id == id);
        let call = hosted.running.get_mut(&id).or(ahead).expect("its executor has it");
        let mut twin =
            Call::new(call.origin, call.spec.clone(), call.attempt, Vec::new(), call.since);
        twin.cancelled = call.cancelled;
        twin.stream = call.stream;
        call.answered = true;
        let end = UserCodeResult { outcome: Err(error), still_held: Vec::new() };
        self.settle_call(now, instance, twin, end, effects);
    }
}

pub(super) fn cancelled(spec: &TaskSpec) -> Error {
    Error::cancelled(format!("call {} ({}) was cancelled", spec.id, spec.target.name()))
        .ran(Ran::Maybe)
}
