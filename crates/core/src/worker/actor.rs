//! Actors at a worker, and the calls that reach them: one at a time unless told otherwise, those of
//! one caller in their order.

use super::event::CallEnd;
use super::executor::Occupant;
use super::task::refuse;
use super::{Effect, ExecutorId, Timer, Worker};
use crate::account::Grant;
use crate::error::{Error, Ran};
use crate::id::{ActorEpoch, ActorId, Attempt, Session, TaskId, Thing};
use crate::map::Map;
use crate::message::{CallReport, End, FromHost, FromWorker, Instance, Refusal, Try};
use crate::payload::Value;
use crate::spec::{ActorSpec, Target, TaskSpec};
use crate::time::Time;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// An instance that is here.
#[derive(Debug)]
pub(super) struct Hosted {
    pub spec: Arc<ActorSpec>,
    pub epoch: ActorEpoch,
    values: Vec<Value>,
    grant: Grant,
    pub executor: ExecutorId,
    pub life: Life,
    /// Calls that wait, in order.
    pub mailbox: VecDeque<Call>,
    /// Calls that run.
    pub running: BTreeMap<TaskId, Call>,
    /// The number of the next call of each direct caller.
    next: Map<Session, u64>,
    last_used: Time,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Life {
    /// Its constructor has not returned.
    Constructing,
    Ready,
    /// It finishes the calls it has; new ones are refused.
    Leaving,
    /// Its executor was told to die.
    Ending {
        idle: bool,
    },
}

#[derive(Debug)]
pub(super) struct Call {
    from: From,
    spec: Arc<TaskSpec>,
    attempt: Attempt,
    values: Vec<Value>,
    since: Time,
    /// Its caller has its answer, or is gone; what it returns goes nowhere.
    answered: bool,
    cancelled: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum From {
    Controller,
    Caller(Session),
}

impl Call {
    fn tried(&self) -> Try {
        Try { task: self.spec.id, attempt: self.attempt }
    }
}

impl Hosted {
    fn instance(&self) -> Instance {
        Instance { actor: self.spec.id, epoch: self.epoch }
    }
}

impl Worker {
    pub(super) fn instantiate(
        &mut self,
        now: Time,
        spec: Arc<ActorSpec>,
        epoch: ActorEpoch,
        values: Vec<Value>,
        grant: Grant,
        effects: &mut Vec<Effect>,
    ) {
        let id = spec.id;
        let instance = Instance { actor: id, epoch };
        if self.draining {
            let message = FromWorker::ActorDestroyed { instance, idle: false };
            return effects.push(Effect::ToController(message));
        }
        let (executor, ready) = self.occupy(Occupant::Actor(id), &spec.class, effects);
        let hosted = Hosted {
            spec,
            epoch,
            values,
            grant,
            executor,
            life: Life::Constructing,
            mailbox: VecDeque::new(),
            running: BTreeMap::new(),
            next: Map::default(),
            last_used: now,
        };
        let before = self.actors.insert(id, hosted);
        assert!(before.is_none(), "the controller ends one instance before it asks for another");
        if ready {
            self.construct(id, executor, effects);
        }
    }

    pub(super) fn construct(
        &mut self,
        id: ActorId,
        executor: ExecutorId,
        effects: &mut Vec<Effect>,
    ) {
        let hosted = self.actors.get_mut(&id).expect("its executor started for it");
        let values = std::mem::take(&mut hosted.values);
        let (spec, epoch, grant) = (hosted.spec.clone(), hosted.epoch, hosted.grant.clone());
        effects.push(Effect::Construct { executor, spec, epoch, values, grant });
    }

