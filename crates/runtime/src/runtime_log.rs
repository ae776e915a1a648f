//! The log of the runtime: what the processes of a cluster do, for a person who asks why. What user
//! code prints is in `executor/log.rs`.
//!
//! Without a setting, nothing is logged, and a log line costs one comparison. `--log` and
//! [`MARLINE_LOG`](LOG_VARIABLE) turn the log on. A Rust program that has set its own `tracing`
//! subscriber gets the lines there, whatever these say.
//!
//! | level | lines |
//! |---|---|
//! | `error` | a bug in Marline |
//! | `warn` | something was lost or rejected, and Marline goes on |
//! | `info` | processes that join and leave |
//! | `debug` | every event of a state machine, executors, connections, values on the disk |
//! | `trace` | also pings and timers |
//!
//! Executors do not log: their standard error is the output of user code. Their worker logs what
//! happens to them.

use crate::executor::child;
use marline_core::error::Error;
use marline_core::id::{ActorEpoch, ActorId, Attempt, ObjectId, Session, SessionId, TaskId};
use marline_core::message::{AttemptId, Instance};
use marline_core::recent_events::{EventSummary, Subject};
use marline_core::worker::ExecutorId;
use std::str::FromStr;
use std::sync::OnceLock;
use tracing::Level;
use tracing::field::{DisplayValue, display};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt;
use tracing_subscriber::layer::{Layer, SubscriberExt};

/// The environment variable with the filter, as in `info` or `warn,net=debug`.
pub const LOG_VARIABLE: &str = "MARLINE_LOG";
/// The environment variable with the format: `text` or `json`.
pub const LOG_FORMAT_VARIABLE: &str = "MARLINE_LOG_FORMAT";

/// Lines of the controller's state machine and its shell.
pub(crate) const CONTROLLER: &str = "marline::controller";
/// Lines of workers.
pub(crate) const WORKER: &str = "marline::worker";
/// Lines of clients.
pub(crate) const CLIENT: &str = "marline::client";
/// Lines about executor processes.
pub(crate) const EXECUTOR: &str = "marline::executor";
/// Lines about connections.
pub(crate) const NET: &str = "marline::net";
/// Lines about the disk of the object store.
pub(crate) const STORE: &str = "marline::store";

/// The parts that a filter can name, without the prefix of their targets.
const PARTS: [&str; 6] = ["controller", "worker", "client", "executor", "net", "store"];
/// The beginning of every target, and the target of lines that belong to no part.
pub(crate) const PREFIX: &str = "marline";

/// Which lines are logged. Its text is a level (`off`, `error`, `warn`, `info`, `debug`, `trace`)
/// for every part, or `PART=LEVEL` for one part, or several of these with commas between them.
#[derive(Clone, Debug)]
pub struct LogFilter(Targets);

impl FromStr for LogFilter {
    type Err = Error;

    fn from_str(text: &str) -> Result<LogFilter, Error> {
        let mut targets = Targets::new();
        // An empty text, as from an empty variable, counts as not given.
        for word in text.split(',').map(str::trim).filter(|_| !text.is_empty()) {
            let (target, level) = match word.split_once('=') {
                None => (PREFIX.to_owned(), word),
                Some((part, level)) if PARTS.contains(&part) => {
                    (format!("{PREFIX}::{part}"), level)
                }
                Some((part, _)) => {
                    return Err(Error::invalid(format!(
                        "{part:?} is not a part that logs; the parts are {}",
                        PARTS.join(", ")
                    )));
                }
            };
            targets = targets.with_target(target, level_of(level)?);
        }
        Ok(LogFilter(targets))
    }
}

