//! No task is lost: workers are killed and added while a hundred thousand tasks each write a line
//! that they ran.

use crate::harness::{cluster, start_worker, until};
use marline::Budget;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const TASKS: u64 = 100_000;

#[test]
fn every_task_runs_and_every_repetition_counts_as_a_loss() {
    let (controller, client) = cluster();
    let folder = tempfile::tempdir().unwrap();
    let ledger = folder.path().join("ledger").display().to_string();
    // Every other worker has threads as executors. The rest have processes.
    let start = |number: usize| {
        let options: &[&str] = if number.is_multiple_of(2) { &["threads"] } else { &[] };
        start_worker(&controller, options)
    };
    let mut workers: Vec<_> = (0..4).map(start).collect();
    let done = AtomicBool::new(false);
    let killed = std::thread::scope(|scope| {
        let nemesis = scope.spawn(|| {
            let mut killed = 0;
            while !done.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(700));
                workers.remove(0).kill();
                workers.push(start(killed));
                killed += 1;
            }
            killed
        });
        let task = || client.task("write down").max_retries(Budget::Unlimited);
        let tasks: Vec<_> =
            (0..TASKS).map(|n| task().submit::<u64>((ledger.clone(), n)).unwrap()).collect();
        for (number, task) in tasks.into_iter().enumerate() {
            assert_eq!(task.wait().unwrap(), number as u64);
        }
        done.store(true, Ordering::Relaxed);
        nemesis.join().unwrap()
    });
    let mut times: BTreeMap<u64, u64> = BTreeMap::new();
    for line in std::fs::read_to_string(&ledger).unwrap().lines() {
        *times.entry(line.parse().expect("a whole number on each line")).or_default() += 1;
    }
    assert_eq!(times.len() as u64, TASKS, "every task has run");
    let repeated: u64 = times.values().map(|times| times - 1).sum();
    let counters = controller.counters();
    assert!(killed > 0, "it took too little time to lose anything");
    assert!(repeated <= counters.lost, "{repeated} repetitions, {} losses", counters.lost);
    assert_eq!((counters.submitted, counters.finished, counters.failed), (TASKS, TASKS, 0));
    until("the controller has forgotten all of it", || {
        let load = controller.load();
        (load.pending_tasks, load.objects, load.object_bytes) == (0, 0, 0)
    });
}
