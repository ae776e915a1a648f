//! The error type of all Marline crates. An [`Error`] has a kind (one for each way in which a
//! caller may react), whether the work may have run, and a message that names the thing and the
//! next step.

use crate::id::Referent;
use crate::payload::Payload;
use std::fmt;
use std::sync::Arc;

/// The kind of an error. Errors to which a caller may react differently have different kinds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ErrorKind {
    /// There is no room now.
    Full,
    /// Nothing is there now.
    Empty,
    /// The deadline passed.
    Timeout,
    /// The work was cancelled.
    Cancelled,
    /// The channel or handle was closed.
    Closed,
    /// The result is not there yet.
    NotReady,
    /// There is no such thing.
    NotFound,
    /// The name is taken.
    AlreadyExists,
    /// A part of the cluster went away; trying again may help.
    Unavailable,
    /// The thing is gone for good.
    Gone,
    /// The sender's session is over, so its message is ignored.
    Fenced,
    /// User code failed.
    Failed,
    /// The input is larger than a limit.
    TooLarge,
    /// A limit is reached.
    Exhausted,
    /// The operation is not possible here.
    Unsupported,
    /// The input is not valid.
    Invalid,
    /// The other side has an incompatible version.
    Incompatible,
    /// The operation is not allowed.
    Denied,
    /// A signal came while waiting.
    Interrupted,
    /// A bug in Marline.
    Internal,
}

impl ErrorKind {
    /// Every kind, in the order of the declaration.
    pub const ALL: [ErrorKind; 20] = [
        ErrorKind::Full,
        ErrorKind::Empty,
        ErrorKind::Timeout,
        ErrorKind::Cancelled,
        ErrorKind::Closed,
        ErrorKind::NotReady,
        ErrorKind::NotFound,
        ErrorKind::AlreadyExists,
        ErrorKind::Unavailable,
        ErrorKind::Gone,
        ErrorKind::Fenced,
        ErrorKind::Failed,
        ErrorKind::TooLarge,
        ErrorKind::Exhausted,
        ErrorKind::Unsupported,
        ErrorKind::Invalid,
        ErrorKind::Incompatible,
        ErrorKind::Denied,
        ErrorKind::Interrupted,
        ErrorKind::Internal,
    ];
}

/// Whether the work that failed may have run.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Ran {
    /// It certainly did not run: a retry runs it once.
    No,
    /// It may have run, or may still be running.
    Maybe,
}

/// The report of user code that failed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Failure {
    /// The class of the exception, or the name of the error type.
    pub class: String,
    /// The traceback or backtrace, as text.
    pub traceback: String,
    /// The error itself, encoded. `None` if it cannot be encoded.
    pub payload: Option<Payload>,
    /// The names of the superclasses of `class`, in the terms of its language.
    pub bases: Vec<String>,
}

/// An error of Marline: its kind, whether the work may have run, a message, and its cause.
///
/// `{}` prints the message alone. `{:?}` is for a `main` that returns the error: it also prints the
/// kind, the causes, and the traceback if there is one. `{:#?}` prints every field.
#[derive(Clone, PartialEq, Eq)]
pub struct Error {
    details: Arc<Details>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Details {
    kind: ErrorKind,
    ran: Ran,
    message: String,
    failure: Option<Failure>,
    cause: Option<Error>,
    /// Whether this is the failure of another task, on which the failed one depended.
    passed_on: bool,
    /// The object or actor that is gone, if the error is about one.
    gone: Option<Referent>,
    /// Whether the error is about exhausted memory.
    memory: bool,
}

macro_rules! constructors {
    ($($name:ident => $kind:ident,)+) => { $(
        #[doc = concat!("Returns an error of the kind [`ErrorKind::", stringify!($kind), "`].")]
        pub fn $name(message: impl Into<String>) -> Error {
            Error::new(ErrorKind::$kind, message)
        }
    )+ };
}

impl Error {
    constructors! {
        cancelled => Cancelled,
        timeout => Timeout,
        not_ready => NotReady,
        not_found => NotFound,
        already_exists => AlreadyExists,
        fenced => Fenced,
        too_large => TooLarge,
        exhausted => Exhausted,
        unsupported => Unsupported,
        invalid => Invalid,
        incompatible => Incompatible,
        denied => Denied,
        internal => Internal,
    }

