//! `marline workers`: lists the workers and what each has free.

use super::CommandResult;
use crate::args::Limit;
use crate::config::ClusterEndpoint;
use crate::printer::{Printer, table};
use crate::units::{ago, size};
use marline_runtime::control::{UnableRuntime, WireResources, WorkerState, WorkerStatus};
use serde_json::{Map, Value, json};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

pub fn run(settings: &ClusterEndpoint, limit: &Limit, printer: Printer) -> CommandResult {
    let (workers, more) = settings.control()?.workers(limit.limit)?;
    let json = json!({ "workers": workers.iter().map(as_json).collect::<Vec<_>>(), "more": more });
    printer.answer(&json, || {
        if workers.is_empty() {
            return "no workers: start one with `marline worker`".into();
        }
        let rows: Vec<Vec<String>> = workers.iter().map(row).collect();
        let head = ["WORKER", "STATE", "HOST", "PID", "TASKS", "ACTORS", "FREE", "TOTAL", "JOINED"];
        table(&head, &rows) + more_text(more)
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the line under a list that the limit cut short.
pub fn more_text(more: bool) -> &'static str {
    if more { "… and others: --limit shows more\n" } else { "" }
}

fn row(worker: &WorkerStatus) -> Vec<String> {
    vec![
        worker.worker_id.clone(),
        state_name(worker.state).into(),
        worker.hostname.clone(),
        worker.pid.to_string(),
        worker.tasks.to_string(),
        worker.actors.to_string(),
        amounts_text(worker.free.as_ref()),
        amounts_text(worker.total.as_ref()),
        format!("{} ago", ago(now() - worker.joined_at)),
    ]
}

fn as_json(worker: &WorkerStatus) -> Value {
    json!({
        "id": worker.worker_id,
        // As text: some readers of JSON round numbers of this size.
        "epoch": worker.epoch.to_string(),
        "state": state_name(worker.state),
        "address": non_empty(&worker.address),
        "hostname": worker.hostname,
        "pid": worker.pid,
        "version": worker.version,
        "total": amounts(worker.total.as_ref()),
        "free": amounts(worker.free.as_ref()),
        "tasks": worker.tasks,
        "actors": worker.actors,
        "joined_at": worker.joined_at,
        "preemptible": worker.preemptible,
        "python": (worker.python_minor > 0).then(|| format!("3.{}", worker.python_minor)),
        "unable": worker.unable.iter().map(unable_json).collect::<Vec<_>>(),
    })
}

fn unable_json(unable: &UnableRuntime) -> Value {
    json!({ "runtime": unable.runtime, "reason": unable.reason })
}

pub fn state_name(state: i32) -> &'static str {
    match WorkerState::try_from(state) {
        Ok(WorkerState::Joining) => "joining",
        Ok(WorkerState::Healthy) => "healthy",
        Ok(WorkerState::Suspect) => "suspect",
        Ok(WorkerState::Draining) => "draining",
        Ok(WorkerState::Unspecified) | Err(_) => "unknown",
    }
}

/// Returns a text of the protocol, in which an empty text stands for none.
pub fn non_empty(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

/// Returns the time, in milliseconds since 1970.
pub fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as i64
}

/// Returns an amount of a resource, which the protocol has in ten-thousandths.
fn whole(amount: i64) -> f64 {
    amount as f64 / 10_000.0
}

/// Returns amounts as JSON.
pub fn amounts(resources: Option<&WireResources>) -> Value {
    let Some(resources) = resources else { return json!({}) };
    let mut custom: Map<String, Value> = Map::new();
    for (name, amount) in &resources.custom {
        custom.insert(name.clone(), json!(whole(*amount)));
    }
    json!({
        "cpu": whole(resources.cpu),
        "gpu": whole(resources.gpu),
        "memory_bytes": resources.memory_bytes,
        "custom": custom,
    })
}

/// Returns amounts in words.
pub fn amounts_text(resources: Option<&WireResources>) -> String {
    let Some(resources) = resources else { return "nothing".into() };
    let mut parts = vec![format!("{} CPU", whole(resources.cpu))];
    if resources.gpu != 0 {
        parts.push(format!("{} GPU", whole(resources.gpu)));
    }
    if resources.memory_bytes != 0 {
        parts.push(size(resources.memory_bytes));
    }
    let mut custom: Vec<_> = resources.custom.iter().collect();
    custom.sort();
    parts.extend(custom.into_iter().map(|(name, amount)| format!("{} {name}", whole(*amount))));
    parts.join(", ")
}
