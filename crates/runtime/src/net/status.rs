//! Errors as the status of a gRPC request.
//!
//! A status has the whole error in its details. Its code is for tools that know only gRPC. A status
//! without details was made by the transport, and does not say what became of the request.

use marline_core::error::{Error, ErrorKind, Ran};
use marline_wire::convert::{decode_error, encode_brief_error, encode_error};
use tonic::{Code, Status};

/// The most bytes of a status's details. Larger details shrink to kind and text. They travel as a
/// header in base64, and all headers together may have 16 KiB.
const MAX_DETAILS_BYTES: usize = 8 << 10;
/// The most bytes of a status's text. Escaped, each byte can become three bytes of a header.
const MAX_WORDS_BYTES: usize = 1 << 10;

/// Returns the status for an error.
pub(crate) fn to_status(error: Error) -> Status {
    let words = cut(error.message()).to_owned();
    let code = code(error.kind());
    let mut details = encode_error(&error);
    if details.len() > MAX_DETAILS_BYTES {
        details = encode_brief_error(&error, &words);
    }
    Status::with_details(code, words, details)
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
    decode_error(status.details()).unwrap_or_else(|unreadable| transport.caused_by(unreadable))
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

#[cfg(test)]
mod tests {
    use super::*;
    use marline_core::error::Failure;

    #[test]
    fn errors_of_every_kind_round_trip_through_a_status() {
        for kind in ErrorKind::ALL {
            for ran in [Ran::No, Ran::Maybe] {
                let failure = Failure { class: "KeyError".into(), ..Failure::default() };
                let error = Error::new(kind, "what happened").ran(ran).with_failure(failure);
                let error = error.caused_by(Error::timeout("too slow"));
                assert_eq!(from_status(to_status(error.clone())), error);
            }
        }
    }

    #[test]
    fn every_error_kind_has_its_status_code() {
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
    fn a_status_without_details_is_an_unavailable_transport_error() {
        let error = from_status(Status::unavailable("connection refused"));
        assert_eq!(error, Error::unavailable(Ran::Maybe, "connection refused"));
        let error = from_status(Status::new(Code::NotFound, ""));
        assert_eq!(error.kind(), ErrorKind::Unavailable, "the code of a proxy does not count");
        assert!(!error.message().is_empty() && error.may_have_run());
    }

    #[test]
    fn a_status_with_unreadable_details_is_unavailable_with_the_cause() {
        // The second is an error of a kind that this version does not know.
        for details in [vec![0xff; 3], vec![0x08, 99]] {
            let status = Status::with_details(Code::NotFound, "what", details.into());
            let error = from_status(status);
            assert_eq!((error.kind(), error.message()), (ErrorKind::Unavailable, "what"));
            assert_eq!(error.cause().unwrap().kind(), ErrorKind::Invalid);
        }
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
}
