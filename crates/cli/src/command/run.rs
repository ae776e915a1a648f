//! `marline run -- COMMAND`: runs a command on a worker, prints its output, and exits with its
//! status.
//!
//! One thread ([`Watch`]) prints the output while the command runs. The main thread waits for the
//! result.

use super::CommandResult;
use super::logs::{LogLocation, LogReader, exit_on_write_error, print};
use super::tasks::state_name;
use super::worker::resources;
use crate::args::Run;
use crate::config::ClusterEndpoint;
use crate::exit::{Failure, INTERRUPTED, NOT_RUN, TOO_LONG};
use crate::printer::{OutputForwarder, Printer, Progress};
use marline_runtime::control::{Control, LogOf, LogPart, TaskState};
use marline_runtime::core::error::{Error, ErrorKind};
use marline_runtime::core::id::TaskId;
use marline_runtime::core::message::CancelMode;
use marline_runtime::core::payload::Outcome;
use marline_runtime::core::spec::{Budget, Target, TaskOptions, TaskSpec};
use marline_runtime::{Client, CommandEnd, CommandLine, new_task_id};
use serde_json::json;
use std::io::Read;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// How long one request waits at the worker for more output.
const LOOK: Duration = Duration::from_millis(250);
/// How long the command waits between two questions about a task that has not started: at first,
/// and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// The most bytes of standard input. They travel to the worker as the argument of the task.
const MAX_STDIN_BYTES: u64 = 32 << 20;

