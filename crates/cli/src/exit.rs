//! Exit codes: one for each outcome that a script may treat differently.

use crate::printer::Printer;
use marline_runtime::core::error::{Error, ErrorKind};
use std::process::ExitCode;

/// The command failed.
pub const FAILED: u8 = 1;
/// A flag, an id, an address, the settings file or a token file is not valid.
pub const USAGE: u8 = 2;
/// No cluster could be reached.
pub const UNREACHABLE: u8 = 3;
/// The task, actor or worker does not exist.
pub const NOT_FOUND: u8 = 4;
/// The token is missing or wrong, or others can read its file.
pub const DENIED: u8 = 5;
/// The command of `run` took longer than its `--timeout`.
pub const TOO_LONG: u8 = 124;
/// The command of `run` could not be run, or not to its end.
pub const NOT_RUN: u8 = 125;
/// The user interrupted the command.
pub const INTERRUPTED: u8 = 130;
/// The reader of standard output has gone. A shell reports the same code for SIGPIPE (128 + 13).
pub const OUTPUT_CLOSED: u8 = 141;

/// Why a command of this program failed, and with which exit code.
#[derive(Debug)]
pub struct Failure {
    pub code: u8,
    pub kind: String,
    pub message: String,
    /// The message with colours, for a terminal. `None` if it has no colours.
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

    /// Returns the failure for output that could not be written. `what` names the output.
    pub fn unwritten(what: &str, error: &std::io::Error) -> Failure {
        Failure::failed(format!("{what} cannot be written: {error}"))
    }

    /// Prints the message, and returns the exit code.
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
        // The runtime, which wrote the message, does not know the flag.
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
