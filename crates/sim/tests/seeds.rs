//! A fixed number of seeds in every test run; `cargo run --release -p marline-sim -- --seeds COUNT`
//! runs more.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Seeds of each of the four tests, which run side by side.
const SEEDS: u64 = 100;

fn run(from: u64) {
    for seed in from..from + SEEDS {
        let result = catch_unwind(AssertUnwindSafe(|| marline_sim::run(seed, false)));
        assert!(
            result.is_ok(),
            "seed {seed} failed; replay it with: cargo run --release -p marline-sim -- --seed {seed}"
        );
    }
}

#[test]
fn every_promise_holds_whatever_is_killed_1() {
    run(0);
}

#[test]
fn every_promise_holds_whatever_is_killed_2() {
    run(100_000);
}

#[test]
fn every_promise_holds_whatever_is_killed_3() {
    run(200_000);
}

#[test]
fn every_promise_holds_whatever_is_killed_4() {
    run(300_000);
}

#[test]
fn a_seed_gives_the_same_world_every_time() {
    assert_eq!(marline_sim::run(7, false), marline_sim::run(7, false));
}
