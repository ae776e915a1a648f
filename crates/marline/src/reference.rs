//! References to values: to results, and to values that were put.

use crate::client::Client;
use marline_runtime::core::id::{ObjectId, Referent};
use std::fmt;
use std::marker::PhantomData;

/// A reference to a value. As an argument of a task or call it stands for the value: the function
/// gets the value itself. The value lives as long as any reference to it exists, and as long as any
/// unfinished work has such a reference as an argument. `Bytes` that were read from the value stay
/// valid after that.
pub struct ObjectRef<T> {
    client: Client,
    id: ObjectId,
    value: PhantomData<fn() -> T>,
}

impl<T> ObjectRef<T> {
    /// Returns a reference to an object whose hold it takes over.
    pub(crate) fn new(client: Client, id: ObjectId) -> ObjectRef<T> {
        ObjectRef { client, id, value: PhantomData }
    }

    /// Returns the object's id.
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
