//! References to values: of results, and of what was put.

use crate::client::Client;
use marline_runtime::core::id::{ObjectId, Referent};
use std::fmt;
use std::marker::PhantomData;

/// A reference to a value: an argument for tasks and calls, which get the value itself. The value lives as long as one
/// of them, or work that was given one; what was read of it lives on.
pub struct ObjectRef<T> {
    client: Client,
    id: ObjectId,
    value: PhantomData<fn() -> T>,
}

impl<T> ObjectRef<T> {
    /// A reference to what is held for it already.
    pub(crate) fn new(client: Client, id: ObjectId) -> ObjectRef<T> {
        ObjectRef { client, id, value: PhantomData }
    }

    /// The object's id.
    pub fn id(&self) -> ObjectId {
        self.id
    }
}

impl<T> fmt::Debug for ObjectRef<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ObjectRef({})", self.id)
    }
}

impl<T> Clone for ObjectRef<T> {
    fn clone(&self) -> Self {
        self.client.inner.hold(Referent::Object(self.id));
        ObjectRef::new(self.client.clone(), self.id)
    }
}

impl<T> Drop for ObjectRef<T> {
    fn drop(&mut self) {
        self.client.inner.release(Referent::Object(self.id));
    }
}
