//! Callers: sessions with a direct link to this worker. A caller's messages count only once the
//! controller has confirmed that its session is alive. When the session ends, everything of the
//! caller goes in one step.

use super::{Effect, Worker};
use crate::error::Error;
use crate::id::{Session, TaskId};
use crate::map::Map;
use crate::message::{AttemptId, CancelMode, FromHost, FromWorker, Instance, ToHost};
use crate::spec::Target;
use crate::time::Time;

#[derive(Debug)]
pub(super) enum Caller {
    /// The controller has not answered yet. The caller's calls wait.
    Unconfirmed(ParkedCalls),
    /// The session is alive.
    Alive,
}

/// The calls of a caller whose session is not confirmed yet, in the order in which they arrived.
///
/// Such a caller has no other call at this worker, so its other messages are about calls in this
/// list. Each is folded into its call. So a limit on the calls bounds the list, and no cancel and
/// no count of consumed items can exceed it.
#[derive(Debug, Default)]
pub(super) struct ParkedCalls {
    calls: Vec<ParkedCall>,
    /// How many of them wait. At most `max_parked_messages`.
    waiting: usize,
    /// The index of each call in `calls`; of its latest attempt, if there are several.
    places: Map<TaskId, usize>,
}

#[derive(Debug)]
enum ParkedCall {
    /// A call that waits, and how to stop it if its caller has cancelled it.
    Waits { call: ToHost, cancel: Option<CancelMode> },
    /// Calls of one instance that were rejected since the limit was reached. Their numbers are used
    /// up.
    Refused { instance: Instance, count: u64 },
}

impl ParkedCalls {
    fn add(&mut self, id: TaskId, call: ToHost) {
        self.waiting += 1;
        self.places.insert(id, self.calls.len());
        self.calls.push(ParkedCall::Waits { call, cancel: None });
    }

    fn add_refused(&mut self, refused: Instance) {
        match self.calls.last_mut() {
            Some(ParkedCall::Refused { instance, count }) if *instance == refused => *count += 1,
            Some(ParkedCall::Refused { .. } | ParkedCall::Waits { .. }) | None => {
                self.calls.push(ParkedCall::Refused { instance: refused, count: 1 });
            }
        }
    }

    /// Cancels a call. A call that does not wait was rejected, and its caller has that answer.
    fn cancel(&mut self, id: TaskId, mode: CancelMode) {
        let call = self.places.get(&id).map(|at| &mut self.calls[*at]);
        if let Some(ParkedCall::Waits { cancel, .. }) = call {
            // A forced cancel is final: a later request to stop gracefully changes nothing.
            *cancel =
                Some(if *cancel == Some(CancelMode::Force) { CancelMode::Force } else { mode });
        }
    }

    /// Notes how many items of an earlier attempt the caller has consumed.
    fn note_consumed(&mut self, id: TaskId, count: u32) {
        let call = self.places.get(&id).map(|at| &mut self.calls[*at]);
        if let Some(ParkedCall::Waits { call: ToHost::Call { took, .. }, .. }) = call {
            *took = count.max(*took);
        }
    }
}

impl Worker {
    pub(super) fn receive_from_caller(
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
            Some(Caller::Alive) => self.handle_caller_message(now, session, message, effects),
            Some(Caller::Unconfirmed(_)) => self.park(session, message, effects),
            None => {
                self.callers.insert(session, Caller::Unconfirmed(ParkedCalls::default()));
                self.park(session, message, effects);
                effects.push(Effect::ToController(FromWorker::Watch { session }));
            }
        }
    }

    /// Keeps a message until the controller has answered. Rejects a call above the limit.
    fn park(&mut self, session: Session, message: ToHost, effects: &mut Vec<Effect>) {
        let limit = self.config.max_parked_messages;
        let Some(Caller::Unconfirmed(parked)) = self.callers.get_mut(&session) else { return };
        let (spec, attempt, epoch) = match &message {
            ToHost::CancelCall { call, mode } => return parked.cancel(*call, *mode),
            ToHost::Took { call, count } => return parked.note_consumed(*call, *count),
            ToHost::Call { spec, attempt, epoch, .. } => (spec, *attempt, *epoch),
        };
        if parked.waiting < limit {
            return parked.add(spec.id, message);
        }
        if let Target::Method { actor, .. } = spec.target {
            parked.add_refused(Instance { actor, epoch });
        }
        let error = Error::exhausted(format!(
            "{limit} calls wait until the controller confirms their caller, which is the limit (max_parked_messages): retry later"
        ));
        let attempt = AttemptId { task: spec.id, attempt };
        let message = FromHost::CallEnded { attempt, outcome: Err(error), items: 0 };
        effects.push(Effect::ToCaller { to: session, message });
    }

    /// Handles the controller's answer whether a caller's session is alive.
    pub(super) fn watched(
        &mut self,
        now: Time,
        session: Session,
        alive: bool,
        effects: &mut Vec<Effect>,
    ) {
        let Some(Caller::Unconfirmed(parked)) = self.callers.get_mut(&session) else { return };
        let parked = std::mem::take(parked);
        if !alive {
            self.counters.fenced += parked.waiting as u64;
            self.callers.remove(&session);
            return effects.push(Effect::FenceCaller(session));
        }
        self.callers.insert(session, Caller::Alive);
        for parked in parked.calls {
            match parked {
                ParkedCall::Waits { call, cancel } => {
                    let id = call.call();
                    self.handle_caller_message(now, session, call, effects);
                    if let Some(mode) = cancel {
                        self.cancel_call(now, session, id, mode, effects);
                    }
                }
                ParkedCall::Refused { instance, count } => {
                    self.skip_numbers(session, instance, count);
                }
            }
        }
    }

    /// Drops everything of a caller whose session is over, in this one step.
    pub(super) fn caller_ended(&mut self, now: Time, session: Session, effects: &mut Vec<Effect>) {
        if self.callers.remove(&session).is_some() {
            effects.push(Effect::FenceCaller(session));
        }
        self.answers_awaiting_holds.retain(|_, (to, _)| *to != session);
        self.drop_calls_of(now, session, effects);
    }

    /// Sends a message to a caller, if its session is alive.
    pub(super) fn send_to_caller(
        &mut self,
        to: Session,
        message: FromHost,
        effects: &mut Vec<Effect>,
    ) {
        if matches!(self.callers.get(&to), Some(Caller::Alive)) {
            effects.push(Effect::ToCaller { to, message });
        }
    }
}
