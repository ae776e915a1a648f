//! Actor instances at the worker that hosts them: their creation, their idle time and their end.
//! `call.rs` has the calls that reach them.

use super::call::{Call, CallOrigin, cancelled};
use super::checkpoint::CheckpointState;
use super::executor::Occupant;
use super::{Effect, ExecutorId, Timer, Worker};
use crate::account::Grant;
use crate::error::{Error, Ran};
use crate::id::{ActorEpoch, ActorId, Referent, Session, TaskId};
use crate::map::{Map, Set};
use crate::message::{ActorExitReason, FromHost, FromWorker, Instance, Refusal};
use crate::payload::{Payload, Value};
use crate::spec::ActorSpec;
use crate::time::Time;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// An actor instance that this worker hosts.
#[derive(Debug)]
pub(super) struct HostedActor {
    pub spec: Arc<ActorSpec>,
    pub epoch: ActorEpoch,
    values: Vec<Value>,
    checkpoints: Vec<Payload>,
    pub grant: Grant,
    pub executor: ExecutorId,
    pub life: InstancePhase,
    /// Calls that wait, in order.
    pub mailbox: VecDeque<Call>,
    /// Calls that the executor has besides the one that runs. It starts them in this order.
    pub prefetched: VecDeque<Call>,
    /// Calls that run.
    pub running: BTreeMap<TaskId, Call>,
    /// The ids of all calls in `mailbox`, `prefetched` and `running`.
    pub ids: Set<TaskId>,
    /// The number of each direct caller's next call.
    pub next: Map<Session, u64>,
    pub last_used: Time,
    /// The progress of its checkpoints, if its state is saved.
    pub saving: Option<CheckpointState>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum InstancePhase {
    /// The constructor has not returned.
    Constructing,
    Ready,
    /// The instance finishes the calls it has. New calls are refused.
    Leaving,
    /// The executor was killed, but is not dead yet.
    Ending(InstanceEndReason),
}

/// Why a worker ends an instance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum InstanceEndReason {
    /// The controller destroyed it: the actor is gone for good.
    Deleted,
    /// It was not called for its `idle_ttl`.
    Idle,
    /// Its worker drains. The actor restarts elsewhere.
    WorkerDrained,
    /// Its own code ended it.
    Exited,
}

impl HostedActor {
    pub fn instance(&self) -> Instance {
        Instance { actor: self.spec.id, epoch: self.epoch }
    }

    /// Returns the calls that have not started, in order.
    pub fn waiting(&self) -> impl Iterator<Item = &Call> {
        self.prefetched.iter().chain(&self.mailbox)
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
        checkpoints: Vec<Payload>,
        effects: &mut Vec<Effect>,
    ) {
        let id = spec.id;
        let instance = Instance { actor: id, epoch };
        if self.departure.has_begun() {
            let message = FromWorker::ActorRefused { instance, reason: Refusal::Draining };
            return effects.push(Effect::ToController(message));
        }
        let (executor, ready) = self.occupy(Occupant::Actor(id), &spec.class, effects);
        let hosted = HostedActor {
            saving: spec.options.checkpoints.map(CheckpointState::new),
            spec,
            epoch,
            values,
            checkpoints,
            grant,
            executor,
            life: InstancePhase::Constructing,
            mailbox: VecDeque::new(),
            prefetched: VecDeque::new(),
            running: BTreeMap::new(),
            ids: Set::default(),
            next: Map::default(),
            last_used: now,
        };
        let before = self.actors.insert(id, hosted);
        assert!(before.is_none(), "the controller ends one instance before it asks for another");
        if ready {
            self.construct(id, executor, effects);
        }
        self.keep_spare(executor, effects);
    }

