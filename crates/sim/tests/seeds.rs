//! Runs fixed seeds, and about as many seeds that differ from run to run, which find bugs that the
//! fixed seeds do not. `make sim` runs more.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// How many seeds each test runs. The tests run side by side.
const SEEDS: u64 = 100;

fn run(from: u64) {
    println!("seeds {from} to {}", from + SEEDS - 1);
    for seed in from..from + SEEDS {
        let result = catch_unwind(AssertUnwindSafe(|| marline_sim::run(seed, false)));
        assert!(
            result.is_ok(),
            "seed {seed} failed; replay it with: {}",
            marline_sim::replay(seed)
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
fn every_promise_holds_for_seeds_never_run_before_1() {
    run(marline_sim::fresh_seed());
}

#[test]
fn every_promise_holds_for_seeds_never_run_before_2() {
    run(marline_sim::fresh_seed());
}

#[test]
fn every_promise_holds_for_seeds_never_run_before_3() {
    run(marline_sim::fresh_seed());
}

#[test]
fn a_seed_gives_the_same_world_every_time() {
    assert_eq!(marline_sim::run(7, false), marline_sim::run(7, false));
}
