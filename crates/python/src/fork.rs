//! Forks of this process: what it had is not theirs. Its threads are not there, and what they had locked
//! stays locked, so a fork leaves all of it alone. It can join with a session of its own.

use pyo3::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts forks between the first process and this one.
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// Which process this is, as seen from those it was forked from.
pub fn generation() -> u64 {
    GENERATION.load(Ordering::Relaxed)
}

/// This process is about to be forked, or just was: what it reads of shared memory, the fork may go on reading. Called by
/// Python.
#[pyfunction]
pub fn about_to_fork(py: Python<'_>) {
    py.detach(marline_runtime::about_to_fork);
}

/// This process is a fork. Called by Python in the child, before anything else runs there.
#[pyfunction]
pub fn forked() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}