    /// Returns an error of this kind, about work that did not run.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        let message = message.into();
        Error {
            details: Arc::new(Details {
                kind,
                ran: Ran::No,
                message,
                failure: None,
                cause: None,
                passed_on: false,
                gone: None,
                memory: false,
            }),
        }
    }

    /// Returns the error that an object or actor is gone for good.
    pub fn gone(thing: Referent, message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Gone, message).with_gone(thing)
    }

    /// Returns the error that memory is exhausted.
    pub fn out_of_memory(message: impl Into<String>) -> Error {
        Error::exhausted(message).marked_out_of_memory(true)
    }

    /// Returns the error that a part of the cluster went away.
    pub fn unavailable(ran: Ran, message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Unavailable, message).ran(ran)
    }

    /// Returns the error that user code failed. `message` is the message of that failure.
    pub fn failed(message: impl Into<String>, failure: Failure) -> Error {
        Error::new(ErrorKind::Failed, message).ran(Ran::Maybe).with_failure(failure)
    }

    /// Sets whether the work may have run.
    pub fn ran(mut self, ran: Ran) -> Error {
        Arc::make_mut(&mut self.details).ran = ran;
        self
    }

    /// Sets the object or actor that is gone.
    pub fn with_gone(mut self, thing: Referent) -> Error {
        Arc::make_mut(&mut self.details).gone = Some(thing);
        self
    }

    /// Sets the report of user code.
    pub fn with_failure(mut self, failure: Failure) -> Error {
        Arc::make_mut(&mut self.details).failure = Some(failure);
        self
    }

    /// Sets the cause.
    pub fn caused_by(mut self, cause: Error) -> Error {
        Arc::make_mut(&mut self.details).cause = Some(cause);
        self
    }

    /// Returns the error for a task that depends on the failed one. However long the chain of
    /// dependents, the cause is the first failure.
    pub fn passed_on(&self) -> Error {
        if self.details.passed_on {
            return self.clone();
        }
        let message = format!("a task that this one depends on failed: {}", self.message());
        let mut error = Error::new(self.kind(), message).caused_by(self.clone());
        let details = Arc::make_mut(&mut error.details);
        details.passed_on = true;
        (details.gone, details.memory) = (self.details.gone, self.details.memory);
        error
    }

    /// Returns whether this is the failure of another task, on which the failed one depended.
    pub fn is_passed_on(&self) -> bool {
        self.details.passed_on
    }

    /// Sets whether this is the failure of another task, on which the failed one depended. For the
    /// decoder of the wire format: [`passed_on`](Error::passed_on) sets it otherwise.
    pub fn marked_passed_on(mut self, passed_on: bool) -> Error {
        Arc::make_mut(&mut self.details).passed_on = passed_on;
        self
    }

    /// Returns roughly how many bytes the error takes, without its cause.
    pub fn bytes(&self) -> usize {
        let failure = self.failure().map_or(0, |failure| {
            failure.class.len()
                + failure.traceback.len()
                + failure.payload.as_ref().map_or(0, Payload::len)
                + failure.bases.iter().map(String::len).sum::<usize>()
        });
        self.message().len() + failure
    }

    /// Cuts the error to about [`MAX_ERROR_BYTES`], without its cause. Message and traceback lose
    /// their middle. A payload that is too large is dropped.
    pub fn bounded(mut self) -> Error {
        if self.bytes() > MAX_ERROR_BYTES {
            let details = Arc::make_mut(&mut self.details);
            details.message = cut(&details.message, MAX_ERROR_BYTES / 4);
            if let Some(failure) = &mut details.failure {
                failure.class = cut(&failure.class, 1024);
                failure.bases = failure.bases.iter().take(64).map(|base| cut(base, 1024)).collect();
                failure.traceback = cut(&failure.traceback, MAX_ERROR_BYTES / 4);
                let fits = |payload: &Payload| payload.len() <= MAX_ERROR_BYTES / 4;
                failure.payload = failure.payload.take().filter(fits);
            }
        }
        self
    }

    /// Returns the kind.
    pub fn kind(&self) -> ErrorKind {
        self.details.kind
    }

    /// Returns whether the failed work may have run.
    pub fn may_have_run(&self) -> bool {
        self.details.ran == Ran::Maybe
    }

    /// Returns the message, without that of the cause.
    pub fn message(&self) -> &str {
        &self.details.message
    }

    /// Returns whether the error is about exhausted memory. `Exhausted` has other reasons, too.
    pub fn is_out_of_memory(&self) -> bool {
        self.details.memory
    }

    /// Sets whether the error is about exhausted memory.
    pub fn marked_out_of_memory(mut self, memory: bool) -> Error {
        Arc::make_mut(&mut self.details).memory = memory;
        self
    }

    /// Returns the object or actor that is gone, if it is known.
    pub fn what_is_gone(&self) -> Option<Referent> {
        self.details.gone
    }

    /// Returns the report of user code, if user code failed.
    pub fn failure(&self) -> Option<&Failure> {
        self.details.failure.as_ref()
    }

    /// Returns the cause.
    pub fn cause(&self) -> Option<&Error> {
        self.details.cause.as_ref()
    }
}