    pub(super) fn construct(
        &mut self,
        id: ActorId,
        executor: ExecutorId,
        effects: &mut Vec<Effect>,
    ) {
        let hosted = self.actors.get_mut(&id).expect("its executor started for it");
        let values = std::mem::take(&mut hosted.values);
        let checkpoints = std::mem::take(&mut hosted.checkpoints);
        let (spec, epoch, grant) = (hosted.spec.clone(), hosted.epoch, hosted.grant.clone());
        effects.push(Effect::Construct { executor, spec, epoch, values, grant, checkpoints });
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
        if !matches!(hosted.life, InstancePhase::Constructing | InstancePhase::Leaving) {
            self.counters.stale += 1;
            return;
        }
        match result {
            Ok(()) if hosted.life == InstancePhase::Leaving => {
                self.end_instance(id, InstanceEndReason::WorkerDrained, effects)
            }
            Ok(()) => {
                hosted.life = InstancePhase::Ready;
                hosted.last_used = now;
                let ttl = hosted.spec.options.idle_ttl;
                effects.push(Effect::ToController(FromWorker::ActorReady { instance }));
                if let Some(ttl) = ttl {
                    self.timers.insert((now + ttl, Timer::Idle(id)));
                }
                self.save_in_time(now, id);
            }
            Err(error) => {
                self.actors.remove(&id);
                self.executors.get_mut(&executor).expect("it spoke").occupant = Occupant::None;
                self.kill(executor, effects);
                effects.push(Effect::ToController(FromWorker::ActorFailed { instance, error }));
            }
        }
    }

    /// Ends an instance that the controller destroyed.
    pub(super) fn destroy(&mut self, instance: Instance, effects: &mut Vec<Effect>) {
        let here =
            self.actors.get(&instance.actor).is_some_and(|hosted| hosted.epoch == instance.epoch);
        if here {
            self.end_instance(instance.actor, InstanceEndReason::Deleted, effects);
        } else {
            self.counters.stale += 1;
        }
    }

    /// Kills the executor of an instance, as the controller ordered. The actor may restart in
    /// another executor.
    pub(super) fn kill_instance(&mut self, instance: Instance, effects: &mut Vec<Effect>) {
        match self.actors.get(&instance.actor).filter(|hosted| hosted.epoch == instance.epoch) {
            Some(hosted) => self.kill(hosted.executor, effects),
            None => self.counters.stale += 1,
        }
    }

    /// Ends an instance whose own code ends it.
    pub(super) fn actor_exited(&mut self, executor: ExecutorId, effects: &mut Vec<Effect>) {
        if let Occupant::Actor(id) = self.occupant(executor) {
            self.end_instance(id, InstanceEndReason::Exited, effects);
        }
    }

    pub(super) fn end_instance(
        &mut self,
        id: ActorId,
        why: InstanceEndReason,
        effects: &mut Vec<Effect>,
    ) {
        let hosted = self.actors.get_mut(&id).expect("it is here");
        match &mut hosted.life {
            // Deletion is for good, even if the actor was about to move or to end idle.
            InstancePhase::Ending(before) if why == InstanceEndReason::Deleted => *before = why,
            InstancePhase::Ending(_) => {}
            life
            @ (InstancePhase::Constructing | InstancePhase::Ready | InstancePhase::Leaving) => {
                *life = InstancePhase::Ending(why);
                let executor = hosted.executor;
                self.kill(executor, effects);
            }
        }
    }

    /// Removes an instance whose executor died, and settles its calls.
    ///
    /// Prefetched calls had not started, because the executor starts a call only after it has sent
    /// the answer to the one before. There is one exception: if the worker killed the executor, it
    /// ignored the executor's last answers (`unheard`), so prefetched calls may have started. That
    /// does not hold for an actor that exited: its executor starts no further calls.
    pub(super) fn actor_executor_died(
        &mut self,
        id: ActorId,
        error: Error,
        unheard: bool,
        effects: &mut Vec<Effect>,
    ) {
        let mut hosted = self.actors.remove(&id).expect("its executor had it");
        let instance = hosted.instance();
        let exited = hosted.life == InstancePhase::Ending(InstanceEndReason::Exited);
        let (begun, not_begun) = match unheard && !exited {
            true => (hosted.prefetched, VecDeque::new()),
            false => (VecDeque::new(), hosted.prefetched),
        };
        if exited && hosted.spec.options.max_concurrency == 1 {
            // The exiting call was answered before. The call in `running` would have started next.
            let next = std::mem::take(&mut hosted.running).into_values();
            for call in next.filter(|call| !call.answered) {
                self.refuse_call(&call, effects);
            }
        }
        let stored = hosted.saving.as_mut().map(CheckpointState::give_up).unwrap_or_default();
        for call in std::mem::take(&mut hosted.running).into_values().chain(begun).chain(stored) {
            if !call.answered
                && let CallOrigin::Caller(to) = call.origin
            {
                let message = cut_short(&call, id, hosted.life, &error);
                self.send_to_caller(to, message, effects);
            }
        }
        for call in not_begun.into_iter().chain(hosted.mailbox) {
            if !call.answered {
                self.refuse_call(&call, effects);
            }
        }
        let message = match hosted.life {
            InstancePhase::Ending(why) => {
                let why = match why {
                    InstanceEndReason::Deleted | InstanceEndReason::WorkerDrained => {
                        ActorExitReason::Requested
                    }
                    InstanceEndReason::Idle => ActorExitReason::Idle,
                    InstanceEndReason::Exited => ActorExitReason::Exited,
                };
                FromWorker::ActorDestroyed { instance, exit: why }
            }
            InstancePhase::Constructing | InstancePhase::Ready | InstancePhase::Leaving => {
                FromWorker::ActorDied { instance, error }
            }
        };
        effects.push(Effect::ToController(message));
    }

