//! Marline's channels and everyone else's, in the same shapes, in one run.
//!
//! `shapes` asks the questions, `rivals` adapts the crates, `channel` is the
//! border between them. `tournament` runs every contestant in turn, each
//! measurement in a `child` process; `verdict` compares; `report` and `json`
//! write it down. `--help` explains the use.

mod arguments;
mod c_abi;
mod channel;
mod child;
mod contestant;
mod context;
mod json;
mod machine;
mod report;
mod rivals;
mod shapes;
mod tournament;
mod verdict;

use arguments::{Command, Settings};
use std::process::ExitCode;

fn main() -> ExitCode {
    let done = match arguments::parse(std::env::args().skip(1)) {
        Ok(Command::Help) => {
            println!("{}", arguments::HELP);
            Ok(true)
        }
        Ok(Command::List) => {
            list();
            Ok(true)
        }
        Ok(Command::Child(order)) => child::answer(&shapes::all(), &order).map(|()| true),
        Ok(Command::Compare(settings)) => compare(&settings),
        Err(problem) => Err(problem),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(problem) => {
            eprintln!("{problem}");
            ExitCode::from(2)
        }
    }
}

fn list() {
    for shape in shapes::all() {
        let names: Vec<&str> = shape.contestants.iter().map(|one| one.name).collect();
        println!("{}: {}", shape.name, names.join(", "));
    }
}

/// True when ours did not fail.
fn compare(settings: &Settings) -> Result<bool, String> {
    let load_before = machine::load();
    let measured = tournament::play(shapes::all(), settings);
    report::print(&measured, settings, &load_before);
    let full = settings.only.is_empty();
    let name = if settings.pin { "channels-pinned" } else { "channels" };
    let path = machine::repository().join(format!("target/bench/{name}.json"));
    if let Some(path) = settings.json.clone().or(full.then_some(path)) {
        json::write(&path, &measured).map_err(|error| format!("{}: {error}", path.display()))?;
        eprintln!("rows written to {}", path.display());
    }
    Ok(!report::ours_failed(&measured))
}
