//! The record that the controller keeps of one object.
//!
//! The controller may keep millions of records of objects that no event concerns any more. So a
//! record is small: fields that few objects need are in a box of their own, and a value whose data
//! is in object stores takes only its description.

use crate::error::Error;
use crate::id::{ObjectId, Referent, Session, SessionId};
use crate::payload::{BlobRef, Encoding, Payload, Value};
use crate::schedule::Work;
use std::collections::BTreeSet;

/// An object that has a value, or that work or a session waits for.
#[derive(Debug, Default)]
pub(super) struct ObjectRecord {
    /// The value, or why there is none. `None` while the object is not resolved.
    outcome: Option<ObjectOutcome>,
    /// How many results its task returned, this one included. 0 for a value that was put.
    pub returns: u32,
    /// Whether the object keeps its task in the lineage: it is one of the task's users there.
    pub in_lineage: bool,
    /// The workers whose stores have the data, if the data is in stores.
    pub copies: Copies,
    /// The boxed fields, while the object needs any of them.
    boxed: Option<Box<BoxedFields>>,
}

#[derive(Debug)]
enum ObjectOutcome {
    /// The data is in stores, under the object's own id, and refers to no object or actor.
    Stored {
        encoding: Encoding,
        durable: bool,
        code_version: u32,
        bytes: u64,
    },
    Value(Box<Value>),
    Failed(Error),
}

/// The part of a record that exists only while the object is waited for, is announced, or has lost
/// a copy.
#[derive(Debug, Default, PartialEq)]
pub(super) struct BoxedFields {
    /// The session that announced the object, until it sends the value.
    pub announced_by: Option<Session>,
    /// Work that needs the value.
    pub waiting_work: BTreeSet<Work>,
    /// Sessions that fetch the value.
    pub fetch_waiters: Vec<Session>,
    /// Sessions that look for lost data, while it is pulled or recomputed.
    pub locate_waiters: Vec<Session>,
    /// Why the latest copy was lost, or why no worker could read the saved data.
    pub last_copy_error: Option<Error>,
}

/// Roughly how many bytes an object takes beyond its payload.
const OBJECT_OVERHEAD: usize = 200;

impl ObjectRecord {
    /// Returns the value, or why there is none. Returns `None` while the object is not resolved.
    /// `id` is the object's own id.
    pub fn value(&self, id: ObjectId) -> Option<Result<Value, Error>> {
        match self.outcome.as_ref()? {
            ObjectOutcome::Stored { encoding, durable, code_version, bytes } => {
                let stored =
                    Some(Box::new(BlobRef { object: id, bytes: *bytes, durable: *durable }));
                let (encoding, code_version) = (*encoding, *code_version);
                Some(Ok(Payload { encoding, code_version, stored, ..Payload::default() }.into()))
            }
            ObjectOutcome::Value(value) => Some(Ok((**value).clone())),
            ObjectOutcome::Failed(error) => Some(Err(error.clone())),
        }
    }

    /// Resolves the object to a value, or to the error why it has none.
    pub fn set(&mut self, id: ObjectId, value: Result<Value, Error>) {
        self.outcome = Some(match value {
            Err(error) => ObjectOutcome::Failed(error),
            Ok(value) => match &value.payload {
                Payload { encoding, code_version, inline, buffers, stored: Some(stored) }
                    if stored.object == id
                        && value.referents.is_empty()
                        && inline.is_empty()
                        && buffers.is_empty() =>
                {
                    let BlobRef { bytes, durable, .. } = **stored;
                    let (encoding, code_version) = (*encoding, *code_version);
                    ObjectOutcome::Stored { encoding, durable, code_version, bytes }
                }
                _ => ObjectOutcome::Value(Box::new(value)),
            },
        });
    }

    /// Returns the version of the language that made the code in the value, or 0 if the value
    /// contains no code.
    pub fn code_version(&self) -> u32 {
        match &self.outcome {
            Some(ObjectOutcome::Stored { code_version, .. }) => *code_version,
            Some(ObjectOutcome::Value(value)) => value.payload.code_version,
            Some(ObjectOutcome::Failed(_)) | None => 0,
        }
    }

    /// Returns `None` while the object is not resolved, `Some(Err(_))` if it was resolved to an
    /// error, and `Some(Ok(()))` if it was resolved to a value.
    pub fn resolution(&self) -> Option<Result<(), &Error>> {
        self.outcome.as_ref().map(|outcome| match outcome {
            ObjectOutcome::Stored { .. } | ObjectOutcome::Value(_) => Ok(()),
            ObjectOutcome::Failed(error) => Err(error),
        })
    }

    /// Returns the size of the value in bytes, whether inline or in stores.
    pub fn size(&self) -> u64 {
        match &self.outcome {
            Some(ObjectOutcome::Stored { bytes, .. }) => *bytes,
            Some(ObjectOutcome::Value(value)) => value.payload.size(),
            Some(ObjectOutcome::Failed(_)) | None => 0,
        }
    }

    /// Returns how many bytes of the value are inline, with the controller.
    pub fn inline_bytes(&self) -> usize {
        match &self.outcome {
            Some(ObjectOutcome::Value(value)) => value.payload.len(),
            Some(ObjectOutcome::Stored { .. } | ObjectOutcome::Failed(_)) | None => 0,
        }
    }

    /// Returns how many bytes the object takes in the controller.
    pub fn bytes(&self) -> usize {
        match &self.outcome {
            None => 0,
            Some(ObjectOutcome::Stored { .. } | ObjectOutcome::Value(_)) => {
                self.inline_bytes() + OBJECT_OVERHEAD
            }
            Some(ObjectOutcome::Failed(error)) => error.bytes() + OBJECT_OVERHEAD,
        }
    }

