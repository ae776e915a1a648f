//! How many CPUs this process may use.

use pyo3::prelude::*;
use std::thread::available_parallelism;

/// Returns the number of CPUs that this process may run on, limited by the quota of its cgroup,
/// rounded down; at least 1.
#[pyfunction]
pub fn available_cpus() -> usize {
    available_parallelism().map_or(1, usize::from)
}