fn level_of(text: &str) -> Result<LevelFilter, Error> {
    let levels = [
        ("off", LevelFilter::OFF),
        ("error", LevelFilter::ERROR),
        ("warn", LevelFilter::WARN),
        ("info", LevelFilter::INFO),
        ("debug", LevelFilter::DEBUG),
        ("trace", LevelFilter::TRACE),
    ];
    let found = levels.iter().find(|(name, _)| text.eq_ignore_ascii_case(name));
    found.map(|(_, level)| *level).ok_or_else(|| {
        let names = levels.map(|(name, _)| name).join(", ");
        Error::invalid(format!("{text:?} is not a log level; the levels are {names}"))
    })
}

/// How lines are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LogFormat {
    /// One line of text for each event.
    #[default]
    Text,
    /// One JSON object in each line.
    Json,
}

impl FromStr for LogFormat {
    type Err = Error;

    fn from_str(text: &str) -> Result<LogFormat, Error> {
        match text {
            "" | "text" => Ok(LogFormat::Text),
            "json" => Ok(LogFormat::Json),
            _ => {
                Err(Error::invalid(format!("{text:?} is not a log format; expected text or json")))
            }
        }
    }
}

/// Starts the log of this process, on standard error. Later calls change nothing, and neither does
/// a call after the program has set a `tracing` subscriber of its own.
pub fn start(filter: LogFilter, format: LogFormat) {
    static STARTED: OnceLock<()> = OnceLock::new();
    STARTED.get_or_init(|| {
        // A line that cannot be written is dropped: the log must not disturb the cluster.
        let lines = fmt::layer().with_writer(std::io::stderr).log_internal_errors(false);
        let lines = match format {
            LogFormat::Text => lines.with_ansi(false).with_filter(filter.0).boxed(),
            LogFormat::Json => {
                let lines = lines.json().flatten_event(true);
                let lines = lines.with_current_span(false).with_span_list(false);
                lines.with_filter(filter.0).boxed()
            }
        };
        let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry().with(lines));
    });
}

/// Starts the log of this process if the environment has a filter. Does nothing in an executor.
pub(crate) fn start_from_environment() -> Result<(), Error> {
    let variable = |name| std::env::var(name).ok().filter(|text: &String| !text.is_empty());
    let Some(filter) = variable(LOG_VARIABLE).filter(|_| !child::is_executor()) else {
        return Ok(());
    };
    let of = |name: &str, error: Error| Error::invalid(format!("{name}: {}", error.message()));
    let filter = filter.parse().map_err(|error| of(LOG_VARIABLE, error))?;
    let format = variable(LOG_FORMAT_VARIABLE).map_or(Ok(LogFormat::Text), |text| text.parse());
    start(filter, format.map_err(|error| of(LOG_FORMAT_VARIABLE, error))?);
    Ok(())
}

/// The state machine that an event is for.
#[derive(Clone, Copy)]
pub(crate) enum Machine {
    Controller,
    /// A worker, with its session if it has one.
    Worker(Option<Session>),
    /// A client, with its session if it has one.
    Client(Option<Session>),
}

/// The events that come all the time, whether there is work or not.
const ROUTINE: [&str; 4] = ["PingReceived", "PongReceived", "TimePassed", "KeepAlive"];

/// Logs an event before its state machine handles it.
#[inline]
pub(crate) fn event(machine: Machine, summary: impl FnOnce() -> EventSummary) {
    // The first comparison is all that a process without a log does.
    if Level::DEBUG <= LevelFilter::current() {
        write_event(machine, &summary());
    }
}

/// The ids in an event, as fields of a line.
#[derive(Default)]
struct Ids {
    session: Option<Session>,
    process: Option<SessionId>,
    task: Option<TaskId>,
    attempt: Option<u64>,
    actor: Option<ActorId>,
    epoch: Option<u64>,
    object: Option<ObjectId>,
    executor: Option<u64>,
}

