//! The rows: as Markdown tables for docs/benchmarks/cluster.md, and as JSON in the form that every
//! benchmark of this project writes.

use crate::arguments::Settings;
use crate::machine;
use serde_json::{Map, Value, json};
use std::io;
use std::path::Path;

/// The name of the rival that is a fixed value: the goal itself.
pub const GOAL: &str = "goal";

/// The crates that the rivals and our links are made of.
const CRATES: [&str; 4] = ["tonic", "h2", "prost", "tokio"];

const NOT_MEASURED: &str = "\
- more than one machine, and more cores than this one has: controller, worker, client and the echo servers
  share them, so a rate here is what all of them manage together;
- payloads beyond a few bytes, and tasks that do something;
- more than one client or worker process at a time, and more than one thread that submits;
- the rate of a raw socket, which depends on nothing but how many bytes go into one write;
- pings, leases and reconnects (the simulator checks that they are correct);
- idle machines: the load above is part of the result.";

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Better {
    Lower,
    Higher,
}

/// A number of ours, and the rivals it is compared with.
pub struct Row {
    pub shape: String,
    pub metric: String,
    pub unit: &'static str,
    pub better: Better,
    pub ours: f64,
    pub rivals: Vec<(String, f64)>,
    /// The rival that the goal is stated for.
    pub against: String,
    /// The least ratio that reaches the goal; 0 if there is no goal.
    pub goal: f64,
}

impl Row {
    pub fn new(shape: &str, metric: &str, unit: &'static str, better: Better, ours: f64) -> Row {
        let (shape, metric) = (shape.into(), metric.into());
        let (rivals, against) = (Vec::new(), String::new());
        Row { shape, metric, unit, better, ours, rivals, against, goal: 0.0 }
    }

    pub fn rival(mut self, name: &str, value: f64) -> Row {
        self.rivals.push((name.into(), value));
        self
    }

    /// Compares with this rival, and sets this ratio as the goal.
    pub fn against(mut self, name: &str, goal: f64) -> Row {
        self.against = name.into();
        self.goal = goal;
        self
    }

    /// Sets a fixed value as the goal: at least or at most this, depending on what is better.
    pub fn asked(self, value: f64) -> Row {
        self.rival(GOAL, value).against(GOAL, 1.0)
    }

    pub fn ratio(&self) -> Option<f64> {
        let rival = self.rivals.iter().find(|(name, _)| *name == self.against)?.1;
        Some(match self.better {
            Better::Lower => rival / self.ours,
            Better::Higher => self.ours / rival,
        })
    }

    fn missed(&self) -> bool {
        self.goal > 0.0 && self.ratio().is_none_or(|ratio| ratio < self.goal)
    }
}

pub fn print(rows: &[Row], settings: &Settings, load_before: &str, others: f64) {
    println!("# Cluster\n");
    println!("- machine: {}", machine::describe());
    println!("- load average: {load_before} before, {} after;", machine::load());
    println!("  other processes used {:.0} % of the machine", others * 100.0);
    println!("- compiler: {}; commit: {}", machine::RUSTC, machine::COMMIT);
    println!("- {}", machine::versions(include_str!("../Cargo.lock"), &CRATES));
    println!("- medians of {} interleaved rounds", settings.rounds);
    println!("- `ratio`: how many times better ours is than `against`; **bold** falls short\n");
    println!("| shape | metric | ours | rivals | against | ratio | goal |");
    println!("|---|---|---:|---|---|---:|---:|");
    for row in rows {
        let rivals: Vec<String> =
            row.rivals.iter().map(|(name, value)| format!("{name} {}", number(*value))).collect();
        let mark = if row.missed() { "**" } else { "" };
        println!(
            "| {} | {} | {} {} | {} | {} | {mark}{}{mark} | {} |",
            row.shape,
            row.metric,
            number(row.ours),
            row.unit,
            rivals.join(", "),
            if row.against.is_empty() { "–" } else { &row.against },
            row.ratio().map_or("–".into(), |ratio| format!("{ratio:.2}")),
            if row.goal > 0.0 { format!("{:.2}", row.goal) } else { "–".into() },
        );
    }
    let asked = rows.iter().filter(|row| row.goal > 0.0).count();
    let missed = rows.iter().filter(|row| row.missed()).count();
    println!("\n{missed} of {asked} goals missed.");
    println!("\n## Not measured\n\n{NOT_MEASURED}");
}

fn number(value: f64) -> String {
    match value.abs() {
        large if large >= 1_000.0 => {
            let digits = format!("{value:.0}");
            let from_end = digits.chars().rev().enumerate();
            let spaced = from_end.flat_map(|(place, digit)| {
                let comma = place > 0 && place % 3 == 0 && digit != '-';
                comma.then_some(',').into_iter().chain([digit])
            });
            spaced.collect::<Vec<char>>().into_iter().rev().collect()
        }
        middle if middle >= 100.0 => format!("{value:.0}"),
        middle if middle >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

pub fn write(path: &Path, rows: &[Row]) -> io::Result<()> {
    let rows: Vec<Value> = rows.iter().map(row_as_json).collect();
    let document = json!({
        "commit": machine::COMMIT,
        "machine": machine::describe(),
        "rows": rows,
    });
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(path, serde_json::to_string_pretty(&document)? + "\n")
}

fn row_as_json(row: &Row) -> Value {
    let rivals = row.rivals.iter().map(|(name, value)| (name.clone(), json!(value)));
    json!({
        "shape": row.shape,
        "metric": row.metric,
        "unit": row.unit,
        "better": if row.better == Better::Lower { "lower" } else { "higher" },
        "ours": row.ours,
        "rivals": Map::from_iter(rivals),
        "against": row.against,
        "goal": row.goal,
        // Every row has a number: 0 if there is nothing to compare with, and no goal.
        "ratio": row.ratio().unwrap_or(0.0),
    })
}
