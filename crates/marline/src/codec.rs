//! Arguments and results as MessagePack: an array of arguments, each value as `serde` has it, structs
//! as maps with names. A reference as an argument is an extension that stands for its value.
//!
//! [`Bytes`] are read where they are: in the memory of the message that they came with, or in shared memory. As results
//! they go as they are.

use crate::client::Client;
use crate::reference::ObjectRef;
use bytes::Bytes;
use marline_runtime::Invocation;
use marline_runtime::core::error::{Error, Ran};
use marline_runtime::core::id::ObjectId;
use marline_runtime::core::payload::{Encoding, Payload, Value};
use rmp::Marker;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde::de::value::BytesDeserializer;
use std::any::{Any, TypeId};
use std::fmt::Display;

/// The extension type that stands for the value of a reference; its data is the reference's index.
const REFERENCE: i8 = 1;

/// Arguments being encoded.
#[derive(Default)]
pub struct Encoder {
    bytes: Vec<u8>,
    count: u32,
    pub(crate) needs: Vec<ObjectId>,
}

impl Encoder {
    fn value<T: Serialize>(&mut self, value: &T) -> Result<(), Error> {
        self.count += 1;
        write(&mut self.bytes, value)
    }

    fn reference(&mut self, object: ObjectId) {
        self.count += 1;
        let index = self.needs.len() as u32;
        self.needs.push(object);
        rmp::encode::write_ext_meta(&mut self.bytes, 4, REFERENCE)
            .expect("memory takes everything");
        self.bytes.extend(index.to_be_bytes());
    }

    pub(crate) fn finish(self) -> (Payload, Vec<ObjectId>) {
        let mut whole = Vec::with_capacity(self.bytes.len() + 5);
        rmp::encode::write_array_len(&mut whole, self.count).expect("memory takes everything");
        whole.extend(self.bytes);
        (Payload::message_pack(whole), self.needs)
    }
}

fn write<T: Serialize>(bytes: &mut Vec<u8>, value: &T) -> Result<(), Error> {
    let mut serializer = rmp_serde::Serializer::new(bytes).with_struct_map();
    value.serialize(&mut serializer).map_err(|error| {
        Error::invalid(format!("{} cannot be encoded: {error}", std::any::type_name::<T>()))
    })
}

/// A result, encoded.
pub(crate) fn encode<T: Serialize>(value: &T) -> Result<Payload, Error> {
    let mut bytes = Vec::new();
    write(&mut bytes, value)?;
    Ok(Payload::message_pack(bytes))
}

/// Encodes what user code returned: bytes as they are. User code has run: an error says so.
pub(crate) fn encode_result<T: Serialize + 'static>(value: &T) -> Result<Payload, Error> {
    match (value as &dyn Any).downcast_ref::<Bytes>() {
        Some(bytes) => Ok(Payload::raw(bytes.clone())),
        None => encode(value).map_err(|error| error.ran(Ran::Maybe)),
    }
}

/// Reads a value that is there, wherever its data is. The work that made it has run: an error says so.
pub(crate) fn decode<T: DeserializeOwned + 'static>(
    client: &Client,
    payload: &Payload,
) -> Result<T, Error> {
    let opened = client.inner.load(payload);
    let value = opened.and_then(|payload| read(&payload, || "the value".into()));
    value.map_err(|error| error.ran(Ran::Maybe))
}

/// What is in a payload.
fn read<T: DeserializeOwned + 'static>(
    payload: &Payload,
    what: impl Fn() -> String,
) -> Result<T, Error> {
    match payload.encoding {
        Encoding::MessagePack => {
            let mut rest = &payload.inline[..];
            if is_bytes::<T>()
                && let Some(bytes) = take_bytes(&payload.inline, &mut rest)
            {
                return Ok(cast_bytes::<T>(bytes));
            }
            rmp_serde::from_slice(&payload.inline).map_err(|error| misread::<T>(&what(), &error))
        }
        Encoding::Raw if is_bytes::<T>() => Ok(cast_bytes::<T>(payload.inline.clone())),
        Encoding::Raw => {
            let bytes = BytesDeserializer::<serde::de::value::Error>::new(&payload.inline);
            T::deserialize(bytes).map_err(|error| unlike::<T>(&what(), &error))
        }
        Encoding::Pickle5 => Err(of_another_language(payload)),
    }
}

