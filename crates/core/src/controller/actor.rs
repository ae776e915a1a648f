//! Actors and their epochs, and calls that go through the controller.
//!
//! An instance (actor, epoch) is made at one worker. The next epoch is made only when the one before
//! it is over for certain: its executor's death was reported, its worker confirmed that it destroyed
//! it, or its worker's session ended (then the worker stopped before, by its own clock).
//!
//! Calls through the controller are tasks with a method as their target. They are numbered when their
//! arguments are there, sent in that order, and when an instance is lost those that may be repeated
//! go to the next one in their old order.

use super::{Controller, Effect, Owner, Timer};
use crate::account::Grant;
use crate::error::{Error, Ran};
use crate::hold::Holder;
use crate::id::{ActorEpoch, ActorId, Referent, Session, SessionId, TaskId};
use crate::map::Set;
use crate::message::{ActorExitReason, ActorPlace, Instance, ShapeId, ToClient, ToWorker};
use crate::payload::Payload;
use crate::schedule::{Demand, Ticket, Work, WorkerIndex};
use crate::spec::{self, ACTOR_SCHEME, ActorSpec, Lifetime};
use crate::time::Time;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::object::missing_referent_error;
use super::worker::HostedInstance;

/// What an actor is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ActorState {
    /// Its first instance is not ready yet.
    Creating,
    /// It takes calls.
    Ready,
    /// Its next instance is not ready yet.
    Restarting,
    /// It is gone for good.
    Dead(DeathCause),
}

/// Why an actor is gone for good.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeathCause {
    /// It was deleted.
    Deleted,
    /// Its constructor failed.
    ConstructorFailed,
    /// It was lost more often than it may be restarted.
    RestartsUsedUp,
    /// Its last handle went.
    OwnerGone,
    /// It was idle for too long.
    Idle,
    /// It ended itself.
    Exited,
}

#[derive(Debug)]
pub(super) struct Actor {
    pub spec: Arc<ActorSpec>,
    pub phase: ActorPhase,
    /// Of the current instance, or the last; 0 before the first.
    pub epoch: ActorEpoch,
    /// Restarts that were paid for.
    pub restarts: u32,
    /// Whether it ever took calls.
    pub was_ready: bool,
    /// Losses in a row without a good while of being ready between them.
    crashes: u32,
    pub created: Time,
    pub last_used: Time,
    /// Sessions that want to know where it is.
    pub watchers: Set<Session>,
    /// Who is shown what it prints.
    pub audience: Option<Arc<Session>>,
    /// The driver that it ends with, unless others hold it.
    pub driver: Option<Session>,
    /// Calls that wait, and calls that are with the instance, by number.
    pub waiting_calls: BTreeMap<u64, TaskId>,
    pub sent_calls: BTreeMap<u64, TaskId>,
    pub next_number: u64,
    /// The instance refused a call: it is about to be over, so calls wait.
    pub stalled: bool,
    /// What its instances saved, newest first; a life only ever adds to what the one before had.
    pub checkpoints: VecDeque<Payload>,
}

/// So many checkpoints of an actor are kept: the newest, and one more in case it cannot be read.
const KEPT_CHECKPOINTS: usize = 2;

#[derive(Debug)]
pub(super) enum ActorPhase {
    /// Values that its constructor needs are missing.
    Waiting,
    /// It waits for a worker.
    Queued(Ticket),
    /// It waits for a while because it was lost.
    Delayed,
    /// A worker makes it.
    Instantiating { worker: SessionId },
    /// It takes calls.
    Ready { worker: SessionId, since: Time },
    /// Gone.
    Dead { cause: DeathCause, error: Error },
}

impl Actor {
    pub fn state(&self) -> ActorState {
        match &self.phase {
            ActorPhase::Dead { cause, .. } => ActorState::Dead(*cause),
            ActorPhase::Ready { .. } => ActorState::Ready,
            ActorPhase::Instantiating { .. } if self.epoch == ActorEpoch(1) => ActorState::Creating,
            _ if self.epoch == ActorEpoch(0) => ActorState::Creating,
            ActorPhase::Waiting
            | ActorPhase::Queued(_)
            | ActorPhase::Delayed
            | ActorPhase::Instantiating { .. } => ActorState::Restarting,
        }
    }