    pub(super) fn constructed(
        &mut self,
        now: Time,
        executor: ExecutorId,
        result: Result<(), Error>,
        effects: &mut Vec<Effect>,
    ) {
        let Occupant::Actor(id) = self.occupant(executor) else { return };
        let hosted = self.actors.get_mut(&id).expect("its executor has it");
        let instance = hosted.instance();
        match result {
            Ok(()) if hosted.life == Life::Leaving => self.end_actor(id, false, effects),
            Ok(()) => {
                hosted.life = Life::Ready;
                hosted.last_used = now;
                let ttl = hosted.spec.options.idle_ttl;
                effects.push(Effect::ToController(FromWorker::ActorReady { instance }));
                if let Some(ttl) = ttl {
                    self.timers.insert((now + ttl, Timer::Idle(id)));
                }
            }
            Err(error) => {
                self.actors.remove(&id);
                self.executors.get_mut(&executor).expect("it spoke").occupant = Occupant::None;
                self.kill(executor, effects);
                effects.push(Effect::ToController(FromWorker::ActorFailed { instance, error }));
            }
        }
    }

    /// The controller ends an instance.
    pub(super) fn destroy(&mut self, instance: Instance, effects: &mut Vec<Effect>) {
        let here =
            self.actors.get(&instance.actor).is_some_and(|hosted| hosted.epoch == instance.epoch);
        if here {
            self.end_actor(instance.actor, false, effects);
        } else {
            self.counters.stale += 1;
        }
    }

    fn end_actor(&mut self, id: ActorId, idle: bool, effects: &mut Vec<Effect>) {
        let hosted = self.actors.get_mut(&id).expect("it is here");
        if !matches!(hosted.life, Life::Ending { .. }) {
            hosted.life = Life::Ending { idle };
            let executor = hosted.executor;
            self.kill(executor, effects);
        }
    }

    /// The executor of an instance is gone, and the instance with it.
    pub(super) fn actor_executor_died(
        &mut self,
        id: ActorId,
        error: Error,
        effects: &mut Vec<Effect>,
    ) {
        let hosted = self.actors.remove(&id).expect("its executor had it");
        let instance = hosted.instance();
        for (_, call) in hosted.running {
            if !call.answered
                && let From::Caller(to) = call.from
            {
                let error = if call.cancelled { cancelled(&call.spec) } else { error.clone() };
                let message = match call.cancelled {
                    true => FromHost::CallEnded { attempt: call.tried(), outcome: Err(error) },
                    false => {
                        FromHost::CallLost { attempt: call.tried(), error: error.ran(Ran::Maybe) }
                    }
                };
                self.answer(to, message, effects);
            }
        }
        for call in hosted.mailbox {
            self.turn_away(&call, effects);
        }
        let message = match hosted.life {
            Life::Ending { idle } => FromWorker::ActorDestroyed { instance, idle },
            Life::Constructing | Life::Ready | Life::Leaving => {
                FromWorker::ActorDied { instance, error }
            }
        };
        effects.push(Effect::ToController(message));
    }

    /// A call that never reached the actor goes back to its caller.
    fn turn_away(&mut self, call: &Call, effects: &mut Vec<Effect>) {
        match call.from {
            From::Controller => refuse(call.tried(), Refusal::NotHere, effects),
            From::Caller(to) => {
                let message =
                    FromHost::CallRefused { attempt: call.tried(), reason: Refusal::NotHere };
                self.answer(to, message, effects);
            }
        }
    }

    /// A caller's call arrived.
    pub(super) fn called(
        &mut self,
        now: Time,
        session: Session,
        spec: Arc<TaskSpec>,
        attempt: Attempt,
        epoch: ActorEpoch,
        number: u64,
        values: Vec<Value>,
        effects: &mut Vec<Effect>,
    ) {
        let from = From::Caller(session);
        let call =
            Call { from, spec, attempt, values, since: now, answered: false, cancelled: false };
        let Some(hosted) = self.instance_of(&call, epoch) else {
            return self.turn_away(&call, effects);
        };
        let next = hosted.next.entry(session).or_default();
        if *next != number {
            let error = Error::internal(format!("call {number} came where call {next} was due"));
            let message = FromHost::CallEnded { attempt: call.tried(), outcome: Err(error) };
            return self.answer(session, message, effects);
        }
        *next += 1;
        let limit = hosted.spec.options.max_pending_calls as usize;
        if hosted.mailbox.len() >= limit {
            let error = Error::exhausted(format!(
                "{limit} calls wait for actor {} already (max_pending_calls)",
                hosted.spec.id
            ));
            let message = FromHost::CallEnded { attempt: call.tried(), outcome: Err(error) };
            return self.answer(session, message, effects);
        }
        self.post(now, call, effects);
    }

