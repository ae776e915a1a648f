//! Forks of this process by user code (`os.fork`, `multiprocessing`).
//!
//! The threads of the parent do not exist in a fork, and the locks that they held stay locked. So a
//! fork never touches, and never drops, the sessions and handles of its parent: each of them
//! records the [`generation`] of its process. A fork can join a cluster with a session of its own.

use pyo3::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many forks lie between the first process and this one.
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// Returns a number that tells this process from the processes it was forked from.
pub fn generation() -> u64 {
    GENERATION.load(Ordering::Relaxed)
}

/// Prepares for a fork: the blobs that this process reads in shared memory stay readable in the
/// fork. Called by Python before a fork, and in the parent after it.
#[pyfunction]
pub fn about_to_fork(py: Python<'_>) {
    py.detach(marline_runtime::about_to_fork);
}

/// Starts a new generation. Called by Python in the child of a fork, before anything else runs
/// there.
#[pyfunction]
pub fn forked() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}
