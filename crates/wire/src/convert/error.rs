//! Errors, as parts of messages and as bytes of their own.

use super::field::{optional, unknown};
use crate::v1;
use bytes::Bytes;
use marline_core::error::{Error, ErrorKind, Failure, Ran};
use prost::Message;

/// The most causes of an error that are encoded. Causes behind them are left out.
const MAX_CAUSES: usize = 16;

/// Encodes an error by itself.
pub fn encode_error(error: &Error) -> Bytes {
    encode(error, MAX_CAUSES).encode_to_vec().into()
}

/// Encodes an error by itself, with this message instead of its own, and without its failure and
/// its causes.
pub fn encode_brief_error(error: &Error, message: &str) -> Bytes {
    let brief = v1::Error { message: message.to_owned(), failure: None, ..encode(error, 0) };
    brief.encode_to_vec().into()
}

/// Decodes an error that was encoded by itself.
pub fn decode_error(bytes: &[u8]) -> Result<Error, Error> {
    let wire = v1::Error::decode(bytes);
    wire.map_err(|error| Error::invalid(format!("invalid error: {error}")))
        .and_then(Error::try_from)
}

impl From<Error> for v1::Error {
    fn from(error: Error) -> v1::Error {
        encode(&error, MAX_CAUSES)
    }
}

fn encode(error: &Error, causes: usize) -> v1::Error {
    let cause = error.cause().filter(|_| causes > 0);
    v1::Error {
        kind: v1::ErrorKind::from(error.kind()).into(),
        may_have_run: error.may_have_run(),
        message: error.message().to_owned(),
        failure: error.failure().cloned().map(v1::Failure::from),
        cause: cause.map(|cause| Box::new(encode(cause, causes - 1))),
        passed_on: error.is_passed_on(),
        gone: error.what_is_gone().map(v1::Thing::from),
        out_of_memory: error.is_out_of_memory(),
    }
}

impl TryFrom<v1::Error> for Error {
    type Error = Error;
    fn try_from(wire: v1::Error) -> Result<Error, Error> {
        decode(wire, MAX_CAUSES)
    }
}

fn decode(wire: v1::Error, causes: usize) -> Result<Error, Error> {
    let ran = if wire.may_have_run { Ran::Maybe } else { Ran::No };
    let mut error = Error::new(kind(wire.kind)?, wire.message).ran(ran);
    error = error.marked_passed_on(wire.passed_on).marked_out_of_memory(wire.out_of_memory);
    if let Some(thing) = optional(wire.gone, "Error.gone")? {
        error = error.with_gone(thing);
    }
    if let Some(failure) = optional(wire.failure, "Error.failure")? {
        error = error.with_failure(failure);
    }
    match wire.cause {
        Some(cause) if causes > 0 => Ok(error.caused_by(decode(*cause, causes - 1)?)),
        Some(_) | None => Ok(error),
    }
}

impl From<Failure> for v1::Failure {
    fn from(failure: Failure) -> v1::Failure {
        v1::Failure {
            class: failure.class,
            traceback: failure.traceback,
            payload: failure.payload.map(v1::Payload::from),
            bases: failure.bases,
        }
    }
}

impl TryFrom<v1::Failure> for Failure {
    type Error = Error;
    fn try_from(wire: v1::Failure) -> Result<Failure, Error> {
        Ok(Failure {
            class: wire.class,
            traceback: wire.traceback,
            payload: optional(wire.payload, "Failure.payload")?,
            bases: wire.bases,
        })
    }
}

macro_rules! kinds {
    ($($kind:ident)+) => {
        impl From<ErrorKind> for v1::ErrorKind {
            fn from(kind: ErrorKind) -> v1::ErrorKind {
                match kind {
                    $(ErrorKind::$kind => v1::ErrorKind::$kind,)+
                }
            }
        }

        fn kind(number: i32) -> Result<ErrorKind, Error> {
            match v1::ErrorKind::try_from(number) {
                $(Ok(v1::ErrorKind::$kind) => Ok(ErrorKind::$kind),)+
                Ok(v1::ErrorKind::Unspecified) | Err(_) => Err(unknown("Error.kind", number)),
            }
        }
    };
}