    /// A call through the controller arrived.
    pub(super) fn relayed(
        &mut self,
        now: Time,
        spec: Arc<TaskSpec>,
        attempt: Attempt,
        epoch: ActorEpoch,
        values: Vec<Value>,
        effects: &mut Vec<Effect>,
    ) {
        let from = From::Controller;
        let call =
            Call { from, spec, attempt, values, since: now, answered: false, cancelled: false };
        match self.instance_of(&call, epoch) {
            Some(_) => self.post(now, call, effects),
            None => self.turn_away(&call, effects),
        }
    }

    /// The instance that a call is for, if it is here and takes calls.
    fn instance_of(&mut self, call: &Call, epoch: ActorEpoch) -> Option<&mut Hosted> {
        let Target::Method { actor, .. } = call.spec.target else { return None };
        let hosted = self.actors.get_mut(&actor)?;
        (hosted.epoch == epoch && hosted.life == Life::Ready).then_some(hosted)
    }

    fn post(&mut self, now: Time, call: Call, effects: &mut Vec<Effect>) {
        let Target::Method { actor, .. } = call.spec.target else { return };
        let hosted = self.actors.get_mut(&actor).expect("it takes calls");
        hosted.last_used = now;
        hosted.mailbox.push_back(call);
        self.deliver(now, actor, effects);
    }

    /// Starts as many calls as may run.
    fn deliver(&mut self, now: Time, id: ActorId, effects: &mut Vec<Effect>) {
        let hosted = self.actors.get_mut(&id).expect("it has calls");
        if !matches!(hosted.life, Life::Ready | Life::Leaving) {
            return;
        }
        while hosted.running.len() < hosted.spec.options.max_concurrency as usize {
            let Some(mut call) = hosted.mailbox.pop_front() else { break };
            call.since = now;
            let values = std::mem::take(&mut call.values);
            let (spec, attempt, executor) = (call.spec.clone(), call.attempt, hosted.executor);
            if call.from == From::Controller {
                effects.push(Effect::ToController(FromWorker::Started { attempt: call.tried() }));
            }
            if let Some(timeout) = spec.options.timeout {
                self.timers.insert((now + timeout, Timer::Call(id, spec.id)));
            }
            hosted.running.insert(spec.id, call);
            effects.push(Effect::Call { executor, spec, attempt, values });
        }
        if hosted.life == Life::Leaving && hosted.running.is_empty() && hosted.mailbox.is_empty() {
            self.end_actor(id, false, effects);
        }
    }

    /// A call's user code ended.
    pub(super) fn call_finished(
        &mut self,
        now: Time,
        executor: ExecutorId,
        call: TaskId,
        end: CallEnd,
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
        self.settle_call(now, instance, call, end, effects);
        if self.actors.contains_key(&id) {
            self.deliver(now, id, effects);
        }
    }

