//! Large values: which blobs the worker's object store retains for the cluster, and where it finds
//! others.
//!
//! The blob of a result belongs to its executor until the worker reports the result. From then on
//! the object store retains the blob, until the controller says that no holds are left. A blob of a
//! result that is not reported belongs to no object. The store drops it when its executor does not
//! own it any more.

use super::{Effect, Worker};
use crate::error::{Error, Ran};
use crate::id::{Attempt, ObjectId};
use crate::message::{AttemptId, FromHost, FromWorker};
use crate::payload::Value;

impl Worker {
    pub(super) fn tell_controller(&self, message: FromWorker, effects: &mut Vec<Effect>) {
        if self.membership.is_open() {
            effects.push(Effect::ToController(message));
        }
    }

    /// Handles `Forget`: evicts the blob of an object. There is one exception: this worker has
    /// recomputed the value for a repeated call, and still waits for `Entrusted`. Then the `Forget`
    /// is about the earlier blob, and the new blob stays.
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

    /// Asks the controller which workers have a copy of a blob that this object store lacks.
    pub(super) fn data_missing(&self, object: ObjectId, effects: &mut Vec<Effect>) {
        if self.membership.is_open() {
            return effects.push(Effect::ToController(FromWorker::Locate { object }));
        }
        let words = format!(
            "value {object} cannot be located: this worker has no session with a controller now"
        );
        let copies = Err(Error::unavailable(Ran::No, words));
        effects.push(Effect::Located { object, copies });
    }
}

/// Retains the blobs of results that are about to be reported.
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
