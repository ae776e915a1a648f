//! The list of objects, for status queries. It changes nothing.

use super::Controller;
use crate::error::Error;
use crate::hold::Holder;
use crate::id::{ObjectId, Referent, Session};
use crate::label::label_of;
use std::sync::Arc;

/// The place of an object's value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ObjectState {
    /// The object has no value yet.
    Pending,
    /// The value is with the controller, since it is small.
    Inline,
    /// The data is in the stores of these workers.
    Stored(Vec<Session>),
    /// The data was in stores, and no copy is left.
    Lost,
    /// The object has no value, for this reason.
    Failed(Error),
}

/// The status of an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ObjectStatus {
    /// The object.
    pub id: ObjectId,
    /// The size of its value, in bytes.
    pub bytes: u64,
    /// Where the value is.
    pub state: ObjectState,
    /// The holders of the object.
    pub holders: Vec<Holder>,
    /// The function or method whose result the object is. `None` if the object was put, or if its
    /// task is forgotten.
    pub made_by: Option<Arc<str>>,
}

impl Controller {
    /// Returns the `limit` largest objects, the largest first.
    pub fn list_objects(&self, limit: usize) -> Vec<ObjectStatus> {
        let mut ids: Vec<(u64, ObjectId)> =
            self.objects.iter().map(|(id, object)| (object.size(), *id)).collect();
        ids.sort_unstable_by_key(|(bytes, id)| (std::cmp::Reverse(*bytes), *id));
        ids.truncate(limit);
        ids.into_iter().map(|(bytes, id)| self.object_status(id, bytes)).collect()
    }

    fn object_status(&self, id: ObjectId, bytes: u64) -> ObjectStatus {
        let object = &self.objects[&id];
        let state = match object.resolution() {
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
