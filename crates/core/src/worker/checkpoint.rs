//! Checkpoints: when an actor's state is saved, and when it is safe to go on.
//!
//! Saving is a call of the actor's own method, made when nothing else runs in it. After as many calls as the
//! actor's options allow no other begins before the state was saved and the controller has it: so whatever is
//! killed, no more calls than that are forgotten. A caller that calls the method itself asks for a checkpoint,
//! and has its answer when the controller has it.

use super::actor::{HostedActor, InstancePhase};
use super::call::{Call, CallOrigin};
use super::event::UserCodeResult;
use super::{Effect, Timer, Worker};
use crate::error::Error;
use crate::id::{ActorId, Attempt, TaskId};
use crate::message::{FromWorker, Instance};
use crate::payload::Payload;
use crate::spec::{CheckpointPolicy, SAVE_METHOD, Target, TaskOptions, TaskSpec};
use crate::time::Time;
use std::collections::BTreeMap;
use std::sync::Arc;

/// How far an instance's state is saved.
#[derive(Debug)]
pub(super) struct CheckpointState {
    terms: CheckpointPolicy,
    /// Calls that the executor was given since the state was saved.
    unsaved: u32,
    /// The time for the next one has come.
    due: bool,
    /// A save of ours is with the executor.
    under_way: bool,
    /// What the controller does not have yet, by number, and which call is answered then.
    storing: BTreeMap<u64, (Call, UserCodeResult)>,
    next: u64,
    timer: Option<Time>,
}

impl CheckpointState {
    pub fn new(terms: CheckpointPolicy) -> CheckpointState {
        let storing = BTreeMap::new();
        CheckpointState {
            terms,
            unsaved: 0,
            due: false,
            under_way: false,
            storing,
            next: 0,
            timer: None,
        }
    }

    fn is_due(&self) -> bool {
        self.due || self.terms.every_calls.is_some_and(|calls| self.unsaved >= calls)
    }

    /// The executor is gone: the calls that would be answered when the controller has what they saved.
    pub fn give_up(&mut self) -> Vec<Call> {
        std::mem::take(&mut self.storing).into_values().map(|(call, _)| call).collect()
    }

    fn is_busy(&self) -> bool {
        self.under_way || !self.storing.is_empty()
    }
}

impl HostedActor {
    /// Whether its executor may be given another call.
    pub fn accepts_call(&self) -> bool {
        self.saving.as_ref().is_none_or(|saving| !saving.is_busy() && !saving.is_due())
    }

    /// Its executor was given a call.
    pub fn count_unsaved_call(&mut self) {
        if let Some(saving) = &mut self.saving {
            saving.unsaved += 1;
        }
    }

    /// Whether its state is saved, as far as it is going to be.
    pub fn is_saved(&self) -> bool {
        self.saving.as_ref().is_none_or(|saving| !saving.is_busy() && saving.unsaved == 0)
    }

    /// The call that saves its state, if it is time and nothing runs.
    pub fn save_now(&mut self, now: Time) -> Option<Call> {
        let leaves = self.life == InstancePhase::Leaving && self.mailbox.is_empty();
        let idle = self.running.is_empty();
        let id = self.spec.id;
        let saving = self.saving.as_mut().filter(|saving| idle && !saving.is_busy())?;
        let due = saving.is_due() || leaves && saving.unsaved > 0;
        if !due {
            return None;
        }
        (saving.under_way, saving.due) = (true, false);
        let spec = TaskSpec {
            // Ids are made to be different: no call has its actor's.
            id: TaskId::from_u128(id.as_u128()),
            target: Target::Method { actor: id, method: SAVE_METHOD.into() },
            args: Payload::default(),
            needs: Vec::new(),
            referents: Vec::new(),
            returns: 1,
            stream_window: None,
            options: Arc::new(TaskOptions::default()),
        };
        Some(Call::new(CallOrigin::Worker, Arc::new(spec), Attempt(1), Vec::new(), now))
    }
}

impl Worker {
    /// A call ended. If it saved the state, the controller gets it first; otherwise it is given back.
    pub(super) fn checkpointed_by(
        &mut self,
        id: ActorId,
        call: Call,
        end: UserCodeResult,
        effects: &mut Vec<Effect>,
    ) -> Option<(Call, UserCodeResult)> {
        let hosted = self.actors.get_mut(&id).expect("it ran a call");
        let instance = hosted.instance();
        let with_executor = hosted.running.len() + hosted.prefetched.len();
        let Some(saving) = &mut hosted.saving else { return Some((call, end)) };
        if &**call.spec.target.name() != SAVE_METHOD {
            return Some((call, end));
        }
        if call.origin == CallOrigin::Worker {
            saving.under_way = false;
        }
        saving.unsaved = u32::try_from(with_executor).expect("few calls are with an executor");
        let saved = match &end.outcome {
            Ok(values) => match &values[..] {
                [value] if value.referents.is_empty() => Ok(value.payload.clone()),
                [_] => Err(Error::invalid("a checkpoint cannot contain references or handles")),
                _ => Err(Error::invalid(format!("{SAVE_METHOD} is to return one value"))),
            },
            Err(_) => return Some((call, end)),
        };
        match saved {
            Ok(payload) => {
                let sequence = saving.next;
                saving.next += 1;
                saving.storing.insert(sequence, (call, end));
                let message = FromWorker::Checkpoint { instance, sequence, payload };
                effects.push(Effect::ToController(message));
                None
            }
            Err(error) => Some((call, UserCodeResult { outcome: Err(error), ..end })),
        }
    }

    /// The controller has a checkpoint.
    pub(super) fn checkpoint_stored(
        &mut self,
        now: Time,
        instance: Instance,
        sequence: u64,
        effects: &mut Vec<Effect>,
    ) {
        let hosted = self.actors.get_mut(&instance.actor);
        let saving = hosted
            .filter(|hosted| hosted.epoch == instance.epoch)
            .and_then(|hosted| hosted.saving.as_mut());
        let Some((call, end)) = saving.and_then(|saving| saving.storing.remove(&sequence)) else {
            self.counters.stale += 1;
            return;
        };
        self.settle_call(now, instance, call, end, effects);
        self.start_calls(now, instance.actor, effects);
    }

    /// An instance is ready: its state is saved every now and then, if it is to be.
    pub(super) fn save_in_time(&mut self, now: Time, id: ActorId) {
        let saving = self.actors.get_mut(&id).and_then(|hosted| hosted.saving.as_mut());
        if let Some(saving) = saving
            && let Some(interval) = saving.terms.interval
        {
            let due = now + interval;
            saving.timer = Some(due);
            self.timers.insert((due, Timer::Save(id)));
        }
    }

    /// The time between two checkpoints is over.
    pub(super) fn save_timer_fired(&mut self, now: Time, id: ActorId, effects: &mut Vec<Effect>) {
        let saving = self.actors.get_mut(&id).and_then(|hosted| hosted.saving.as_mut());
        let Some(saving) = saving.filter(|saving| saving.timer.is_some_and(|due| due <= now))
        else {
            return; // It was another life of this actor's.
        };
        saving.due = saving.unsaved > 0;
        self.save_in_time(now, id);
        self.start_calls(now, id, effects);
    }
}
