//! What is known of objects, for whoever asks.

use super::Controller;
use crate::error::Error;
use crate::hold::Holder;
use crate::id::{ObjectId, Referent, Session};
use crate::label::label_of;
use std::sync::Arc;

/// Where an object's value is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ObjectState {
    /// It has none yet.
    Pending,
    /// With the controller: it is small.
    Inline,
    /// In the stores of these workers.
    Stored(Vec<Session>),
    /// Its data was in stores, and no copy is left.
    Lost,
    /// It has none, for this reason.
    Failed(Error),
}

/// What is known of an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ObjectStatus {
    /// The object.
    pub id: ObjectId,
    /// How many bytes its value has.
    pub bytes: u64,
    /// Where that is.
    pub state: ObjectState,
    /// Who holds it.
    pub holders: Vec<Holder>,
    /// The function or method whose result it is; nothing if it was put, or that is not known any more.
    pub made_by: Option<Arc<str>>,
}

impl Controller {
    /// The largest objects, the largest first.
    pub fn list_objects(&self, limit: usize) -> Vec<ObjectStatus> {
        let mut ids: Vec<(u64, ObjectId)> =
            self.objects.iter().map(|(id, object)| (object.size(), *id)).collect();
        ids.sort_unstable_by_key(|(bytes, id)| (std::cmp::Reverse(*bytes), *id));
        ids.truncate(limit);
        ids.into_iter().map(|(bytes, id)| self.object_status(id, bytes)).collect()
    }

    fn object_status(&self, id: ObjectId, bytes: u64) -> ObjectStatus {
        let object = &self.objects[&id];
        let state = match object.ended() {
            None => ObjectState::Pending,
            Some(Err(error)) => ObjectState::Failed(error.clone()),
            Some(Ok(())) if object.is_lost() => ObjectState::Lost,
            Some(Ok(())) if object.is_stored() => {
                let workers = object.copies.all().iter().map(|at| self.workers[at].session);
                ObjectState::Stored(workers.collect())
            }
            Some(Ok(())) => ObjectState::Inline,
        };
        let running = self.tasks.get(&id.origin).map(|task| task.spec.target.name());
        let ended = || self.history.get(id.origin).map(|status| &status.name);
        let made_by = running.or_else(ended).map(|name| label_of(name).into());
        ObjectStatus {
            id,
            bytes,
            state,
            holders: self.holds.holders(Referent::Object(id)),
            made_by,
        }
    }
}
