//! `marline token`: prints a short-lived token for gRPC clients that are not Marline's own.

use super::CommandResult;
use crate::config::ClusterEndpoint;
use crate::exit::Failure;
use crate::printer::Printer;
use marline_runtime::control::Tickets;
use serde_json::json;
use std::process::ExitCode;

pub fn run(settings: &ClusterEndpoint, printer: Printer) -> CommandResult {
    let tickets = Tickets::at(&settings.address, settings.token.clone())?;
    if !tickets.are_needed() {
        let words = format!("the cluster at {} needs no token", settings.address);
        return Err(Failure::failed(words));
    }
    let ticket = tickets.ticket();
    let seconds = Tickets::LIFE.as_secs();
    let about = json!({ "address": settings.address, "token": ticket, "good_for_s": seconds });
    printer.answer(&about, || ticket.clone())?;
    Ok(ExitCode::SUCCESS)
}
