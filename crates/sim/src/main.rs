//! `marline-sim --seeds COUNT [--from N]` runs many seeds, `--seed N` replays one with a trace.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::{Duration, Instant};

const HELP: &str = "\
Runs simulated clusters in which everything is killed, and checks every promise after every step.

usage: marline-sim --seeds COUNT [--from SEED]   run many seeds, stop at the first that fails
       marline-sim --seed SEED [--quiet]         replay one seed, printing what happens

A run that fails prints its seed and what was broken, and exits with status 1.";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| {
        let at = args.iter().position(|arg| arg == name)?;
        Some(args.get(at + 1).and_then(|value| value.parse::<u64>().ok()))
    };
    match (value("--seed"), value("--seeds"), value("--from").unwrap_or(Some(0))) {
        (Some(Some(seed)), None, _) => one(seed, !args.iter().any(|arg| arg == "--quiet")),
        (None, Some(Some(count)), Some(from)) => many(from, count),
        _ => {
            eprintln!("{HELP}");
            ExitCode::from(2)
        }
    }
}

fn one(seed: u64, trace: bool) -> ExitCode {
    let report = marline_sim::run(seed, trace);
    println!("seed {seed}: {report:?}");
    ExitCode::SUCCESS
}

fn many(from: u64, count: u64) -> ExitCode {
    let start = Instant::now();
    let mut said = start;
    let mut total = marline_sim::Report::default();
    for seed in from..from + count {
        let Ok(report) = catch_unwind(AssertUnwindSafe(|| marline_sim::run(seed, false))) else {
            eprintln!(
                "seed {seed} failed; replay it with: cargo run --release -p marline-sim -- --seed {seed}"
            );
            return ExitCode::FAILURE;
        };
        total.steps += report.steps;
        total.finished += report.finished;
        total.failed += report.failed;
        total.faults += report.faults;
        if said.elapsed() > Duration::from_secs(5) {
            said = Instant::now();
            eprintln!("{} of {count} seeds, {} steps", seed - from + 1, total.steps);
        }
    }
    println!(
        "{count} seeds passed in {:.1} s: {} steps, {} tasks and calls finished, {} failed, {} faults",
        start.elapsed().as_secs_f64(),
        total.steps,
        total.finished,
        total.failed,
        total.faults
    );
    ExitCode::SUCCESS
}
