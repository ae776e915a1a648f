//! The question: what does an idle `marline up` cost? Needs the program: `--marline PATH`.

use crate::arguments::Settings;
use crate::memory::{family, processor_time, resident};
use crate::report::{Better, Row};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

/// How long the program has to start, and how long it is watched.
const SETTLE: Duration = Duration::from_secs(3);
const WATCH: Duration = Duration::from_secs(10);

pub fn ask(settings: &Settings) -> Vec<Row> {
    if !settings.wants("idle") {
        return Vec::new();
    }
    let Some(program) = &settings.marline else {
        eprintln!("        skipped: to measure an idle `marline up`, pass --marline PATH");
        return Vec::new();
    };
    match idle(program) {
        Ok((memory, processor)) => vec![
            Row::new("idle/marline up", "memory", "MiB", Better::Lower, memory),
            Row::new("idle/marline up", "of one core", "%", Better::Lower, processor * 100.0),
        ],
        Err(problem) => {
            eprintln!("        idle: {problem}");
            Vec::new()
        }
    }
}

/// Returns the memory in MiB and the used part of one core, of the program and all its descendants.
fn idle(program: &Path) -> Result<(f64, f64), String> {
    let mut command = Command::new(program);
    command.arg("up").stdin(Stdio::null()).stdout(Stdio::null());
    let mut up = command.spawn().map_err(|error| format!("{}: {error}", program.display()))?;
    sleep(SETTLE);
    if let Ok(Some(status)) = up.try_wait() {
        return Err(format!("`{} up` ended: {status}", program.display()));
    }
    let pids = family(up.id());
    let used = || pids.iter().filter_map(|pid| processor_time(*pid)).sum::<f64>();
    let before = used();
    sleep(WATCH);
    let processor = (used() - before) / WATCH.as_secs_f64();
    let memory = pids.iter().filter_map(|pid| resident(*pid)).sum();
    let _ = up.kill();
    let _ = up.wait();
    Ok((memory, processor))
}
