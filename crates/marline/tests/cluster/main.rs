//! Clusters of real processes, killed with real signals. The test binary starts itself again as whatever
//! a test needs: see `harness.rs`.

mod commands;
mod executors;
mod harness;
mod leases;
mod threads;
