//! What this driver's work prints, for the thread that shows it: waiting for it does not need the
//! interpreter.

use crate::fork::generation;
use marline_runtime::OutputReceiver;
use marline_runtime::core::output::{AttributedOutput, OutputSource, StdStream};
use marline_runtime::terminal::escaped;
use pyo3::prelude::*;
use std::time::Duration;

/// How much is handed over at a time.
const MAX_PIECES: usize = 64;

/// The name, the host, the pid, whether it is of standard error, the lines if there are any, how many were
/// dropped, how many were missed, and the id that their log has.
type Piece = (String, String, u32, bool, Option<String>, u64, u64, String);

/// See the [module](self).
#[pyclass(frozen, module = "marline._native")]
pub struct Output {
    /// Nothing once it is left alone.
    output_receiver: Option<OutputReceiver>,
    /// Which process it belongs to.
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
    /// What was printed since the last time, when there is something; nothing if the time is over; `None`
    /// if the session is.
    fn take(&self, py: Python<'_>, timeout: Option<f64>) -> Option<Vec<Piece>> {
        let output_receiver =
            self.output_receiver.as_ref().filter(|_| self.generation == generation())?;
        let timeout = timeout.map(|seconds| Duration::from_secs_f64(seconds.max(0.0)));
        let shown = py.detach(|| output_receiver.take(timeout, MAX_PIECES))?;
        Some(shown.into_iter().map(piece).collect())
    }
}

fn piece(shown: AttributedOutput) -> Piece {
    let AttributedOutput { source, name, hostname, output } = shown;
    let id = match source {
        OutputSource::Task(attempt) => attempt.task.to_string(),
        OutputSource::Actor(instance) => instance.actor.to_string(),
    };
    let is_error = output.stream == StdStream::Err;
    let text = output.text.map(|text| text.to_string());
    // They are shown before each line.
    let (name, hostname) = (escaped(&name).into_owned(), escaped(&hostname).into_owned());
    (name, hostname, output.pid, is_error, text, output.dropped, output.missed, id)
}
