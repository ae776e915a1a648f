//! Actors and their instances: creation, names, restarts, checkpoints and death.
//!
//! One worker hosts each instance (actor, epoch). The controller starts the next epoch only when
//! the one before it is over for certain:
//!
//! - the worker reported the death of the executor, or
//! - the worker refused to create the instance, or confirmed that it destroyed it, or
//! - the worker's session ended. The worker stopped before that, by its own clock.
//!
//! Calls to actors are in `call.rs`. `driver.rs` decides which actors end with their driver.
//! `object.rs` ends an actor whose last handle was released.

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

/// The state of an actor, as users see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ActorState {
    /// The first instance is not ready yet.
    Creating,
    /// The actor takes calls.
    Ready,
    /// The next instance is not ready yet.
    Restarting,
    /// The actor is dead.
    Dead(DeathCause),
}

/// Why an actor is dead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeathCause {
    /// A user deleted the actor.
    Deleted,
    /// The constructor failed, or could not run at all.
    ConstructorFailed,
    /// The actor lost its instance more often than it may be restarted.
    RestartsUsedUp,
    /// The last handle was released, or only tasks and actors of an ended driver had handles.
    OwnerGone,
    /// The actor was idle for too long.
    Idle,
    /// The actor ended itself.
    Exited,
}

#[derive(Debug)]
pub(super) struct Actor {
    pub spec: Arc<ActorSpec>,
    pub phase: ActorPhase,
    /// The epoch of the current instance, or of the last one. 0 before the first.
    pub epoch: ActorEpoch,
    /// How many restarts are spent.
    pub restarts: u32,
    /// Whether any instance was ever ready.
    pub was_ready: bool,
    /// How many instances in a row were lost before they had been ready for
    /// [`MAX_RETRY_DELAY`](spec::MAX_RETRY_DELAY). Delays the next restart.
    crashes: u32,
    pub created: Time,
    pub last_used: Time,
    /// Sessions that learn where the actor is.
    pub watchers: Set<Session>,
    /// The client that is shown what the actor prints.
    pub audience: Option<Arc<Session>>,
    /// The driver that the actor ends with, unless anything outside that driver holds it.
    pub driver: Option<Session>,
    /// Calls that wait for the actor, by number.
    pub waiting_calls: BTreeMap<u64, TaskId>,
    /// Calls that are with the instance, by number.
    pub sent_calls: BTreeMap<u64, TaskId>,
    /// The number of the latest call; 0 before the first.
    pub last_number: u64,
    /// Whether the instance refused a call. Then the instance is about to be over, so calls wait.
    pub stalled: bool,
    /// The checkpoints that the instances saved, newest first. Each instance adds to those of the
    /// instance before it.
    pub checkpoints: VecDeque<Payload>,
}

/// The most checkpoints that the controller stores for an actor: the newest, and one more in case
/// the newest cannot be read.
const KEPT_CHECKPOINTS: usize = 2;

#[derive(Debug)]
pub(super) enum ActorPhase {
    /// The actor waits for values that its constructor needs.
    Waiting,
    /// The actor waits for a worker.
    Queued(Ticket),
    /// The actor lost its instance, and waits for the delay before the next one.
    Delayed,
    /// A worker creates the instance.
    Instantiating { worker: SessionId },
    /// The instance takes calls.
    Ready { worker: SessionId, since: Time },
    /// The actor is dead.
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

    /// Returns the worker that hosts or creates the current instance.
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

    /// Returns why the actor is dead, if it is.
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

/// Returns the name of a class without the version of its code and without its environment. For
/// example, `python/77aa:model.Counter#1f0a` becomes `python:model.Counter`.
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

/// Returns whether two names stand for one class. The script that defines a Python class calls its
/// module `__main__`. Processes that import the script call the module by its own name.
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

/// Returns the name that a worker must provide to host this class.
fn required(class: &Arc<str>) -> Arc<str> {
    if class.contains(':') { class.clone() } else { format!("{ACTOR_SCHEME}{class}").into() }
}

impl Controller {
    /// Returns the demand of an actor on a worker.
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

