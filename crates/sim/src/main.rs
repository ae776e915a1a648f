//! The command line of the simulator: runs many seeds, or replays one seed with a trace. `HELP` has
//! the usage.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::{Duration, Instant};

const HELP: &str = "\
Runs simulated clusters, kills and cuts off every kind of process in them, and checks every promise.

usage: marline-sim --seeds COUNT [--from SEED]     run this many seeds
       marline-sim --minutes COUNT [--from SEED]   run seeds for this many minutes
       marline-sim --seed SEED [--quiet]           replay one seed, with a trace of its events

Without --from, the first seed differs from run to run; it is printed. For each seed that fails, the
broken promise and the command to replay it are printed. The exit status is 1 if a seed failed.";

/// How often progress is printed.
const PROGRESS: Duration = Duration::from_secs(5);
/// How many failures end a run. More failures rarely say more.
const MAX_FAILURES: usize = 20;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| {
        let at = args.iter().position(|arg| arg == name)?;
        Some(args.get(at + 1).and_then(|value| value.parse::<u64>().ok()))
    };
    let from = value("--from").unwrap_or_else(|| Some(marline_sim::fresh_seed()));
    match (value("--seed"), value("--seeds"), value("--minutes"), from) {
        (Some(Some(seed)), None, None, _) => {
            replay_seed(seed, !args.iter().any(|arg| arg == "--quiet"))
        }
        (None, Some(Some(count)), None, Some(from)) => run_seeds(from, Until::Seeds(count)),
        (None, None, Some(Some(minutes)), Some(from)) => {
            run_seeds(from, Until::Time(Duration::from_secs(minutes.saturating_mul(60))))
        }
        _ => {
            eprintln!("{HELP}");
            ExitCode::from(2)
        }
    }
}

fn replay_seed(seed: u64, trace: bool) -> ExitCode {
    let report = marline_sim::run(seed, trace);
    println!("seed {seed}: {report:?}");
    ExitCode::SUCCESS
}

/// When a run ends.
#[derive(Clone, Copy)]
enum Until {
    Seeds(u64),
    Time(Duration),
}

fn run_seeds(from: u64, until: Until) -> ExitCode {
    let start = Instant::now();
    let mut printed = start;
    let mut total = marline_sim::Report::default();
    let mut failed = Vec::new();
    println!("from seed {from}");
    let mut count = 0;
    while failed.len() < MAX_FAILURES
        && match until {
            Until::Seeds(seeds) => count < seeds,
            Until::Time(time) => start.elapsed() < time,
        }
    {
        let seed = from.wrapping_add(count);
        count += 1;
        match catch_unwind(AssertUnwindSafe(|| marline_sim::run(seed, false))) {
            Ok(report) => {
                total.steps += report.steps;
                total.finished += report.finished;
                total.failed += report.failed;
                total.faults += report.faults;
            }
            Err(_) => {
                eprintln!("seed {seed} failed; replay it with: {}", marline_sim::replay(seed));
                failed.push(seed);
            }
        }
        if printed.elapsed() > PROGRESS {
            printed = Instant::now();
            eprintln!("{count} seeds, {} steps", total.steps);
        }
    }
    println!(
        "{} of {count} seeds passed in {:.1} s: {} steps, {} tasks and calls finished, {} failed, {} faults",
        count - failed.len() as u64,
        start.elapsed().as_secs_f64(),
        total.steps,
        total.finished,
        total.failed,
        total.faults
    );
    if failed.is_empty() {
        return ExitCode::SUCCESS;
    }
    println!("failed: {failed:?}");
    ExitCode::FAILURE
}
