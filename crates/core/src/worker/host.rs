//! Callers: sessions that speak to this worker directly. None of them is believed before the
//! controller said that its session lives, and all that one had here goes when it ends.

use super::call::{Call, From};
use super::{Effect, Worker};
use crate::error::Error;
use crate::id::Session;
use crate::message::{FromHost, FromWorker, Instance, ToHost, Try};
use crate::spec::Target;
use crate::time::Time;

#[derive(Debug)]
pub(super) enum Caller {
    /// The controller was asked; what it said meanwhile waits.
    Asked { parked: Vec<Parked> },
    /// It lives.
    Alive,
}

/// What a caller said before it was known to live.
#[derive(Debug)]
pub(super) enum Parked {
    Message(ToHost),
    /// A call that was too many; its number is used up.
    Skipped(Instance),
}

impl Worker {
    pub(super) fn caller_said(
        &mut self,
        now: Time,
        session: Session,
        message: ToHost,
        effects: &mut Vec<Effect>,
    ) {
        if crate::planted!(UnwatchedCaller) {
            self.callers.entry(session).or_insert(Caller::Alive);
        }
        match self.callers.get_mut(&session) {
            Some(Caller::Alive) => self.hear(now, session, message, effects),
            Some(Caller::Asked { parked }) if parked.len() < self.config.max_parked_messages => {
                parked.push(Parked::Message(message));
            }
            Some(Caller::Asked { .. }) => self.too_many_parked(session, message, effects),
            None => {
                self.callers
                    .insert(session, Caller::Asked { parked: vec![Parked::Message(message)] });
                effects.push(Effect::ToController(FromWorker::Watch { session }));
            }
        }
    }

    /// More calls came than are kept before their caller is known to live.
    fn too_many_parked(&mut self, session: Session, message: ToHost, effects: &mut Vec<Effect>) {
        let ToHost::Call { spec, attempt, epoch, .. } = message else { return };
        let Target::Method { actor, .. } = spec.target else { return };
        if let Some(Caller::Asked { parked }) = self.callers.get_mut(&session) {
            parked.push(Parked::Skipped(Instance { actor, epoch }));
        }
        let limit = self.config.max_parked_messages;
        let error = Error::exhausted(format!(
            "{limit} calls wait for the controller's word on their caller (max_parked_messages): call again later"
        ));
        let attempt = Try { task: spec.id, attempt };
        let message = FromHost::CallEnded { attempt, outcome: Err(error), items: 0 };
        effects.push(Effect::ToCaller { to: session, message });
    }

    fn hear(&mut self, now: Time, session: Session, message: ToHost, effects: &mut Vec<Effect>) {
        match message {
            ToHost::Call { spec, attempt, epoch, number, values, took } => {
                let mut call = Call::new(From::Caller(session), spec, attempt, values, now);
                call.stream.took = took;
                self.called(now, session, call, epoch, number, effects);
            }
            ToHost::CancelCall { call, how } => self.cancel_call(now, session, call, how, effects),
            ToHost::Took { call, count } => {
                self.call_took(From::Caller(session), call, count, effects)
            }
        }
    }

    /// The controller's word on a caller.
    pub(super) fn watched(
        &mut self,
        now: Time,
        session: Session,
        alive: bool,
        effects: &mut Vec<Effect>,
    ) {
        let Some(Caller::Asked { parked }) = self.callers.get_mut(&session) else { return };
        let parked = std::mem::take(parked);
        if alive {
            self.callers.insert(session, Caller::Alive);
            for parked in parked {
                match parked {
                    Parked::Message(message) => self.hear(now, session, message, effects),
                    Parked::Skipped(instance) => self.skip_number(session, instance),
                }
            }
        } else {
            self.counters.fenced += parked.len() as u64;
            self.callers.remove(&session);
            effects.push(Effect::FenceCaller(session));
        }
    }

    /// A caller's session is over: its calls go, in this one step.
    pub(super) fn caller_ended(&mut self, now: Time, session: Session, effects: &mut Vec<Effect>) {
        if self.callers.remove(&session).is_some() {
            effects.push(Effect::FenceCaller(session));
        }
        self.entrusting.retain(|_, (to, _)| *to != session);
        self.drop_calls_of(now, session, effects);
    }

    /// Says something to a caller, if it is still there.
    pub(super) fn answer(&mut self, to: Session, message: FromHost, effects: &mut Vec<Effect>) {
        if matches!(self.callers.get(&to), Some(Caller::Alive)) {
            effects.push(Effect::ToCaller { to, message });
        }
    }
}
