//! `marline tasks`: those that have not ended, then those that have.

use super::Done;
use super::workers::{known, more_text, now};
use crate::args::{State, Tasks};
use crate::config::Settings;
use crate::printer::{Printer, table};
use crate::units::{ago, took};
use marline_runtime::control::{TaskState, TaskStatus};
use serde_json::{Value, json};
use std::process::ExitCode;

pub fn run(settings: &Settings, asked: &Tasks, printer: Printer) -> Done {
    let states: Vec<TaskState> = asked.states.iter().copied().map(wire_state).collect();
    let (tasks, more) = settings.control()?.tasks(asked.limit.limit, &states)?;
    let json = json!({ "tasks": tasks.iter().map(as_json).collect::<Vec<_>>(), "more": more });
    printer.answer(&json, || {
        if tasks.is_empty() {
            return none(&states);
        }
        let rows: Vec<Vec<String>> = tasks.iter().map(row).collect();
        table(&["TASK", "NAME", "STATE", "TRIES", "AGE", "TOOK", "WHY"], &rows) + more_text(more)
    })?;
    Ok(ExitCode::SUCCESS)
}

/// What is said of no tasks in these states.
fn none(states: &[TaskState]) -> String {
    if states.is_empty() {
        return "no tasks: `marline run -- COMMAND` makes one".into();
    }
    let names: Vec<&str> = states.iter().map(|state| state_name((*state).into())).collect();
    format!("no {} tasks", names.join(" or "))
}

fn wire_state(state: State) -> TaskState {
    match state {
        State::Pending => TaskState::Pending,
        State::Assigned => TaskState::Assigned,
        State::Running => TaskState::Running,
        State::Finished => TaskState::Finished,
        State::Failed => TaskState::Failed,
        State::Cancelled => TaskState::Cancelled,
    }
}

pub fn state_name(state: i32) -> &'static str {
    match TaskState::try_from(state) {
        Ok(TaskState::Pending) => "pending",
        Ok(TaskState::Assigned) => "assigned",
        Ok(TaskState::Running) => "running",
        Ok(TaskState::Finished) => "finished",
        Ok(TaskState::Failed) => "failed",
        Ok(TaskState::Cancelled) => "cancelled",
        Ok(TaskState::Unspecified) | Err(_) => "unknown",
    }
}

fn row(task: &TaskStatus) -> Vec<String> {
    let age = task.created_at.map_or(String::new(), |created| ago(now() - created));
    let end = task.finished_at.unwrap_or_else(now);
    let took = task.started_at.map_or(String::new(), |started| took(end - started));
    let why = match &task.error {
        Some(error) => error.message.lines().next().unwrap_or_default().to_owned(),
        None if task.waits_for.is_empty() => String::new(),
        None => format!("waits: {}", task.waits_for),
    };
    vec![
        task.task_id.clone(),
        task.name.clone(),
        state_name(task.state).into(),
        task.attempts.to_string(),
        age,
        took,
        why,
    ]
}

fn as_json(task: &TaskStatus) -> Value {
    json!({
        "id": task.task_id,
        "name": task.name,
        "actor_id": known(&task.actor_id),
        "state": state_name(task.state),
        "worker_id": known(&task.worker_id),
        "attempts": task.attempts,
        "created_at": task.created_at,
        "started_at": task.started_at,
        "finished_at": task.finished_at,
        "error": task.error.as_ref().map(|error| &error.message),
        "waits_for": known(&task.waits_for),
    })
}
