//! The `marline` binary: start a cluster, run commands on it, look at it.
//!
//! Arguments are read twice: `args.rs` has what was typed, `config.rs` what it means together with the
//! environment, the configuration file and clusters that run here. Each command has a file in `command/`;
//! all output goes through `printer.rs`, so that `--json` always works. `exit.rs` has the exit codes.

mod args;
mod command;
mod config;
mod exit;
mod printer;
mod record;
mod units;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    // A worker's executors are this program started again.
    command::worker::serve_if_executor();
    let args = args::Args::parse();
    let printer = printer::Printer::new(args.json);
    match command::run(args, &printer) {
        Ok(code) => code,
        Err(failure) => failure.report(&printer),
    }
}
