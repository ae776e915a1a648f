//! `marline logs`: prints the output of tasks and actors. The worker that ran them has their logs,
//! so the command asks that worker.

use super::{CommandResult, find};
use crate::args::Logs;
use crate::config::ClusterEndpoint;
use crate::exit::{Failure, NOT_FOUND, OUTPUT_CLOSED};
use crate::printer::{OutputForwarder, Printer, write};
use marline_runtime::control::{ActorState, Control, LogOf, LogPart, TaskState};
use marline_runtime::core::error::ErrorKind;
use marline_runtime::core::id::{ActorId, TaskId};
use serde_json::{Value, json};
use std::process::ExitCode;
use std::time::Duration;

/// How long one request waits at the worker for more output.
const PATIENCE: Duration = Duration::from_secs(1);
/// The pause before the command asks again: for the state of work that has not started, or for the
/// log of a worker that it could not reach.
const LOOK_EVERY: Duration = Duration::from_millis(50);

pub fn run(settings: &ClusterEndpoint, asked: &Logs, printer: Printer) -> CommandResult {
    let control = settings.control()?;
    // Every id is resolved before anything is printed: one wrong id prints nothing.
    let all = asked.ids.iter().map(|id| LogOwner::find(&control, id));
    let all = all.collect::<Result<Vec<_>, _>>()?;
    let mut answers = Vec::new();
    for whose in &all {
        if all.len() > 1 && !printer.json {
            let gap = if answers.is_empty() { "" } else { "\n" };
            if let Err(error) = write(format!("{gap}==> {} <==\n", whose.id()).as_bytes()) {
                return exit_on_write_error(&error);
            }
        }
        match show(settings, &control, whose, asked.follow, printer)? {
            Ok(answer) => answers.push(answer),
            Err(error) => return exit_on_write_error(&error),
        }
    }
    if printer.json {
        let one = answers.len() == 1;
        let json = if one { answers.remove(0) } else { json!({ "logs": answers }) };
        printer.answer(&json, String::new)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints one log, or collects it for an answer in JSON. The inner error says that standard output
/// could not be written.
fn show(
    settings: &ClusterEndpoint,
    control: &Control,
    whose: &LogOwner,
    follow: bool,
    printer: Printer,
) -> Result<std::io::Result<Value>, Failure> {
    let mut place = LogReader::new(whose.log());
    let (mut stdout, mut stderr, mut text) = (Vec::new(), Vec::new(), Vec::new());
    let mut progress = printer.progress();
    let mut forwarded = OutputForwarder::new();
    loop {
        let now = whose.look(control)?;
        let follow = follow && !now.has_ended;
        let at = place.follow_worker(settings, control, &now.worker)?;
        if at != LogLocation::Worker && follow {
            progress.update(&now.why());
            std::thread::sleep(LOOK_EVERY);
            continue;
        }
        let part = place.read(if follow { PATIENCE } else { Duration::ZERO })?;
        if printer.json {
            for chunk in &part.chunks {
                let stream = if chunk.is_error { &mut stderr } else { &mut stdout };
                stream.extend_from_slice(&chunk.text);
                text.extend_from_slice(&chunk.text);
            }
        } else {
            progress.clear();
            place.note_gaps(&part, printer);
            if let Err(error) = print(&part, &mut forwarded) {
                return Ok(Err(error));
            }
        }
        place.advance(&part);
        if part.chunks.is_empty() && !follow {
            drop(progress);
            explain(at, &now, place.offset, printer);
            break;
        }
    }
    Ok(Ok(json!({
        "id": whose.id(),
        "stdout": String::from_utf8_lossy(&stdout),
        "stderr": String::from_utf8_lossy(&stderr),
        "text": String::from_utf8_lossy(&text),
        "left_out": place.missed,
    })))
}

/// Prints why the log was not read: the work has not started, or its worker is gone. Prints nothing
/// if a worker had the log, or if a part of it was read before its worker was gone.
fn explain(at: LogLocation, now: &OwnerStatus, read: u64, printer: Printer) {
    match at {
        LogLocation::Worker => {}
        LogLocation::NotStarted if now.has_ended => {
            printer.note("marline: the task or actor ended before it started, and printed nothing")
        }
        LogLocation::NotStarted => printer.note(&format!("marline: {}", now.why())),
        LogLocation::WorkerGone if read > 0 => {}
        LogLocation::WorkerGone => printer
            .note("marline: the worker that ran the task or actor is gone, and the log with it"),
    }
}

/// Prints a part of a log: each chunk to the stream that user code wrote it to. Fails if standard
/// output cannot be written.
pub fn print(part: &LogPart, to: &mut OutputForwarder) -> std::io::Result<()> {
    for chunk in &part.chunks {
        match chunk.is_error {
            true => to.write_error(&chunk.text),
            false => to.write(&chunk.text)?,
        }
    }
    Ok(())
}

/// Returns how a command ends if its output could not be printed.
pub fn exit_on_write_error(error: &std::io::Error) -> CommandResult {
    match error.kind() {
        std::io::ErrorKind::BrokenPipe => Ok(ExitCode::from(OUTPUT_CLOSED)),
        _ => Err(Failure::unwritten("its output", error)),
    }
}

/// The task or actor whose log is asked for. A call of an actor prints into its actor's log.
enum LogOwner {
    Task(TaskId, Option<ActorId>),
    Actor(ActorId),
}

/// The state of a task or an actor, as the controller knows it now.
struct OwnerStatus {
    /// The worker that runs it, or ran it last.
    worker: String,
    has_ended: bool,
    waits_for: String,
}

impl OwnerStatus {
    fn why(&self) -> String {
        match self.waits_for.as_str() {
            "" => "it has not started".into(),
            why => format!("it has not started: {why}"),
        }
    }
}

impl LogOwner {
    /// Resolves the text to a task or an actor.
    fn find(control: &Control, text: &str) -> Result<LogOwner, Failure> {
        let task = find::task_or_actor(control, text)?;
        match control.task(task) {
            Ok(status) => Ok(LogOwner::Task(task, status.actor_id.parse().ok())),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let actor = ActorId::from_u128(task.as_u128());
                control.actor(actor).map(|_| LogOwner::Actor(actor)).map_err(|error| {
                    if error.kind() != ErrorKind::NotFound {
                        return error.into();
                    }
                    let words = format!(
                        "no task and no actor {task} is known: it never existed, or ended too long ago"
                    );
                    Failure::new(NOT_FOUND, "NotFound", words)
                })
            }
            Err(error) => Err(error.into()),
        }
    }

    fn id(&self) -> String {
        match self {
            LogOwner::Task(task, _) => task.to_string(),
            LogOwner::Actor(actor) => actor.to_string(),
        }
    }

    fn log(&self) -> LogOf {
        match self {
            LogOwner::Task(_, Some(actor)) | LogOwner::Actor(actor) => LogOf::Actor(*actor),
            LogOwner::Task(task, None) => LogOf::Task(*task),
        }
    }

    fn look(&self, control: &Control) -> Result<OwnerStatus, Failure> {
        match self {
            LogOwner::Task(task, _) => {
                let status = control.task(*task)?;
                let over = matches!(
                    status.state(),
                    TaskState::Finished | TaskState::Failed | TaskState::Cancelled
                );
                Ok(OwnerStatus {
                    worker: status.worker_id,
                    has_ended: over,
                    waits_for: status.waits_for,
                })
            }
            LogOwner::Actor(actor) => {
                let status = control.actor(*actor)?;
                let over = status.state() == ActorState::Dead;
                Ok(OwnerStatus {
                    worker: status.worker_id,
                    has_ended: over,
                    waits_for: status.waits_for,
                })
            }
        }
    }
}

/// Where a log is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogLocation {
    /// A worker has it.
    Worker,
    /// The task or actor has not started.
    NotStarted,
    /// The worker that had it is gone.
    WorkerGone,
}

