//! A simulated cluster around the state machines of `marline-core`, with faults of every kind.
//!
//! One seed decides everything in a run:
//!
//! - `world.rs`: time, and the queue of events.
//! - `user.rs`, `fuzz_client.rs`: what clients submit. `executor.rs`: what user code does.
//! - `controller.rs`, `worker.rs`, `client.rs`: the processes, each with its own clock
//!   (`process.rs`).
//! - `net.rs`: connections. Messages go through real [`link`](marline_core::link)s over them.
//! - `object_store.rs`: the object stores of workers.
//! - `nemesis.rs`: faults. It delays messages, cuts one or both directions, breaks connections,
//!   freezes and kills processes of every kind. Late and repeated messages arrive.
//! - `oracle.rs`: checks of promises that no machine can see alone.
//!
//! The machines check their own invariants: in one seed of four after every event, in the others
//! after one event in eight. At the end of a run the faults stop, and all submitted work must end.
//!
//! [`run`] runs one seed. It panics with the broken promise, if there is one.

#![forbid(unsafe_code)]

mod client;
mod controller;
mod executor;
mod fuzz_client;
mod nemesis;
mod net;
mod object_store;
mod oracle;
mod process;
mod user;
mod worker;
mod world;

pub use world::{Report, run};

use std::hash::{BuildHasher, RandomState};

/// Returns a seed that differs from run to run, and that no test uses as a fixed seed.
pub fn fresh_seed() -> u64 {
    // The fixed seeds of the tests are smaller.
    const FIRST: u64 = 1_000_000;
    FIRST + RandomState::new().hash_one("seed") % 1_000_000_000
}

/// Returns the command that runs one seed again.
pub fn replay(seed: u64) -> String {
    format!("cargo run --release -p marline-sim -- --seed {seed}")
}
