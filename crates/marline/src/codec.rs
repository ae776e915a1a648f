//! Encodes and decodes arguments and results as MessagePack.
//!
//! - Arguments are an array. Each value is encoded as `serde` describes it, a struct as a map with
//!   names.
//! - A reference as an argument is an extension value, which stands for the value of the reference.
//! - [`Bytes`] are read in place: in the memory of their message, or in shared memory. As a result
//!   they are not encoded.

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

/// The extension type of a reference. Its data is the index of the reference among those that the
/// work needs: four bytes, big-endian.
const REFERENCE: i8 = 1;

/// Encodes arguments, one after the other.
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

/// Encodes a value.
pub(crate) fn encode<T: Serialize>(value: &T) -> Result<Payload, Error> {
    let mut bytes = Vec::new();
    write(&mut bytes, value)?;
    Ok(Payload::message_pack(bytes))
}

/// Encodes a result of user code. [`Bytes`] stay as they are. User code has run, and an error says
/// that it may have.
pub(crate) fn encode_result<T: Serialize + 'static>(value: &T) -> Result<Payload, Error> {
    match (value as &dyn Any).downcast_ref::<Bytes>() {
        Some(bytes) => Ok(Payload::raw(bytes.clone())),
        None => encode(value).map_err(|error| error.ran(Ran::Maybe)),
    }
}

/// Reads a value that exists, wherever its data is. The work that made the value has run, and an
/// error says that it may have.
pub(crate) fn decode<T: DeserializeOwned + 'static>(
    client: &Client,
    payload: &Payload,
) -> Result<T, Error> {
    let opened = client.inner.load(payload);
    let value = opened.and_then(|payload| read(&payload, || "the value".into()));
    value.map_err(|error| error.ran(Ran::Maybe))
}

/// Decodes a payload. `what` names the value in errors.
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

/// Whether the type is [`Bytes`], which is read in place.
fn is_bytes<T: 'static>() -> bool {
    TypeId::of::<T>() == TypeId::of::<Bytes>()
}

/// Returns the bytes as a `T`, which the caller has checked to be [`Bytes`].
fn cast_bytes<T: 'static>(bytes: Bytes) -> T {
    let mut bytes = Some(bytes);
    let same = (&mut bytes as &mut dyn Any).downcast_mut::<Option<T>>();
    same.and_then(Option::take).expect("its type was looked at")
}

/// Takes the bytes that come next in `rest`, if bytes come next. They are a part of `all`, without
/// a copy.
fn take_bytes(all: &Bytes, rest: &mut &[u8]) -> Option<Bytes> {
    let mut reader = *rest;
    let len = rmp::decode::read_bin_len(&mut reader).ok()? as usize;
    let (bytes, after) = reader.split_at_checked(len)?;
    *rest = after;
    Some(all.slice_ref(bytes))
}

/// Returns the error for a value of another type, in words instead of MessagePack markers.
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

/// Names the kind of value that begins with this marker.
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

/// Returns the name of a type without module paths, as programs write it: `Vec<String>`.
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

/// Decodes the arguments of a function, one after the other.
pub(crate) struct Decoder<'a> {
    /// The function's name.
    name: &'a str,
    /// The arguments: all of them, and those that are not decoded yet.
    all: &'a Bytes,
    rest: &'a [u8],
    values: &'a [Value],
    /// How many arguments are decoded.
    count: u32,
}

impl<'a> Decoder<'a> {
    /// Starts to decode the arguments of a function that `takes` this many. Fails if their number
    /// is another.
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

    /// Takes the reference that comes next, if one does. Returns its index.
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

/// Encoded arguments.
pub(crate) struct Encoded {
    pub payload: Payload,
    pub needs: Vec<ObjectId>,
    /// The object with the arguments, if they are large: they are in an object store then. It is
    /// held until the work that needs it is submitted.
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
