//! The rows as JSON, in the form that every benchmark of this project writes:
//! `commit`, `machine`, and `rows` as in the function `row`.

use crate::machine;
use crate::shapes::FLOOR;
use crate::tournament::Measured;
use crate::verdict::{OURS, Verdict};
use serde_json::{Map, Value, json};
use std::io;
use std::path::Path;

pub fn write(path: &Path, all: &[Measured]) -> io::Result<()> {
    let mut rows = Vec::new();
    for measured in all.iter().filter(|measured| !measured.is_floor()) {
        rows.extend(measured.verdict().map(|verdict| time(measured, &verdict)));
        rows.extend(measured.floor_verdict().map(|verdict| {
            let floors = [(verdict.against.clone(), json!(verdict.rival))];
            row(&verdict, Map::from_iter(floors))
        }));
        if measured.shape.contains("/select ") {
            rows.push(losses(measured));
        }
    }
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

fn rivals(measured: &Measured, value: impl Fn(&str) -> Option<Value>) -> Map<String, Value> {
    let rivals = measured.cells.iter().filter(|cell| ![OURS, FLOOR].contains(&cell.name));
    rivals.filter_map(|cell| Some((cell.name.to_string(), value(cell.name)?))).collect()
}

fn time(measured: &Measured, verdict: &Verdict) -> Value {
    let rivals = rivals(measured, |name| Some(json!(measured.nanoseconds(name)?)));
    row(verdict, rivals)
}

fn row(verdict: &Verdict, rivals: Map<String, Value>) -> Value {
    json!({
        "shape": verdict.shape,
        "metric": "time per message",
        "unit": "ns",
        "better": "lower",
        "ours": verdict.ours,
        "rivals": rivals,
        "against": verdict.against,
        "goal": verdict.goal,
        "ratio": verdict.ratio(),
    })
}

/// Returns the row of lost messages. A ratio to zero does not exist: it is 1 if ours lost nothing,
/// else 0.
fn losses(measured: &Measured) -> Value {
    let lost = |name: &str| Some(json!(measured.cell(name)?.unaccounted()));
    let ours = measured.cell(OURS).map(|cell| cell.unaccounted());
    json!({
        "shape": measured.shape,
        "metric": "messages lost or doubled",
        "unit": "messages",
        "better": "lower",
        "ours": ours,
        "rivals": rivals(measured, lost),
        "against": "none lost",
        "goal": 1.0,
        "ratio": ours.map(|ours| if ours == 0 { 1.0 } else { 0.0 }),
    })
}
