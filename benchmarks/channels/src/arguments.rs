//! The command line. `main.rs` decides what to do with the result.

use std::path::PathBuf;
use std::time::Duration;

pub const HELP: &str = "\
Measures Marline's channels within a process against other crates, in the same shapes.
In benchmarks/channels:

  cargo run --release --                      everything, 5 rounds, about three minutes
  cargo run --release -- --quick              everything, roughly, in half a minute
  cargo run --release -- --list               the names of all shapes and contestants
  cargo run --release -- --only 'select'      shapes whose name contains the text
  cargo run --release -- --only threads/ping --rounds 9
  cargo run --release -- --pin --only threads   everything on one CPU (taskset -c 0)

To measure the cost of the metrics too, build the same program a second time:

  cargo build --release --no-default-features
  cp ../../target/bench-build/release/marline-bench-channels /tmp/without-metrics
  cargo run --release -- --without-metrics /tmp/without-metrics

  --only TEXT        only shapes whose name contains TEXT; may be given several times
  --rounds N         rounds per shape, median reported (default 5, quick 2, at most 99)
  --quick            shorter runs: to see that it works, not how fast it is
  --json PATH        where to write the rows; without it, a full run writes
                     target/bench/channels.json (pinned: channels-pinned.json), and a run
                     with --only writes no file
  --pin              run every measurement on CPU 0 only
  --without-metrics PATH
                     the same benchmark built with --no-default-features: adds the
                     contestant `marline without metrics` to the metrics shapes
  --list             print the names of all shapes and contestants
  --help             print this text

How to read the result: nanoseconds per message, median of the rounds; lower is better.
`ratio` is how many times faster Marline is than the best rival that loses nothing; 0.5
is twice as slow. kanal is shown but left out of that ratio, because it loses values when
a receive is cancelled. `~` marks a cell whose rounds differ by more than a factor of
three. `!` marks a row that was measured while other processes used more than a tenth of
the machine.

Every measurement is a child process with a time limit. A child that exceeds it is
killed, reported as `hung`, and its contestant is skipped for the rest of the shape. The
exit code is 1 if Marline hung, failed, or lost a message. Speed never changes it.";

pub enum Command {
    Help,
    List,
    Compare(Settings),
    /// Runs one measurement, for the parent process.
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
    /// Returns how long one measurement should take.
    pub fn target(&self) -> Duration {
        Duration::from_millis(if self.quick { 10 } else { 45 })
    }

    pub fn wants(&self, shape: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|text| shape.contains(text))
    }
}

/// The measurement that a child process runs. Without a number of messages it finds out how many a
/// run should have.
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