    /// The worker that has, or makes, the current instance.
    pub fn worker(&self) -> Option<SessionId> {
        match &self.phase {
            ActorPhase::Instantiating { worker } | ActorPhase::Ready { worker, .. } => {
                Some(*worker)
            }
            ActorPhase::Waiting
            | ActorPhase::Queued(_)
            | ActorPhase::Delayed
            | ActorPhase::Dead { .. } => None,
        }
    }

    /// Why it is gone, if it is.
    pub fn death(&self) -> Option<&Error> {
        match &self.phase {
            ActorPhase::Dead { error, .. } => Some(error),
            ActorPhase::Waiting
            | ActorPhase::Queued(_)
            | ActorPhase::Delayed
            | ActorPhase::Instantiating { .. }
            | ActorPhase::Ready { .. } => None,
        }
    }
}

/// A class whichever version of its code it is, in whichever environment: `python/77aa:model.Counter#1f0a`
/// is a `python:model.Counter`.
fn without_version(class: &str) -> String {
    let class = class.split_once('#').map_or(class, |(class, _)| class);
    match class.split_once(':') {
        Some((runtime, name)) => {
            let scheme = runtime.split_once('/').map_or(runtime, |(scheme, _)| scheme);
            format!("{scheme}:{name}")
        }
        None => class.to_owned(),
    }
}

/// Whether two names stand for one class. The script that defines a Python class calls its module
/// `__main__`; processes that import the script call the module by its own name.
fn is_same_class(one: &str, other: &str) -> bool {
    let is_seen_as_main = |main: &str, imported: &str| {
        let parts = main.split_once(":__main__.").zip(imported.split_once(':'));
        parts.is_some_and(|((scheme, class), (other_scheme, name))| {
            let module = name.strip_suffix(class).and_then(|rest| rest.strip_suffix('.'));
            scheme == other_scheme && module.is_some_and(|module| !module.is_empty())
        })
    };
    one == other || is_seen_as_main(one, other) || is_seen_as_main(other, one)
}

/// What a worker must provide to host this class.
fn required(class: &Arc<str>) -> Arc<str> {
    if class.contains(':') { class.clone() } else { format!("{ACTOR_SCHEME}{class}").into() }
}

impl Controller {
    /// The demand of an actor on a worker.
    pub(super) fn demand_of_actor(&self, id: ActorId) -> Demand {
        let spec = &self.actors[&id].spec;
        let options = &spec.options;
        Demand {
            requires: required(&spec.class),
            resources: options.placement.max(&options.resources),
            takes: Some(options.resources.clone()),
            preemptible: options.preemptible,
            code_version: self.code_version(&spec.args, &spec.needs),
        }
    }

    /// Creates an actor, or finds the one that has its name already.
    pub fn create_actor(
        &mut self,
        now: Time,
        owner: Owner,
        spec: Arc<ActorSpec>,
        effects: &mut Vec<Effect>,
    ) -> Result<ActorId, Error> {
        let id = spec.id;
        if self.actors.contains_key(&id) {
            if let Owner::Session(session) = owner {
                self.holds.hold(Holder::Session(session.id), Referent::Actor(id));
            }
            return Ok(id);
        }
        spec.validate()?;
        self.check_size("the arguments", spec.args.len())?;
        if owner == Owner::Cluster && spec.options.lifetime != Lifetime::Detached {
            return Err(Error::invalid(
                "an actor without an owner must be detached: set lifetime to detached, or open a session",
            ));
        }
        if let Some(name) = &spec.name {
            let key = (spec.namespace.clone(), name.clone());
            if let Some(existing) = self.names.get(&key).copied() {
                if !spec.options.get_if_exists {
                    return Err(Error::already_exists(format!(
                        "an actor named {name:?} is in namespace {:?} already: pick another name, or \
                         set get_if_exists",
                        &*spec.namespace
                    )));
                }
                let class = without_version(&self.actors[&existing].spec.class);
                let wanted = without_version(&spec.class);
                if !is_same_class(&class, &wanted) {
                    return Err(Error::already_exists(format!(
                        "the actor named {name:?} in namespace {:?} is a {class}, not a {wanted}: pick \
                         another name",
                        &*spec.namespace
                    )));
                }
                if let Owner::Session(session) = owner {
                    self.holds.hold(Holder::Session(session.id), Referent::Actor(existing));
                }
                return Ok(existing);
            }
            self.check_new_actor(&spec)?;
            self.names.insert(key, id);
        }
        self.check_new_actor(&spec)?;
        self.add_actor(now, owner, spec, effects);
        self.dispatch(now, effects);
        Ok(id)
    }