/// The most bytes that an error of user code may take. The record of an ended task keeps its error.
pub const MAX_ERROR_BYTES: usize = 256 << 10;

/// Cuts the middle out of a text that is longer than `most` bytes.
fn cut(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let boundary = |mut at: usize| {
        while !text.is_char_boundary(at) {
            at += 1;
        }
        at
    };
    let (head, tail) = (boundary(most / 2), boundary(text.len() - most / 2));
    format!("{} … ({} bytes left out) … {}", &text[..head], tail - head, &text[tail..])
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.details.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() {
            return self.details.fmt(f);
        }
        write!(f, "{:?}: {}", self.kind(), self.message())?;
        // A failure of user code implies that it ran.
        if self.may_have_run() && self.kind() != ErrorKind::Failed {
            f.write_str(" (it may have run)")?;
        }
        let (mut shown, mut last) = (self.message(), self);
        while let Some(cause) = last.cause() {
            // An error that passes another on often repeats its message.
            if !shown.contains(cause.message()) {
                write!(f, "\n  because of {:?}: {}", cause.kind(), cause.message())?;
                shown = cause.message();
            }
            last = cause;
        }
        let traceback = last.failure().map_or("", |failure| failure.traceback.trim_end());
        if !traceback.is_empty() {
            write!(f, "\n{traceback}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.cause().map(|cause| cause as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{ActorId, ObjectId, TaskId};

    #[test]
    fn the_debug_format_of_an_error_is_its_kind_and_message() {
        let error = Error::unavailable(Ran::No, "no cluster runs here: start one");
        assert_eq!(format!("{error:?}"), "Unavailable: no cluster runs here: start one");
        let error = Error::unavailable(Ran::Maybe, "worker 7 is gone");
        assert_eq!(format!("{error:?}"), "Unavailable: worker 7 is gone (it may have run)");
        assert_eq!(error.to_string(), "worker 7 is gone");
    }

    #[test]
    fn the_debug_format_prints_each_traceback_and_cause_once() {
        let failure = Failure { traceback: "line 1\nline 2\n".into(), ..Failure::default() };
        let error = Error::failed("division by zero", failure);
        assert_eq!(format!("{error:?}"), "Failed: division by zero\nline 1\nline 2");
        let words = "Failed: a task that this one depends on failed: division by zero";
        assert_eq!(format!("{:?}", error.passed_on()), format!("{words}\nline 1\nline 2"));
        let actor = Referent::Actor(ActorId::from_u128(7));
        let error = Error::gone(actor, "actor 7 is gone").caused_by(Error::timeout("too late"));
        assert_eq!(format!("{error:?}"), "Gone: actor 7 is gone\n  because of Timeout: too late");
    }

    #[test]
    fn a_passed_on_error_still_names_the_referent_that_is_gone() {
        let object = Referent::Object(ObjectId::of(TaskId::from_u128(7), 1));
        let error = Error::gone(object, "it is gone");
        assert_eq!(error.what_is_gone(), Some(object));
        assert_eq!(error.passed_on().what_is_gone(), Some(object));
        assert_eq!(Error::timeout("too late").what_is_gone(), None);
        assert!(Error::out_of_memory("none is left").passed_on().is_out_of_memory());
        assert!(!Error::exhausted("too many").is_out_of_memory());
    }

    #[test]
    fn the_alternate_debug_format_shows_the_fields_of_an_error() {
        let failure = Failure { class: "ValueError".into(), ..Failure::default() };
        let all = format!("{:#?}", Error::failed("no", failure));
        assert!(all.contains("ran: Maybe") && all.contains("ValueError"), "{all}");
    }
}
