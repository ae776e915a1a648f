//! An object, as the controller knows it. There may be very many of which nothing happens any more: what only few
//! have stands apart, and a value whose data is in stores takes no more than there is to say of it.

use crate::error::Error;
use crate::id::{ObjectId, Referent, Session, SessionId};
use crate::payload::{BlobRef, Encoding, Payload, Value};
use crate::schedule::Work;
use std::collections::BTreeSet;

/// An object somebody asked for, or that has a value.
#[derive(Debug, Default)]
pub(super) struct ObjectRecord {
    /// Its value, or why it has none; nothing as long as its task has not ended, or it was not said.
    outcome: Option<ObjectOutcome>,
    /// How many results its task gave, this one included; 0 for a value that was put.
    pub returns: u32,
    /// It is counted among what its task is remembered for.
    pub in_lineage: bool,
    /// Workers whose stores have its data, if that is in stores.
    pub copies: Copies,
    /// Who waits for it, or looks for it.
    pending: Option<Box<ObjectWaiters>>,
}

#[derive(Debug)]
enum ObjectOutcome {
    /// Its data is in stores, by the object's own name, and names nothing.
    Stored {
        encoding: Encoding,
        durable: bool,
        code_version: u32,
        bytes: u64,
    },
    Value(Box<Value>),
    Failed(Error),
}

/// What only an object has that is waited for, or was lost.
#[derive(Debug, Default, PartialEq)]
pub(super) struct ObjectWaiters {
    /// Whoever is to say its value, and has not.
    pub announced_by: Option<Session>,
    /// Work that needs the value.
    pub waiting_work: BTreeSet<Work>,
    /// Sessions that want to be told.
    pub fetch_waiters: Vec<Session>,
    /// Whoever looks for its data, which is made anew.
    pub locate_waiters: Vec<Session>,
    /// Why the last copy that was lost was.
    pub last_copy_error: Option<Error>,
}

/// What an object takes beyond its payload, roughly.
const OBJECT_OVERHEAD: usize = 200;

impl ObjectRecord {
    /// Its value, or why it has none, if that is known; `id` is its name.
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

    /// From now on it has a value, or never will.
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

    /// The version of the language that code in its value was made with; 0 if there is none.
    pub fn code_version(&self) -> u32 {
        match &self.outcome {
            Some(ObjectOutcome::Stored { code_version, .. }) => *code_version,
            Some(ObjectOutcome::Value(value)) => value.payload.code_version,
            Some(ObjectOutcome::Failed(_)) | None => 0,
        }
    }

    /// Whether it has a value, or never will.
    pub fn ended(&self) -> Option<Result<(), &Error>> {
        self.outcome.as_ref().map(|outcome| match outcome {
            ObjectOutcome::Stored { .. } | ObjectOutcome::Value(_) => Ok(()),
            ObjectOutcome::Failed(error) => Err(error),
        })
    }

    /// How many bytes its value has, wherever they are.
    pub fn size(&self) -> u64 {
        match &self.outcome {
            Some(ObjectOutcome::Stored { bytes, .. }) => *bytes,
            Some(ObjectOutcome::Value(value)) => value.payload.size(),
            Some(ObjectOutcome::Failed(_)) | None => 0,
        }
    }

    /// How many of them are here.
    pub fn inline_bytes(&self) -> usize {
        match &self.outcome {
            Some(ObjectOutcome::Value(value)) => value.payload.len(),
            Some(ObjectOutcome::Stored { .. } | ObjectOutcome::Failed(_)) | None => 0,
        }
    }

    /// What it takes here.
    pub fn bytes(&self) -> usize {
        match &self.outcome {
            None => 0,
            Some(ObjectOutcome::Stored { .. } | ObjectOutcome::Value(_)) => {
                self.inline_bytes() + OBJECT_OVERHEAD
            }
            Some(ObjectOutcome::Failed(error)) => error.bytes() + OBJECT_OVERHEAD,
        }
    }

    /// What its value refers to.
    pub fn contains(&self) -> &[Referent] {
        match &self.outcome {
            Some(ObjectOutcome::Value(value)) => &value.referents,
            Some(ObjectOutcome::Stored { .. } | ObjectOutcome::Failed(_)) | None => &[],
        }
    }

    /// Whether its value's data is in stores.
    pub fn is_stored(&self) -> bool {
        match &self.outcome {
            Some(ObjectOutcome::Stored { .. }) => true,
            Some(ObjectOutcome::Value(value)) => value.payload.stored.is_some(),
            Some(ObjectOutcome::Failed(_)) | None => false,
        }
    }

    /// Whether its value's data was in stores, and no copy is left.
    pub fn is_lost(&self) -> bool {
        self.is_stored() && self.copies.all().is_empty()
    }

    /// A worker that had a copy of its data has not any more.
    pub fn copy_gone(&mut self, worker: SessionId, why: &Error) {
        self.copies.remove(worker);
        self.add_pending().last_copy_error = Some(why.clone());
    }

    /// Whether its value's data was saved, too.
    pub fn is_durable(&self) -> bool {
        match &self.outcome {
            Some(ObjectOutcome::Stored { durable, .. }) => *durable,
            Some(ObjectOutcome::Value(value)) => value.payload.is_durable(),
            Some(ObjectOutcome::Failed(_)) | None => false,
        }
    }

    /// Who waits for it, if anybody does.
    pub fn pending(&self) -> Option<&ObjectWaiters> {
        self.pending.as_deref()
    }

    /// Whether anybody waits for its data, or looks for it.
    pub fn is_looked_for(&self) -> bool {
        self.pending()
            .is_some_and(|it| !it.waiting_work.is_empty() || !it.locate_waiters.is_empty())
    }

    /// Who waits for it, to be added to.
    pub fn add_pending(&mut self) -> &mut ObjectWaiters {
        self.pending.get_or_insert_default()
    }

    /// Takes something from those who wait; it has no room of its own when nothing is left.
    pub fn take<T: Default>(&mut self, what: impl FnOnce(&mut ObjectWaiters) -> T) -> T {
        let Some(pending) = &mut self.pending else { return T::default() };
        let taken = what(pending);
        self.pending.take_if(|pending| **pending == ObjectWaiters::default());
        taken
    }
}

/// Where the data of an object is: mostly in one place.
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
    fn a_value_is_what_it_was_however_it_is_kept() {
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
    fn what_of_an_object_does_not_change_is_small() {
        assert!(
            size_of::<(ObjectId, ObjectRecord)>() <= 80,
            "{}",
            size_of::<(ObjectId, ObjectRecord)>()
        );
    }

    #[test]
    fn copies_come_and_go() {
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