    /// Creates an actor, or returns the living actor that has its name if `get_if_exists` is set.
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

    /// Fails if no further actor can be created now.
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
        let missing_thing = spec.referents_to_hold().find(|thing| !self.exists(*thing));
        let waits = self.wait_for(now, Work::Actor(id), spec.input_objects(), effects);
        self.hold_all(Holder::Actor(id), spec.referents_to_hold());
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
            last_number: 0,
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
        // Another value that was there may have been lost since.
        let spec = actor.spec.clone();
        match self.wait_for(now, Work::Actor(id), spec.input_objects(), effects) {
            Ok(0) => self.actor_inputs_ready(now, id, effects),
            Ok(_) => {}
            Err(error) => self.actor_value_failed(now, id, &error, effects),
        }
    }

    /// Makes an actor wait for its values again: data that its constructor needs was lost after the
    /// actor had become ready to be placed.
    pub(super) fn actor_waits_again(&mut self, now: Time, id: ActorId, effects: &mut Vec<Effect>) {
        self.actors.get_mut(&id).expect("placed work exists").phase = ActorPhase::Waiting;
        self.actor_value_ready(now, id, effects);
    }

    /// Checks an actor whose constructor has all its values, and queues it until a worker has room.
    /// Ends the actor if its inputs are too large or its demand is invalid.
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
        let near = self.preferred_worker(self.actors[&id].spec.input_objects());
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
        let actor = self.actors.get_mut(&id).expect("placed work exists");
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

