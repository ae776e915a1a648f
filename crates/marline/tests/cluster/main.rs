//! Tests with clusters of real processes, killed with real signals. The test binary starts itself
//! again as a worker, a controller or a client: see `harness.rs`.

mod actors;
mod async_runtimes;
mod commands;
mod controllers;
mod executor_faults;
mod executors;
mod harness;
mod leases;
mod ledger;
mod nested;
mod objects;
mod partitions;
mod test_binaries;
mod threads;
