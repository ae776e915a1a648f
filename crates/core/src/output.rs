//! Printed output of user code, on its way from the worker through the controller to the client
//! that submitted the work.
//!
//! This output is for people to see and is not stored. If it cannot be forwarded at once, it is
//! dropped and counted. The stored copy is the worker's log of each attempt.

use crate::message::{AttemptId, Instance};
use std::sync::Arc;

/// The work that printed some output.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum OutputSource {
    /// An attempt of a task.
    Task(AttemptId),
    /// An instance of an actor.
    Actor(Instance),
}

/// The stream to which a line was printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StdStream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// Consecutive lines of one process's output.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PrintedLines {
    /// The process that printed them, by its process id on its own machine.
    pub pid: u32,
    /// The stream to which it printed.
    pub stream: StdStream,
    /// The lines, without the last line's end.
    pub text: Option<Arc<str>>,
    /// How many lines before these were left out, because the process printed too many.
    pub dropped: u64,
    /// How many earlier lines of the same source were lost on the way, because they were not read
    /// in time.
    pub missed: u64,
}

impl PrintedLines {
    /// Returns how many lines this stands for, with the dropped and missed ones.
    pub fn lines(&self) -> u64 {
        let here = self.text.as_ref().map_or(0, |text| text.split('\n').count() as u64);
        here + self.dropped + self.missed
    }
}

/// Output, with the task or actor that printed it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AttributedOutput {
    /// The work that printed it.
    pub source: OutputSource,
    /// The name of the function, or the name or class of the actor.
    pub name: Arc<str>,
    /// The machine on which it was printed.
    pub hostname: Arc<str>,
    /// The lines.
    pub output: PrintedLines,
}

/// The process that is shown the output of a client's work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Audience {
    /// No process. This is the default.
    Nobody,
    /// The client itself.
    Me,
    /// The process that is shown the output of this task or actor. The client is an executor that
    /// runs it.
    OfSource(OutputSource),
}
