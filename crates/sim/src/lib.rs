//! A simulated world around the machines of `marline-core`, in which everything that can go wrong does.
//!
//! One seed decides everything: what clients ask for, how long things take, how each process's clock
//! runs, and what the nemesis does (`nemesis.rs`): it delays, cuts one or both directions, breaks
//! connections, freezes and kills processes of every kind, and lets late and repeated messages arrive.
//! Messages go through real [`link`](marline_core::link)s over simulated connections (`net.rs`).
//!
//! The machines check their own invariants: after every event in one seed of four, after one event in eight in the others.
//! The oracle (`oracle.rs`) checks what no machine can see alone. Then the faults stop, and everything that was asked for
//! must end.
//!
//! [`run`] runs one seed; it panics, naming what went wrong, if a promise is broken.

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

/// A seed that differs from run to run, far from those that every run uses.
pub fn fresh_seed() -> u64 {
    // The tests' own seeds are smaller.
    const FIRST: u64 = 1_000_000;
    FIRST + RandomState::new().hash_one("seed") % 1_000_000_000
}

/// The command that runs one seed again.
pub fn replay(seed: u64) -> String {
    format!("cargo run --release -p marline-sim -- --seed {seed}")
}
