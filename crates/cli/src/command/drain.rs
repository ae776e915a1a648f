//! `marline drain`: has a worker finish what it has, and leave.

use super::Done;
use crate::args::Drain;
use crate::config::Settings;
use crate::exit::Failure;
use crate::printer::Printer;
use crate::units::count;
use marline_runtime::control::Control;
use marline_runtime::core::id::SessionId;
use serde_json::json;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How much longer than its grace a worker may take to leave.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often it is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The most workers that one answer lists.
const PAGE: u32 = 1_000;

pub fn run(settings: &Settings, asked: &Drain, printer: Printer) -> Done {
    let control = settings.control()?;
    let worker: SessionId = asked.worker.parse()?;
    control.drain(worker, asked.grace.0)?;
    if !asked.no_wait {
        wait(&control, asked, printer)?;
    }
    let json = json!({ "worker": asked.worker, "left": !asked.no_wait });
    printer.answer(&json, || {
        let what = if asked.no_wait { "takes no new work" } else { "has left" };
        format!("worker {} {what}", asked.worker)
    })?;
    Ok(ExitCode::SUCCESS)
}

fn wait(control: &Control, asked: &Drain, printer: Printer) -> Result<(), Failure> {
    let end = Instant::now() + asked.grace.0 + PATIENCE;
    let mut progress = printer.progress();
    while let Some(worker) =
        control.workers(PAGE)?.0.into_iter().find(|worker| worker.worker_id == asked.worker)
    {
        if Instant::now() > end {
            return Err(Failure::failed(format!(
                "worker {} has not left: look at it with `marline workers`",
                asked.worker
            )));
        }
        let tasks = count(worker.tasks, "task");
        let actors = count(worker.actors, "actor");
        progress.say(&format!("waiting until it has finished {tasks} and {actors}"));
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(())
}
