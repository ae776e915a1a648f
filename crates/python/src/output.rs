//! The output of this driver's work, for the thread of `marline/_session/output.py` that shows it. Waiting
//! for output does not take the interpreter's lock.

use crate::fork::generation;
use marline_runtime::OutputReceiver;
use marline_runtime::core::output::{AttributedOutput, OutputSource, StdStream};
use marline_runtime::terminal::escaped;
use pyo3::prelude::*;
use std::time::Duration;

/// The most pieces that one [`Output::take`] returns.
const MAX_PIECES: usize = 64;

/// A piece of output.
#[pyclass(frozen, get_all, module = "marline._native")]
pub struct OutputPiece {
    /// The name of the function or actor.
    name: String,
    hostname: String,
    pid: u32,
    /// Whether it went to standard error.
    is_error: bool,
    /// The lines, if there are any.
    text: Option<String>,
    /// How many lines the worker dropped, and how many did not reach the driver.
    dropped: u64,
    missed: u64,
    /// The id of the log that has all lines.
    log: String,
}

/// The output of this driver's work. See the [module](self).
#[pyclass(frozen, module = "marline._native")]
pub struct Output {
    /// Always there, except while it is dropped in a fork, which must not run the receiver's
    /// `Drop`.
    output_receiver: Option<OutputReceiver>,
    /// The [`generation`] of the process that owns it.
    generation: u64,
}

impl Output {
    pub fn new(output_receiver: OutputReceiver) -> Output {
        Output { output_receiver: Some(output_receiver), generation: generation() }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if self.generation != generation() {
            std::mem::forget(self.output_receiver.take());
        }
    }
}

#[pymethods]
impl Output {
    /// Waits for output and returns it. Returns an empty list after `timeout` seconds without
    /// output, and `None` once the session has ended.
    fn take(&self, py: Python<'_>, timeout: Option<f64>) -> Option<Vec<OutputPiece>> {
        let output_receiver =
            self.output_receiver.as_ref().filter(|_| self.generation == generation())?;
        let timeout = timeout.map(|seconds| Duration::from_secs_f64(seconds.max(0.0)));
        let shown = py.detach(|| output_receiver.take(timeout, MAX_PIECES))?;
        Some(shown.into_iter().map(piece).collect())
    }
}

fn piece(shown: AttributedOutput) -> OutputPiece {
    let AttributedOutput { source, name, hostname, output } = shown;
    OutputPiece {
        // Both are shown before each line on a terminal.
        name: escaped(&name).into_owned(),
        hostname: escaped(&hostname).into_owned(),
        pid: output.pid,
        is_error: output.stream == StdStream::Err,
        text: output.text.map(|text| text.to_string()),
        dropped: output.dropped,
        missed: output.missed,
        log: match source {
            OutputSource::Task(attempt) => attempt.task.to_string(),
            OutputSource::Actor(instance) => instance.actor.to_string(),
        },
    }
}
