//! The results as Markdown tables for docs/benchmarks/channels.md.

use crate::arguments::Settings;
use crate::child::{Failure, LIMIT};
use crate::machine;
use crate::shapes::FLOOR;
use crate::tournament::{Cell, Measured};
use crate::verdict::{LOSSY, OURS, Verdict, geometric_mean};

/// The rivals that are crates. The version of std is the compiler's.
const RIVALS: [&str; 9] = [
    "kanal",
    "crossfire",
    "crossbeam-channel",
    "flume",
    "loole",
    "async-channel",
    "tokio",
    "tachyonix",
    "oneshot",
];

const NOT_MEASURED: &str = "\
- more than the cores of this machine: nothing here says how anything scales on 16 or more;
- memory, allocations and processor time (a rival that spins looks fast and is not free);
- fairness, tail latencies, and what a cancelled wait costs outside select;
- async runtimes other than tokio; hosted channels (their own benchmark);
- idle machines: the load average above is part of the result.";

/// A shape is marked if other processes used more than this part of the machine meanwhile.
const DISTURBED: f64 = 0.1;

pub fn print(all: &[Measured], settings: &Settings, load_before: &str) {
    println!("# Channels\n");
    println!("- machine: {}", machine::describe());
    println!("- load average: {load_before} before, {} after", machine::load());
    println!("- compiler: {}; commit: {}", machine::RUSTC, machine::COMMIT);
    println!(
        "- rivals: {}, std as the compiler",
        machine::versions(include_str!("../Cargo.lock"), &RIVALS)
    );
    let length = settings.target().as_millis();
    let rounds = settings.rounds;
    println!("- medians of {rounds} interleaved rounds of about {length} ms, a process each");
    let disturbed = all.iter().filter(|measured| measured.others > DISTURBED).count();
    println!("- `~`: rounds differ more than three times; `!`: others used over 10 % of the");
    println!("  machine meanwhile ({disturbed} of {} shapes)", all.len());
    if settings.pin {
        println!("- everything pinned to CPU 0");
    }
    for context in ["threads", "current-thread", "two-workers"] {
        let prefix = format!("{context}/");
        let rows: Vec<&Measured> = all
            .iter()
            .filter(|measured| measured.shape.starts_with(&prefix))
            .filter(|measured| !measured.is_floor() && !measured.is_metrics())
            .collect();
        contest(&format!("{context}, ns per message"), &rows, &prefix);
    }
    let metrics: Vec<&Measured> = all.iter().filter(|measured| measured.is_metrics()).collect();
    contest("Metrics in and out, ns per message", &metrics, "");
    floors(all);
    summary(all);
    accounts(all);
    failures(all);
    println!("\n## Not measured\n\n{NOT_MEASURED}");
    if settings.without_metrics.is_none() {
        println!("- what our metrics cost: that needs `--without-metrics`.");
    }
}

/// Returns the contestants of these rows, ours first.
fn columns<'a>(rows: &[&'a Measured]) -> Vec<&'a str> {
    let mut names: Vec<&str> = Vec::new();
    for cell in rows.iter().flat_map(|measured| &measured.cells) {
        if cell.name != FLOOR && !names.contains(&cell.name) {
            names.push(cell.name);
        }
    }
    names.sort_by_key(|name| !name.starts_with(OURS));
    names
}

fn headings(names: &[&str]) -> String {
    let marked = |name: &&str| match *name {
        LOSSY => format!("{LOSSY} (lossy)"),
        _ => name.to_string(),
    };
    names.iter().map(marked).collect::<Vec<_>>().join(" | ")
}

fn contest(title: &str, rows: &[&Measured], prefix: &str) {
    if rows.is_empty() {
        return;
    }
    let names = columns(rows);
    println!("\n## {title}\n");
    println!(
        "| shape | {} | best lossless rival | ratio | goal | ratio to {LOSSY} (lossy) |",
        headings(&names)
    );
    println!("|---|{}---|---:|---:|---:|", "---:|".repeat(names.len()));
    for measured in rows {
        let disturbed = if measured.others > DISTURBED { " !" } else { "" };
        let shape = measured.shape.trim_start_matches(prefix);
        let cells: Vec<String> =
            names.iter().map(|name| measured.cell(name).map_or("–".into(), cell)).collect();
        let verdict = measured.verdict();
        let against = verdict.as_ref().map_or("–", |verdict| &verdict.against);
        let ratio = number(verdict.as_ref().and_then(Verdict::ratio));
        let goal = number(verdict.as_ref().map(|verdict| verdict.goal));
        println!(
            "| {shape}{disturbed} | {} | {against} | {ratio} | {goal} | {} |",
            cells.join(" | "),
            number(measured.ratio_to_lossy())
        );
    }
}

