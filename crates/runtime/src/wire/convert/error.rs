//! Errors: as parts of messages, and as the status of a gRPC request.
//!
//! A status has the whole error in its details. Its code is for tools that know only gRPC. A status
//! without details was made by the transport, and does not say what became of the request.

use super::field::{optional, unknown};
use crate::wire::v1;
use marline_core::error::{Error, ErrorKind, Failure, Ran};
use prost::Message;
use tonic::{Code, Status};

/// The most causes of an error that are encoded. Causes behind them are left out.
const MAX_CAUSES: usize = 16;
/// The most bytes of a status's details. Larger details shrink to kind and text. They travel as a
/// header in base64, and all headers together may have 16 KiB.
const MAX_DETAILS_BYTES: usize = 8 << 10;
/// The most bytes of a status's text. Escaped, each byte can become three bytes of a header.
const MAX_WORDS_BYTES: usize = 1 << 10;

/// Returns the status for an error.
pub(crate) fn to_status(error: Error) -> Status {
    let words = cut(error.message()).to_owned();
    let code = code(error.kind());
    let mut details = v1::Error::from(error);
    if details.encoded_len() > MAX_DETAILS_BYTES {
        details = v1::Error { message: words.clone(), failure: None, cause: None, ..details };
    }
    Status::with_details(code, words, details.encode_to_vec().into())
}

/// Returns the error that a status carries.
pub(crate) fn from_status(status: Status) -> Error {
    let words = match status.message() {
        "" => status.code().description(),
        words => words,
    };
    let transport = Error::unavailable(Ran::Maybe, words);
    if status.details().is_empty() {
        return transport;
    }
    let details = v1::Error::decode(status.details());
    let decoded = details.map_err(|error| Error::invalid(format!("details: {error}")));
    decoded.and_then(Error::try_from).unwrap_or_else(|unreadable| transport.caused_by(unreadable))
}

fn cut(words: &str) -> &str {
    let mut end = words.len().min(MAX_WORDS_BYTES);
    while !words.is_char_boundary(end) {
        end -= 1;
    }
    &words[..end]
}