    /// Says why no further actor can be created now, if none can.
    fn check_new_actor(&self, spec: &ActorSpec) -> Result<(), Error> {
        self.check_takes_work()?;
        self.check_arguments(Owner::Cluster, spec.args.len())?;
        let (living, limit) = (self.actors.len() - self.dead_actors.len(), self.config.max_actors);
        if living < limit {
            return Ok(());
        }
        Err(Error::exhausted(format!(
            "{living} actors live, the limit is {limit} (max_actors): delete some first"
        )))
    }

    fn add_actor(
        &mut self,
        now: Time,
        owner: Owner,
        spec: Arc<ActorSpec>,
        effects: &mut Vec<Effect>,
    ) {
        let id = spec.id;
        if let Owner::Session(session) = owner {
            self.holds.hold(Holder::Session(session.id), Referent::Actor(id));
        }
        let missing_thing = spec.held().find(|thing| !self.exists(*thing));
        let waits = self.wait_for(now, Work::Actor(id), spec.data(), effects);
        self.hold_all(Holder::Actor(id), spec.held());
        let actor = Actor {
            phase: ActorPhase::Waiting,
            epoch: ActorEpoch(0),
            restarts: 0,
            was_ready: false,
            crashes: 0,
            created: now,
            last_used: now,
            watchers: Set::default(),
            audience: self.audience_of(owner),
            driver: self.driver_for(owner, &spec),
            waiting_calls: BTreeMap::new(),
            sent_calls: BTreeMap::new(),
            next_number: 0,
            stalled: false,
            checkpoints: VecDeque::new(),
            spec: spec.clone(),
        };
        if let Some(member) = actor.driver.and_then(|driver| self.sessions.get_mut(&driver.id)) {
            member.actors.insert(id);
        }
        self.actors.insert(id, actor);
        self.count_arguments(Owner::Cluster, spec.args.len(), true);
        let failed = if let Some(thing) = missing_thing {
            Some(missing_referent_error(thing, ", which the constructor needs,"))
        } else {
            waits.as_ref().err().map(Error::passed_on)
        };
        match (failed, waits) {
            (Some(error), _) => {
                self.end_actor(now, id, DeathCause::ConstructorFailed, error, effects)
            }
            (None, Ok(0)) => self.actor_inputs_ready(now, id, effects),
            (None, _) => {}
        }
    }

    pub(super) fn actor_value_ready(&mut self, now: Time, id: ActorId, effects: &mut Vec<Effect>) {
        let Some(actor) =
            self.actors.get(&id).filter(|one| matches!(one.phase, ActorPhase::Waiting))
        else {
            return;
        };
        // Another that was there may be lost since.
        let spec = actor.spec.clone();
        match self.wait_for(now, Work::Actor(id), spec.data(), effects) {
            Ok(0) => self.actor_inputs_ready(now, id, effects),
            Ok(_) => {}
            Err(error) => self.actor_value_failed(now, id, &error, effects),
        }
    }

    /// What its constructor needs was lost since it was found to be there.
    pub(super) fn actor_waits_again(&mut self, now: Time, id: ActorId, effects: &mut Vec<Effect>) {
        self.actors.get_mut(&id).expect("what is placed exists").phase = ActorPhase::Waiting;
        self.actor_value_ready(now, id, effects);
    }

