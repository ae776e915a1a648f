//! `marline tasks`: lists tasks, first those that have not ended, then those that have.

use super::workers::{more_text, non_empty, now};
use super::{CommandResult, MAX_LISTED_ITEMS};
use crate::args::{TaskStateArg, Tasks};
use crate::config::ClusterEndpoint;
use crate::exit::Failure;
use crate::printer::{Printer, table};
use crate::units::{ago, took};
use marline_runtime::control::{Control, TaskState, TaskStatus};
use marline_runtime::label_of;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::process::ExitCode;

pub fn run(settings: &ClusterEndpoint, asked: &Tasks, printer: Printer) -> CommandResult {
    let states: Vec<TaskState> = asked.states.iter().copied().map(wire_state).collect();
    let control = settings.control()?;
    let (tasks, more) = control.tasks(asked.limit.limit, &states)?;
    let has_calls = tasks.iter().any(|task| !task.actor_id.is_empty());
    let classes = if has_calls && !printer.json { classes(&control)? } else { Classes::new() };
    let json = json!({ "tasks": tasks.iter().map(as_json).collect::<Vec<_>>(), "more": more });
    printer.answer(&json, || {
        if tasks.is_empty() {
            return none(&states);
        }
        let rows: Vec<Vec<String>> = tasks.iter().map(|task| row(task, &classes)).collect();
        table(&["TASK", "NAME", "STATE", "TRIES", "AGE", "TOOK", "WHY"], &rows) + more_text(more)
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The classes of actors, by the actors' ids.
type Classes = HashMap<String, String>;

/// Returns the classes of the latest actors. The status of a call has the id of its actor, not the
/// class.
fn classes(control: &Control) -> Result<Classes, Failure> {
    let (actors, _) = control.actors(MAX_LISTED_ITEMS)?;
    Ok(actors.into_iter().map(|actor| (actor.actor_id, actor.class)).collect())
}

/// Returns the name to show: of a function, or of a method with its actor's class or id.
fn name(task: &TaskStatus, classes: &Classes) -> String {
    let TaskStatus { name, actor_id, .. } = task;
    match classes.get(actor_id) {
        _ if actor_id.is_empty() => label_of(name).into(),
        Some(class) => format!("{}.{name}", label_of(class)),
        None => format!("actor {actor_id}.{name}"),
    }
}

/// Returns the text for an empty list of tasks in these states.
fn none(states: &[TaskState]) -> String {
    if states.is_empty() {
        return "no tasks: `marline run -- COMMAND` starts one".into();
    }
    let names: Vec<&str> = states.iter().map(|state| state_name((*state).into())).collect();
    format!("no {} tasks", names.join(" or "))
}

fn wire_state(state: TaskStateArg) -> TaskState {
    match state {
        TaskStateArg::Pending => TaskState::Pending,
        TaskStateArg::Assigned => TaskState::Assigned,
        TaskStateArg::Running => TaskState::Running,
        TaskStateArg::Finished => TaskState::Finished,
        TaskStateArg::Failed => TaskState::Failed,
        TaskStateArg::Cancelled => TaskState::Cancelled,
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

fn row(task: &TaskStatus, classes: &Classes) -> Vec<String> {
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
        name(task, classes),
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
        "actor_id": non_empty(&task.actor_id),
        "state": state_name(task.state),
        "worker_id": non_empty(&task.worker_id),
        "attempts": task.attempts,
        "created_at": task.created_at,
        "started_at": task.started_at,
        "finished_at": task.finished_at,
        "error": task.error.as_ref().map(|error| &error.message),
        "waits_for": non_empty(&task.waits_for),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_named_with_the_class_or_id_of_its_actor() {
        let classes = Classes::from([("7".into(), "Counter".into())]);
        let named = |name: &str, actor: &str| {
            let (name, actor_id) = (name.into(), actor.into());
            super::name(&TaskStatus { name, actor_id, ..TaskStatus::default() }, &classes)
        };
        assert_eq!(named("add", "7"), "Counter.add");
        assert_eq!(named("add", "8"), "actor 8.add");
        assert_eq!(named("double", ""), "double");
    }
}
