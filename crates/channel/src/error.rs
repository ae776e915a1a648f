//! The errors of the crate: a closed [`ErrorKind`], an [`Error`] that carries it, and a
//! [`SendError`] that also gives the value back.
//!
//! There is one kind for each thing that a caller may do differently. The C header maps each kind
//! to an errno.

use std::fmt;

/// Why an operation failed.
///
/// ```
/// use marline_channel::{ErrorKind, bounded};
/// let (tx, rx) = bounded(1);
/// match rx.try_recv() {
///     Ok(value) => println!("{value}"),
///     Err(error) if error.kind() == ErrorKind::Empty => tx.try_send(1).map(drop).unwrap(),
///     Err(error) => panic!("{error}"),
/// }
/// assert_eq!(rx.try_recv(), Ok(1));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// No room now; a later try may succeed.
    Full,
    /// Nothing to receive now; a later try may succeed.
    Empty,
    /// The deadline passed first.
    Timeout,
    /// The operation's [`CancelToken`](crate::CancelToken) was triggered first.
    Cancelled,
    /// The channel is closed (and, for receives, drained), or this end was released.
    Closed,
    /// A signal arrived during `wait_interruptible`. The operation is intact.
    Interrupted,
    /// A broadcast receiver was too slow and missed this many values. Its next receive goes on with
    /// the oldest value that is left.
    Lagged(u64),
    /// The request is invalid.
    Invalid,
    /// This kind of channel cannot do that.
    Unsupported,
}

impl ErrorKind {
    fn sentence(self) -> &'static str {
        match self {
            ErrorKind::Full => "channel is full: receive from it, or send without `try_`",
            ErrorKind::Empty => "channel is empty: send to it, or receive without `try_`",
            ErrorKind::Timeout => "deadline passed before the other side arrived",
            ErrorKind::Cancelled => "cancelled by its cancel token",
            ErrorKind::Closed => "channel is closed",
            ErrorKind::Interrupted => "interrupted by a signal: wait again to go on",
            ErrorKind::Lagged(_) => "receiver lagged behind",
            ErrorKind::Invalid => "invalid request",
            ErrorKind::Unsupported => "this kind of channel does not support it",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ErrorKind::Lagged(missed) => write!(
                f,
                "receiver lagged and missed {missed} values: receive again to go on at the oldest kept"
            ),
            kind => f.write_str(kind.sentence()),
        }
    }
}

/// The error of an operation that holds no value.
///
/// ```
/// use marline_channel::{ErrorKind, bounded};
/// let (_tx, rx) = bounded::<u32>(1);
/// assert_eq!(rx.try_recv().unwrap_err().kind(), ErrorKind::Empty);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Error(ErrorRepr);

/// No larger than a kind: errors travel beside values on every receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ErrorRepr {
    Plain(ErrorKind),
    Told(&'static (ErrorKind, &'static str)),
}

impl Error {
    pub(crate) fn new(kind: ErrorKind) -> Error {
        Error(ErrorRepr::Plain(kind))
    }

    /// Creates an error with its own message.
    pub(crate) fn with_message(story: &'static (ErrorKind, &'static str)) -> Error {
        Error(ErrorRepr::Told(story))
    }

    /// Returns the kind of the error.
    ///
    /// ```
    /// use marline_channel::{ErrorKind, bounded};
    /// let (tx, rx) = bounded::<u8>(1);
    /// drop(tx);
    /// let error = rx.try_recv().unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Closed);
    /// assert!(error.is_closed());
    /// ```
    pub fn kind(&self) -> ErrorKind {
        match self.0 {
            ErrorRepr::Plain(kind) | ErrorRepr::Told(&(kind, _)) => kind,
        }
    }

    /// Whether the channel is closed and drained: the usual end of a receive loop.
    ///
    /// ```
    /// use marline_channel::{ErrorKind, bounded};
    /// let (tx, rx) = bounded::<u8>(1);
    /// drop(tx);
    /// let error = rx.try_recv().unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Closed);
    /// assert!(error.is_closed());
    /// ```
    pub fn is_closed(&self) -> bool {
        self.kind() == ErrorKind::Closed
    }
}

impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Error {
        Error::new(kind)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ErrorRepr::Plain(kind) => kind.fmt(f),
            ErrorRepr::Told((_, words)) => f.write_str(words),
        }
    }
}

impl std::error::Error for Error {}

/// A failed send, with the value that was not sent.
///
/// ```
/// use marline_channel::{ErrorKind, bounded};
/// let (tx, _rx) = bounded(1);
/// tx.try_send("first").unwrap();
/// let error = tx.try_send("second").unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::Full);
/// assert_eq!(error.into_inner(), "second");
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SendError<T> {
    value: T,
    why: SendErrorKind,
}

/// The kinds that a send can fail with, in a byte: every message creates and checks the result of a
/// send.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SendErrorKind {
    Full,
    Timeout,
    Cancelled,
    Closed,
}

impl<T> SendError<T> {
    pub(crate) fn new(kind: ErrorKind, value: T) -> SendError<T> {
        let why = match kind {
            ErrorKind::Full => SendErrorKind::Full,
            ErrorKind::Timeout => SendErrorKind::Timeout,
            ErrorKind::Cancelled => SendErrorKind::Cancelled,
            ErrorKind::Closed => SendErrorKind::Closed,
            other => unreachable!("a send does not fail with {other:?}"),
        };
        SendError { value, why }
    }

    /// Returns the kind of the error.
    ///
    /// ```
    /// use marline_channel::{ErrorKind, bounded};
    /// let (tx, rx) = bounded(1);
    /// drop(rx);
    /// let error = tx.try_send("unsent").unwrap_err();
    /// assert_eq!((error.kind(), error.is_closed()), (ErrorKind::Closed, true));
    /// assert_eq!(error.value(), &"unsent");
    /// assert_eq!(error.into_inner(), "unsent");
    /// ```
    pub fn kind(&self) -> ErrorKind {
        match self.why {
            SendErrorKind::Full => ErrorKind::Full,
            SendErrorKind::Timeout => ErrorKind::Timeout,
            SendErrorKind::Cancelled => ErrorKind::Cancelled,
            SendErrorKind::Closed => ErrorKind::Closed,
        }
    }

    /// Whether the channel is closed.
    ///
    /// ```
    /// use marline_channel::{ErrorKind, bounded};
    /// let (tx, rx) = bounded(1);
    /// drop(rx);
    /// let error = tx.try_send("unsent").unwrap_err();
    /// assert_eq!((error.kind(), error.is_closed()), (ErrorKind::Closed, true));
    /// assert_eq!(error.value(), &"unsent");
    /// assert_eq!(error.into_inner(), "unsent");
    /// ```
    pub fn is_closed(&self) -> bool {
        self.why == SendErrorKind::Closed
    }

    /// Returns the value that was not sent.
    ///
    /// ```
    /// use marline_channel::{ErrorKind, bounded};
    /// let (tx, rx) = bounded(1);
    /// drop(rx);
    /// let error = tx.try_send("unsent").unwrap_err();
    /// assert_eq!((error.kind(), error.is_closed()), (ErrorKind::Closed, true));
    /// assert_eq!(error.value(), &"unsent");
    /// assert_eq!(error.into_inner(), "unsent");
    /// ```
    pub fn into_inner(self) -> T {
        self.value
    }

    /// Borrows the value that was not sent.
    ///
    /// ```
    /// use marline_channel::{ErrorKind, bounded};
    /// let (tx, rx) = bounded(1);
    /// drop(rx);
    /// let error = tx.try_send("unsent").unwrap_err();
    /// assert_eq!((error.kind(), error.is_closed()), (ErrorKind::Closed, true));
    /// assert_eq!(error.value(), &"unsent");
    /// assert_eq!(error.into_inner(), "unsent");
    /// ```
    pub fn value(&self) -> &T {
        &self.value
    }
}

impl<T> fmt::Debug for SendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendError").field("kind", &self.kind()).finish_non_exhaustive()
    }
}

impl<T> fmt::Display for SendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind().fmt(f)
    }
}

impl<T> std::error::Error for SendError<T> {}

impl<T> From<SendError<T>> for Error {
    fn from(error: SendError<T>) -> Error {
        Error::new(error.kind())
    }
}