/// Whether this is the type of bytes that are read where they are.
fn is_bytes<T: 'static>() -> bool {
    TypeId::of::<T>() == TypeId::of::<Bytes>()
}

/// Bytes as what they are.
fn cast_bytes<T: 'static>(bytes: Bytes) -> T {
    let mut bytes = Some(bytes);
    let same = (&mut bytes as &mut dyn Any).downcast_mut::<Option<T>>();
    same.and_then(Option::take).expect("its type was looked at")
}

/// If bytes are next in the rest of `all`, takes them: a part of `all`, which is not copied.
fn take_bytes(all: &Bytes, rest: &mut &[u8]) -> Option<Bytes> {
    let mut reader = *rest;
    let len = rmp::decode::read_bin_len(&mut reader).ok()? as usize;
    let (bytes, after) = reader.split_at_checked(len)?;
    *rest = after;
    Some(all.slice_ref(bytes))
}

/// Why something is not what was expected, in words.
fn misread<T>(what: &str, error: &rmp_serde::decode::Error) -> Error {
    match error {
        rmp_serde::decode::Error::TypeMismatch(marker) => {
            unlike::<T>(what, &format_args!("found {}", in_words(*marker)))
        }
        other => unlike::<T>(what, other),
    }
}

fn unlike<T>(what: &str, why: &dyn Display) -> Error {
    let expected = without_paths(std::any::type_name::<T>());
    Error::invalid(format!("{what} cannot be read as {expected}: {why}"))
}

/// What a value is that begins with this.
fn in_words(marker: Marker) -> &'static str {
    use Marker::*;
    match marker {
        FixPos(_) | FixNeg(_) | U8 | U16 | U32 | U64 | I8 | I16 | I32 | I64 => "an integer",
        F32 | F64 => "a number with a fraction",
        FixStr(_) | Str8 | Str16 | Str32 => "text",
        Bin8 | Bin16 | Bin32 => "bytes",
        FixArray(_) | Array16 | Array32 => "a list",
        FixMap(_) | Map16 | Map32 => "a map",
        True | False => "true or false",
        Null => "nothing",
        _ => "something of another language",
    }
}

/// The name of a type as it is written in programs: `Vec<String>`.
fn without_paths(name: &str) -> String {
    let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let mut short = String::new();
    let mut rest = name;
    while !rest.is_empty() {
        let end = rest.find(|c| !is_path(c)).unwrap_or(rest.len());
        short += rest[..end].rsplit("::").next().unwrap_or_default();
        let next = rest[end..].find(is_path).map_or(rest.len(), |next| end + next);
        short += &rest[end..next];
        rest = &rest[next..];
    }
    short
}

fn of_another_language(payload: &Payload) -> Error {
    Error::unsupported(format!(
        "the value is {:?}: only plain data crosses languages",
        payload.encoding
    ))
}

/// The arguments of a function, decoded one by one.
pub(crate) struct Decoder<'a> {
    /// The function's name.
    name: &'a str,
    /// All of them, and those that were not decoded yet.
    all: &'a Bytes,
    rest: &'a [u8],
    values: &'a [Value],
    /// How many were decoded.
    count: u32,
}

