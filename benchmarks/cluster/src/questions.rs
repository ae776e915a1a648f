//! The questions, one file each. A question that takes longer than [`PATIENCE`] hangs: the program
//! names it, and ends.

pub mod actor;
pub mod call;
pub mod decisions;
pub mod failover;
pub mod idle;
pub mod task;

use crate::arguments::Settings;
use crate::contest::{Contestant, Score};
use crate::marline_cluster::{MarlineCluster, Transport};
use crate::report::{Better, Row};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(300);

type Question = fn(&Settings) -> Vec<Row>;

pub fn ask(settings: &Settings) -> Vec<Row> {
    let questions: [(&str, Question); 6] = [
        ("task", task::ask),
        ("call", call::ask),
        ("actor", actor::ask),
        ("failover", failover::ask),
        ("decisions", decisions::ask),
        ("idle", idle::ask),
    ];
    let begin = Instant::now();
    questions
        .into_iter()
        .flat_map(|(name, question)| {
            eprintln!("{:4} s  {name}", begin.elapsed().as_secs());
            with_time_limit(name, || question(settings))
        })
        .collect()
}

fn with_time_limit<R>(name: &'static str, work: impl FnOnce() -> R) -> R {
    let (done, ended) = channel::<()>();
    thread::spawn(move || {
        if ended.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
            eprintln!("{name} did not end within {} s", PATIENCE.as_secs());
            std::process::exit(1);
        }
    });
    let result = work();
    drop(done);
    result
}

/// Runs one shape of Marline alone, for a profiler.
pub fn profile(what: &str, time: Duration) -> Result<(), String> {
    let unknown = || format!("--profile: there is no shape {what}; --help lists the shapes");
    let (shape, rate) = what.strip_suffix("-rate").map_or((what, false), |shape| (shape, true));
    let (kind, name) = shape.split_once('/').ok_or_else(unknown)?;
    if kind == "decisions" {
        let cost = decisions::profile(name, time).ok_or_else(unknown)?;
        eprintln!("{cost:.0} ns per task");
        return Ok(());
    }
    let transport = Transport::ALL.into_iter().find(|one| one.name() == name);
    let ours = MarlineCluster::start(transport.ok_or_else(unknown)?);
    let mut contestant: Contestant = if kind == "call" { ours.call() } else { ours.task() };
    let begin = Instant::now();
    let mut count = 0;
    while begin.elapsed() < time {
        match &mut contestant.bulk {
            Some(bulk) if rate => bulk(10_000),
            _ => (0..1_000).for_each(|_| (contestant.once)()),
        }
        count += if rate { 10_000 } else { 1_000 };
    }
    let each = begin.elapsed().as_secs_f64() * 1e6 / f64::from(count);
    eprintln!("{count} in {:.1} s, {each:.2} µs each", begin.elapsed().as_secs_f64());
    Ok(())
}

/// The goals of a shape. Of a round trip: the rival to compare with, and the least ratio (0: no
/// goal).
#[derive(Clone, Copy, Default)]
pub struct Goals {
    pub round_trip: Option<(&'static str, f64)>,
    pub rate: Option<f64>,
}

/// Returns the rows of a contest. The first score is ours.
pub fn rows(shape: &str, scores: &[Score], goals: Goals) -> Vec<Row> {
    type Part = fn(&Score) -> f64;
    let parts: [(&str, Part); 3] =
        [("p50", |score| score.p50), ("p95", |score| score.p95), ("p99", |score| score.p99)];
    let (ours, rivals) = scores.split_first().expect("ours takes part");
    let mut rows = Vec::new();
    for (index, (name, part)) in parts.into_iter().enumerate() {
        let metric = format!("round trip {name}");
        let mut row = Row::new(shape, &metric, "µs", Better::Lower, part(ours));
        for rival in rivals {
            row = row.rival(rival.name, part(rival));
        }
        // The goal is for the median only: on a shared machine the tail is the machine's own.
        let (against, goal) = goals.round_trip.unwrap_or((rivals[0].name, 0.0));
        rows.push(row.against(against, if index == 0 { goal } else { 0.0 }));
    }
    if let Some(rate) = ours.rate {
        let mut row = Row::new(shape, "many at a time", "/s", Better::Higher, rate);
        for rival in rivals {
            if let Some(rate) = rival.rate {
                row = row.rival(rival.name, rate);
            }
        }
        let first = rivals.iter().find(|rival| rival.rate.is_some()).map(|rival| rival.name);
        rows.push(match (goals.rate, first) {
            (Some(rate), _) => row.asked(rate),
            (None, Some(first)) => row.against(first, 0.0),
            (None, None) => row,
        });
    }
    rows
}