    /// Returns the objects and actors that the value refers to.
    pub fn contains(&self) -> &[Referent] {
        match &self.outcome {
            Some(ObjectOutcome::Value(value)) => &value.referents,
            Some(ObjectOutcome::Stored { .. } | ObjectOutcome::Failed(_)) | None => &[],
        }
    }

    /// Returns whether the data of the value is in stores (or was, and is lost).
    pub fn is_stored(&self) -> bool {
        match &self.outcome {
            Some(ObjectOutcome::Stored { .. }) => true,
            Some(ObjectOutcome::Value(value)) => value.payload.stored.is_some(),
            Some(ObjectOutcome::Failed(_)) | None => false,
        }
    }

    /// Returns whether the data of the value was in stores, and no copy is left.
    pub fn is_lost(&self) -> bool {
        self.is_stored() && self.copies.all().is_empty()
    }

    /// Removes the copy of a worker that has the data no more, and notes why.
    pub fn copy_gone(&mut self, worker: SessionId, why: &Error) {
        self.copies.remove(worker);
        self.boxed_mut().last_copy_error = Some(why.clone());
    }

    /// Returns whether the data of the value was also saved to a durable place.
    pub fn is_durable(&self) -> bool {
        match &self.outcome {
            Some(ObjectOutcome::Stored { durable, .. }) => *durable,
            Some(ObjectOutcome::Value(value)) => value.payload.is_durable(),
            Some(ObjectOutcome::Failed(_)) | None => false,
        }
    }

    /// Returns the boxed fields, if the object has them: its waiters, the session that announced
    /// it, and the error of its last copy.
    pub fn boxed(&self) -> Option<&BoxedFields> {
        self.boxed.as_deref()
    }

    /// Returns whether work waits for the object, or a session looks for its data.
    pub fn is_looked_for(&self) -> bool {
        self.boxed().is_some_and(|it| !it.waiting_work.is_empty() || !it.locate_waiters.is_empty())
    }

    /// Returns the boxed fields, to set them. Makes the box if there is none.
    pub fn boxed_mut(&mut self) -> &mut BoxedFields {
        self.boxed.get_or_insert_default()
    }

    /// Takes a value out of the boxed fields, and frees the box if nothing is left in it.
    pub fn take<T: Default>(&mut self, take: impl FnOnce(&mut BoxedFields) -> T) -> T {
        let Some(boxed) = &mut self.boxed else { return T::default() };
        let taken = take(boxed);
        self.boxed.take_if(|boxed| **boxed == BoxedFields::default());
        taken
    }
}

/// The workers that have the data of an object: mostly one.
#[derive(Debug, Default)]
pub(super) enum Copies {
    #[default]
    None,
    One(SessionId),
    Many(Vec<SessionId>),
}

impl Copies {
    pub fn all(&self) -> &[SessionId] {
        match self {
            Copies::None => &[],
            Copies::One(at) => std::slice::from_ref(at),
            Copies::Many(many) => many,
        }
    }

    pub fn push(&mut self, at: SessionId) {
        match self {
            Copies::None => *self = Copies::One(at),
            Copies::One(first) => *self = Copies::Many(vec![*first, at]),
            Copies::Many(many) => many.push(at),
        }
    }

    pub fn remove(&mut self, gone: SessionId) {
        let left: Vec<SessionId> = self.all().iter().copied().filter(|at| *at != gone).collect();
        *self = match left[..] {
            [] => Copies::None,
            [one] => Copies::One(one),
            [..] => Copies::Many(left),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::TaskId;

    #[test]
    fn every_kind_of_value_comes_back_unchanged_from_its_record() {
        let id = ObjectId::of(TaskId::from_u128(1), 2);
        let raw = Payload::raw(vec![1; 100]);
        let durable = Some(Box::new(BlobRef { object: id, bytes: 7, durable: true }));
        let stored = raw.clone().stored_as(id);
        let names = Value { payload: stored.clone(), referents: vec![Referent::Object(id)] };
        let values = [
            Value::from(raw.clone()),
            stored.into(),
            names,
            Payload { code_version: 12, stored: durable, ..Payload::default() }.into(),
            raw.stored_as(ObjectId::of(id.origin, 9)).into(),
        ];
        for value in values {
            let mut object = ObjectRecord::default();
            object.set(id, Ok(value.clone()));
            assert_eq!(object.value(id), Some(Ok(value.clone())));
            assert_eq!(object.size(), value.payload.size());
            assert_eq!(object.inline_bytes(), value.payload.len());
            assert_eq!(object.is_durable(), value.payload.is_durable());
            assert_eq!(object.is_stored(), value.payload.stored.is_some());
            assert_eq!(object.contains(), value.referents);
        }
    }

    #[test]
    fn a_record_without_its_boxed_fields_is_small() {
        assert!(
            size_of::<(ObjectId, ObjectRecord)>() <= 80,
            "{}",
            size_of::<(ObjectId, ObjectRecord)>()
        );
    }

    #[test]
    fn copies_can_be_added_and_removed() {
        let [one, two] = [1, 2].map(SessionId::from_u128);
        let mut copies = Copies::default();
        copies.push(one);
        assert_eq!(copies.all(), [one]);
        copies.push(two);
        assert_eq!(copies.all(), [one, two]);
        copies.remove(one);
        assert_eq!(copies.all(), [two]);
        copies.remove(two);
        assert!(copies.all().is_empty());
    }
}