    /// Returns whether `instance` is the actor's current one and runs at `worker`. If not, counts
    /// the worker's report as stale.
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
            let actor = self.actors.get_mut(&instance.actor).expect("the instance is current");
            actor.phase = ActorPhase::Ready { worker: worker.id, since: now };
            actor.was_ready = true;
            actor.last_used = now;
            actor.stalled = false;
            self.tell_watchers(instance.actor, effects);
            self.send_calls(instance.actor, effects);
        }
    }

    /// Takes an instance off its worker: its grant goes back, and its holds are released. Returns
    /// whether the actor lives and has lost its current instance.
    fn instance_over(&mut self, worker: Session, instance: Instance) -> bool {
        let current = self.is_current(worker, instance);
        if self.hosts_instance(worker, instance) {
            let record = self.workers.get_mut(&worker.id).expect("the worker is here");
            let hosted = record.actors.remove(&instance.actor).expect("the worker hosts it");
            self.schedule.give_back(record.index, hosted.shape, &hosted.grant);
            let free = self.holds.release_all(Holder::Instance(instance));
            self.queue_freed(free);
        }
        // An actor whose own instance held its last handle ends with that instance.
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
                let words = format!("actor {id} restarts elsewhere: its worker leaves");
                let error = Error::unavailable(Ran::Maybe, words);
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
             (max_input_bytes less MAX_CHECKPOINT_BYTES): pass smaller arguments, or turn \
             checkpoints off"
        )))
    }

    /// Returns the newest checkpoint of an actor, and the one before it if both fit into one
    /// message.
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

    /// Stores the state that an instance saved. A stale instance cannot save its state.
    pub(super) fn checkpoint(
        &mut self,
        worker: Session,
        instance: Instance,
        sequence: u64,
        payload: Payload,
        effects: &mut Vec<Effect>,
    ) {
        if self.is_current(worker, instance) {
            let actor = self.actors.get_mut(&instance.actor).expect("the instance is current");
            actor.checkpoints.push_front(payload);
            actor.checkpoints.truncate(KEPT_CHECKPOINTS);
            let message = ToWorker::Checkpointed { instance, sequence };
            effects.push(Effect::ToWorker { to: worker, message });
        }
    }

    /// Kills the current instance of an actor. The actor lives on if it may be restarted.
    pub(super) fn kill_actor(&mut self, id: ActorId, effects: &mut Vec<Effect>) {
        let Some(actor) = self.actors.get(&id) else { return };
        if let Some(worker) = actor.worker().and_then(|worker| self.workers.get(&worker)) {
            let message = ToWorker::Kill(Instance { actor: id, epoch: actor.epoch });
            effects.push(Effect::ToWorker { to: worker.session, message });
        }
    }

    /// Restarts or ends an actor whose worker is gone, if the lost instance was its current one.
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

    /// Restarts an actor that lost its instance, or ends it if its restarts are used up. If `free`,
    /// the restart neither counts nor waits.
    fn restart(
        &mut self,
        now: Time,
        id: ActorId,
        error: Error,
        free: bool,
        effects: &mut Vec<Effect>,
    ) {
        let actor = self.actors.get_mut(&id).expect("the actor is known");
        if !free && !actor.spec.options.max_restarts.allows(actor.restarts) {
            let message = format!(
                "actor {id} is gone: {}; it may not be restarted (max_restarts)",
                error.message()
            );
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
        self.actors.get_mut(&id).expect("the actor is known").restarts += u32::from(!free);
        self.calls_lost(now, id, &error, effects);
        self.tell_watchers(id, effects);
    }

    /// Queues an actor whose delay before the next instance is over.
    pub(super) fn restart_delay_over(&mut self, id: ActorId, epoch: ActorEpoch) {
        let due = self.actors.get(&id).is_some_and(|actor| {
            actor.epoch == epoch && matches!(actor.phase, ActorPhase::Delayed)
        });
        if due {
            self.queue_actor(id, true);
        }
    }

    /// A planted bug: restarts the actors of a worker that may be alive.
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

    /// Deletes an actor. Fails with `NotFound` if no such actor lives.
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

    /// Ends an actor. This is the one place where an actor ends: its name becomes free, its
    /// instance is destroyed, its calls fail, its holds are released, and its watchers learn of it.
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
            let forgotten = self.dead_actors.pop_front().expect("the list is not empty");
            self.actors.remove(&forgotten);
        }
        self.extend_credit_of_waiting(effects);
    }

    /// Drops the arguments and checkpoints of a dead actor, whose record stays for queries: no
    /// further instance needs them.
    fn drop_inputs(&mut self, id: ActorId) {
        let actor = self.actors.get_mut(&id).expect("the actor is known");
        actor.checkpoints.clear();
        let bytes = actor.spec.args.len();
        actor.spec = Arc::new(ActorSpec { args: Payload::default(), ..(*actor.spec).clone() });
        self.count_arguments(Owner::Cluster, bytes, false);
    }

    /// Returns where an actor is, for its callers.
    pub(super) fn place_of(&self, id: ActorId) -> ActorPlace {
        let Some(actor) = self.actors.get(&id) else {
            // An actor that died because its class was not found also has a `NotFound` error.
            // Callers tell the two apart: only this error names the actor as gone.
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
        let actor = self.actors.get_mut(&id).expect("the actor is known");
        let mut watchers: Vec<Session> = actor.watchers.drain().collect();
        watchers.sort_unstable();
        watchers.retain(|session| self.is_alive(*session));
        for to in &watchers {
            let message = ToClient::ActorChanged { actor: id, place: place.clone() };
            effects.push(Effect::ToClient { to: *to, message });
        }
        self.actors.get_mut(&id).expect("the actor is known").watchers.extend(watchers);
    }

    pub(super) fn watch_actor(&mut self, session: Session, id: ActorId, effects: &mut Vec<Effect>) {
        if let Some(actor) = self.actors.get_mut(&id) {
            actor.watchers.insert(session);
            let member = self.sessions.get_mut(&session.id).expect("the session is open");
            member.watched_actors.insert(id);
        }
        let message = ToClient::ActorChanged { actor: id, place: self.place_of(id) };
        effects.push(Effect::ToClient { to: session, message });
    }

    /// Returns the living actor that has this name.
    pub fn find_actor(&self, namespace: &Arc<str>, name: &Arc<str>) -> Result<ActorId, Error> {
        self.names.get(&(namespace.clone(), name.clone())).copied().ok_or_else(|| {
            Error::not_found(format!("no actor named {name:?} is in namespace {namespace:?}"))
        })
    }
}