/// Reads one log, from the worker that has it. Remembers up to which position the log was read.
#[derive(Clone)]
pub struct LogReader {
    log: LogOf,
    worker: String,
    worker_control: Option<Control>,
    /// The position up to which the log was read.
    pub offset: u64,
    attempt: u64,
    /// How many bytes the worker had dropped before they were read.
    pub missed: u64,
    /// How many bytes were read of this attempt: standard output, standard error.
    pub printed: [u64; 2],
}

impl LogReader {
    /// Returns a reader of this log that has no worker yet.
    pub fn new(of: LogOf) -> LogReader {
        LogReader {
            log: of,
            worker: String::new(),
            worker_control: None,
            offset: 0,
            attempt: 0,
            missed: 0,
            printed: [0; 2],
        }
    }

    /// Switches to the worker that has the log now. If that is another worker than before, the next
    /// read begins at the start of its log.
    pub fn follow_worker(
        &mut self,
        settings: &ClusterEndpoint,
        control: &Control,
        worker: &str,
    ) -> Result<LogLocation, Failure> {
        if worker.is_empty() {
            return Ok(LogLocation::NotStarted);
        }
        if self.worker != worker {
            let found = control.worker(worker)?;
            let Some(found) = found.filter(|found| !found.address.is_empty()) else {
                return Ok(LogLocation::WorkerGone);
            };
            self.worker_control = Some(settings.control_at(&found.address)?);
            worker.clone_into(&mut self.worker);
            self.offset = 0;
        }
        Ok(LogLocation::Worker)
    }

    /// Reads the next part. Waits at most `patience` for output.
    pub fn read(&mut self, patience: Duration) -> Result<LogPart, Failure> {
        let Some(node) = &self.worker_control else { return Ok(LogPart::default()) };
        let part = match node.read_log(self.log, self.offset, patience) {
            Ok(part) => part,
            // The worker is gone meanwhile, or this process cannot reach it.
            Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout) => {
                std::thread::sleep(patience.min(LOOK_EVERY));
                return Ok(LogPart {
                    offset: self.offset,
                    next_offset: self.offset,
                    number: self.attempt,
                    ..LogPart::default()
                });
            }
            Err(error) => return Err(error.into()),
        };
        if part.number == self.attempt || self.offset == 0 {
            return Ok(part);
        }
        // The log is of another attempt: read it from its start.
        self.offset = 0;
        Ok(node.read_log(self.log, 0, Duration::ZERO)?)
    }

    /// Prints a note if a new attempt or instance began, or if output is missing before this part.
    pub fn note_gaps(&self, part: &LogPart, printer: Printer) {
        if part.number > self.attempt && self.attempt > 0 {
            printer.note(&format!("marline: the log of run {} begins here", part.number));
        }
        if part.offset > self.offset {
            let missed = part.offset - self.offset;
            printer.note(&format!(
                "marline: {missed} bytes of output are missing here: the worker no longer keeps them"
            ));
        }
    }

    /// Counts the part as read.
    pub fn advance(&mut self, part: &LogPart) {
        self.missed += part.offset.saturating_sub(self.offset);
        if self.offset == 0 {
            self.printed = [0; 2];
        }
        for chunk in &part.chunks {
            self.printed[usize::from(chunk.is_error)] += chunk.text.len() as u64;
        }
        self.attempt = part.number;
        self.offset = part.next_offset;
    }
}
