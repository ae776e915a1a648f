//! `marline run -- COMMAND`: runs it somewhere, prints what it prints, ends as it does.

use super::Done;
use super::logs::{Reader, print};
use super::tasks::state_name;
use super::worker::resources;
use crate::args::Run;
use crate::config::Settings;
use crate::exit::{Failure, INTERRUPTED, NOT_RUN};
use crate::printer::{Printer, Progress};
use marline_runtime::control::{LogOf, TaskState};
use marline_runtime::core::error::{Error, ErrorKind};
use marline_runtime::core::id::TaskId;
use marline_runtime::core::payload::Outcome;
use marline_runtime::core::spec::{Budget, Target, TaskOptions, TaskSpec};
use marline_runtime::{Client, CommandEnd, CommandLine, Pending, new_task_id};
use serde_json::json;
use std::io::Read;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// How long one look at what is printed takes at most.
const LOOK: Duration = Duration::from_millis(250);
/// The wait between looks at a task that has not started: at first, and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// The most that a command reads.
const MAX_STDIN_BYTES: u64 = 32 << 20;

pub fn run(settings: &Settings, asked: &Run, printer: &Printer) -> Done {
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
        printer.answer(&json, || task.to_string());
        return Ok(ExitCode::SUCCESS);
    }
    // With a session: if this process dies, the command does not run on.
    let client = Client::connect(&settings.address, settings.token.clone())?;
    let spec = Arc::new(TaskSpec {
        id: new_task_id(),
        target: Target::Function(line.function().into()),
        args: line.encode()?,
        needs: Vec::new(),
        holds: Vec::new(),
        returns: 1,
        options: Arc::new(options),
    });
    let task = spec.id;
    let pending = client.submit(spec)?;
    let interrupted = Arc::new(AtomicU32::new(0));
    let counted = interrupted.clone();
    let stopper = client.clone();
    marline_runtime::on_signal(move || {
        // The first asks the command to stop; the second does not wait for it.
        let again = counted.fetch_add(1, Ordering::Relaxed) > 0;
        stopper.cancel(task, again);
    })?;
    let outcome = watch(settings, task, pending, printer)?;
    end(task, outcome, interrupted.load(Ordering::Relaxed) > 0, printer)
}

fn line(asked: &Run) -> Result<CommandLine, Failure> {
    let mut line = CommandLine {
        argv: asked.command.clone(),
        cwd: asked.cwd.clone(),
        ..CommandLine::default()
    };
    for variable in &asked.variables {
        let (name, value) = variable
            .split_once('=')
            .ok_or_else(|| Failure::usage(format!("--env {variable:?}: expected NAME=VALUE")))?;
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

/// Prints what the command prints until it has ended.
fn watch(
    settings: &Settings,
    task: TaskId,
    mut pending: Pending<Outcome>,
    printer: &Printer,
) -> Result<Outcome, Failure> {
    let control = settings.control()?;
    let mut reader = Reader::new(settings.clone(), LogOf::Task(task));
    let mut progress = printer.progress();
    let mut pause = FIRST_PAUSE;
    let mut show = |part: &marline_runtime::control::LogPart| {
        if !printer.json {
            print(part);
        }
    };
    loop {
        let done = pending.is_ready();
        let status = control.task(task)?;
        let patience = if done { Duration::ZERO } else { LOOK };
        if status.worker_id.is_empty() || status.state() == TaskState::Pending {
            tell(&mut progress, &status.waits_for);
        } else {
            progress.clear();
            while reader.read(&control, &status.worker_id, patience, &mut show)? && done {}
        }
        match pending.wait_timeout(if done { LOOK } else { pause }) {
            Ok(outcome) => {
                // What it printed last.
                while reader.read(
                    &control,
                    &control.task(task)?.worker_id,
                    Duration::ZERO,
                    &mut show,
                )? {}
                return Ok(outcome);
            }
            Err(error) if error.kind() == ErrorKind::Timeout => {}
            Err(error) => return Err(error.into()),
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn tell(progress: &mut Progress, why: &str) {
    progress.say(&if why.is_empty() { "waiting".to_owned() } else { format!("waiting for {why}") });
}

/// Ends as the command did.
fn end(task: TaskId, outcome: Outcome, interrupted: bool, printer: &Printer) -> Done {
    let (end, error) = match outcome {
        Ok(values) => {
            let value =
                values.first().ok_or_else(|| Failure::failed("a result without a value"))?;
            (Some(CommandEnd::decode(&value.payload)?), None)
        }
        Err(error) => {
            let payload = error.failure().and_then(|failure| failure.payload.as_ref());
            (payload.and_then(|payload| CommandEnd::decode(payload).ok()), Some(error))
        }
    };
    let code = code(end.as_ref(), interrupted);
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
            "error": error.as_ref().map(Error::message),
        });
        printer.answer(&json, String::new);
    } else if let Some(error) = error.filter(|_| end.is_none()) {
        // What the command said itself was printed; this is what Marline has to say.
        printer.note(&format!("marline: {}", error.message()));
    }
    Ok(ExitCode::from(code))
}

fn code(end: Option<&CommandEnd>, interrupted: bool) -> u8 {
    match end {
        _ if interrupted => INTERRUPTED,
        Some(CommandEnd { code: Some(code), .. }) => *code as u8,
        Some(CommandEnd { signal: Some(signal), .. }) => 128 + *signal as u8,
        Some(_) | None => NOT_RUN,
    }
}
