//! Contests: in each round every contestant is measured once, and each round starts with another
//! contestant. So slow and fast phases of the machine hit all of them alike. The result is the
//! median over the rounds.

use crate::arguments::Settings;
use std::time::{Duration, Instant};

/// One round of latencies: the most round trips, the warm-up before them, and the longest time.
const ROUND_TRIPS: usize = 3_000;
const WARM_UP: usize = 200;
const LATENCY_TIME: Duration = Duration::from_secs(1);
/// How many requests one round of many at a time has.
pub const BULK: usize = 30_000;

/// One of ours or a rival: something that answers requests.
pub struct Contestant {
    pub name: &'static str,
    /// Makes one request, and waits for the answer.
    pub once: Box<dyn FnMut()>,
    /// Makes this many requests without waiting in between, then waits for all answers.
    pub bulk: Option<Box<dyn FnMut(usize)>>,
}

/// The result of a contestant: medians over the rounds.
#[derive(Clone, Debug)]
pub struct Score {
    pub name: &'static str,
    /// Round trips, in microseconds.
    pub p50: f64,
    pub p95: f64,
    pub p99: f64,
    /// Requests per second, many at a time.
    pub rate: Option<f64>,
}

/// The rounds of one contestant.
#[derive(Default)]
struct Rounds {
    p50: Vec<f64>,
    p95: Vec<f64>,
    p99: Vec<f64>,
    rate: Vec<f64>,
}

pub fn play(contestants: &mut [Contestant], settings: &Settings) -> Vec<Score> {
    let mut all: Vec<Rounds> = contestants.iter().map(|_| Rounds::default()).collect();
    let count = contestants.len();
    for round in 0..settings.rounds {
        for turn in 0..count {
            let index = (round + turn) % count;
            latencies(&mut contestants[index], settings, &mut all[index]);
        }
        for turn in 0..count {
            let index = (round + turn) % count;
            if let Some(bulk) = &mut contestants[index].bulk {
                bulk(settings.count(BULK) / 10);
                let begin = Instant::now();
                bulk(settings.count(BULK));
                all[index].rate.push(settings.count(BULK) as f64 / begin.elapsed().as_secs_f64());
            }
        }
    }
    let score = |(contestant, rounds): (&Contestant, Rounds)| Score {
        name: contestant.name,
        p50: median(rounds.p50).expect("there was a round"),
        p95: median(rounds.p95).expect("there was a round"),
        p99: median(rounds.p99).expect("there was a round"),
        rate: median(rounds.rate),
    };
    contestants.iter().zip(all).map(score).collect()
}

fn latencies(contestant: &mut Contestant, settings: &Settings, rounds: &mut Rounds) {
    for _ in 0..settings.count(WARM_UP) {
        (contestant.once)();
    }
    let mut took = Vec::with_capacity(ROUND_TRIPS);
    let begin = Instant::now();
    let mut before = begin;
    while took.len() < settings.count(ROUND_TRIPS) && before - begin < LATENCY_TIME {
        (contestant.once)();
        let after = Instant::now();
        took.push((after - before).as_secs_f64() * 1e6);
        before = after;
    }
    took.sort_by(f64::total_cmp);
    let at = |part: f64| took[((took.len() - 1) as f64 * part) as usize];
    rounds.p50.push(at(0.5));
    rounds.p95.push(at(0.95));
    rounds.p99.push(at(0.99));
}

pub fn median(mut samples: Vec<f64>) -> Option<f64> {
    samples.sort_by(f64::total_cmp);
    let middle = samples.len() / 2;
    match samples.len() {
        0 => None,
        length if length % 2 == 1 => Some(samples[middle]),
        _ => Some((samples[middle - 1] + samples[middle]) / 2.0),
    }
}
