//! The one error table. A [`Error`] says what kind of thing went wrong (one kind per thing a caller may
//! do differently), whether the work may have run, and in words which thing and what to do next.

use crate::id::Referent;
use crate::payload::Payload;
use std::fmt;
use std::sync::Arc;

/// What went wrong; each kind is one thing that a caller may do differently.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ErrorKind {
    /// No room now.
    Full,
    /// Nothing there now.
    Empty,
    /// The deadline passed.
    Timeout,
    /// It was cancelled.
    Cancelled,
    /// It was closed.
    Closed,
    /// Not finished yet.
    NotReady,
    /// There is no such thing.
    NotFound,
    /// The name is taken.
    AlreadyExists,
    /// A part of the cluster went away; trying again may help.
    Unavailable,
    /// It is gone for good.
    Gone,
    /// The speaker's session is over; what it says changes nothing.
    Fenced,
    /// User code failed.
    Failed,
    /// Larger than a limit.
    TooLarge,
    /// A limit is reached.
    Exhausted,
    /// Not possible here.
    Unsupported,
    /// Bad input.
    Invalid,
    /// Another version.
    Incompatible,
    /// Not allowed.
    Denied,
    /// A signal came while waiting.
    Interrupted,
    /// A bug of ours.
    Internal,
}

impl ErrorKind {
    /// Every kind, in the order of the table.
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

/// Whether the work an error speaks of may have run.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Ran {
    /// It certainly did not: doing it again does it once.
    No,
    /// It may have run, or be running still.
    Maybe,
}

/// What user code said when it failed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Failure {
    /// The class of the exception, or the name of the error type.
    pub class: String,
    /// The traceback or backtrace, as text.
    pub traceback: String,
    /// The error itself, encoded, where it could be.
    pub payload: Option<Payload>,
    /// The classes that its class is one of, in whatever language that is.
    pub bases: Vec<String>,
}

/// An error of Marline: kind, whether the work may have run, words, and what lies behind it.
///
/// `{}` has the words alone; `{:?}`, which is what a `main` that returns it prints, also the kind, what
/// lies behind it, and a traceback if there is one; `{:#?}` has every field.
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
    /// Whether it is another's failure, seen by one that depended on it.
    passed_on: bool,
    /// What is gone, if that is what it says.
    gone: Option<Referent>,
    /// Whether it is memory that ran out.
    memory: bool,
}

