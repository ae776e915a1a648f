//! Values of user code as bytes. Only user code looks into them.

use crate::error::Error;
use crate::id::{ObjectId, Referent};
use bytes::Bytes;

/// How the bytes of a payload are decoded.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Encoding {
    /// MessagePack, with structs as maps of named fields: readable from every language.
    #[default]
    MessagePack,
    /// Python's pickle, protocol 5.
    Pickle5,
    /// Plain bytes.
    Raw,
}

/// Encoded data.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Payload {
    /// How to decode the data.
    pub encoding: Encoding,
    /// The minor version of the language that pickled code in the data, for example 12 for Python
    /// 3.12. It is 0 if the data holds no code.
    pub code_version: u32,
    /// The data.
    pub inline: Bytes,
    /// Buffers that are kept apart from the data (pickle protocol 5).
    pub buffers: Vec<Bytes>,
    /// Where data and buffers are instead, if they are too large to travel in a message.
    pub stored: Option<Box<BlobRef>>,
}

/// A large value in the object stores of nodes. It is read there by the id of the object that it is
/// the value of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlobRef {
    /// The object.
    pub object: ObjectId,
    /// The number of bytes.
    pub bytes: u64,
    /// Whether the bytes are also saved where they outlive every node.
    pub durable: bool,
}

/// The most bytes of data that travel inside a message. Larger data goes into the node's object
/// store.
pub const MAX_INLINE_BYTES: usize = 100 << 10;

impl Payload {
    /// Builds a payload of MessagePack data.
    pub fn message_pack(bytes: impl Into<Bytes>) -> Payload {
        Payload { inline: bytes.into(), ..Payload::default() }
    }

    /// Builds a payload of plain bytes.
    pub fn raw(bytes: impl Into<Bytes>) -> Payload {
        Payload { encoding: Encoding::Raw, inline: bytes.into(), ..Payload::default() }
    }

    /// Replaces the data by a reference to the blob of `object`, which has the same bytes.
    pub fn stored_as(self, object: ObjectId) -> Payload {
        let stored = Some(Box::new(BlobRef { object, bytes: self.len() as u64, durable: false }));
        let (encoding, code_version) = (self.encoding, self.code_version);
        Payload { encoding, code_version, stored, ..Payload::default() }
    }

    /// Returns the object whose blob is the data, if the data is in object stores.
    pub fn stored_object(&self) -> Option<ObjectId> {
        self.stored.as_ref().map(|stored| stored.object)
    }

    /// Returns whether the data is saved where it outlives every node.
    pub fn is_durable(&self) -> bool {
        self.stored.as_ref().is_some_and(|stored| stored.durable)
    }

    /// Returns the number of bytes of the data, inside the message or in object stores.
    pub fn size(&self) -> u64 {
        self.stored.as_ref().map_or(self.len() as u64, |stored| stored.bytes)
    }

    /// Returns the bytes inside the message: the data, then each buffer.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        std::iter::once(&self.inline).chain(&self.buffers).map(|part| &part[..])
    }

    /// Returns how many bytes the payload carries inside the message.
    pub fn len(&self) -> usize {
        self.inline.len() + self.buffers.iter().map(Bytes::len).sum::<usize>()
    }

    /// Returns whether the payload carries no bytes inside the message.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A payload, and the referents of the references inside it. A holder of the value holds them too.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Value {
    /// The data.
    pub payload: Payload,
    /// The objects and actors that references inside the data name.
    pub referents: Vec<Referent>,
}

impl Value {
    /// Returns every referent that must exist for the value to be readable: the referents of its
    /// references, and its own blob if its data is in object stores.
    pub fn referents_to_hold(&self) -> impl Iterator<Item = Referent> {
        self.referents.iter().copied().chain(self.payload.stored_object().map(Referent::Object))
    }
}

impl From<Payload> for Value {
    fn from(payload: Payload) -> Value {
        Value { payload, referents: Vec::new() }
    }
}

/// How a task or a call ended: its results, or the error.
pub type Outcome = Result<Vec<Value>, Error>;