    pub(super) fn references_released(
        &mut self,
        executor: ExecutorId,
        things: Vec<Referent>,
        effects: &mut Vec<Effect>,
    ) {
        if let Occupant::Actor(actor) = self.occupant(executor) {
            let instance = self.actors[&actor].instance();
            effects.push(Effect::ToController(FromWorker::Dropped { instance, things }));
        }
    }

    /// Ends an actor that was not called for its `idle_ttl`.
    pub(super) fn check_idle(&mut self, now: Time, id: ActorId, effects: &mut Vec<Effect>) {
        let Some(hosted) = self.actors.get(&id) else { return };
        let Some(ttl) = hosted.spec.options.idle_ttl else { return };
        if hosted.life != InstancePhase::Ready {
            return;
        }
        let busy = !hosted.ids.is_empty();
        let due = if busy { now + ttl } else { hosted.last_used + ttl };
        if now >= due {
            self.end_instance(id, InstanceEndReason::Idle, effects);
        } else {
            self.timers.insert((due, Timer::Idle(id)));
        }
    }

    /// Lets all actors finish the calls they have, when draining begins.
    pub(super) fn actors_leave(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let mut ids: Vec<ActorId> = self.actors.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            let hosted = self.actors.get_mut(&id).expect("it was listed");
            match hosted.life {
                InstancePhase::Ready => {
                    hosted.life = InstancePhase::Leaving;
                    self.start_calls(now, id, effects);
                }
                InstancePhase::Constructing => hosted.life = InstancePhase::Leaving,
                InstancePhase::Leaving | InstancePhase::Ending(_) => {}
            }
        }
    }

    /// Ends all actors with the calls they have, when the grace of a drain is over.
    pub(super) fn actors_are_killed(&mut self, effects: &mut Vec<Effect>) {
        let mut ids: Vec<ActorId> = self.actors.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            self.end_instance(id, InstanceEndReason::WorkerDrained, effects);
        }
    }
}

/// Returns the answer to a call that ran when the executor of its actor died.
fn cut_short(call: &Call, actor: ActorId, life: InstancePhase, error: &Error) -> FromHost {
    let (attempt, items) = (call.attempt_id(), call.stream.yielded);
    if call.cancelled {
        return FromHost::CallEnded { attempt, outcome: Err(cancelled(&call.spec)), items };
    }
    let lost = |error: Error| FromHost::CallLost { attempt, error: error.ran(Ran::Maybe) };
    match life {
        InstancePhase::Ending(why @ (InstanceEndReason::Deleted | InstanceEndReason::Exited)) => {
            let verb =
                if why == InstanceEndReason::Deleted { "was deleted" } else { "ended itself" };
            let error = Error::gone(
                Referent::Actor(actor),
                format!("actor {actor} {verb} while this call ran"),
            );
            FromHost::CallEnded { attempt, outcome: Err(error.ran(Ran::Maybe)), items }
        }
        InstancePhase::Ending(InstanceEndReason::WorkerDrained | InstanceEndReason::Idle) => {
            lost(Error::unavailable(
                Ran::Maybe,
                format!("actor {actor} was moved while this call ran: its worker leaves"),
            ))
        }
        InstancePhase::Constructing | InstancePhase::Ready | InstancePhase::Leaving => {
            lost(error.clone())
        }
    }
}
