//! The command line.

use std::path::PathBuf;
use std::time::Duration;

pub const HELP: &str = "\
Measures a Marline cluster: tasks, calls, actors, failures, and the controller's decisions.

  scripts/bench-cluster                     everything, 5 rounds, about three minutes
  scripts/bench-cluster --quick             everything, roughly, in under a minute
  scripts/bench-cluster --only task/tcp     shapes whose name contains the text

  --only TEXT      only shapes whose name contains TEXT; may be given several times:
                   task/embedded, task/tcp, task/unix,
                   call/embedded, call/tcp, call/unix, actor/create, actor/many,
                   failover, decisions/workers, decisions/pending, decisions/shapes, decisions/memory, idle
  --rounds N       interleaved rounds, median reported (default 5, quick 2, at most 99)
  --quick          shorter runs: to see that it works, not how fast it is
  --marline PATH   the `marline` program, to measure an idle `marline up`; without it, that is skipped
  --plot           draw the cost of a decision to docs/benchmarks/cluster-decisions.svg
  --json PATH      where to write the rows; without it, a full run writes target/bench/cluster.json,
                   and a run with --only writes no file
  --profile WHAT N run one shape of Marline alone for N seconds, for a profiler: WHAT is one of
                   task/embedded, task/tcp, task/unix, call/embedded, call/tcp, call/unix, with
                   the suffix `-rate` for many at a time; or decisions/workers-N,
                   decisions/pending-N, decisions/short-workers-N, decisions/short-pending-N
  --help           print this text

How to read the result: `ratio` is how many times better Marline is than `against`; 0.5 is half as
good. A row reaches its goal when its ratio is at least the goal. If `against` is `goal`, the rival
is a fixed value. Speed never changes the exit code.";

pub enum Command {
    Help,
    Measure(Settings),
    /// Runs this program in another role, for its parent process.
    Child(Vec<String>),
}

pub struct Settings {
    pub only: Vec<String>,
    pub rounds: usize,
    pub quick: bool,
    pub json: Option<PathBuf>,
    pub plot: bool,
    pub marline: Option<PathBuf>,
    pub profile: Option<(String, Duration)>,
}

impl Settings {
    pub fn wants(&self, shape: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|text| shape.contains(text.as_str()))
    }

    /// Returns the count, or a fifth of it with `--quick`.
    pub fn count(&self, count: usize) -> usize {
        if self.quick { count / 5 } else { count }
    }
}

pub fn parse(words: impl Iterator<Item = String>) -> Result<Command, String> {
    let mut words = words.peekable();
    if words.next_if_eq("--child").is_some() {
        return Ok(Command::Child(words.collect()));
    }
    let mut settings = Settings {
        only: Vec::new(),
        rounds: 0,
        quick: false,
        json: None,
        plot: false,
        marline: None,
        profile: None,
    };
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        match word.as_str() {
            "--help" | "-h" => return Ok(Command::Help),
            "--only" => settings.only.push(value()?),
            "--rounds" => settings.rounds = number(&value()?)?.clamp(1, 99) as usize,
            "--quick" => settings.quick = true,
            "--json" => settings.json = Some(value()?.into()),
            "--plot" => settings.plot = true,
            "--marline" => settings.marline = Some(value()?.into()),
            "--profile" => {
                let what = value()?;
                settings.profile = Some((what, Duration::from_secs(number(&value()?)?)));
            }
            _ => return Err(format!("unknown argument {word}; --help lists them")),
        }
    }
    if settings.rounds == 0 {
        settings.rounds = if settings.quick { 2 } else { 5 };
    }
    Ok(Command::Measure(settings))
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{text} is not a whole number"))
}