pub fn run(settings: &ClusterEndpoint, asked: &Run, printer: Printer) -> CommandResult {
    let line = line(asked)?;
    let memory = asked.memory.map_or(0, |memory| memory.0);
    let options = TaskOptions {
        resources: resources(asked.cpus, asked.gpus, memory, &asked.custom)?,
        max_retries: Budget::Times(asked.retries),
        timeout: asked.timeout.map(|timeout| timeout.0),
        preemptible: !asked.not_preemptible,
        ..TaskOptions::default()
    };
    if asked.detach {
        let task = settings.control()?.submit_command(&line, options)?;
        let json = json!({ "task": task.to_string() });
        let printed = printer.answer(&json, || task.to_string());
        // The task runs even if its id cannot be printed. The error names the id, so that it is not
        // lost.
        printed.map_err(|failure| {
            Failure::failed(format!("task {task} was submitted, but {}", failure.message))
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    // This client has a session: if this process dies, the session ends and the command is stopped.
    let client = Client::connect(&settings.address, settings.token.clone())?;
    let spec = Arc::new(TaskSpec {
        id: new_task_id(),
        target: Target::Function(line.function().into()),
        args: line.encode()?,
        needs: Vec::new(),
        referents: Vec::new(),
        returns: 1,
        stream_window: None,
        options: Arc::new(options),
    });
    let task = spec.id;
    let pending = client.submit(spec)?;
    let asked_to_stop = Arc::new(AtomicU32::new(0));
    stop_when_asked(&client, task, asked_to_stop.clone())?;
    let watch = Watch::start(settings, &client, task, asked_to_stop.clone(), printer)?;
    let outcome = pending.wait()?;
    let watched = watch.finish();
    let interrupted = asked_to_stop.load(Ordering::Relaxed) > 0;
    exit_as_command(&client, task, outcome, interrupted, &watched, printer)
}

/// Handles signals such as Ctrl-C. The first asks the command to stop. The second kills the
/// command. The third ends this process without waiting for the cluster.
fn stop_when_asked(client: &Client, task: TaskId, asked: Arc<AtomicU32>) -> Result<(), Failure> {
    let client = client.clone();
    Ok(marline_runtime::on_signal(move || match asked.fetch_add(1, Ordering::Relaxed) {
        0 => client.cancel(task, CancelMode::Graceful),
        1 => client.cancel(task, CancelMode::Force),
        _ => std::process::exit(INTERRUPTED.into()),
    })?)
}

/// Returns the command line to run. Reads all of standard input, if `--stdin` is given.
fn line(asked: &Run) -> Result<CommandLine, Failure> {
    let mut line = CommandLine {
        argv: asked.command.clone(),
        cwd: asked.cwd.clone(),
        name: asked.name.clone(),
        ..CommandLine::default()
    };
    for variable in &asked.variables {
        let (name, value) = variable
            .split_once('=')
            .ok_or_else(|| Failure::usage(format!("--env {variable:?}: expected NAME=VALUE")))?;
        if name.is_empty() {
            return Err(Failure::usage(format!(
                "--env {variable:?}: the name is empty, expected NAME=VALUE"
            )));
        }
        line.env.insert(name.into(), value.into());
    }
    if asked.stdin {
        let mut input = Vec::new();
        std::io::stdin().take(MAX_STDIN_BYTES + 1).read_to_end(&mut input)?;
        if input.len() as u64 > MAX_STDIN_BYTES {
            return Err(Failure::usage(format!(
                "standard input has more than {MAX_STDIN_BYTES} bytes (MAX_STDIN_BYTES): use a file"
            )));
        }
        line.stdin = Some(input);
    }
    Ok(line)
}

/// Prints the output of the command on a thread of its own. So the end of the command does not have
/// to wait for a request for more output.
struct Watch {
    shared: Arc<OutputPrinter>,
}

/// The part of a watch that its printing thread and [`Watch::finish`] share.
struct OutputPrinter {
    settings: ClusterEndpoint,
    control: Control,
    task: TaskId,
    printer: Printer,
    asked_to_stop: Arc<AtomicU32>,
    /// Locked while output is printed.
    state: Mutex<PrintState>,
}

/// How far the output was printed, and what is on the terminal.
struct PrintState {
    place: LogReader,
    progress: Progress,
    forwarded: OutputForwarder,
    /// The command has ended: `finish` prints the rest, and the thread stops.
    done: bool,
    /// Why standard output could not be written, if so.
    unread: Option<std::io::Error>,
}

/// The output that was printed by the time the command had ended.
struct PrintedOutput {
    unread: Option<std::io::Error>,
    /// How many bytes of standard output and of standard error were printed. Nothing if parts in
    /// between were missed.
    printed: Option<[u64; 2]>,
}

impl Watch {
    /// Starts the thread. With `--json` no thread is needed: the result has the output. If standard
    /// output cannot be written, the thread asks the command to stop.
    fn start(
        settings: &ClusterEndpoint,
        client: &Client,
        task: TaskId,
        asked_to_stop: Arc<AtomicU32>,
        printer: Printer,
    ) -> Result<Watch, Failure> {
        let (place, progress) = (LogReader::new(LogOf::Task(task)), printer.progress());
        let forwarded = OutputForwarder::new();
        let state =
            Mutex::new(PrintState { place, progress, forwarded, done: false, unread: None });
        let control = settings.control()?;
        let settings = settings.clone();
        let shared = OutputPrinter { settings, control, task, printer, asked_to_stop, state };
        let shared = Arc::new(shared);
        if !printer.json {
            let (watching, client) = (shared.clone(), client.clone());
            std::thread::spawn(move || {
                watching.run();
                if watching.lock().unread.is_some() {
                    client.cancel(task, CancelMode::Graceful);
                }
            });
        }
        Ok(Watch { shared })
    }

    /// Prints the rest of the output, after the command has ended.
    fn finish(self) -> PrintedOutput {
        let shared = self.shared;
        let mut state = shared.lock();
        state.progress.clear();
        state.done = true;
        if !shared.printer.json
            && state.unread.is_none()
            && let Ok(status) = shared.control.task(shared.task)
            && let Ok(LogLocation::Worker) =
                state.place.follow_worker(&shared.settings, &shared.control, &status.worker_id)
        {
            while let Ok(part) = state.place.read(Duration::ZERO)
                && !part.chunks.is_empty()
                && shared.show(&mut state, &part)
            {}
        }
        let printed = (state.place.missed == 0).then_some(state.place.printed);
        PrintedOutput { unread: state.unread.take(), printed }
    }
}

impl OutputPrinter {
    fn lock(&self) -> MutexGuard<'_, PrintState> {
        self.state.lock().expect("nothing panics under it")
    }

    /// Prints output until the command has ended, or standard output cannot be written.
    fn run(&self) {
        let mut pause = FIRST_PAUSE;
        loop {
            let mut place = self.lock().place.clone();
            let before = place.offset;
            let (words, part) = match self.look(&mut place) {
                Ok(found) => found,
                // The controller may come back. If it does not, the session ends, and
                // `pending.wait()` fails.
                Err(failure) => (failure.message, None),
            };
            let mut state = self.lock();
            if state.done {
                return;
            }
            self.show_progress(&mut state.progress, &words, before > 0);
            let Some(part) = part else {
                drop(state);
                std::thread::sleep(pause);
                pause = (pause * 2).min(LONGEST_PAUSE);
                continue;
            };
            state.place = place;
            if !self.show(&mut state, &part) {
                return;
            }
        }
    }

    /// Returns what the command does at the moment, and the next part of its output.
    fn look(&self, place: &mut LogReader) -> Result<(String, Option<LogPart>), Failure> {
        let status = match self.control.task(self.task) {
            Ok(status) => status,
            // The submission may still be on its way to the controller.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Ok(("submitting".into(), None));
            }
            Err(error) => return Err(error.into()),
        };
        if status.state() == TaskState::Pending {
            let why = status.waits_for;
            let words = if why.is_empty() { "waiting".into() } else { format!("waiting: {why}") };
            return Ok((words, None));
        }
        match place.follow_worker(&self.settings, &self.control, &status.worker_id)? {
            LogLocation::Worker => Ok((String::new(), Some(place.read(LOOK)?))),
            LogLocation::NotStarted | LogLocation::WorkerGone => Ok((String::new(), None)),
        }
    }

    fn show_progress(&self, progress: &mut Progress, words: &str, printed: bool) {
        match (self.asked_to_stop.load(Ordering::Relaxed), words) {
            (1, _) => progress.update("asked the command to stop; Ctrl-C again kills it"),
            (2.., _) => progress.update("killing the command; Ctrl-C again does not wait for it"),
            (0, "") if printed => {} // The command's own output shows its progress.
            (0, "") => progress.update_on_terminal("running"),
            (0, words) => progress.update(words),
        }
    }

    /// Prints a part of the output. Returns false if standard output cannot be written.
    fn show(&self, state: &mut PrintState, part: &LogPart) -> bool {
        if !part.chunks.is_empty() {
            state.progress.clear();
        }
        state.place.note_gaps(part, self.printer);
        state.place.advance(part);
        state.unread = print(part, &mut state.forwarded).err();
        state.unread.is_none()
    }
}

/// Returns the exit code that stands for the command's end, after printing what is left to say.
fn exit_as_command(
    client: &Client,
    task: TaskId,
    outcome: Outcome,
    interrupted: bool,
    watched: &PrintedOutput,
    printer: Printer,
) -> CommandResult {
    let (end, error) = match outcome {
        Ok(values) => {
            let value = values
                .first()
                .ok_or_else(|| Failure::failed("the result of the command has no value"))?;
            (Some(CommandEnd::decode(&client.load(&value.payload)?)?), None)
        }
        Err(error) => {
            let payload = error.failure().and_then(|failure| failure.payload.as_ref());
            (payload.and_then(|payload| CommandEnd::decode(payload).ok()), Some(error))
        }
    };
    let code = match &watched.unread {
        _ if interrupted => INTERRUPTED,
        Some(error) => return exit_on_write_error(error),
        None => code(end.as_ref(), error.as_ref()),
    };
    if printer.json {
        let state = match &error {
            None => TaskState::Finished,
            Some(error) if error.kind() == ErrorKind::Cancelled => TaskState::Cancelled,
            Some(_) => TaskState::Failed,
        };
        let text = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
        let json = json!({
            "task": task.to_string(),
            "state": state_name(state.into()),
            "code": end.as_ref().and_then(|end| end.code),
            "signal": end.as_ref().and_then(|end| end.signal),
            "stdout": end.as_ref().map(|end| text(&end.stdout)),
            "stderr": end.as_ref().map(|end| text(&end.stderr)),
            "left_out": end.as_ref().map(|end| end.left_out),
            "error": error.as_ref().map(Error::message),
        });
        printer.answer(&json, String::new)?;
        return Ok(ExitCode::from(code));
    }
    if let (Some(end), Some(printed)) = (&end, watched.printed)
        && let Err(error) = print_rest(end, printed, printer)
    {
        return exit_on_write_error(&error);
    }
    if let Some(error) = error.filter(|_| end.is_none()) {
        // The command did not run to its end, so this error is from Marline, not from the command.
        printer.note(&format!("marline: {}", error.message()));
    }
    Ok(ExitCode::from(code))
}

/// Prints output that could not be read from the command's log, because its worker has gone since
/// or cannot be reached from here. The result of the command has the latest part of each stream.
fn print_rest(end: &CommandEnd, printed: [u64; 2], printer: Printer) -> std::io::Result<()> {
    let rest = |kept: &'_ [u8], left_out: u64, printed: u64| {
        let unprinted = (kept.len() as u64 + left_out).saturating_sub(printed);
        let known = unprinted.min(kept.len() as u64);
        (kept.len() - known as usize, unprinted - known)
    };
    let stdout_left_out = end.left_out - end.stderr_left_out.min(end.left_out);
    let (from, missed) = rest(&end.stdout, stdout_left_out, printed[0]);
    let (from_error, missed_errors) = rest(&end.stderr, end.stderr_left_out, printed[1]);
    if missed + missed_errors > 0 {
        printer.note(&format!(
            "marline: {} bytes of output are missing here: the worker has gone, or cannot be reached \
             from this machine",
            missed + missed_errors
        ));
    }
    let mut forwarded = OutputForwarder::new();
    forwarded.write_error(&end.stderr[from_error..]);
    forwarded.write(&end.stdout[from..])
}

/// Returns the exit code for how the command ended.
fn code(end: Option<&CommandEnd>, error: Option<&Error>) -> u8 {
    match end {
        Some(CommandEnd { code: Some(code), .. }) => *code as u8,
        Some(CommandEnd { signal: Some(signal), .. }) => 128 + *signal as u8,
        None if error.is_some_and(|error| error.kind() == ErrorKind::Timeout) => TOO_LONG,
        Some(_) | None => NOT_RUN,
    }
}
