//! How many CPUs this process may use.

use pyo3::prelude::*;
use std::thread::available_parallelism;

/// As many as it is allowed to run on, and no more than the quota of its cgroup, rounded down; at least one.
#[pyfunction]
pub fn available_cpus() -> usize {
    available_parallelism().map_or(1, usize::from)
}
