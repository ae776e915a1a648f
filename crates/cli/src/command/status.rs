//! `marline status`: shows the cluster as a whole, and why work waits.

use super::CommandResult;
use super::workers::amounts;
use crate::config::ClusterEndpoint;
use crate::printer::Printer;
use crate::units::{ago, size};
use marline_runtime::control::{ClusterStatus, WorkerState};
use serde_json::{Value, json};
use std::process::ExitCode;

pub fn run(settings: &ClusterEndpoint, printer: Printer) -> CommandResult {
    let status = settings.control()?.cluster()?;
    printer.answer(&as_json(settings, &status), || words(settings, &status))?;
    Ok(ExitCode::SUCCESS)
}

fn state(state: WorkerState) -> &'static str {
    super::workers::state_name(state.into())
}

fn as_json(settings: &ClusterEndpoint, status: &ClusterStatus) -> Value {
    let counters = status.counters.unwrap_or_default();
    let workers =
        status.workers.iter().map(|count| (state(count.state()).to_owned(), json!(count.count)));
    let waiting = status.waiting.iter();
    json!({
        "address": settings.address,
        "cluster_id": status.cluster_id,
        "version": status.version,
        "protocol": status.protocol,
        "uptime_ms": status.uptime_ms,
        "workers": workers.collect::<serde_json::Map<_, _>>(),
        "total": amounts(status.total.as_ref()),
        "free": amounts(status.free.as_ref()),
        "sessions": status.sessions,
        "pending_tasks": status.pending_tasks,
        "kept_objects": status.kept_objects,
        "kept_bytes": status.kept_bytes,
        "counters": {
            "submitted": counters.submitted,
            "finished": counters.finished,
            "failed": counters.failed,
            "cancelled": counters.cancelled,
            "lost": counters.lost,
            "refused": counters.refused,
            "fenced": counters.fenced,
            "stale": counters.stale,
        },
        "waiting": waiting
            .map(|waiting| json!({ "reason": waiting.reason, "count": waiting.count }))
            .collect::<Vec<_>>(),
        "unable": status.unable,
    })
}

fn words(settings: &ClusterEndpoint, status: &ClusterStatus) -> String {
    let counters = status.counters.unwrap_or_default();
    let workers: Vec<String> = status
        .workers
        .iter()
        .map(|count| format!("{} {}", count.count, state(count.state())))
        .collect();
    let workers = if workers.is_empty() { "none".into() } else { workers.join(", ") };
    let mut text = format!(
        "cluster   {} at {}, version {}, up for {}\n\
         workers   {workers}\n\
         free      {} of {}\n\
         tasks     {} submitted: {} finished, {} failed, {} cancelled, {} not ended\n\
         losses    {} attempts lost, {} refused, {} messages fenced\n\
         kept      {} results and values, {}\n",
        status.cluster_id,
        settings.address,
        status.version,
        ago(status.uptime_ms as i64),
        super::workers::amounts_text(status.free.as_ref()),
        super::workers::amounts_text(status.total.as_ref()),
        counters.submitted,
        counters.finished,
        counters.failed,
        counters.cancelled,
        status.pending_tasks,
        counters.lost,
        counters.refused,
        counters.fenced,
        status.kept_objects,
        size(status.kept_bytes),
    );
    for waiting in &status.waiting {
        text += &format!("waiting   {}: {}\n", waiting.count, waiting.reason);
    }
    for unable in &status.unable {
        text += &format!("unable    {unable}\n");
    }
    text
}