    /// Nothing is missing: it waits for a worker.
    fn actor_inputs_ready(&mut self, now: Time, id: ActorId, effects: &mut Vec<Effect>) {
        let spec = &self.actors[&id].spec;
        let checked = self.check_input(&spec.args, &spec.needs).and_then(|()| {
            match spec.options.checkpoints {
                Some(_) => self.check_room_for_checkpoint(spec),
                None => Ok(()),
            }
        });
        let checked = checked.and_then(|()| self.check_shape(|| self.demand_of_actor(id)));
        match checked {
            Ok(()) => self.queue_actor(id, false),
            Err(error) => self.end_actor(now, id, DeathCause::ConstructorFailed, error, effects),
        }
    }

    pub(super) fn actor_value_failed(
        &mut self,
        now: Time,
        id: ActorId,
        cause: &Error,
        effects: &mut Vec<Effect>,
    ) {
        if self.actors.get(&id).is_some_and(|actor| matches!(actor.phase, ActorPhase::Waiting)) {
            self.end_actor(now, id, DeathCause::ConstructorFailed, cause.passed_on(), effects);
        }
    }

    fn queue_actor(&mut self, id: ActorId, again: bool) {
        let near = self.preferred_worker(self.actors[&id].spec.data());
        let ticket = self.schedule.enqueue(Work::Actor(id), self.demand_of_actor(id), near, again);
        self.actors.get_mut(&id).expect("a queued actor exists").phase = ActorPhase::Queued(ticket);
    }

    pub(super) fn instantiate(
        &mut self,
        _now: Time,
        id: ActorId,
        shape: ShapeId,
        slot: WorkerIndex,
        grant: Grant,
        effects: &mut Vec<Effect>,
    ) {
        let worker = self.session_by_index[slot.0 as usize];
        let actor = self.actors.get_mut(&id).expect("what is placed exists");
        actor.epoch = actor.epoch.next();
        actor.phase = ActorPhase::Instantiating { worker };
        let (spec, epoch) = (actor.spec.clone(), actor.epoch);
        let record = self.workers.get_mut(&worker).expect("a slot belongs to a worker");
        let before =
            record.actors.insert(id, HostedInstance { epoch, shape, grant: grant.clone() });
        assert!(before.is_none(), "a worker has one instance of {id} at a time");
        let to = record.session;
        let values = self.values_of(&spec.needs);
        let checkpoints = self.checkpoints_of(id);
        effects.push(Effect::ToWorker {
            to,
            message: ToWorker::Instantiate { spec, epoch, values, grant, checkpoints },
        });
    }

    pub(super) fn is_living(&self, id: ActorId) -> bool {
        self.actors.get(&id).is_some_and(|actor| !matches!(actor.phase, ActorPhase::Dead { .. }))
    }

    /// Whether this worker has this instance, and it is the actor's current one.
    fn is_current(&mut self, worker: Session, instance: Instance) -> bool {
        let current = self.actors.get(&instance.actor).is_some_and(|actor| {
            actor.epoch == instance.epoch && actor.worker() == Some(worker.id)
        });
        self.counters.stale += u64::from(!current);
        current
    }

    pub(super) fn actor_ready(
        &mut self,
        now: Time,
        worker: Session,
        instance: Instance,
        effects: &mut Vec<Effect>,
    ) {
        if self.is_current(worker, instance) {
            self.clear_system_limit(worker);
            let actor = self.actors.get_mut(&instance.actor).expect("it is current");
            actor.phase = ActorPhase::Ready { worker: worker.id, since: now };
            actor.was_ready = true;
            actor.last_used = now;
            actor.stalled = false;
            self.tell_watchers(instance.actor, effects);
            self.send_calls(instance.actor, effects);
        }
    }

    /// An instance is not at its worker any more; what it was granted goes back, what it kept goes.
    /// Says whether its actor lives and lost its current instance with it.
    fn instance_over(&mut self, worker: Session, instance: Instance) -> bool {
        let current = self.is_current(worker, instance);
        if self.hosts_instance(worker, instance) {
            let record = self.workers.get_mut(&worker.id).expect("it speaks");
            let hosted = record.actors.remove(&instance.actor).expect("it has it");
            self.schedule.give_back(record.index, hosted.shape, &hosted.grant);
            let free = self.holds.release_all(Holder::Instance(instance));
            self.queue_freed(free);
        }
        // An actor that kept the last handle to itself ends with its instance.
        current && self.is_living(instance.actor)
    }

