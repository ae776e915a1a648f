//! Draws the cost of a decision over the number of workers, as SVG.

use crate::machine;
use crate::report::Row;
use std::fmt::Write;
use std::io;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 320.0;
const MARGIN: f64 = 60.0;
const COLOURS: [&str; 3] = ["#1f6feb", "#d1242f", "#1a7f37"];

/// A line of the plot: its name, and its points (workers, nanoseconds per task).
struct Line {
    name: String,
    points: Vec<(f64, f64)>,
}

/// Draws the rows of `decisions/workers` into docs/benchmarks. Draws nothing if there are none.
pub fn write(rows: &[Row]) -> io::Result<()> {
    let mut lines: Vec<Line> = Vec::new();
    for row in rows.iter().filter(|row| row.shape == "decisions/workers") {
        let Some((workers, kind)) = row.metric.split_once(" workers, ") else { continue };
        let Ok(workers) = workers.replace(',', "").parse::<f64>() else { continue };
        let line = lines.iter().position(|line| line.name == kind).unwrap_or_else(|| {
            lines.push(Line { name: kind.into(), points: Vec::new() });
            lines.len() - 1
        });
        lines[line].points.push((workers, row.ours));
    }
    if lines.is_empty() {
        return Ok(());
    }
    let path = machine::repository().join("docs/benchmarks/cluster-decisions.svg");
    std::fs::write(path, draw(&lines))
}

fn draw(lines: &[Line]) -> String {
    let most = lines.iter().flat_map(|line| &line.points).map(|(_, y)| *y).fold(0.0, f64::max);
    let top = (most / 500.0).ceil() * 500.0;
    let across = |workers: f64| MARGIN + (workers.log10() - 1.0) / 3.0 * (WIDTH - 2.0 * MARGIN);
    let down = |cost: f64| HEIGHT - MARGIN - cost / top * (HEIGHT - 2.0 * MARGIN);
    let mut svg = String::new();
    let mut put = |text: String| svg.write_str(&text).expect("memory takes everything");
    put(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{MARGIN}\" y=\"24\">The controller's decisions: ns per task, by workers ({})</text>\n",
        machine::COMMIT
    ));
    for step in 0..=4 {
        let (cost, right) = (top * f64::from(step) / 4.0, WIDTH - MARGIN);
        let y = down(cost);
        put(format!(
            "<path d=\"M{MARGIN} {y:.1}H{right}\" stroke=\"#d0d7de\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{cost:.0}</text>\n",
            MARGIN - 8.0,
            y + 4.0
        ));
    }
    for workers in [10.0, 100.0, 1_000.0, 10_000.0] {
        put(format!(
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{workers}</text>\n",
            across(workers),
            HEIGHT - MARGIN + 20.0
        ));
    }
    for (index, line) in lines.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let points: Vec<String> = line
            .points
            .iter()
            .map(|(workers, cost)| format!("{:.1},{:.1}", across(*workers), down(*cost)))
            .collect();
        let y = HEIGHT - 16.0;
        let x = MARGIN + 220.0 * index as f64;
        put(format!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\
             <text x=\"{x:.1}\" y=\"{y:.1}\" fill=\"{colour}\">{}</text>\n",
            points.join(" "),
            line.name
        ));
    }
    put("</svg>\n".into());
    svg
}
