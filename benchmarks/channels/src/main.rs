//! The channel benchmark: Marline's channels and those of other crates, in the same
//! shapes, in one run.
//!
//! - `shapes`: the questions. `rivals`: adapters of the crates. `channel`: the traits
//!   between them.
//! - `tournament`: runs all contestants in turn, each measurement in a `child` process.
//! - `verdict`: compares. `report` and `json`: print and write the results.
//!
//! `--help` explains the use.

mod arguments;
mod c_abi;
mod channel;
mod child;
mod contestant;
mod context;
mod json;
#[path = "../../machine.rs"]
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

/// Runs the comparison. Returns false if a channel of Marline hung, crashed, lost a message, or
/// doubled one.
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
