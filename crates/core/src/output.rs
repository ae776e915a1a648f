//! What user code prints, on its way to whoever submitted it: worker, controller, client.
//!
//! It is told for people to see, not kept: where it cannot be passed on at once it is dropped and counted.
//! What is kept is the worker's log of each attempt.

use crate::message::{AttemptId, Instance};
use std::sync::Arc;

/// Whose output it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum OutputSource {
    /// An attempt's.
    Task(AttemptId),
    /// That of a life of an actor.
    Actor(Instance),
}

/// Where it was printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StdStream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// Some lines that were printed, one after the other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PrintedLines {
    /// By which process, as its own machine calls it.
    pub pid: u32,
    /// Where to.
    pub stream: StdStream,
    /// The lines, without the end of the last.
    pub text: Option<Arc<str>>,
    /// So many lines were printed before these and left out: there were too many of them.
    pub dropped: u64,
    /// So many lines were lost on the way here, of whoever printed them: nobody took them in time.
    pub missed: u64,
}

impl PrintedLines {
    /// How many lines it stands for.
    pub fn lines(&self) -> u64 {
        let here = self.text.as_ref().map_or(0, |text| text.split('\n').count() as u64);
        here + self.dropped + self.missed
    }
}

/// Output, and who printed it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AttributedOutput {
    /// Whose it is.
    pub source: OutputSource,
    /// The function; the name or the class of the actor.
    pub name: Arc<str>,
    /// On which machine.
    pub hostname: Arc<str>,
    /// What was printed.
    pub output: PrintedLines,
}

/// Who is shown what a client's work prints.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Audience {
    /// Nobody, unless said otherwise.
    Nobody,
    /// The client itself.
    Me,
    /// Whoever is shown what this task or actor prints: the client is a part of it.
    OfSource(OutputSource),
}
