//! Workers whose executors are threads: an executor that crashes takes its worker along.

use crate::harness::{cluster, start_worker, until};
use marline::{Budget, Controller, ErrorKind, Program, Worker};
use std::time::{Duration, Instant};

#[test]
fn tasks_run_in_the_worker_process() {
    let (controller, client) = cluster();
    let worker = start_worker(&controller, &["threads"]);
    let pid: u32 = client.task("pid").submit(()).unwrap().wait().unwrap();
    assert_eq!(pid, worker.0.id());
    let doubled: Vec<_> =
        (0..1_000_u64).map(|x| client.task("double").submit::<u64>((x,)).unwrap()).collect();
    for (x, doubled) in doubled.into_iter().enumerate() {
        assert_eq!(doubled.wait().unwrap(), x as u64 * 2);
    }
}

#[test]
fn tasks_of_a_killed_worker_count_as_lost_and_can_still_be_cancelled() {
    let (controller, client) = cluster();
    let mut first = start_worker(&controller, &["threads"]);
    let naps: Vec<_> =
        (0..2).map(|_| client.task("nap").submit::<u32>((60_000_u64,)).unwrap()).collect();
    until("both run", || controller.workers()[0].tasks == 2);
    first.kill();
    until("the loss is seen before the lease ends", || controller.workers().is_empty());
    for nap in &naps {
        nap.cancel();
    }
    for nap in naps {
        assert_eq!(nap.wait().unwrap_err().kind(), ErrorKind::Cancelled);
    }
    let quick: Vec<_> =
        (0..4).map(|_| client.task("nap").submit::<u32>((1_u64,)).unwrap()).collect();
    let second = start_worker(&controller, &["threads"]);
    for nap in quick {
        assert_eq!(nap.wait().unwrap(), second.0.id());
    }
    assert_eq!(controller.counters().lost, 2);
}

#[test]
fn a_task_that_always_kills_its_worker_fails_after_its_retries() {
    let (controller, client) = cluster();
    let mut workers: Vec<_> = (0..3).map(|_| start_worker(&controller, &["threads"])).collect();
    let dies = client.task("die").max_retries(Budget::Times(2)).submit::<()>(()).unwrap();
    let error = dies.wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.may_have_run());
    assert_eq!(controller.counters().lost, 3);
    workers.push(start_worker(&controller, &["threads"]));
    assert_eq!(client.task("double").submit::<u64>((21_u64,)).unwrap().wait().unwrap(), 42);
}

#[test]
fn an_actor_of_a_killed_worker_restarts_with_fresh_state() {
    let (controller, client) = cluster();
    let mut first = start_worker(&controller, &["threads"]);
    let counter = client.actor("Counter").max_restarts(Budget::Times(1)).create((10_u64,)).unwrap();
    assert_eq!(counter.call::<u64>("add", (5_u64,)).unwrap().wait().unwrap(), 15);
    assert_eq!(counter.call::<u32>("pid", ()).unwrap().wait().unwrap(), first.0.id());
    let mut second = start_worker(&controller, &["threads"]);
    first.kill();
    // A call may run when the old instance ends. Then it fails with an error that says so, and is
    // not retried.
    let end = Instant::now() + Duration::from_secs(60);
    let answer = loop {
        match counter.call::<u64>("add", (5_u64,)).unwrap().wait() {
            Ok(answer) => break answer,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
        }
        assert!(Instant::now() < end, "the actor does not come back");
    };
    assert_eq!(answer, 15, "its state is fresh");
    assert_eq!(counter.call::<u32>("pid", ()).unwrap().wait().unwrap(), second.0.id());
    second.kill();
    let dead = loop {
        let error = counter.call::<u64>("add", (5_u64,)).unwrap().wait().unwrap_err();
        if error.kind() == ErrorKind::Gone {
            break error;
        }
    };
    assert!(dead.message().contains("may not be restarted"), "{dead}");
}

#[test]
fn an_actor_ends_with_its_last_handle() {
    let (controller, client) = cluster();
    let _worker = start_worker(&controller, &["threads"]);
    let counter = client.actor("Counter").create((0_u64,)).unwrap();
    assert_eq!(counter.call::<u64>("add", (1_u64,)).unwrap().wait().unwrap(), 1);
    assert_eq!(controller.workers()[0].actors, 1);
    drop((counter, client));
    until("the actor ended with its last handle", || controller.workers()[0].actors == 0);
}

#[test]
fn a_wait_ends_when_the_controller_is_dropped() {
    let (controller, client) = cluster();
    let _worker = start_worker(&controller, &["threads"]);
    let nap = client.task("nap").submit::<u32>((60_000_u64,)).unwrap();
    until("it runs", || controller.workers()[0].tasks == 1);
    drop(controller);
    let error = nap.wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.may_have_run());
}

#[test]
fn a_worker_with_an_invalid_object_store_does_not_start() {
    let controller = Controller::listen("127.0.0.1:0").unwrap();
    let worker = || Worker::of(Program::new()).threads();
    let small = worker().object_store_memory(1_000).join(controller.address()).err().unwrap();
    let nowhere = worker().spill_folder("/no/such/folder").join(controller.address());
    let nowhere = nowhere.err().unwrap();
    for (error, words) in [(small, "object_store_memory is 1000"), (nowhere, "/no/such/folder")] {
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.message().contains(words), "{error}");
    }
    let _worker = worker().object_store_memory(2 << 20).spill_folder("").join(controller.address());
    assert_eq!(controller.workers().len(), 1);
}
