//! The commands: one file each. `find.rs` resolves ids that users type.

mod actors;
mod cancel;
mod controller;
mod drain;
mod find;
mod kill;
mod logs;
mod memory;
mod run;
mod status;
mod tasks;
mod token;
mod up;
pub mod worker;
mod workers;

use crate::args::{Args, Command};
use crate::config::ClusterEndpoint;
use crate::exit::Failure;
use crate::printer::Printer;
use clap::CommandFactory;
use marline_runtime::runtime_log;
use serde_json::json;
use std::process::ExitCode;

/// The most items that one answer of the cluster lists.
const MAX_LISTED_ITEMS: u32 = 1_000;

type CommandResult = Result<ExitCode, Failure>;

/// Runs the command that was typed.
pub fn run(args: Args, printer: Printer) -> CommandResult {
    if let Some(filter) = &args.log {
        runtime_log::start(filter.clone(), args.log_format);
    }
    let settings = || ClusterEndpoint::of(&args);
    match &args.command {
        Command::Up(up) => up::run(&args, up, printer),
        Command::Controller(controller) => controller::run(&args, controller, printer),
        Command::Worker(worker) => worker::run(&args, worker, printer),
        Command::Run(run) => run::run(&settings()?, run, printer),
        Command::Status => status::run(&settings()?, printer),
        Command::Tasks(tasks) => tasks::run(&settings()?, tasks, printer),
        Command::Actors(limit) => actors::run(&settings()?, limit, printer),
        Command::Memory(limit) => memory::run(&settings()?, limit, printer),
        Command::Workers(limit) => workers::run(&settings()?, limit, printer),
        Command::Drain(drain) => drain::run(&settings()?, drain, printer),
        Command::Cancel(cancel) => cancel::run(&settings()?, cancel, printer),
        Command::Kill(kill) => kill::run(&settings()?, kill, printer),
        Command::Logs(logs) => logs::run(&settings()?, logs, printer),
        Command::Token => token::run(&settings()?, printer),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Args::command(), "marline", &mut script);
            let script = String::from_utf8_lossy(&script).into_owned();
            printer.answer(&json!({ "shell": shell.to_string(), "script": script }), || {
                script.clone()
            })?;
            Ok(ExitCode::SUCCESS)
        }
    }
}
