//! Payloads, values, and outcomes: results, or the error in their place.

use super::field::{all, each, optional, present, required, unknown};
use super::ids::{actor_id, actor_id_bytes};
use crate::v1::{self, actor_or_error, outcome, value_or_error};
use marline_core::Error;
use marline_core::id::ActorId;
use marline_core::payload::{BlobRef, Encoding, Outcome, Payload, Value};

impl From<Encoding> for v1::Encoding {
    fn from(encoding: Encoding) -> v1::Encoding {
        match encoding {
            Encoding::MessagePack => v1::Encoding::MessagePack,
            Encoding::Pickle5 => v1::Encoding::Pickle5,
            Encoding::Raw => v1::Encoding::Raw,
        }
    }
}

fn encoding(number: i32) -> Result<Encoding, Error> {
    match v1::Encoding::try_from(number) {
        Ok(v1::Encoding::MessagePack) => Ok(Encoding::MessagePack),
        Ok(v1::Encoding::Pickle5) => Ok(Encoding::Pickle5),
        Ok(v1::Encoding::Raw) => Ok(Encoding::Raw),
        Ok(v1::Encoding::Unspecified) | Err(_) => Err(unknown("Payload.encoding", number)),
    }
}

impl From<Payload> for v1::Payload {
    fn from(payload: Payload) -> v1::Payload {
        v1::Payload {
            encoding: v1::Encoding::from(payload.encoding).into(),
            code_version: payload.code_version,
            inline: payload.inline,
            buffers: payload.buffers,
            stored: payload.stored.map(|stored| v1::Stored::from(*stored)),
        }
    }
}

impl TryFrom<v1::Payload> for Payload {
    type Error = Error;
    fn try_from(wire: v1::Payload) -> Result<Payload, Error> {
        Ok(Payload {
            encoding: encoding(wire.encoding)?,
            code_version: wire.code_version,
            inline: wire.inline,
            buffers: wire.buffers,
            stored: optional(wire.stored, "Payload.stored")?.map(Box::new),
        })
    }
}

impl From<BlobRef> for v1::Stored {
    fn from(stored: BlobRef) -> v1::Stored {
        let object = Some(stored.object.into());
        v1::Stored { object, bytes: stored.bytes, durable: stored.durable }
    }
}

impl TryFrom<v1::Stored> for BlobRef {
    type Error = Error;
    fn try_from(wire: v1::Stored) -> Result<BlobRef, Error> {
        let object = required(wire.object, "Stored.object")?;
        Ok(BlobRef { object, bytes: wire.bytes, durable: wire.durable })
    }
}

impl From<Value> for v1::Value {
    fn from(value: Value) -> v1::Value {
        v1::Value { payload: Some(value.payload.into()), contains: all(value.referents) }
    }
}

impl TryFrom<v1::Value> for Value {
    type Error = Error;
    fn try_from(wire: v1::Value) -> Result<Value, Error> {
        Ok(Value {
            payload: required(wire.payload, "Value.payload")?,
            referents: each(wire.contains, "Value.contains")?,
        })
    }
}

impl From<Vec<Value>> for v1::Values {
    fn from(values: Vec<Value>) -> v1::Values {
        v1::Values { values: all(values) }
    }
}

impl TryFrom<v1::Values> for Vec<Value> {
    type Error = Error;
    fn try_from(wire: v1::Values) -> Result<Vec<Value>, Error> {
        each(wire.values, "Values.values")
    }
}

impl From<Outcome> for v1::Outcome {
    fn from(outcome: Outcome) -> v1::Outcome {
        let kind = match outcome {
            Ok(values) => outcome::Kind::Values(values.into()),
            Err(error) => outcome::Kind::Error(error.into()),
        };
        v1::Outcome { kind: Some(kind) }
    }
}

impl TryFrom<v1::Outcome> for Outcome {
    type Error = Error;
    fn try_from(wire: v1::Outcome) -> Result<Outcome, Error> {
        match present(wire.kind, "Outcome.kind")? {
            outcome::Kind::Values(values) => required(Some(values), "Outcome.values").map(Ok),
            outcome::Kind::Error(error) => required(Some(error), "Outcome.error").map(Err),
        }
    }
}

impl From<Result<Value, Error>> for v1::ValueOrError {
    fn from(value: Result<Value, Error>) -> v1::ValueOrError {
        let kind = match value {
            Ok(value) => value_or_error::Kind::Value(value.into()),
            Err(error) => value_or_error::Kind::Error(error.into()),
        };
        v1::ValueOrError { kind: Some(kind) }
    }
}

impl TryFrom<v1::ValueOrError> for Result<Value, Error> {
    type Error = Error;
    fn try_from(wire: v1::ValueOrError) -> Result<Result<Value, Error>, Error> {
        match present(wire.kind, "ValueOrError.kind")? {
            value_or_error::Kind::Value(value) => {
                required(Some(value), "ValueOrError.value").map(Ok)
            }
            value_or_error::Kind::Error(error) => {
                required(Some(error), "ValueOrError.error").map(Err)
            }
        }
    }
}

impl From<Result<ActorId, Error>> for v1::ActorOrError {
    fn from(actor: Result<ActorId, Error>) -> v1::ActorOrError {
        let kind = match actor {
            Ok(actor) => actor_or_error::Kind::Actor(actor_id_bytes(actor)),
            Err(error) => actor_or_error::Kind::Error(error.into()),
        };
        v1::ActorOrError { kind: Some(kind) }
    }
}

impl TryFrom<v1::ActorOrError> for Result<ActorId, Error> {
    type Error = Error;
    fn try_from(wire: v1::ActorOrError) -> Result<Result<ActorId, Error>, Error> {
        match present(wire.kind, "ActorOrError.kind")? {
            actor_or_error::Kind::Actor(actor) => actor_id(&actor, "ActorOrError.actor").map(Ok),
            actor_or_error::Kind::Error(error) => {
                required(Some(error), "ActorOrError.error").map(Err)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[test]
    fn the_bytes_of_a_payload_are_converted_without_a_copy() {
        let (inline, buffer) = (Bytes::from(vec![7; 100]), Bytes::from(vec![8; 100]));
        let (at, buffer_at) = (inline.as_ptr(), buffer.as_ptr());
        let payload = Payload { inline, buffers: vec![buffer], ..Payload::default() };
        let wire = v1::Payload::from(payload);
        assert_eq!((wire.inline.as_ptr(), wire.buffers[0].as_ptr()), (at, buffer_at));
        let payload = Payload::try_from(wire).unwrap();
        assert_eq!((payload.inline.as_ptr(), payload.buffers[0].as_ptr()), (at, buffer_at));
    }

    #[test]
    fn every_encoding_round_trips() {
        for encoding in [Encoding::MessagePack, Encoding::Pickle5, Encoding::Raw] {
            let payload = Payload { encoding, code_version: 13, ..Payload::default() };
            assert_eq!(Payload::try_from(v1::Payload::from(payload.clone())).unwrap(), payload);
        }
    }
}