    pub(super) fn actor_failed(
        &mut self,
        now: Time,
        worker: Session,
        instance: Instance,
        error: Error,
        effects: &mut Vec<Effect>,
    ) {
        let current = self.instance_over(worker, instance);
        if current {
            self.end_actor(now, instance.actor, DeathCause::ConstructorFailed, error, effects);
        }
    }

    pub(super) fn actor_died(
        &mut self,
        now: Time,
        worker: Session,
        instance: Instance,
        error: Error,
        effects: &mut Vec<Effect>,
    ) {
        let current = self.instance_over(worker, instance);
        if current {
            self.restart(now, instance.actor, error, false, effects);
        }
    }

    pub(super) fn actor_destroyed(
        &mut self,
        now: Time,
        worker: Session,
        instance: Instance,
        why: ActorExitReason,
        effects: &mut Vec<Effect>,
    ) {
        if !self.instance_over(worker, instance) {
            return;
        }
        let id = instance.actor;
        match why {
            ActorExitReason::Requested => {
                let error = Error::unavailable(Ran::Maybe, format!("actor {id} moves"));
                self.restart(now, id, error, true, effects);
            }
            ActorExitReason::Idle => {
                let words = format!("actor {id} was idle for too long");
                let error = Error::gone(Referent::Actor(id), words);
                self.end_actor(now, id, DeathCause::Idle, error, effects);
            }
            ActorExitReason::Exited => {
                let words = format!("actor {id} ended itself (exit_actor)");
                let error = Error::gone(Referent::Actor(id), words);
                self.end_actor(now, id, DeathCause::Exited, error, effects);
            }
        }
    }

    fn input_bytes(&self, spec: &ActorSpec) -> usize {
        let values = self.values_of(&spec.needs);
        spec.args.len() + values.iter().map(|value| value.payload.len()).sum::<usize>()
    }

    fn check_room_for_checkpoint(&self, spec: &ActorSpec) -> Result<(), Error> {
        let bytes = self.input_bytes(spec);
        let limit = self.config.max_input_bytes.saturating_sub(spec::MAX_CHECKPOINT_BYTES);
        if bytes <= limit {
            return Ok(());
        }
        Err(Error::too_large(format!(
            "the arguments of an actor with checkpoints are {bytes} bytes, the limit is {limit} \
             (max_input_bytes less MAX_CHECKPOINT_BYTES): pass less, or no checkpoints"
        )))
    }

    /// The newest checkpoint of an actor, and the one before it if there is room for both.
    fn checkpoints_of(&self, id: ActorId) -> Vec<Payload> {
        let actor = &self.actors[&id];
        let mut room = self.config.max_input_bytes.saturating_sub(self.input_bytes(&actor.spec));
        let fits = |payload: &&Payload| {
            let fits = payload.len() <= room;
            room = room.saturating_sub(payload.len());
            fits
        };
        actor.checkpoints.iter().take_while(fits).cloned().collect()
    }

    /// An instance saved its state. A stale one cannot.
    pub(super) fn checkpoint(
        &mut self,
        worker: Session,
        instance: Instance,
        sequence: u64,
        payload: Payload,
        effects: &mut Vec<Effect>,
    ) {
        if self.is_current(worker, instance) {
            let actor = self.actors.get_mut(&instance.actor).expect("it is current");
            actor.checkpoints.push_front(payload);
            actor.checkpoints.truncate(KEPT_CHECKPOINTS);
            let message = ToWorker::Checkpointed { instance, sequence };
            effects.push(Effect::ToWorker { to: worker, message });
        }
    }

    /// Ends the current life of an actor, which lives on if it may be restarted.
    pub(super) fn kill_actor(&mut self, id: ActorId, effects: &mut Vec<Effect>) {
        let Some(actor) = self.actors.get(&id) else { return };
        if let Some(worker) = actor.worker().and_then(|worker| self.workers.get(&worker)) {
            let message = ToWorker::Kill(Instance { actor: id, epoch: actor.epoch });
            effects.push(Effect::ToWorker { to: worker.session, message });
        }
    }