impl Ids {
    fn of(subject: Subject) -> Ids {
        let none = Ids::default();
        match subject {
            Subject::Nothing => none,
            Subject::Process(id) => Ids { process: Some(id), ..none },
            Subject::Session(session) => Ids { session: Some(session), ..none },
            Subject::Task(task) => Ids { task: Some(task), ..none },
            Subject::Attempt(AttemptId { task, attempt: Attempt(attempt) }) => {
                Ids { task: Some(task), attempt: Some(attempt), ..none }
            }
            Subject::Actor(actor) => Ids { actor: Some(actor), ..none },
            Subject::Instance(Instance { actor, epoch: ActorEpoch(epoch) }) => {
                Ids { actor: Some(actor), epoch: Some(epoch), ..none }
            }
            Subject::Object(object) => Ids { object: Some(object), ..none },
            Subject::Executor(ExecutorId(executor)) => Ids { executor: Some(executor), ..none },
            Subject::TaskIn(ExecutorId(executor), task) => {
                Ids { executor: Some(executor), task: Some(task), ..none }
            }
        }
    }
}

fn shown<T: std::fmt::Display>(id: Option<T>) -> Option<DisplayValue<T>> {
    id.map(display)
}

/// Writes the line of an event. `tracing` needs each target and level as a constant.
macro_rules! line {
    ($target:expr, $level:expr, $summary:expr $(, $own:ident)?) => {{
        let ids = Ids::of($summary.subject);
        tracing::event!(
            target: $target, $level,
            $($own = shown($own),)?
            session = shown(ids.session), process = shown(ids.process), task = shown(ids.task),
            attempt = ids.attempt, actor = shown(ids.actor), epoch = ids.epoch,
            object = shown(ids.object), executor = ids.executor, from = shown($summary.from),
            "{}", $summary.name
        )
    }};
}

#[cold]
fn write_event(machine: Machine, event: &EventSummary) {
    match (machine, ROUTINE.contains(&event.name)) {
        (Machine::Controller, false) => line!(CONTROLLER, Level::DEBUG, event),
        (Machine::Controller, true) => line!(CONTROLLER, Level::TRACE, event),
        (Machine::Worker(worker), false) => line!(WORKER, Level::DEBUG, event, worker),
        (Machine::Worker(worker), true) => line!(WORKER, Level::TRACE, event, worker),
        (Machine::Client(client), false) => line!(CLIENT, Level::DEBUG, event, client),
        (Machine::Client(client), true) => line!(CLIENT, Level::TRACE, event, client),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use marline_core::{client, controller, worker};

    #[test]
    fn a_filter_is_a_level_or_the_levels_of_parts() {
        let filter: LogFilter = "warn, net=debug".parse().unwrap();
        assert!(filter.0.would_enable(WORKER, &Level::WARN));
        assert!(!filter.0.would_enable(WORKER, &Level::INFO));
        assert!(filter.0.would_enable(NET, &Level::DEBUG));
        assert!(!filter.0.would_enable("h2", &Level::ERROR), "only Marline's own lines");
        let targets = [CONTROLLER, WORKER, CLIENT, EXECUTOR, NET, STORE];
        assert_eq!(targets.map(|target| &target[PREFIX.len() + 2..]), PARTS);
    }

    #[test]
    fn the_error_of_an_invalid_filter_lists_the_levels_and_the_parts() {
        let error = "loud".parse::<LogFilter>().unwrap_err();
        assert!(error.message().contains("\"loud\" is not a log level"), "{error}");
        assert!(error.message().contains("off, error, warn, info, debug, trace"), "{error}");
        let error = "wire=info".parse::<LogFilter>().unwrap_err();
        assert!(error.message().contains("controller, worker, client, executor"), "{error}");
        assert!("yaml".parse::<LogFormat>().is_err());
    }

    #[test]
    fn time_passed_is_a_routine_event_of_every_state_machine() {
        let names = [
            controller::Event::TimePassed.summary().name,
            worker::Event::TimePassed.summary().name,
            client::Event::TimePassed.summary().name,
        ];
        assert!(names.iter().all(|name| ROUTINE.contains(name)));
    }
}
