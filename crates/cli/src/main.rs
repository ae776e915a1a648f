//! The `marline` binary: start a cluster, run commands on it, look at it.
//!
//! Arguments are read twice: `args.rs` has what can be typed, `config.rs` what it means together with the
//! environment, the configuration file and clusters that run here. Each command has a file in `command/`;
//! all output goes through `printer.rs`, so that `--json` always works. `exit.rs` has the exit codes.

mod args;
mod command;
mod config;
mod exit;
mod printer;
mod python;
mod units;

use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    // A worker's executors are this program started again.
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