    /// The worker of an instance is gone.
    pub(super) fn instance_lost(
        &mut self,
        now: Time,
        id: ActorId,
        epoch: ActorEpoch,
        error: Error,
        effects: &mut Vec<Effect>,
    ) {
        if self.is_living(id) && self.actors[&id].epoch == epoch {
            self.restart(now, id, error, false, effects);
        }
    }

    /// An actor lost its instance: another is made, if it may be.
    fn restart(
        &mut self,
        now: Time,
        id: ActorId,
        error: Error,
        free: bool,
        effects: &mut Vec<Effect>,
    ) {
        let actor = self.actors.get_mut(&id).expect("it was current");
        if !free && !actor.spec.options.max_restarts.allows(actor.restarts) {
            let message =
                format!("actor {id} is gone: {}; it may not be restarted (again)", error.message());
            let error = Error::gone(Referent::Actor(id), message).ran(Ran::Maybe).caused_by(error);
            return self.end_actor(now, id, DeathCause::RestartsUsedUp, error, effects);
        }
        if let ActorPhase::Ready { since, .. } = actor.phase
            && now.since(since) >= spec::MAX_RETRY_DELAY
        {
            actor.crashes = 0;
        }
        let crashes = actor.crashes;
        if free || crashes == 0 {
            actor.crashes += u32::from(!free);
            self.queue_actor(id, true);
        } else {
            actor.crashes += 1;
            actor.phase = ActorPhase::Delayed;
            let delay = spec::retry_delay(spec::RETRY_DELAY, crashes - 1, &mut self.random);
            self.timers.insert((now + delay, Timer::Restart(id, actor.epoch)));
        }
        self.actors.get_mut(&id).expect("it was current").restarts += u32::from(!free);
        self.calls_lost(now, id, &error, effects);
        self.tell_watchers(id, effects);
    }

    pub(super) fn restart_is_due(&mut self, id: ActorId, epoch: ActorEpoch) {
        let due = self.actors.get(&id).is_some_and(|actor| {
            actor.epoch == epoch && matches!(actor.phase, ActorPhase::Delayed)
        });
        if due {
            self.queue_actor(id, true);
        }
    }

    /// Restarts what a worker has though it may be alive, as no controller should.
    pub(super) fn restart_suspects(
        &mut self,
        now: Time,
        worker: SessionId,
        effects: &mut Vec<Effect>,
    ) {
        let mut actors: Vec<ActorId> = self.workers[&worker].actors.keys().copied().collect();
        actors.sort_unstable();
        for id in actors.into_iter().filter(|id| self.is_living(*id)).collect::<Vec<_>>() {
            if self.actors[&id].worker() == Some(worker) {
                let error = Error::unavailable(Ran::Maybe, "its worker is suspected");
                self.restart(now, id, error, true, effects);
            }
        }
    }

