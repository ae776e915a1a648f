//! The rounds. In each shape every contestant is calibrated once. Then all of them
//! run in turn, round after round, and each round starts with another contestant. So
//! slow and fast phases of the machine hit all of them alike.

use crate::arguments::Settings;
use crate::child::{Failure, ask};
use crate::contestant::{Contestant, Outcome, Program, Shape};
use crate::machine::Watch;
use std::io::{IsTerminal, stderr};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The rounds of one contestant in one shape.
pub struct Cell {
    pub name: &'static str,
    pub specialised: bool,
    /// Nanoseconds per message, one value for each round.
    pub samples: Vec<f64>,
    pub total: Outcome,
    pub failure: Option<Failure>,
}

impl Cell {
    /// Returns the median. Nothing for a contestant that did not finish all rounds.
    pub fn nanoseconds(&self) -> Option<f64> {
        if self.failure.is_some() || self.samples.is_empty() {
            return None;
        }
        let mut sorted = self.samples.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        Some(if sorted.len() % 2 == 1 {
            sorted[middle]
        } else {
            (sorted[middle - 1] + sorted[middle]) / 2.0
        })
    }

    /// Returns how many times slower the slowest round is than the fastest.
    pub fn spread(&self) -> f64 {
        let slowest = self.samples.iter().copied().fold(0.0, f64::max);
        let fastest = self.samples.iter().copied().fold(f64::MAX, f64::min);
        slowest / fastest
    }

    pub fn unaccounted(&self) -> u64 {
        self.total.lost + self.total.doubled
    }
}

pub struct Measured {
    pub shape: String,
    /// The part of the machine that other processes used meanwhile: 0 to 1.
    pub others: f64,
    pub cells: Vec<Cell>,
}

pub fn play(shapes: Vec<Shape>, settings: &Settings) -> Vec<Measured> {
    let this = std::env::current_exe().expect("the path of this program");
    let begin = Instant::now();
    let shapes: Vec<Shape> = shapes
        .into_iter()
        .filter(|shape| settings.wants(&shape.name))
        .filter(|shape| settings.without_metrics.is_some() || !shape.needs_other_build())
        .collect();
    let count = shapes.len();
    let terminal = stderr().is_terminal();
    let ending = if terminal { "\x1b[K\r" } else { "\n" };
    let mut results = Vec::new();
    for (index, shape) in shapes.into_iter().enumerate() {
        let seconds = begin.elapsed().as_secs();
        eprint!("{seconds:4} s  {}/{count}  {}{ending}", index + 1, shape.name);
        results.push(play_shape(&shape, settings, &this));
    }
    eprint!("{:4} s  done{ending}", begin.elapsed().as_secs());
    if terminal {
        eprintln!();
    }
    results
}

fn play_shape(shape: &Shape, settings: &Settings, this: &Path) -> Measured {
    let entrants: Vec<(&Contestant, PathBuf)> = shape
        .contestants
        .iter()
        .filter_map(|contestant| match contestant.program {
            Program::This => Some((contestant, this.to_path_buf())),
            Program::WithoutMetrics => Some((contestant, settings.without_metrics.clone()?)),
        })
        .collect();
    let run = |entrant: usize, messages: u64| {
        let (contestant, program) = &entrants[entrant];
        ask(program, settings.pin, &shape.name, contestant.name, messages)
    };
    let watch = Watch::start();
    let mut messages = Vec::new();
    let mut cells = Vec::new();
    for (index, (contestant, _)) in entrants.iter().enumerate() {
        let trial = run(index, 0);
        messages.push(trial.map_or(0, |trial| {
            (settings.target().as_nanos() as f64 / trial.nanoseconds()).ceil() as u64
        }));
        cells.push(Cell {
            name: contestant.name,
            specialised: contestant.specialised,
            samples: Vec::new(),
            total: Outcome::default(),
            failure: trial.err(),
        });
    }
    for round in 0..settings.rounds {
        for turn in 0..entrants.len() {
            let index = (round + turn) % entrants.len();
            let cell = &mut cells[index];
            if cell.failure.is_some() {
                continue;
            }
            match run(index, messages[index].max(1)) {
                Ok(outcome) => {
                    cell.samples.push(outcome.nanoseconds());
                    cell.total = cell.total + outcome;
                }
                Err(failure) => cell.failure = Some(failure),
            }
        }
    }
    Measured { shape: shape.name.clone(), others: watch.others(), cells }
}
