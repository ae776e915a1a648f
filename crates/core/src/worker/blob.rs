//! Large values: what the worker's store keeps for the cluster, and where it finds what it does not have.
//!
//! The data of a result is its executor's until the worker passes the result on; from then on the store
//! keeps it for the cluster, until the controller says that nobody holds it. What an executor made for an answer
//! that goes nowhere is therefore nobody's, and goes with its executor's pin.

use super::{Effect, Worker};
use crate::error::{Error, Ran};
use crate::id::{Attempt, ObjectId};
use crate::message::{AttemptId, FromHost, FromWorker};
use crate::payload::Value;

impl Worker {
    pub(super) fn tell_controller(&self, message: FromWorker, effects: &mut Vec<Effect>) {
        if self.session.is_some() {
            effects.push(Effect::ToController(message));
        }
    }

    /// Forgets an object's data, unless this worker has made it again for a repeated call and still waits for `Entrusted`:
    /// then this `Forget` means the earlier data.
    pub(super) fn forget(&self, object: ObjectId, effects: &mut Vec<Effect>) {
        let call = |attempt| AttemptId { task: object.origin, attempt };
        let mut entrusting =
            self.answers_awaiting_holds.range(call(Attempt(0))..=call(Attempt(u64::MAX)));
        let is_made_anew = entrusting.any(|(_, (_, answer))| match answer {
            FromHost::CallEnded { outcome: Ok(values), .. } => {
                values.iter().any(|value| value.payload.stored_object() == Some(object))
            }
            FromHost::CallEnded { outcome: Err(_), .. }
            | FromHost::CallRefused { .. }
            | FromHost::CallLost { .. } => false,
        });
        if !is_made_anew {
            effects.push(Effect::Forget { object });
        }
    }

    /// Somebody looks for data that is not here.
    pub(super) fn data_missing(&self, object: ObjectId, effects: &mut Vec<Effect>) {
        if self.session.is_some() {
            return effects.push(Effect::ToController(FromWorker::Locate { object }));
        }
        let words = format!(
            "value {object} cannot be looked for: this worker is not part of a cluster at the moment"
        );
        let copies = Err(Error::unavailable(Ran::No, words));
        effects.push(Effect::Located { object, copies });
    }
}

/// Results are passed on: the store keeps their data.
pub(super) fn retain_blobs<'v>(
    values: impl IntoIterator<Item = &'v Value>,
    effects: &mut Vec<Effect>,
) {
    if crate::planted!(DataNotKept) {
        return;
    }
    let objects = values.into_iter().filter_map(|value| value.payload.stored_object());
    effects.extend(objects.map(|object| Effect::Retain { object }));
}
