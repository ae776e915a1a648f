//! The question: a worker process that hosts an actor is killed with SIGKILL while another worker
//! is ready. How long does it take until the actor answers again, with default options?

use crate::arguments::Settings;
use crate::contest::median;
use crate::marline_cluster::{MarlineCluster, Transport};
use crate::report::{Better, Row};
use marline::{Budget, ErrorKind};
use std::time::Instant;

/// The goal, in milliseconds.
const ASKED_MS: f64 = 3_000.0;

pub fn ask(settings: &Settings) -> Vec<Row> {
    if !settings.wants("failover") {
        return Vec::new();
    }
    let mut ours = MarlineCluster::start(Transport::Tcp);
    let mut took = Vec::new();
    for _ in 0..settings.rounds.max(3) {
        // A new actor each time, since the wait before a restart doubles with every restart of the
        // same actor.
        let actor = ours.client.actor("Echo").max_restarts(Budget::Unlimited).create(());
        let actor = actor.expect("an actor is created");
        let host: u32 = actor.call("pid", ()).unwrap().wait().expect("it lives");
        ours.add_worker();
        let index = ours.workers.iter().position(|worker| worker.pid() == host);
        let mut worker = ours.workers.remove(index.expect("it lives in one of the workers"));
        let begin = Instant::now();
        worker.kill();
        // A call that ran when the old instance ended fails with an error that says so, and is not
        // retried.
        loop {
            match actor.call::<u32>("pid", ()).unwrap().wait() {
                Ok(pid) if pid != host => break,
                Ok(_) => {} // The signal is on its way.
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
            }
        }
        took.push(begin.elapsed().as_secs_f64() * 1e3);
    }
    let worst = took.iter().copied().fold(0.0, f64::max);
    let middle = median(took).expect("there was a round");
    let row = |metric: &str, value: f64| {
        Row::new("failover/kill -9", metric, "ms", Better::Lower, value).asked(ASKED_MS)
    };
    vec![
        row("until the actor answers, median", middle),
        row("until the actor answers, worst", worst),
    ]
}
