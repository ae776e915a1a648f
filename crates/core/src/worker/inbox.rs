//! Passes each message to the file that decides about it: messages of the controller, and those of
//! callers whose sessions are alive.

use super::call::{Call, CallOrigin};
use super::{AfterDrain, Effect, Worker};
use crate::id::Session;
use crate::message::{ToHost, ToWorker};
use crate::time::Time;

impl Worker {
    pub(super) fn handle_controller_message(
        &mut self,
        now: Time,
        message: ToWorker,
        effects: &mut Vec<Effect>,
    ) {
        match message {
            ToWorker::Assign { spec, attempt, values, shape, grant } => {
                self.assigned(now, spec, attempt, values, shape, grant, effects);
            }
            ToWorker::Execute { spec, attempt, epoch, values } => {
                self.relayed_call_arrived(now, spec, attempt, epoch, values, effects);
            }
            ToWorker::TakeBack(attempt) => self.taken_back(attempt, effects),
            ToWorker::CancelAttempt { attempt, mode } => self.cancel(now, attempt, mode, effects),
            ToWorker::Took { attempt, count } => self.task_items_consumed(attempt, count, effects),
            ToWorker::Instantiate { spec, epoch, values, grant, checkpoints } => {
                self.instantiate(now, spec, epoch, values, grant, checkpoints, effects);
            }
            ToWorker::Destroy(instance) => self.destroy(instance, effects),
            ToWorker::Kill(instance) => self.kill_instance(instance, effects),
            ToWorker::Checkpointed { instance, sequence } => {
                self.checkpoint_stored(now, instance, sequence, effects);
            }
            ToWorker::Watched { session, alive } => self.watched(now, session, alive, effects),
            ToWorker::SessionEnded { session } => self.caller_ended(now, session, effects),
            ToWorker::Entrusted { call } => {
                if let Some((to, message)) = self.answers_awaiting_holds.remove(&call) {
                    self.send_to_caller(to, message, effects);
                }
            }
            ToWorker::Keep { object } => effects.push(Effect::Retain { object }),
            ToWorker::Forget { object } => self.forget(object, effects),
            ToWorker::Located { object, copies } => {
                effects.push(Effect::Located { object, copies });
            }
            ToWorker::Bring { object, from } => effects.push(Effect::Pull { object, from }),
            ToWorker::Erase { object } => effects.push(Effect::Erase { object }),
            ToWorker::Leave => self.leave(effects),
            ToWorker::Drain { grace } => self.drain(now, grace, AfterDrain::Leave, effects),
            ToWorker::WindUp { grace } => self.drain(now, grace, AfterDrain::Rejoin, effects),
        }
    }

    pub(super) fn handle_caller_message(
        &mut self,
        now: Time,
        session: Session,
        message: ToHost,
        effects: &mut Vec<Effect>,
    ) {
        match message {
            ToHost::Call { spec, attempt, epoch, number, values, took } => {
                let mut call = Call::new(CallOrigin::Caller(session), spec, attempt, values, now);
                call.stream.consumed = took;
                self.direct_call_arrived(now, session, call, epoch, number, effects);
            }
            ToHost::CancelCall { call, mode } => {
                self.cancel_call(now, session, call, mode, effects)
            }
            ToHost::Took { call, count } => {
                self.call_items_consumed(CallOrigin::Caller(session), call, count, effects)
            }
        }
    }
}
