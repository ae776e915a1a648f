//! `marline logs`: what tasks and actors printed. Logs are where they ran: the worker is asked.

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

/// How long one question waits for more to be printed.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often a task that has not started is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);

pub fn run(settings: &ClusterEndpoint, asked: &Logs, printer: Printer) -> CommandResult {
    let control = settings.control()?;
    // All of them make sense, or nothing is printed.
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

/// Prints one log, or collects it for an answer in JSON. It may be that nobody reads it.
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

/// Why there is nothing, where that is not for want of anything printed.
fn explain(at: LogLocation, now: &OwnerStatus, read: u64, printer: Printer) {
    match at {
        LogLocation::Worker => {}
        LogLocation::NotStarted if now.has_ended => {
            printer.note("marline: it ended before it ran: nothing was printed")
        }
        LogLocation::NotStarted => printer.note(&format!("marline: {}", now.why())),
        LogLocation::WorkerGone if read > 0 => {}
        LogLocation::WorkerGone => {
            printer.note("marline: the worker that ran it is gone, and what it printed with it")
        }
    }
}

/// Prints what was printed, each to where it was. Fails if nobody reads it any more.
pub fn print(part: &LogPart, to: &mut OutputForwarder) -> std::io::Result<()> {
    for chunk in &part.chunks {
        match chunk.is_error {
            true => to.write_error(&chunk.text),
            false => to.write(&chunk.text)?,
        }
    }
    Ok(())
}

/// How a command ends whose output could not be printed.
pub fn exit_on_write_error(error: &std::io::Error) -> CommandResult {
    match error.kind() {
        std::io::ErrorKind::BrokenPipe => Ok(ExitCode::from(OUTPUT_CLOSED)),
        _ => Err(Failure::unwritten("its output", error)),
    }
}

enum LogOwner {
    Task(TaskId, Option<ActorId>),
    Actor(ActorId),
}

/// What is known of it at the moment.
struct OwnerStatus {
    /// Where it is, or was last.
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
    /// The task or the actor of this id.
    fn find(control: &Control, text: &str) -> Result<LogOwner, Failure> {
        let task = find::task_or_actor(control, text)?;
        match control.task(task) {
            // A call prints into its actor's log.
            Ok(status) => Ok(LogOwner::Task(task, status.actor_id.parse().ok())),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let actor = ActorId::from_u128(task.as_u128());
                control.actor(actor).map(|_| LogOwner::Actor(actor)).map_err(|error| {
                    if error.kind() != ErrorKind::NotFound {
                        return error.into();
                    }
                    let words = format!(
                        "no task and no actor {task} is known: it never was, or ended too long ago"
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

/// Whether a log can be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogLocation {
    /// There is a worker that has it.
    Worker,
    /// Nothing has started yet.
    NotStarted,
    /// The worker that had it is gone, and the log with it.
    WorkerGone,
}

/// How far a log was read, and at which worker.
#[derive(Clone)]
pub struct LogReader {
    log: LogOf,
    worker: String,
    worker_control: Option<Control>,
    /// How far it was read.
    pub offset: u64,
    attempt: u64,
    /// What was not kept until it was read.
    pub missed: u64,
    /// What was read of this attempt: output and errors.
    pub printed: [u64; 2],
}

impl LogReader {
    pub fn new(of: LogOf) -> LogReader {
        let (worker, node, offset, number, missed) = (String::new(), None, 0, 0, 0);
        LogReader {
            log: of,
            worker,
            worker_control: node,
            offset,
            attempt: number,
            missed,
            printed: [0; 2],
        }
    }

    /// It is at this worker now.
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

    /// Reads on, waiting for something to be there.
    pub fn read(&mut self, patience: Duration) -> Result<LogPart, Failure> {
        let Some(node) = &self.worker_control else { return Ok(LogPart::default()) };
        let part = match node.read_log(self.log, self.offset, patience) {
            Ok(part) => part,
            // Its worker went meanwhile, or is where this process cannot reach it.
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
        // Another attempt: from its beginning.
        self.offset = 0;
        Ok(node.read_log(self.log, 0, Duration::ZERO)?)
    }

    /// Says what a reader would not see from the part itself.
    pub fn note_gaps(&self, part: &LogPart, printer: Printer) {
        if part.number > self.attempt && self.attempt > 0 {
            printer.note(&format!("marline: it runs again (attempt {})", part.number));
        }
        if part.offset > self.offset {
            let missed = part.offset - self.offset;
            printer.note(&format!(
                "marline: {missed} bytes that were printed here are not kept any more"
            ));
        }
    }

    /// The part was read.
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
