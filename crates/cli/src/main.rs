//! The `marline` binary: starts clusters, runs commands on them, and shows what they do.
//!
//! - `args.rs`: the command line as typed, and the texts of `--help`.
//! - `config.rs`: what the command line means together with the environment, the settings file and
//!   the clusters that run on this machine.
//! - `command/`: one file for each command.
//! - `printer.rs`: all output, so that `--json` always works.
//! - `exit.rs`: the exit codes.

mod args;
mod command;
mod config;
#[cfg(test)]
mod docs;
mod exit;
mod printer;
mod python;
mod units;

use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    // A worker starts this program again for each executor. Then this call does not return.
    command::worker::serve_if_executor();
    let typed: Vec<OsString> = std::env::args_os().collect();
    let printer = printer::Printer::new(config::wants_json(&typed));
    let done = match config::read(&typed) {
        Ok(Some(args)) => command::run(args, printer),
        Ok(None) => Ok(ExitCode::SUCCESS),
        Err(failure) => Err(failure),
    };
    done.unwrap_or_else(|failure| failure.report(printer))
}