impl<'a> Decoder<'a> {
    /// Arguments of a function that takes so many.
    pub fn new(invocation: &'a Invocation, takes: usize) -> Result<Decoder<'a>, Error> {
        let (name, payload) = (&*invocation.name, &invocation.args);
        if payload.encoding != Encoding::MessagePack {
            return Err(of_another_language(payload));
        }
        let all = &payload.inline;
        let mut rest = &all[..];
        let given = rmp::decode::read_array_len(&mut rest)
            .map_err(|_| Error::invalid(format!("the arguments of {name:?} are not a list")))?;
        if given as usize != takes {
            let s = if takes == 1 { "" } else { "s" };
            return Err(Error::invalid(format!(
                "{name:?} takes {takes} argument{s}, and was given {given}"
            )));
        }
        Ok(Decoder { name, all, rest, values: &invocation.values, count: 0 })
    }

    pub fn next<T: DeserializeOwned + 'static>(&mut self) -> Result<T, Error> {
        self.count += 1;
        let (count, name) = (self.count, self.name);
        let what = || format!("argument {count} of {name:?}");
        if let Some(index) = self.reference() {
            let value = self.values.get(index as usize);
            let value = value.ok_or_else(|| Error::invalid("a reference without its value"))?;
            return read(&value.payload, what);
        }
        if is_bytes::<T>()
            && let Some(bytes) = take_bytes(self.all, &mut self.rest)
        {
            return Ok(cast_bytes::<T>(bytes));
        }
        T::deserialize(&mut rmp_serde::Deserializer::new(&mut self.rest))
            .map_err(|error| misread::<T>(&what(), &error))
    }

    /// If a reference is next, takes it and says which.
    fn reference(&mut self) -> Option<u32> {
        let mut rest = self.rest;
        let meta = rmp::decode::read_ext_meta(&mut rest).ok()?;
        if meta.typeid != REFERENCE || meta.size != 4 || rest.len() < 4 {
            return None;
        }
        let (index, rest) = rest.split_at(4);
        self.rest = rest;
        Some(u32::from_be_bytes(index.try_into().expect("four bytes")))
    }
}

/// One argument: a value, or a reference to one.
pub trait Argument {
    #[doc(hidden)]
    fn encode(&self, encoder: &mut Encoder) -> Result<(), Error>;
}

impl<T: Serialize> Argument for T {
    fn encode(&self, encoder: &mut Encoder) -> Result<(), Error> {
        encoder.value(self)
    }
}

impl<T> Argument for ObjectRef<T> {
    fn encode(&self, encoder: &mut Encoder) -> Result<(), Error> {
        encoder.reference(self.id());
        Ok(())
    }
}

impl<T> Argument for &ObjectRef<T> {
    fn encode(&self, encoder: &mut Encoder) -> Result<(), Error> {
        encoder.reference(self.id());
        Ok(())
    }
}

/// The arguments of a call: a tuple of values and [references](ObjectRef).
pub trait Arguments {
    #[doc(hidden)]
    fn encode(&self, encoder: &mut Encoder) -> Result<(), Error>;
}

macro_rules! arguments {
    ($($name:ident)*) => {
        impl<$($name: Argument),*> Arguments for ($($name,)*) {
            #[allow(non_snake_case, unused_variables)]
            fn encode(&self, encoder: &mut Encoder) -> Result<(), Error> {
                let ($($name,)*) = self;
                $($name.encode(encoder)?;)*
                Ok(())
            }
        }
    };
}

arguments! {}
arguments! { A }
arguments! { A B }
arguments! { A B C }
arguments! { A B C D }
arguments! { A B C D E }
arguments! { A B C D E F }
arguments! { A B C D E F G }
arguments! { A B C D E F G H }

/// Arguments as they travel.
pub(crate) struct Encoded {
    pub payload: Payload,
    pub needs: Vec<ObjectId>,
    /// Large ones are in a store, and held until the work that has them was submitted.
    pub _stored: Option<ObjectRef<()>>,
}

impl Encoded {
    pub fn new(client: &Client, args: &impl Arguments) -> Result<Encoded, Error> {
        let mut encoder = Encoder::default();
        args.encode(&mut encoder)?;
        let (payload, needs) = encoder.finish();
        let (payload, stored) = client.inner.store_arguments(payload)?;
        let _stored = stored.map(|object| ObjectRef::new(client.clone(), object));
        Ok(Encoded { payload, needs, _stored })
    }
}
