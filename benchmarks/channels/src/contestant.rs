//! What is measured. A `Shape` is a question ("one-way ping at capacity 0"), a
//! `Contestant` is the code of one crate that answers it, and an `Outcome` is the
//! result of a run. `shapes.rs` lists all shapes.

use std::ops::Add;
use std::time::Duration;

pub struct Shape {
    pub name: String,
    /// The most messages in one go, which bounds the memory of unbounded queues.
    /// Longer runs repeat the shape.
    pub chunk: u64,
    pub contestants: Vec<Contestant>,
}

impl Shape {
    pub fn new(name: String, contestants: Vec<Contestant>) -> Shape {
        Shape { name, chunk: u64::MAX, contestants }
    }

    pub fn needs_other_build(&self) -> bool {
        self.contestants.iter().any(|contestant| contestant.program != Program::This)
    }
}

pub struct Contestant {
    pub name: &'static str,
    pub specialised: bool,
    pub program: Program,
    pub run: Run,
}

/// Runs about this many messages through the shape.
pub type Run = Box<dyn Fn(u64) -> Outcome>;

/// The program that the child process runs. A build of our crate with other features
/// must be another program.
#[derive(Clone, Copy, PartialEq)]
pub enum Program {
    This,
    WithoutMetrics,
}

impl Contestant {
    pub fn new(name: &'static str, run: impl Fn(u64) -> Outcome + 'static) -> Contestant {
        Contestant { name, specialised: false, program: Program::This, run: Box::new(run) }
    }

    pub fn specialised(mut self, specialised: bool) -> Contestant {
        self.specialised = specialised;
        self
    }
}

#[derive(Clone, Copy, Default)]
pub struct Outcome {
    pub messages: u64,
    pub elapsed: Duration,
    /// How many messages the channel accepted and never delivered.
    pub lost: u64,
    /// How many messages arrived although the sender was told that they were not sent.
    pub doubled: u64,
}

impl Outcome {
    /// Returns these losses with this number of messages and this time.
    pub fn over(self, messages: u64, elapsed: Duration) -> Outcome {
        Outcome { messages, elapsed, ..self }
    }

    pub fn nanoseconds(&self) -> f64 {
        self.elapsed.as_nanos() as f64 / self.messages.max(1) as f64
    }
}

impl Add for Outcome {
    type Output = Outcome;
    fn add(self, other: Outcome) -> Outcome {
        Outcome {
            messages: self.messages + other.messages,
            elapsed: self.elapsed + other.elapsed,
            lost: self.lost + other.lost,
            doubled: self.doubled + other.doubled,
        }
    }
}