fn cell(cell: &Cell) -> String {
    let mark = if cell.spread() > 3.0 { " ~" } else { "" };
    match (cell.failure, cell.nanoseconds()) {
        (Some(Failure::Hung), _) => "hung".into(),
        (Some(Failure::Crashed), _) => "crashed".into(),
        (None, Some(value)) if value < 100.0 => format!("{value:.1}{mark}"),
        (None, Some(value)) => format!("{value:.0}{mark}"),
        (None, None) => "–".into(),
    }
}

fn number(value: Option<f64>) -> String {
    value.map_or("–".into(), |value| format!("{value:.2}"))
}

fn floors(all: &[Measured]) {
    let rows: Vec<(&Measured, Verdict)> =
        all.iter().filter_map(|measured| Some((measured, measured.floor_verdict()?))).collect();
    if !rows.is_empty() {
        println!("\n## Against the floor: a bare wake-up and poll, or park and unpark\n");
        println!("| shape | floor, ns | marline, ns | ratio | goal |\n|---|---:|---:|---:|---:|");
    }
    for (measured, verdict) in rows {
        let show = |name| measured.cell(name).map_or("–".into(), cell);
        let (floor, ours) = (show(FLOOR), show(OURS));
        let (ratio, goal) = (number(verdict.ratio()), number(Some(verdict.goal)));
        println!("| {} | {floor} | {ours} | {ratio} | {goal} |", measured.shape);
    }
    for floor in all.iter().filter(|measured| measured.is_floor()) {
        println!("\n{}: {} ns.", floor.shape, cell(&floor.cells[0]));
    }
}

fn summary(all: &[Measured]) {
    let rivalry = || all.iter().filter(|measured| !measured.is_metrics());
    let best = geometric_mean(rivalry().filter_map(|measured| measured.verdict()?.ratio()));
    let Some(best) = best else {
        return println!("\nOurs did not take part, so there are no ratios.");
    };
    let lossy = geometric_mean(rivalry().filter_map(Measured::ratio_to_lossy));
    println!("\n## Sum\n");
    println!("- geometric mean of the ratios to the best lossless rival: {best:.2}");
    println!("- geometric mean of the ratios to {LOSSY} (lossy): {}", number(lossy));
    let missed: Vec<Verdict> = all
        .iter()
        .flat_map(|measured| [measured.verdict(), measured.floor_verdict()])
        .flatten()
        .filter(Verdict::missed)
        .collect();
    println!("- below their goal: {}", missed.len());
    for verdict in missed {
        let (ratio, goal) = (number(verdict.ratio()), verdict.goal);
        println!("  - {}: {ratio} of {} (goal {goal})", verdict.shape, verdict.against);
    }
}

/// Prints the losses of every select shape, and of other shapes in which a message was lost or
/// doubled.
fn accounts(all: &[Measured]) {
    let missing = |measured: &Measured| measured.cells.iter().any(|cell| cell.unaccounted() > 0);
    let rows: Vec<&Measured> = all
        .iter()
        .filter(|measured| measured.shape.contains("/select ") || missing(measured))
        .collect();
    if rows.is_empty() {
        return;
    }
    let names = columns(&rows);
    println!("\n## Lost messages\n");
    println!("Lost: accepted and never received, after the channels were drained. Doubled:");
    println!("received, although the select had dropped that send as not done.\n");
    println!("| shape | {} |", headings(&names));
    println!("|---|{}", "---:|".repeat(names.len()));
    for measured in rows {
        let cells: Vec<String> =
            names.iter().map(|name| measured.cell(name).map_or("–".into(), account)).collect();
        println!("| {} | {} |", measured.shape, cells.join(" | "));
    }
}

fn account(cell: &Cell) -> String {
    let total = &cell.total;
    let of = total.messages;
    match (total.lost, total.doubled) {
        (0, 0) => format!("0 of {of}"),
        (lost, 0) => format!("**{lost} lost** of {of}"),
        (0, doubled) => format!("**{doubled} doubled** of {of}"),
        (lost, doubled) => format!("**{lost} lost, {doubled} doubled** of {of}"),
    }
}

fn failures(all: &[Measured]) {
    for measured in all {
        for cell in &measured.cells {
            let Some(failure) = cell.failure else {
                continue;
            };
            let what = match failure {
                Failure::Hung => format!("hung (no answer in {} s)", LIMIT.as_secs()),
                Failure::Crashed => "crashed".into(),
            };
            let (shape, rounds) = (&measured.shape, cell.samples.len());
            println!("\n{} {what} in {shape} after {rounds} rounds.", cell.name);
        }
    }
}

/// Whether ours hung, crashed, lost a message, or doubled one in its own select.
/// Under another crate's select a dropped send may have taken place. That is so for
/// every channel that hands values directly to a waiting receiver, so it does not
/// count here.
pub fn ours_failed(all: &[Measured]) -> bool {
    let mut cells = all.iter().flat_map(|measured| &measured.cells);
    cells.any(|cell| {
        let broken = cell.failure.is_some() || cell.total.lost > 0;
        cell.name.starts_with(OURS) && broken || cell.name == OURS && cell.total.doubled > 0
    })
}
