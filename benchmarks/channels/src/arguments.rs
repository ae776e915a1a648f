//! The command line: what was typed, turned into what it means. Nothing here
//! measures; `main.rs` decides what to do with the result.

use std::path::PathBuf;
use std::time::Duration;

pub const HELP: &str = "\
Measures Marline's in-process channels against other crates, in the same shapes.
In benchmarks/channels:

  cargo run --release --                      everything, 5 rounds, about three minutes
  cargo run --release -- --quick              everything, roughly, in half a minute
  cargo run --release -- --list               the names of all shapes and contestants
  cargo run --release -- --only 'select'      shapes whose name contains the text
  cargo run --release -- --only threads/ping --rounds 9
  cargo run --release -- --pin --only threads   everything on one CPU (taskset -c 0)

With the cost of the metrics, which takes a second build of the same program:

  cargo build --release --no-default-features
  cp ../../target/bench-build/release/marline-bench-channels /tmp/without-metrics
  cargo run --release -- --without-metrics /tmp/without-metrics

  --only TEXT        only shapes whose name contains TEXT; may be given several times
  --rounds N         rounds per shape, median reported (default 5, quick 2, at most 99)
  --quick            shorter runs: for finding out whether it works, not how fast
  --json PATH        where to write the rows; a full run writes target/bench/channels.json
                     (pinned: channels-pinned.json) by itself, a filtered one writes none
  --pin              run every measurement on CPU 0 only
  --without-metrics PATH
                     the same benchmark built with --no-default-features: adds the
                     contestant `marline without metrics` to the metrics shapes
  --list, --help

How to read the result: nanoseconds per message, lower is better, median of the rounds.
`ratio` is how many times faster ours is than the best rival that loses nothing; 0.5 is
twice as slow. kanal is shown and left out of that ratio, because it loses values when a
receive is cancelled. `~` marks a cell whose rounds differ more than three times, `!` a
row that was measured while other processes used more than a tenth of the machine.

Every measurement is a child process with a time limit: one that does not come back is
killed, reported as `hung`, and skipped for the rest of its shape. The exit code is 1
when ours hung, failed, or lost a message; speed never changes it.";

pub enum Command {
    Help,
    List,
    Compare(Settings),
    /// One measurement, as asked for by the parent process.
    Child(Order),
}

pub struct Settings {
    pub only: Vec<String>,
    pub rounds: usize,
    pub quick: bool,
    pub json: Option<PathBuf>,
    pub pin: bool,
    pub without_metrics: Option<PathBuf>,
}

impl Settings {
    /// How long one measurement should take.
    pub fn target(&self) -> Duration {
        Duration::from_millis(if self.quick { 10 } else { 45 })
    }

    pub fn wants(&self, shape: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|text| shape.contains(text))
    }
}

/// What a child process is asked to run; no messages means: find out how many.
pub struct Order {
    pub shape: String,
    pub contestant: String,
    pub messages: Option<u64>,
}

pub fn parse(mut words: impl Iterator<Item = String>) -> Result<Command, String> {
    let mut settings = Settings {
        only: Vec::new(),
        rounds: 0,
        quick: false,
        json: None,
        pin: false,
        without_metrics: None,
    };
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        match word.as_str() {
            "--help" | "-h" => return Ok(Command::Help),
            "--list" => return Ok(Command::List),
            "--child" => {
                let (shape, contestant) = (value()?, value()?);
                let messages = number(&value()?)?;
                return Ok(Command::Child(Order {
                    shape,
                    contestant,
                    messages: (messages > 0).then_some(messages),
                }));
            }
            "--only" => settings.only.push(value()?),
            "--rounds" => settings.rounds = number(&value()?)?.clamp(1, 99) as usize,
            "--quick" => settings.quick = true,
            "--json" => settings.json = Some(value()?.into()),
            "--pin" => settings.pin = true,
            "--without-metrics" => settings.without_metrics = Some(value()?.into()),
            _ => return Err(format!("unknown argument {word}; --help lists them")),
        }
    }
    if settings.rounds == 0 {
        settings.rounds = if settings.quick { 2 } else { 5 };
    }
    Ok(Command::Compare(settings))
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{text} is not a whole number"))
}
