//! The cluster benchmark: what tasks, calls, actors, failures and decisions cost, compared in the
//! same run with what one would build by hand with the same libraries.
//!
//! - `questions`: one file for each question.
//! - `rivals`: what Marline is compared with.
//! - `contest`: runs all contestants in turn.
//! - `child`: starts this program again as a controller, a worker or an echo server.
//! - `report`: prints and writes the rows.
//!
//! `--help` explains the use.

mod arguments;
mod child;
mod contest;
#[path = "../../machine.rs"]
mod machine;
mod marline_cluster;
mod memory;
mod plot;
mod questions;
mod report;
mod rivals;

use arguments::{Command, Settings};
use report::Row;
use std::process::ExitCode;

fn main() -> ExitCode {
    let done = match arguments::parse(std::env::args().skip(1)) {
        Ok(Command::Help) => {
            println!("{}", arguments::HELP);
            Ok(())
        }
        Ok(Command::Child(words)) => child::run(&words),
        Ok(Command::Measure(settings)) => measure(&settings),
        Err(problem) => Err(problem),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("{problem}");
            ExitCode::from(2)
        }
    }
}

fn measure(settings: &Settings) -> Result<(), String> {
    if let Some((what, time)) = &settings.profile {
        let done = questions::profile(what, *time);
        let _ = std::fs::remove_dir_all(marline_cluster::socket_folder());
        return done;
    }
    let load_before = machine::load();
    let watch = machine::Watch::start();
    let rows: Vec<Row> = questions::ask(settings);
    let _ = std::fs::remove_dir_all(marline_cluster::socket_folder());
    report::print(&rows, settings, &load_before, watch.others());
    if settings.plot {
        plot::write(&rows).map_err(|error| format!("the plot cannot be written: {error}"))?;
    }
    let path = machine::repository().join("target/bench/cluster.json");
    if let Some(path) = settings.json.clone().or(settings.only.is_empty().then_some(path)) {
        report::write(&path, &rows).map_err(|error| format!("{}: {error}", path.display()))?;
        eprintln!("rows written to {}", path.display());
    }
    Ok(())
}