    fn settle_call(
        &mut self,
        now: Time,
        instance: Instance,
        call: Call,
        end: CallEnd,
        effects: &mut Vec<Effect>,
    ) {
        let ran_for = now.since(call.since);
        let outcome = match end.outcome {
            Err(_) if call.cancelled => Err(cancelled(&call.spec)),
            outcome => outcome,
        };
        if call.answered {
            return self.entrust_kept(&call, instance, end.kept, effects);
        }
        let attempt = call.tried();
        match call.from {
            From::Controller => {
                let ended = match outcome {
                    Ok(values) => End::Finished(values),
                    Err(_) if call.cancelled => End::Cancelled,
                    Err(error) => End::Failed(error),
                };
                let message =
                    FromWorker::Ended { attempt, end: ended, kept: end.kept, ran_for, next: None };
                effects.push(Effect::ToController(message));
            }
            From::Caller(to) => {
                let method = call.spec.target.name().clone();
                let error = outcome.as_ref().err().cloned();
                let report = CallReport { task: call.spec.id, method, instance, ran_for, error };
                self.note_call(now, report, effects);
                let values = outcome.iter().flatten();
                let contains: Vec<Thing> =
                    values.flat_map(|value| value.contains.clone()).collect();
                let message = FromHost::CallEnded { attempt, outcome };
                if contains.is_empty() && end.kept.is_empty() {
                    return self.answer(to, message, effects);
                }
                let kept = end.kept;
                self.entrusting.insert(attempt, (to, message));
                let entrust = FromWorker::Entrust { call: attempt, to, contains, instance, kept };
                effects.push(Effect::ToController(entrust));
            }
        }
    }

    /// Nobody waits for the answer of a call, but its actor kept something.
    fn entrust_kept(
        &mut self,
        call: &Call,
        instance: Instance,
        kept: Vec<Thing>,
        effects: &mut Vec<Effect>,
    ) {
        if kept.is_empty() {
            return;
        }
        let to = self.session.expect("it runs calls");
        let entrust =
            FromWorker::Entrust { call: call.tried(), to, contains: Vec::new(), instance, kept };
        effects.push(Effect::ToController(entrust));
    }