    /// Ends an actor for good.
    pub fn delete_actor(
        &mut self,
        now: Time,
        id: ActorId,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Error> {
        if !self.is_living(id) {
            return Err(Error::not_found(format!(
                "no actor {id} is here: `marline actors` lists them"
            )));
        }
        let error = Error::gone(Referent::Actor(id), format!("actor {id} was deleted"));
        self.end_actor(now, id, DeathCause::Deleted, error, effects);
        self.dispatch(now, effects);
        Ok(())
    }

    /// The one end of an actor: its name is free, its instance is destroyed, its calls fail, what it
    /// held goes, whoever watches is told.
    pub(super) fn end_actor(
        &mut self,
        now: Time,
        id: ActorId,
        cause: DeathCause,
        error: Error,
        effects: &mut Vec<Effect>,
    ) {
        let actor = self.actors.get_mut(&id).expect("an actor dies once");
        let life =
            std::mem::replace(&mut actor.phase, ActorPhase::Dead { cause, error: error.clone() });
        let instance = Instance { actor: id, epoch: actor.epoch };
        if let Some(member) = actor.driver.and_then(|driver| self.sessions.get_mut(&driver.id)) {
            member.actors.remove(&id);
        }
        if let Some(name) = &actor.spec.name {
            self.names.remove(&(actor.spec.namespace.clone(), name.clone()));
        }
        match life {
            ActorPhase::Queued(ticket) => self.schedule.withdraw(ticket),
            ActorPhase::Instantiating { worker } | ActorPhase::Ready { worker, .. } => {
                if let Some(record) = self.workers.get(&worker)
                    && record.actors.get(&id).is_some_and(|hosted| hosted.epoch == instance.epoch)
                {
                    let message = ToWorker::Destroy(instance);
                    effects.push(Effect::ToWorker { to: record.session, message });
                }
            }
            ActorPhase::Waiting | ActorPhase::Delayed => {}
            ActorPhase::Dead { .. } => panic!("an actor dies once"),
        }
        self.calls_lost(now, id, &error, effects);
        self.tell_watchers(id, effects);
        self.drop_inputs(id);
        let free = self.holds.release_all(Holder::Actor(id));
        self.queue_freed(free);
        self.dead_actors.push_back(id);
        if self.dead_actors.len() > self.config.history {
            let forgotten = self.dead_actors.pop_front().expect("it has one");
            self.actors.remove(&forgotten);
        }
        self.extend_credit_of_waiting(effects);
    }

    /// A dead actor can still be asked about: what its next life would have needed goes.
    fn drop_inputs(&mut self, id: ActorId) {
        let actor = self.actors.get_mut(&id).expect("it died just now");
        actor.checkpoints.clear();
        let bytes = actor.spec.args.len();
        actor.spec = Arc::new(ActorSpec { args: Payload::default(), ..(*actor.spec).clone() });
        self.count_arguments(Owner::Cluster, bytes, false);
    }

    /// Where an actor is, for its callers.
    pub(super) fn place_of(&self, id: ActorId) -> ActorPlace {
        let Some(actor) = self.actors.get(&id) else {
            // An actor that died because its class was not found names nothing that is gone.
            let error = Error::not_found(format!("no actor {id} is here"));
            return ActorPlace::Dead(error.with_gone(Referent::Actor(id)));
        };
        match &actor.phase {
            ActorPhase::Dead { error, .. } => ActorPlace::Dead(error.clone()),
            ActorPhase::Ready { worker, .. } => {
                let worker = &self.workers[worker];
                ActorPlace::Ready {
                    epoch: actor.epoch,
                    host: worker.session,
                    address: worker.info.address.clone(),
                    options: actor.spec.options.clone(),
                }
            }
            ActorPhase::Waiting
            | ActorPhase::Queued(_)
            | ActorPhase::Delayed
            | ActorPhase::Instantiating { .. } => ActorPlace::Nowhere,
        }
    }

    fn tell_watchers(&mut self, id: ActorId, effects: &mut Vec<Effect>) {
        let place = self.place_of(id);
        let actor = self.actors.get_mut(&id).expect("it changed");
        let mut watchers: Vec<Session> = actor.watchers.drain().collect();
        watchers.sort_unstable();
        watchers.retain(|session| self.is_alive(*session));
        for to in &watchers {
            let message = ToClient::ActorChanged { actor: id, place: place.clone() };
            effects.push(Effect::ToClient { to: *to, message });
        }
        self.actors.get_mut(&id).expect("it changed").watchers.extend(watchers);
    }

    pub(super) fn watch_actor(&mut self, session: Session, id: ActorId, effects: &mut Vec<Effect>) {
        if let Some(actor) = self.actors.get_mut(&id) {
            actor.watchers.insert(session);
            let member = self.sessions.get_mut(&session.id).expect("it speaks");
            member.watched_actors.insert(id);
        }
        let message = ToClient::ActorChanged { actor: id, place: self.place_of(id) };
        effects.push(Effect::ToClient { to: session, message });
    }

    /// The living actor that has this name.
    pub fn find_actor(&self, namespace: &Arc<str>, name: &Arc<str>) -> Result<ActorId, Error> {
        self.names.get(&(namespace.clone(), name.clone())).copied().ok_or_else(|| {
            Error::not_found(format!("no actor named {name:?} is in namespace {namespace:?}"))
        })
    }
}
