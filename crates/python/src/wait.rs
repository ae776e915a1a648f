//! How a Python thread waits: without the interpreter's lock, and as long as no signal wants to be handled.

use crate::answer::{Answer, when};
use marline_runtime::{Waited, Waiter, blocking};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// A wait without a limit, as far as anybody can tell.
const LONGEST: Duration = Duration::from_secs(60 * 60 * 24 * 365 * 100);
/// A signal ends a wait. One that comes just before it begins does not: it is seen after this long.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How often somebody looks for signals who cannot be woken by them.
const SIGNALS_EVERY: Duration = Duration::from_millis(20);

/// Waits until so many have come or the time is over. Signals are handled as they come. Says whether they
/// have come.
pub fn wait_for(
    py: Python<'_>,
    answers: &[&Arc<Answer>],
    count: usize,
    timeout: Option<f64>,
) -> PyResult<bool> {
    let ready = answers.iter().filter(|answer| answer.get().is_some()).count();
    let count = count.min(answers.len());
    if ready >= count {
        return Ok(true);
    }
    if timeout.is_some_and(f64::is_nan) {
        return Err(PyValueError::new_err("the timeout is not a number"));
    }
    let timeout = timeout.map(|timeout| timeout.max(0.0));
    let timeout = timeout.map(|timeout| Duration::try_from_secs_f64(timeout).unwrap_or(LONGEST));
    let deadline = Instant::now() + timeout.unwrap_or(LONGEST).min(LONGEST);
    let waiter = Waiter::new();
    let ring = waiter.clone();
    when(answers.iter().copied(), count, move || ring.ring());
    blocking(|| {
        loop {
            py.check_signals()?;
            let look = (Instant::now() + LOOK_EVERY).min(deadline);
            match py.detach(|| waiter.wait(look)) {
                Waited::Rung => return Ok(true),
                Waited::TimedOut if Instant::now() >= deadline => return Ok(false),
                Waited::TimedOut | Waited::Interrupted => {}
            }
        }
    })
}

/// Does what takes its time and knows nothing of signals, on a thread of its own. A signal that raises ends the
/// wait for it; what it comes to is dropped then.
pub fn interruptible<R: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> R + Send + 'static,
) -> PyResult<R> {
    let (tell, mut told) = mpsc::channel();
    let work = move || drop(tell.send(work()));
    thread::Builder::new().name("marline-wait".into()).spawn(work)?;
    loop {
        let told = &mut told; // Only this thread reads it, whoever has the interpreter meanwhile.
        match py.detach(move || told.recv_timeout(SIGNALS_EVERY)) {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err("it panicked"));
            }
        }
    }
}
