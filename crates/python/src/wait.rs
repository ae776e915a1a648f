//! How a Python thread waits: without the interpreter's lock, and as long as no signal wants to be handled.

use crate::answer::{Answer, when};
use marline_runtime::{Waited, Waiter, blocking};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A wait without a limit, as far as anybody can tell.
const LONGEST: Duration = Duration::from_secs(60 * 60 * 24 * 365 * 100);
/// A signal ends a wait. One that comes just before it begins does not: it is seen after this long.
const LOOK_EVERY: Duration = Duration::from_secs(1);

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