kinds! {
    Full Empty Timeout Cancelled Closed NotReady NotFound AlreadyExists Unavailable Gone
    Fenced Failed TooLarge Exhausted Unsupported Invalid Incompatible Denied Interrupted Internal
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::sample;
    use marline_core::id::{ActorId, ObjectId, Referent, TaskId};

    fn chain(causes: usize) -> Error {
        let last = Error::not_found(format!("cause {causes}"));
        (0..causes)
            .rev()
            .fold(last, |error, n| Error::denied(format!("cause {n}")).caused_by(error))
    }

    fn length(error: &Error) -> usize {
        std::iter::successors(error.cause(), |error| error.cause()).count()
    }

    #[test]
    fn errors_with_a_gone_referent_or_out_of_memory_round_trip() {
        let actor = Referent::Actor(ActorId::from_u128(7));
        for thing in [Referent::Object(ObjectId::of(TaskId::from_u128(7), 1)), actor] {
            let error = Error::gone(thing, "it is gone").passed_on();
            assert_eq!(decode_error(&encode_error(&error)).unwrap(), error);
        }
        let error = Error::out_of_memory("none is left");
        assert_eq!(decode_error(&encode_error(&error)).unwrap(), error);
    }

    #[test]
    fn errors_of_every_kind_round_trip_in_a_message_and_alone() {
        for kind in ErrorKind::ALL {
            for ran in [Ran::No, Ran::Maybe] {
                let error =
                    Error::new(kind, "what happened").ran(ran).with_failure(sample::failure());
                let error = error.caused_by(Error::timeout("too slow"));
                assert_eq!(Error::try_from(v1::Error::from(error.clone())).unwrap(), error);
                assert_eq!(decode_error(&encode_error(&error)).unwrap(), error);
            }
        }
    }

    #[test]
    fn long_chains_of_causes_are_cut() {
        assert_eq!(Error::try_from(v1::Error::from(chain(MAX_CAUSES))).unwrap(), chain(MAX_CAUSES));
        let cut = Error::try_from(v1::Error::from(chain(1000))).unwrap();
        assert_eq!((length(&cut), cut.message()), (MAX_CAUSES, "cause 0"));
        let wire = (0..90).fold(v1::Error { kind: 1, ..Default::default() }, |cause, _| {
            v1::Error { kind: 1, cause: Some(Box::new(cause)), ..Default::default() }
        });
        assert_eq!(length(&Error::try_from(wire).unwrap()), MAX_CAUSES);
    }

    #[test]
    fn malformed_errors_are_rejected_by_name() {
        let refused = |wire: v1::Error| Error::try_from(wire).unwrap_err().message().to_owned();
        assert_eq!(refused(v1::Error::default()), "Error.kind is missing");
        let unknown = v1::Error { kind: 21, ..Default::default() };
        assert_eq!(refused(unknown.clone()), "Error.kind has the unknown value 21");
        let cause = Some(Box::new(unknown));
        assert!(refused(v1::Error { kind: 1, cause, ..Default::default() }).contains("Error.kind"));
        let failure = v1::Failure { payload: Some(v1::Payload::default()), ..Default::default() };
        let words = refused(v1::Error { kind: 1, failure: Some(failure), ..Default::default() });
        assert_eq!(words, "Error.failure: Failure.payload: Payload.encoding is missing");
    }

    #[test]
    fn a_brief_error_keeps_all_but_its_failure_and_its_causes() {
        let error = Error::timeout("a long story").ran(Ran::Maybe).marked_passed_on(true);
        let long = error.with_failure(sample::failure()).caused_by(chain(3));
        let brief = decode_error(&encode_brief_error(&long, "a story")).unwrap();
        assert_eq!(brief, Error::timeout("a story").ran(Ran::Maybe).marked_passed_on(true));
    }

    #[test]
    fn bytes_that_are_no_error_are_rejected() {
        let words = decode_error(&[0xff; 3]).unwrap_err().message().to_owned();
        assert!(words.starts_with("invalid error"), "{words}");
    }
}
