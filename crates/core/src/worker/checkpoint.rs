//! Checkpoints: when an actor's state is saved, and when further calls may start.
//!
//! The worker saves the state by a call of the actor's own method, when no other call runs in it.
//! After as many calls as the actor's options allow, no other call starts before a save has ended
//! and, if it succeeded, the controller has the checkpoint. So a kill loses at most that many calls
//! beyond the last checkpoint. A save that fails starts the count anew: then a kill loses more. A
//! client may call the method itself: its answer leaves when the controller has the checkpoint.

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

/// The progress of an instance's checkpoints.
#[derive(Debug)]
pub(super) struct CheckpointState {
    terms: CheckpointPolicy,
    /// How many calls the executor got since the last save ended, even if that save failed.
    unsaved: u32,
    /// Whether the interval is over and calls have run since the last save.
    due: bool,
    /// Whether a save that the worker started is with the executor.
    under_way: bool,
    /// The checkpoints that the controller does not have yet, by sequence number. The caller of
    /// each save gets its answer when the controller has the checkpoint.
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

    /// Returns the calls whose answers waited for the controller, when the executor is gone.
    pub fn give_up(&mut self) -> Vec<Call> {
        std::mem::take(&mut self.storing).into_values().map(|(call, _)| call).collect()
    }

    fn is_busy(&self) -> bool {
        self.under_way || !self.storing.is_empty()
    }
}

impl HostedActor {
    /// Returns whether the executor may get another call.
    pub fn accepts_call(&self) -> bool {
        self.saving.as_ref().is_none_or(|saving| !saving.is_busy() && !saving.is_due())
    }

    /// Counts a call that the executor got.
    pub fn count_unsaved_call(&mut self) {
        if let Some(saving) = &mut self.saving {
            saving.unsaved += 1;
        }
    }

    /// Returns whether nothing is left to save. True for an actor without checkpoints.
    pub fn is_saved(&self) -> bool {
        self.saving.as_ref().is_none_or(|saving| !saving.is_busy() && saving.unsaved == 0)
    }

    /// Returns the call that saves the state, if a checkpoint is due and no call runs.
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
            // Ids are chosen to be unique, so no other call has its actor's id.
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
    /// Handles the end of a call. If the call saved the state, sends the checkpoint to the
    /// controller, and keeps the call: its caller gets the answer when the controller has the
    /// checkpoint. Returns any other call, and a save that failed.
    pub(super) fn checkpointed_by(
        &mut self,
        id: ActorId,
        call: Call,
        end: UserCodeResult,
        effects: &mut Vec<Effect>,
    ) -> Option<(Call, UserCodeResult)> {
        let hosted = self.actors.get_mut(&id).expect("an actor's call ended");
        let instance = hosted.instance();
        let with_executor = hosted.running.len() + hosted.prefetched.len();
        let Some(saving) = &mut hosted.saving else { return Some((call, end)) };
        if &**call.spec.target.name() != SAVE_METHOD {
            return Some((call, end));
        }
        if call.origin == CallOrigin::Worker {
            saving.under_way = false;
        }
        saving.unsaved = u32::try_from(with_executor).expect("an executor has few calls");
        let saved = match &end.outcome {
            Ok(values) => match &values[..] {
                [value] if value.referents.is_empty() => Ok(value.payload.clone()),
                [_] => Err(Error::invalid("a checkpoint cannot contain references or handles")),
                _ => Err(Error::invalid(format!("{SAVE_METHOD} must return one value"))),
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

    /// Answers the call that saved a checkpoint, now that the controller has it.
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

    /// Starts the timer of a ready instance's next checkpoint, if its options have an interval.
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

    /// Makes a checkpoint due when the interval is over.
    pub(super) fn save_timer_fired(&mut self, now: Time, id: ActorId, effects: &mut Vec<Effect>) {
        let saving = self.actors.get_mut(&id).and_then(|hosted| hosted.saving.as_mut());
        let Some(saving) = saving.filter(|saving| saving.timer.is_some_and(|due| due <= now))
        else {
            return; // The timer was of an earlier instance.
        };
        saving.due = saving.unsaved > 0;
        self.save_in_time(now, id);
        self.start_calls(now, id, effects);
    }
}
