//! What user code hands over, as bytes that nobody but user code looks into.

use crate::error::Error;
use crate::id::Thing;
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
}

impl Payload {
    /// Plain MessagePack data.
    pub fn message_pack(bytes: impl Into<Bytes>) -> Payload {
        Payload { inline: bytes.into(), ..Payload::default() }
    }

    /// Bytes as they are.
    pub fn raw(bytes: impl Into<Bytes>) -> Payload {
        Payload { encoding: Encoding::Raw, inline: bytes.into(), ..Payload::default() }
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
    pub contains: Vec<Thing>,
}

impl From<Payload> for Value {
    fn from(payload: Payload) -> Value {
        Value { payload, contains: Vec::new() }
    }
}

/// How a task or a call ended: its results, or why there are none.
pub type Outcome = Result<Vec<Value>, Error>;