macro_rules! constructors {
    ($($name:ident => $kind:ident,)+) => { $(
        #[doc = concat!("An error of the kind [`ErrorKind::", stringify!($kind), "`].")]
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

    /// An error of this kind; the work did not run.
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

    /// A value or an actor is gone for good.
    pub fn gone(thing: Referent, message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Gone, message).with_gone(thing)
    }

    /// There is not enough memory.
    pub fn out_of_memory(message: impl Into<String>) -> Error {
        Error::exhausted(message).marked_out_of_memory(true)
    }

    /// A part of the cluster went away.
    pub fn unavailable(ran: Ran, message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Unavailable, message).ran(ran)
    }

    /// User code failed; `message` is what it said.
    pub fn failed(message: impl Into<String>, failure: Failure) -> Error {
        Error::new(ErrorKind::Failed, message).ran(Ran::Maybe).with_failure(failure)
    }

    /// The same, with whether the work may have run.
    pub fn ran(mut self, ran: Ran) -> Error {
        Arc::make_mut(&mut self.details).ran = ran;
        self
    }

    /// The same, with what is gone.
    pub fn with_gone(mut self, thing: Referent) -> Error {
        Arc::make_mut(&mut self.details).gone = Some(thing);
        self
    }

    /// The same, with what user code said.
    pub fn with_failure(mut self, failure: Failure) -> Error {
        Arc::make_mut(&mut self.details).failure = Some(failure);
        self
    }

    /// The same, caused by another.
    pub fn caused_by(mut self, cause: Error) -> Error {
        Arc::make_mut(&mut self.details).cause = Some(cause);
        self
    }

    /// This failure, as seen by something that depended on what failed. However long the chain, the
    /// cause is what failed first.
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

    /// Whether it is another's failure, seen by one that depended on it.
    pub fn is_passed_on(&self) -> bool {
        self.details.passed_on
    }

    /// The same, marked as another's failure: for those who carry errors between processes.
    pub fn marked_passed_on(mut self, passed_on: bool) -> Error {
        Arc::make_mut(&mut self.details).passed_on = passed_on;
        self
    }

    /// Roughly how many bytes it takes.
    pub fn bytes(&self) -> usize {
        let failure = self.failure().map_or(0, |failure| {
            failure.class.len()
                + failure.traceback.len()
                + failure.payload.as_ref().map_or(0, Payload::len)
                + failure.bases.iter().map(String::len).sum::<usize>()
        });
        self.message().len() + failure
    }

    /// The same, cut to [`MAX_ERROR_BYTES`]: words and traceback lose their middle, a payload that is
    /// too large goes.
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

    /// What kind of error it is.
    pub fn kind(&self) -> ErrorKind {
        self.details.kind
    }

    /// Whether the work it speaks of may have run.
    pub fn may_have_run(&self) -> bool {
        self.details.ran == Ran::Maybe
    }

    /// The words, without those of the cause.
    pub fn message(&self) -> &str {
        &self.details.message
    }

    /// Whether it is memory that ran out, of all that can.
    pub fn is_out_of_memory(&self) -> bool {
        self.details.memory
    }

    /// The same, which says that, or does not.
    pub fn marked_out_of_memory(mut self, memory: bool) -> Error {
        Arc::make_mut(&mut self.details).memory = memory;
        self
    }

    /// The value or actor that is gone, where that is known.
    pub fn what_is_gone(&self) -> Option<Referent> {
        self.details.gone
    }

    /// What user code said, if it was user code that failed.
    pub fn failure(&self) -> Option<&Failure> {
        self.details.failure.as_ref()
    }

    /// What lies behind it.
    pub fn cause(&self) -> Option<&Error> {
        self.details.cause.as_ref()
    }
}

/// The most that an error of user code may take; it is kept in the record of what ended.
pub const MAX_ERROR_BYTES: usize = 256 << 10;

/// Cuts the middle out of a text that is too long.
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
        // Of user code that failed, everybody knows that it ran.
        if self.may_have_run() && self.kind() != ErrorKind::Failed {
            f.write_str(" (it may have run)")?;
        }
        let (mut shown, mut last) = (self.message(), self);
        while let Some(cause) = last.cause() {
            // Whoever passes an error on often says its words again.
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
    fn what_a_main_prints_is_for_people() {
        let error = Error::unavailable(Ran::No, "no cluster runs here: start one");
        assert_eq!(format!("{error:?}"), "Unavailable: no cluster runs here: start one");
        let error = Error::unavailable(Ran::Maybe, "worker 7 is gone");
        assert_eq!(format!("{error:?}"), "Unavailable: worker 7 is gone (it may have run)");
        assert_eq!(error.to_string(), "worker 7 is gone");
    }

    #[test]
    fn what_lies_behind_an_error_is_printed_once() {
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
    fn who_depends_on_what_is_gone_hears_what_that_was() {
        let object = Referent::Object(ObjectId::of(TaskId::from_u128(7), 1));
        let error = Error::gone(object, "it is gone");
        assert_eq!(error.what_is_gone(), Some(object));
        assert_eq!(error.passed_on().what_is_gone(), Some(object));
        assert_eq!(Error::timeout("too late").what_is_gone(), None);
        assert!(Error::out_of_memory("none is left").passed_on().is_out_of_memory());
        assert!(!Error::exhausted("too many").is_out_of_memory());
    }

    #[test]
    fn every_field_can_be_seen() {
        let failure = Failure { class: "ValueError".into(), ..Failure::default() };
        let all = format!("{:#?}", Error::failed("no", failure));
        assert!(all.contains("ran: Maybe") && all.contains("ValueError"), "{all}");
    }
}