    fn note_call(&mut self, now: Time, report: CallReport, effects: &mut Vec<Effect>) {
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

    pub(super) fn dropped(
        &mut self,
        executor: ExecutorId,
        things: Vec<Thing>,
        effects: &mut Vec<Effect>,
    ) {
        if let Occupant::Actor(actor) = self.occupant(executor) {
            let instance = self.actors[&actor].instance();
            effects.push(Effect::ToController(FromWorker::Dropped { instance, things }));
        }
    }

    /// A caller takes a call back.
    pub(super) fn cancel_call(
        &mut self,
        now: Time,
        session: Session,
        call: TaskId,
        force: bool,
        effects: &mut Vec<Effect>,
    ) {
        self.stop_call(now, From::Caller(session), call, force, effects);
    }

    pub(super) fn cancel_relayed(
        &mut self,
        now: Time,
        tried: Try,
        force: bool,
        effects: &mut Vec<Effect>,
    ) {
        self.stop_call(now, From::Controller, tried.task, force, effects);
    }

    fn stop_call(
        &mut self,
        now: Time,
        from: From,
        id: TaskId,
        force: bool,
        effects: &mut Vec<Effect>,
    ) {
        let mut actors: Vec<ActorId> = self.actors.keys().copied().collect();
        actors.sort_unstable();
        for actor in actors {
            let hosted = self.actors.get_mut(&actor).expect("it was listed");
            let waits =
                hosted.mailbox.iter().position(|call| call.spec.id == id && call.from == from);
            if let Some(index) = waits {
                let mut call = hosted.mailbox.remove(index).expect("it waits");
                let instance = hosted.instance();
                call.cancelled = true;
                call.since = now;
                let end = CallEnd { outcome: Err(cancelled(&call.spec)), kept: Vec::new() };
                return self.settle_call(now, instance, call, end, effects);
            }
            if let Some(call) = hosted.running.get_mut(&id).filter(|call| call.from == from) {
                call.cancelled = true;
                let executor = hosted.executor;
                if force {
                    self.kill(executor, effects);
                } else {
                    effects.push(Effect::Interrupt { executor, task: id });
                }
                return;
            }
        }
        self.counters.stale += 1;
    }

    /// A caller's session is over.
    pub(super) fn drop_calls_of(&mut self, now: Time, session: Session, effects: &mut Vec<Effect>) {
        let mut actors: Vec<ActorId> = self.actors.keys().copied().collect();
        actors.sort_unstable();
        for actor in actors {
            let hosted = self.actors.get_mut(&actor).expect("it was listed");
            hosted.next.remove(&session);
            hosted.mailbox.retain(|call| call.from != From::Caller(session));
            for (id, call) in &mut hosted.running {
                if call.from == From::Caller(session) {
                    (call.answered, call.cancelled) = (true, true);
                    effects.push(Effect::Interrupt { executor: hosted.executor, task: *id });
                }
            }
            self.deliver(now, actor, effects);
        }
    }

    /// A call took longer than its timeout: its caller is told, and it is asked to stop.
    pub(super) fn call_is_late(
        &mut self,
        now: Time,
        actor: ActorId,
        id: TaskId,
        effects: &mut Vec<Effect>,
    ) {
        let Some(hosted) = self.actors.get_mut(&actor) else { return };
        let instance = hosted.instance();
        let executor = hosted.executor;
        let Some(call) = hosted.running.get_mut(&id) else { return };
        let timeout = call.spec.options.timeout.unwrap_or_default();
        if call.answered || call.cancelled || now < call.since + timeout {
            return;
        }
        let name = call.spec.target.name();
        let message = format!("call {id} ({name}) took longer than its timeout of {timeout:?}");
        let error = Error::timeout(message).ran(Ran::Maybe);
        effects.push(Effect::Interrupt { executor, task: id });
        // It goes on taking its place at the actor until it returns; its answer is this one.
        let twin = Call {
            from: call.from,
            spec: call.spec.clone(),
            attempt: call.attempt,
            values: Vec::new(),
            since: call.since,
            answered: false,
            cancelled: false,
        };
        call.answered = true;
        if call.from == From::Controller {
            call.cancelled = true;
        }
        let end = CallEnd { outcome: Err(error), kept: Vec::new() };
        self.settle_call(now, instance, twin, end, effects);
    }

    /// Ends an actor that nobody called for as long as its idle time.
    pub(super) fn look_whether_idle(&mut self, now: Time, id: ActorId, effects: &mut Vec<Effect>) {
        let Some(hosted) = self.actors.get(&id) else { return };
        let Some(ttl) = hosted.spec.options.idle_ttl else { return };
        if hosted.life != Life::Ready {
            return;
        }
        let busy = !hosted.running.is_empty() || !hosted.mailbox.is_empty();
        let due = if busy { now + ttl } else { hosted.last_used + ttl };
        if now >= due {
            self.end_actor(id, true, effects);
        } else {
            self.timers.insert((due, Timer::Idle(id)));
        }
    }

    /// Draining began: actors finish the calls they have.
    pub(super) fn actors_leave(&mut self, effects: &mut Vec<Effect>) {
        let mut ids: Vec<ActorId> = self.actors.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            let hosted = self.actors.get_mut(&id).expect("it was listed");
            let empty = hosted.running.is_empty() && hosted.mailbox.is_empty();
            match hosted.life {
                Life::Ready if empty => self.end_actor(id, false, effects),
                Life::Ready | Life::Constructing => hosted.life = Life::Leaving,
                Life::Leaving | Life::Ending { .. } => {}
            }
        }
    }

    /// The grace is over: actors end with the calls they have.
    pub(super) fn actors_are_killed(&mut self, effects: &mut Vec<Effect>) {
        let mut ids: Vec<ActorId> = self.actors.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            self.end_actor(id, false, effects);
        }
    }
}

fn cancelled(spec: &TaskSpec) -> Error {
    Error::cancelled(format!("call {} ({}) was cancelled", spec.id, spec.target.name()))
        .ran(Ran::Maybe)
}
