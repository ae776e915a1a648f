//! `marline kill`: ends actors for good.

use super::{CommandResult, find};
use crate::args::Kill;
use crate::config::ClusterEndpoint;
use crate::exit::Failure;
use crate::printer::Printer;
use marline_runtime::control::{ActorState, Control};
use marline_runtime::core::error::ErrorKind;
use marline_runtime::core::id::ActorId;
use serde_json::json;
use std::process::ExitCode;

pub fn run(settings: &ClusterEndpoint, asked: &Kill, printer: Printer) -> CommandResult {
    let control = settings.control()?;
    // Every actor is resolved before the first is killed: one unknown actor kills nothing.
    let actors = asked.actors.iter().map(|actor| find::actor(&control, &asked.namespace, actor));
    let actors = actors.collect::<Result<Vec<_>, _>>()?;
    let mut done = Vec::new();
    for actor in actors {
        done.push((actor, kill(&control, actor)?));
    }
    let list: Vec<_> = done
        .iter()
        .map(|(actor, had_not_ended)| json!({ "actor": actor.to_string(), "had_not_ended": had_not_ended }))
        .collect();
    printer.answer(&json!({ "killed": list }), || {
        let lines = done.iter().map(|(actor, had_not_ended)| match had_not_ended {
            true => format!("actor {actor} was killed"),
            false => format!("actor {actor} had ended"),
        });
        lines.collect::<Vec<_>>().join("\n")
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Kills an actor for good. Returns false if the actor had ended before.
fn kill(control: &Control, actor: ActorId) -> Result<bool, Failure> {
    match control.delete_actor(actor) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let has_ended = control.actor(actor)?.state() == ActorState::Dead;
            if has_ended { Ok(false) } else { Err(error.into()) }
        }
        Err(error) => Err(error.into()),
    }
}
