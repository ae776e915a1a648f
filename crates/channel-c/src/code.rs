//! Return codes: 0, or a negative errno, one for each thing that a caller may do differently. The
//! conversions from the errors of `marline-channel` are here; a select overrides two of them.

use std::ffi::{CStr, c_char, c_int};

use marline_channel::{Error, ErrorKind, SendError};

/// A failure, as the positive errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Code(c_int);

impl Code {
    pub(crate) const WOULD_BLOCK: Code = Code(libc::EAGAIN);
    pub(crate) const TIMEOUT: Code = Code(libc::ETIME);
    pub(crate) const CANCELLED: Code = Code(libc::ECANCELED);
    pub(crate) const CLOSED: Code = Code(libc::EPIPE);
    pub(crate) const NOT_FINISHED: Code = Code(libc::EINPROGRESS);
    pub(crate) const INTERRUPTED: Code = Code(libc::EINTR);
    pub(crate) const INVALID: Code = Code(libc::EINVAL);
    pub(crate) const UNSUPPORTED: Code = Code(libc::ENOTSUP);
    pub(crate) const TOO_LARGE: Code = Code(libc::EMSGSIZE);
    pub(crate) const NO_MEMORY: Code = Code(libc::ENOMEM);
    pub(crate) const INTERNAL: Code = Code(libc::EIO);

    /// Converts what a foreign function returned when it failed: its own negative errno, or EIO for
    /// any other number, which is a bug in that function.
    pub(crate) fn foreign(returned: c_int) -> Code {
        match returned.checked_neg() {
            Some(code) if code > 0 => Code(code),
            _ => Code::INTERNAL,
        }
    }

    pub(crate) fn negative(self) -> c_int {
        -self.0
    }
}

/// Returns a result as C sees it.
pub(crate) fn number(result: Result<(), Code>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(code) => code.negative(),
    }
}

impl From<ErrorKind> for Code {
    fn from(kind: ErrorKind) -> Code {
        match kind {
            ErrorKind::Full | ErrorKind::Empty => Code::WOULD_BLOCK,
            ErrorKind::Timeout => Code::TIMEOUT,
            ErrorKind::Cancelled => Code::CANCELLED,
            ErrorKind::Closed => Code::CLOSED,
            ErrorKind::Interrupted => Code::INTERRUPTED,
            ErrorKind::Invalid => Code::INVALID,
            ErrorKind::Unsupported => Code::UNSUPPORTED,
            // Broadcasts are not in this ABI, and the kinds may grow.
            _ => Code::INTERNAL,
        }
    }
}

impl From<Error> for Code {
    fn from(error: Error) -> Code {
        error.kind().into()
    }
}

impl<T> From<&SendError<T>> for Code {
    fn from(error: &SendError<T>) -> Code {
        error.kind().into()
    }
}

fn sentence(code: c_int) -> &'static CStr {
    match code {
        0 => c"success",
        libc::EAGAIN => c"would block: no room, or no element to receive, right now",
        libc::ETIME => c"timed out before the other side arrived",
        libc::ECANCELED => c"cancelled by a token, or abandoned",
        libc::EPIPE => c"closed (and, for receives, drained)",
        libc::EINPROGRESS => c"not finished yet: wait for wake_fn, then finish",
        libc::EINTR => c"interrupted by a signal: nothing happened, call again",
        libc::EINVAL => {
            c"invalid: no such handle, wrong mode or size, a null pointer or a bad value"
        }
        libc::ENOTSUP => c"this kind of channel cannot do that",
        libc::EMSGSIZE => c"too large for the space given",
        libc::ENOMEM => c"out of memory or handles",
        libc::EIO => c"internal error: a bug in marline, or in a function that the program passed",
        _ => c"not a return code of marline",
    }
}

/// Returns the meaning of a return code, as one line of text. Takes codes as functions return them
/// (negative or 0) and plain errno values alike. Never NULL. The text lives for ever.
#[unsafe(no_mangle)]
pub extern "C" fn marline_strerror(code: c_int) -> *const c_char {
    sentence(code.checked_abs().unwrap_or(c_int::MAX)).as_ptr()
}

/// Returns the library's version, such as "0.1.0". Never NULL. The text lives for ever.
#[unsafe(no_mangle)]
pub extern "C" fn marline_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => panic!("a version has no NUL inside"),
        };
    VERSION.as_ptr()
}
