//! How the process ends: one code for each thing that a script may do differently.

use crate::printer::Printer;
use marline_runtime::core::error::{Error, ErrorKind};
use std::process::ExitCode;

/// What could not be done failed.
pub const FAILED: u8 = 1;
/// What was typed makes no sense.
pub const USAGE: u8 = 2;
/// No cluster could be reached.
pub const UNREACHABLE: u8 = 3;
/// There is no such thing.
pub const NOT_FOUND: u8 = 4;
/// It is not allowed.
pub const DENIED: u8 = 5;
/// A command took longer than its `--timeout`.
pub const TOO_LONG: u8 = 124;
/// A command could not be run.
pub const NOT_RUN: u8 = 125;
/// The user interrupted it.
pub const INTERRUPTED: u8 = 130;
/// Nobody reads what it prints any more.
pub const OUTPUT_CLOSED: u8 = 141;

/// Why a command of this program failed.
#[derive(Debug)]
pub struct Failure {
    pub code: u8,
    pub kind: String,
    pub message: String,
    /// The message for a terminal, where that is another.
    pub styled: Option<String>,
}

impl Failure {
    pub fn new(code: u8, kind: &str, message: impl Into<String>) -> Failure {
        Failure { code, kind: kind.into(), message: message.into(), styled: None }
    }

    pub fn usage(message: impl Into<String>) -> Failure {
        Failure::new(USAGE, "Invalid", message)
    }

    pub fn failed(message: impl Into<String>) -> Failure {
        Failure::new(FAILED, "Failed", message)
    }

    /// Something that was to be printed is lost.
    pub fn unwritten(what: &str, error: &std::io::Error) -> Failure {
        Failure::failed(format!("{what} cannot be written: {error}"))
    }

    /// Says so, and ends with its code.
    pub fn report(self, printer: Printer) -> ExitCode {
        let Failure { code, kind, message, styled } = self;
        printer.failure(&kind, &message, styled.as_deref());
        ExitCode::from(code)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let code = match error.kind() {
            ErrorKind::Unavailable | ErrorKind::Timeout => UNREACHABLE,
            ErrorKind::NotFound => NOT_FOUND,
            ErrorKind::Denied => DENIED,
            ErrorKind::Invalid => USAGE,
            ErrorKind::Interrupted => INTERRUPTED,
            ErrorKind::Full
            | ErrorKind::Empty
            | ErrorKind::Cancelled
            | ErrorKind::Closed
            | ErrorKind::NotReady
            | ErrorKind::AlreadyExists
            | ErrorKind::Gone
            | ErrorKind::Fenced
            | ErrorKind::Failed
            | ErrorKind::TooLarge
            | ErrorKind::Exhausted
            | ErrorKind::Unsupported
            | ErrorKind::Incompatible
            | ErrorKind::Internal => FAILED,
        };
        let mut failure = Failure::new(code, &format!("{:?}", error.kind()), error.message());
        // Those who say so cannot know how it is passed here.
        if code == DENIED && failure.message.contains("token is missing or wrong") {
            failure.message += " with --token-file FILE";
        }
        failure
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        Failure::failed(error.to_string())
    }
}
