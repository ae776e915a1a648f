//! `marline cancel`: cancels tasks.

use super::{CommandResult, find};
use crate::args::Cancel;
use crate::config::ClusterEndpoint;
use crate::exit::Failure;
use crate::printer::Printer;
use marline_runtime::control::Control;
use marline_runtime::core::error::ErrorKind;
use marline_runtime::core::id::{ActorId, TaskId};
use serde_json::json;
use std::process::ExitCode;

pub fn run(settings: &ClusterEndpoint, asked: &Cancel, printer: Printer) -> CommandResult {
    let control = settings.control()?;
    // Every id is resolved before the first task is cancelled: one wrong id cancels nothing.
    let tasks = asked.tasks.iter().map(|task| find::task(&control, task));
    let tasks = tasks.collect::<Result<Vec<_>, _>>()?;
    let mut done = Vec::new();
    for task in tasks {
        done.push((task, cancel(&control, task, asked.force)?));
    }
    let list: Vec<_> = done
        .iter()
        .map(|(task, had_not_ended)| json!({ "task": task.to_string(), "had_not_ended": had_not_ended }))
        .collect();
    printer.answer(&json!({ "cancelled": list }), || {
        let lines = done.iter().map(|(task, had_not_ended)| match had_not_ended {
            true => format!("task {task} was asked to stop"),
            false => format!("task {task} had ended"),
        });
        lines.collect::<Vec<_>>().join("\n")
    })?;
    Ok(ExitCode::SUCCESS)
}

fn cancel(control: &Control, task: TaskId, force: bool) -> Result<bool, Failure> {
    control.cancel(task, force).map_err(|error| {
        let actor = ActorId::from_u128(task.as_u128());
        match error.kind() == ErrorKind::NotFound && control.actor(actor).is_ok() {
            true => find::actor_not_task(actor),
            false => error.into(),
        }
    })
}
