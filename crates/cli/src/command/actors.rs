//! `marline actors`: lists actors, the latest first.

use super::CommandResult;
use super::workers::{more_text, non_empty, now};
use crate::args::Limit;
use crate::config::ClusterEndpoint;
use crate::printer::{Printer, table};
use crate::units::ago;
use marline_runtime::control::{ActorState, ActorStatus, DeathCause};
use marline_runtime::label_of;
use serde_json::{Value, json};
use std::process::ExitCode;

pub fn run(settings: &ClusterEndpoint, limit: &Limit, printer: Printer) -> CommandResult {
    let (actors, more) = settings.control()?.actors(limit.limit)?;
    let json = json!({ "actors": actors.iter().map(as_json).collect::<Vec<_>>(), "more": more });
    printer.answer(&json, || {
        if actors.is_empty() {
            return "no actors".into();
        }
        let rows: Vec<Vec<String>> = actors.iter().map(row).collect();
        let head = ["ACTOR", "NAME", "CLASS", "STATE", "EPOCH", "RESTARTS", "CALLS", "USED", "WHY"];
        table(&head, &rows) + more_text(more)
    })?;
    Ok(ExitCode::SUCCESS)
}

fn state_name(state: i32) -> &'static str {
    match ActorState::try_from(state) {
        Ok(ActorState::Creating) => "creating",
        Ok(ActorState::Ready) => "ready",
        Ok(ActorState::Restarting) => "restarting",
        Ok(ActorState::Dead) => "dead",
        Ok(ActorState::Unspecified) | Err(_) => "unknown",
    }
}

fn cause_name(cause: i32) -> Option<&'static str> {
    match DeathCause::try_from(cause) {
        Ok(DeathCause::Deleted) => Some("deleted"),
        Ok(DeathCause::ConstructorFailed) => Some("constructor failed"),
        Ok(DeathCause::RestartsUsedUp) => Some("restarts used up"),
        Ok(DeathCause::OwnerGone) => Some("owner gone"),
        Ok(DeathCause::Idle) => Some("idle"),
        Ok(DeathCause::Exited) => Some("ended itself"),
        Ok(DeathCause::Unspecified) | Err(_) => None,
    }
}

fn row(actor: &ActorStatus) -> Vec<String> {
    let why = match cause_name(actor.cause) {
        Some(cause) => cause.to_owned(),
        None if actor.waits_for.is_empty() => String::new(),
        None => format!("waits: {}", actor.waits_for),
    };
    vec![
        actor.actor_id.clone(),
        actor.name.clone(),
        label_of(&actor.class).into(),
        state_name(actor.state).into(),
        actor.epoch.to_string(),
        actor.restarts.to_string(),
        actor.pending_calls.to_string(),
        actor.last_used_at.map_or(String::new(), |used| format!("{} ago", ago(now() - used))),
        why,
    ]
}

fn as_json(actor: &ActorStatus) -> Value {
    json!({
        "id": actor.actor_id,
        "name": non_empty(&actor.name),
        "namespace": actor.namespace,
        "class": actor.class,
        "state": state_name(actor.state),
        "cause": cause_name(actor.cause),
        "error": actor.error.as_ref().map(|error| &error.message),
        "worker_id": non_empty(&actor.worker_id),
        "epoch": actor.epoch,
        "restarts": actor.restarts,
        "created_at": actor.created_at,
        "last_used_at": actor.last_used_at,
        "pending_calls": actor.pending_calls,
        "waits_for": non_empty(&actor.waits_for),
    })
}