fn code(kind: ErrorKind) -> Code {
    match kind {
        ErrorKind::Full | ErrorKind::Empty => Code::ResourceExhausted,
        ErrorKind::Timeout => Code::DeadlineExceeded,
        ErrorKind::Cancelled => Code::Cancelled,
        ErrorKind::Closed | ErrorKind::NotReady => Code::FailedPrecondition,
        ErrorKind::NotFound => Code::NotFound,
        ErrorKind::AlreadyExists => Code::AlreadyExists,
        ErrorKind::Unavailable => Code::Unavailable,
        ErrorKind::Gone => Code::DataLoss,
        ErrorKind::Fenced => Code::Aborted,
        ErrorKind::TooLarge | ErrorKind::Exhausted => Code::ResourceExhausted,
        ErrorKind::Unsupported => Code::Unimplemented,
        ErrorKind::Invalid => Code::InvalidArgument,
        ErrorKind::Incompatible => Code::FailedPrecondition,
        ErrorKind::Denied => Code::PermissionDenied,
        ErrorKind::Internal => Code::Internal,
        // Neither ends a request: user code fails inside an outcome, and a signal stays in its
        // process.
        ErrorKind::Failed | ErrorKind::Interrupted => Code::Unknown,
    }
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
    use crate::wire::convert::sample;
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
    fn what_is_gone_travels() {
        let actor = Referent::Actor(ActorId::from_u128(7));
        for thing in [Referent::Object(ObjectId::of(TaskId::from_u128(7), 1)), actor] {
            let error = Error::gone(thing, "it is gone").passed_on();
            assert_eq!(from_status(to_status(error.clone())), error);
        }
        let error = Error::out_of_memory("none is left");
        assert_eq!(from_status(to_status(error.clone())), error);
    }

    #[test]
    fn an_error_of_every_kind_comes_back_in_a_message_and_in_a_status() {
        for kind in ErrorKind::ALL {
            for ran in [Ran::No, Ran::Maybe] {
                let error =
                    Error::new(kind, "what happened").ran(ran).with_failure(sample::failure());
                let error = error.caused_by(Error::timeout("too slow"));
                assert_eq!(Error::try_from(v1::Error::from(error.clone())).unwrap(), error);
                assert_eq!(from_status(to_status(error.clone())), error);
            }
        }
    }

    #[test]
    fn codes_are_those_of_the_table() {
        let table = [
            (Code::ResourceExhausted, vec![ErrorKind::Full, ErrorKind::Empty]),
            (Code::DeadlineExceeded, vec![ErrorKind::Timeout]),
            (Code::Cancelled, vec![ErrorKind::Cancelled]),
            (Code::FailedPrecondition, vec![ErrorKind::Closed, ErrorKind::NotReady]),
            (Code::NotFound, vec![ErrorKind::NotFound]),
            (Code::AlreadyExists, vec![ErrorKind::AlreadyExists]),
            (Code::Unavailable, vec![ErrorKind::Unavailable]),
            (Code::DataLoss, vec![ErrorKind::Gone]),
            (Code::Aborted, vec![ErrorKind::Fenced]),
            (Code::Unknown, vec![ErrorKind::Failed]),
            (Code::ResourceExhausted, vec![ErrorKind::TooLarge, ErrorKind::Exhausted]),
            (Code::Unimplemented, vec![ErrorKind::Unsupported]),
            (Code::InvalidArgument, vec![ErrorKind::Invalid]),
            (Code::FailedPrecondition, vec![ErrorKind::Incompatible]),
            (Code::PermissionDenied, vec![ErrorKind::Denied]),
            (Code::Unknown, vec![ErrorKind::Interrupted]),
            (Code::Internal, vec![ErrorKind::Internal]),
        ];
        let mut named = Vec::new();
        for (code, kinds) in table {
            for kind in kinds {
                let status = to_status(Error::new(kind, "so it is"));
                assert_eq!((status.code(), status.message()), (code, "so it is"), "{kind:?}");
                named.push(kind);
            }
        }
        assert_eq!(named, ErrorKind::ALL, "every kind, in the order of the table");
    }

    #[test]
    fn a_status_without_details_is_the_transports_own() {
        let error = from_status(Status::unavailable("connection refused"));
        assert_eq!(error, Error::unavailable(Ran::Maybe, "connection refused"));
        let error = from_status(Status::new(Code::NotFound, ""));
        assert_eq!(error.kind(), ErrorKind::Unavailable, "the code of a proxy does not count");
        assert!(!error.message().is_empty() && error.may_have_run());
    }

    #[test]
    fn a_status_with_unreadable_details_is_too_and_says_so() {
        for details in [vec![0xff; 3], v1::Error { kind: 99, ..Default::default() }.encode_to_vec()]
        {
            let status = Status::with_details(Code::NotFound, "what", details.into());
            let error = from_status(status);
            assert_eq!((error.kind(), error.message()), (ErrorKind::Unavailable, "what"));
            assert_eq!(error.cause().unwrap().kind(), ErrorKind::Invalid);
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
    fn a_status_fits_into_headers_however_large_its_error() {
        let words = "é".repeat(100_000);
        let failure = Failure { traceback: "x".repeat(100_000), ..Failure::default() };
        let error = Error::failed(words, failure).caused_by(Error::internal("why"));
        let mut headers = tonic::codegen::http::HeaderMap::new();
        let status = to_status(error);
        status.add_header(&mut headers).unwrap();
        let bytes: usize =
            headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
        assert!(bytes < 15 << 10, "{bytes}");
        let error = from_status(status);
        assert_eq!((error.kind(), error.may_have_run()), (ErrorKind::Failed, true));
        assert_eq!(error.message(), "é".repeat(MAX_WORDS_BYTES / 2));
        let fits = Error::invalid("x".repeat(MAX_DETAILS_BYTES - 100));
        assert_eq!(from_status(to_status(fits.clone())), fits, "an error that fits stays whole");
    }

    #[test]
    fn malformed_errors_are_refused_by_name() {
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
}
