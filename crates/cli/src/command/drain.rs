//! `marline drain`: lets a worker finish its work and leave.

use super::{CommandResult, find};
use crate::args::Drain;
use crate::config::ClusterEndpoint;
use crate::exit::Failure;
use crate::printer::Printer;
use crate::units::plural;
use marline_runtime::control::Control;
use serde_json::json;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How much longer than its grace a worker may take to leave, before the command fails. After the
/// grace, the worker moves its values to other nodes for up to a minute.
const PATIENCE: Duration = Duration::from_secs(90);
/// How often the command asks whether the worker is still there.
const LOOK_EVERY: Duration = Duration::from_millis(100);

pub fn run(settings: &ClusterEndpoint, asked: &Drain, printer: Printer) -> CommandResult {
    let control = settings.control()?;
    let worker = find::worker(&control, &asked.worker)?;
    control.drain(worker, asked.grace.0)?;
    let worker = worker.to_string();
    if !asked.no_wait {
        wait(&control, &worker, asked.grace.0, printer)?;
    }
    let json = json!({ "worker": worker, "left": !asked.no_wait });
    printer.answer(&json, || {
        let what = if asked.no_wait { "takes no new work" } else { "has left" };
        format!("worker {worker} {what}")
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Waits until the worker has left. Fails if that takes [`PATIENCE`] longer than the grace.
fn wait(control: &Control, id: &str, grace: Duration, printer: Printer) -> Result<(), Failure> {
    let end = Instant::now() + grace + PATIENCE;
    let mut progress = printer.progress();
    while let Some(worker) = control.worker(id)? {
        if Instant::now() > end {
            return Err(Failure::failed(format!(
                "worker {id} has not left: look at it with `marline workers`"
            )));
        }
        let tasks = plural(worker.tasks, "task");
        let actors = plural(worker.actors, "actor");
        progress.update(&format!("waiting until the worker has finished {tasks} and {actors}"));
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(())
}
