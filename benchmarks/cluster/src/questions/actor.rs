//! The question: what does it cost to create an actor, and to have ten thousand of them?

use crate::arguments::Settings;
use crate::child::Child;
use crate::contest::{Contestant, play};
use crate::marline_cluster::{MarlineCluster, Transport, program};
use crate::memory::resident_here;
use crate::report::{Better, Row};
use marline::Cluster;
use marline::channel::unbounded;
use std::time::Instant;

const MANY: usize = 10_000;

pub fn ask(settings: &Settings) -> Vec<Row> {
    let mut rows = Vec::new();
    if settings.wants("actor/create") {
        rows.extend(create(settings));
    }
    if settings.wants("actor/many") {
        rows.extend(many(settings));
    }
    rows
}

struct Born;

/// Measures the time until the constructor of an actor has run, which is when a call would find it
/// ready, and the time until the actor has answered a first call.
fn create(settings: &Settings) -> Vec<Row> {
    // The wait for the constructor is of the same kind as the wait for the end of a task.
    let (born, cradle) = unbounded::<()>();
    let make = move || {
        born.try_send(()).expect("somebody waits");
        Born
    };
    let program = program().actor("Born", make, |class| class);
    let cluster = Cluster::local(program).expect("a cluster starts");
    let client = cluster.client();
    let (same, third) = (client.clone(), client.clone());
    let embedded = [
        Contestant {
            name: "marline",
            once: Box::new(move || {
                let _actor = client.actor("Born").create(()).unwrap();
                cradle.recv().wait().expect("it is made");
            }),
            bulk: None,
        },
        Contestant {
            name: TASK,
            once: Box::new(move || {
                same.task("nothing").submit::<()>(()).unwrap().wait().unwrap();
            }),
            bulk: None,
        },
        Contestant { name: FIRST_CALL, once: Box::new(move || first_call(&third)), bulk: None },
    ];
    let over_tcp = MarlineCluster::start(Transport::Tcp);
    let remote = over_tcp.client.clone();
    let tcp = [
        Contestant { name: FIRST_CALL, once: Box::new(move || first_call(&remote)), bulk: None },
        Contestant { name: TASK, ..over_tcp.task() },
    ];
    let mut all: Vec<Contestant> = embedded.into_iter().chain(tcp).collect();
    all.iter_mut().for_each(|one| one.bulk = None);
    let scores = play(&mut all, settings);
    let row = |shape: &str, metric: &str, ours: usize, task: usize, goal: f64| {
        Row::new(shape, metric, "µs", Better::Lower, scores[ours].p50)
            .rival(TASK, scores[task].p50)
            .against(TASK, goal)
    };
    vec![
        row("actor/create/embedded", "until it is ready, p50", 0, 1, 0.5),
        row("actor/create/embedded", FIRST_CALL, 2, 1, 0.0),
        row("actor/create/tcp", FIRST_CALL, 3, 4, 0.0),
    ]
}

const TASK: &str = "task on a warm executor";
const FIRST_CALL: &str = "until it answered a call, p50";

fn first_call(client: &marline::Client) {
    let actor = client.actor("Echo").create(()).unwrap();
    actor.call::<u64>("ask", (1_u64,)).unwrap().wait().unwrap();
}

/// Measures many actors, in a process of their own, whose memory is part of the result.
fn many(settings: &Settings) -> Vec<Row> {
    let count = settings.count(MANY);
    let child = Child::start(&["many-actors", &count.to_string()]);
    let numbers: Vec<f64> =
        child.ready_line.split_whitespace().map(|word| word.parse().expect("a number")).collect();
    let shape = format!("actor/many/{count}");
    vec![
        Row::new(&shape, "created, all of them", "ms", Better::Lower, numbers[0]),
        Row::new(&shape, "each called once", "ms", Better::Lower, numbers[1]),
        Row::new(&shape, "memory of the process", "MiB", Better::Lower, numbers[2]),
    ]
}

/// Creates the actors and calls them all. Prints the milliseconds for each of the two, and the MiB
/// that the actors take.
pub fn many_here(count: usize) {
    let before = resident_here();
    let cluster = Cluster::local(program()).expect("a cluster starts");
    let client = cluster.client();
    let begin = Instant::now();
    let actors: Vec<_> =
        (0..count).map(|_| client.actor("Echo").create(()).expect("an actor is made")).collect();
    let created = begin.elapsed();
    let begin = Instant::now();
    let calls: Vec<_> =
        actors.iter().map(|actor| actor.call::<u64>("ask", (1_u64,)).unwrap()).collect();
    calls.into_iter().for_each(|call| assert_eq!(call.wait().unwrap(), 1));
    let called = begin.elapsed();
    let taken = resident_here() - before;
    let (created, called) = (created.as_secs_f64() * 1e3, called.as_secs_f64() * 1e3);
    crate::child::ready(&format!("{created} {called} {taken}"));
}
