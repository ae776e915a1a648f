//! What user code hands over, as bytes that nobody but user code looks into.

use crate::error::Error;
use crate::id::{ObjectId, Referent};
use bytes::Bytes;

/// How a payload's bytes are to be read.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Encoding {
    /// MessagePack, structs as maps with names: readable from every language.
    #[default]
    MessagePack,
    /// Python's pickle, protocol 5.
    Pickle5,
    /// Bytes as they are.
    Raw,
}

/// Encoded data.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Payload {
    /// How to read it.
    pub encoding: Encoding,
    /// The minor version of the language that code inside it was made with; 0 for plain data.
    pub code_version: u32,
    /// The data.
    pub inline: Bytes,
    /// Buffers that stand outside the data (pickle protocol 5).
    pub buffers: Vec<Bytes>,
    /// Where data and buffers are instead, if they are too large to go along.
    pub stored: Option<Box<BlobRef>>,
}

/// Data that is in nodes' stores and is read there, by the name of the object whose value it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlobRef {
    /// The object.
    pub object: ObjectId,
    /// How many bytes there are.
    pub bytes: u64,
    /// Whether they were saved, too, where they outlive every node.
    pub durable: bool,
}

/// Data of more bytes than this does not go along with messages: it is put into the node's store.
pub const MAX_INLINE_BYTES: usize = 100 << 10;

impl Payload {
    /// Plain MessagePack data.
    pub fn message_pack(bytes: impl Into<Bytes>) -> Payload {
        Payload { inline: bytes.into(), ..Payload::default() }
    }

    /// Bytes as they are.
    pub fn raw(bytes: impl Into<Bytes>) -> Payload {
        Payload { encoding: Encoding::Raw, inline: bytes.into(), ..Payload::default() }
    }

    /// Its data is in a store, under this name.
    pub fn stored_as(self, object: ObjectId) -> Payload {
        let stored = Some(Box::new(BlobRef { object, bytes: self.len() as u64, durable: false }));
        let (encoding, code_version) = (self.encoding, self.code_version);
        Payload { encoding, code_version, stored, ..Payload::default() }
    }

    /// The object under whose name the data is in stores, if it is.
    pub fn stored_object(&self) -> Option<ObjectId> {
        self.stored.as_ref().map(|stored| stored.object)
    }

    /// Whether its data was saved where it outlives every node.
    pub fn is_durable(&self) -> bool {
        self.stored.as_ref().is_some_and(|stored| stored.durable)
    }

    /// How many bytes of data there are, wherever they are.
    pub fn size(&self) -> u64 {
        self.stored.as_ref().map_or(self.len() as u64, |stored| stored.bytes)
    }

    /// What it carries: its data, and the buffers outside of it.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        std::iter::once(&self.inline).chain(&self.buffers).map(|part| &part[..])
    }

    /// How many bytes it carries.
    pub fn len(&self) -> usize {
        self.inline.len() + self.buffers.iter().map(Bytes::len).sum::<usize>()
    }

    /// Whether it carries no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A payload and the things its references name: whoever holds the value holds them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Value {
    /// The data.
    pub payload: Payload,
    /// What it refers to.
    pub referents: Vec<Referent>,
}

impl Value {
    /// Everything that must be there for it to be read: what it refers to, and its own data if that is in
    /// stores.
    pub fn referents_to_hold(&self) -> impl Iterator<Item = Referent> {
        self.referents.iter().copied().chain(self.payload.stored_object().map(Referent::Object))
    }
}

impl From<Payload> for Value {
    fn from(payload: Payload) -> Value {
        Value { payload, referents: Vec::new() }
    }
}

/// How a task or a call ended: its results, or why there are none.
pub type Outcome = Result<Vec<Value>, Error>;
