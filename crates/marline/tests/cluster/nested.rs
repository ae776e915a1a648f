//! Tasks that wait for other tasks lend their CPU meanwhile. How many tasks may wait is limited.

use crate::harness::{
    MINUTE, cluster, program, start_worker, start_worker_as, until, wait_in_every_way,
    write_atomically,
};
use marline::{Client, Cluster, Config, Controller, Resources};
use std::process::Command;
use std::sync::{Arc, OnceLock};

/// Options of a worker whose only CPU is taken by the task that waits.
const THREADS: &[&str] = &["cpus=1", "threads"];
const PROCESSES: &[&str] = &["cpus=1"];

#[test]
fn a_task_that_waits_lends_its_cpu_in_a_cluster_of_one_process() {
    let client = Arc::new(OnceLock::<Client>::new());
    let inside = client.clone();
    let program = program().try_task("outer", move || wait_in_every_way(inside.get().unwrap()));
    let cluster = Cluster::builder().resources(Resources::cpus(1)).start(program).unwrap();
    let client = client.get_or_init(|| cluster.client());
    let mut outer = client.task("outer").submit::<Vec<u64>>(()).unwrap();
    assert_eq!(outer.wait_timeout(MINUTE).unwrap(), [2, 4, 6, 8, 10, 12]);
}

#[test]
fn a_task_that_waits_lends_its_cpu_with_thread_and_process_executors() {
    for options in [THREADS, PROCESSES] {
        let (controller, client) = cluster();
        let _worker = start_worker(&controller, options);
        let args = (controller.address(),);
        let mut outer = client.task("wait in every way").submit::<Vec<u64>>(args).unwrap();
        assert_eq!(outer.wait_timeout(MINUTE).unwrap(), [2, 4, 6, 8, 10, 12], "{options:?}");
        let mut nested = client.task("nested").submit::<u64>((controller.address(), 5)).unwrap();
        assert_eq!(nested.wait_timeout(MINUTE).unwrap(), 5, "{options:?}");
    }
}

#[test]
fn a_task_that_waits_for_room_to_submit_lends_its_cpu() {
    for options in [THREADS, PROCESSES] {
        let config = Config { max_pending_tasks: 4, submit_window: 2, ..Config::default() };
        let controller = Controller::builder().config(config).listen("127.0.0.1:0").unwrap();
        let client = controller.client();
        let _worker = start_worker(&controller, options);
        let args = (controller.address(), 20);
        let mut outer = client.task("fan out").submit::<u64>(args).unwrap();
        assert_eq!(outer.wait_timeout(MINUTE).unwrap(), 380, "{options:?}");
    }
}

#[test]
fn tasks_that_submit_tasks_do_not_deadlock_when_the_pending_limit_is_full() {
    let by_count = Config { max_pending_tasks: 3, ..Config::default() };
    let by_bytes = Config { max_pending_bytes: 40, max_session_bytes: 40, ..Config::default() };
    for config in [by_count, by_bytes] {
        let controller = Controller::builder().config(config).listen("127.0.0.1:0").unwrap();
        let client = controller.client();
        // The pending tasks fill the limit, so that the tasks which they submit find no room.
        let args = (controller.address(), 2);
        let mut nested = Vec::new();
        while let Ok(one) = client.task("nested").try_submit::<u64>(args) {
            nested.push(one);
        }
        assert!(
            (1..=20).contains(&nested.len()),
            "{} tasks were taken, expected 1 to 20",
            nested.len()
        );
        let _worker = start_worker(&controller, PROCESSES);
        for mut one in nested {
            assert_eq!(one.wait_timeout(MINUTE).unwrap(), 2);
        }
    }
}

#[test]
fn a_task_that_reads_a_lost_value_lends_its_cpu_to_the_task_that_recomputes_it() {
    let (controller, client) = cluster();
    let _worker = start_worker(&controller, PROCESSES);
    let folder = tempfile::tempdir().unwrap();
    let [made, lost] = ["made", "lost"].map(|name| folder.path().join(name).display().to_string());
    let args = (controller.address(), &made, &lost);
    let mut reads = client.task("read what is lost").submit::<u64>(args).unwrap();
    until("it runs", || controller.workers()[0].tasks == 1);
    let mut other = start_worker(&controller, PROCESSES);
    until("the other worker has made it", || std::fs::exists(&made).unwrap());
    other.kill();
    until("the loss is seen", || controller.workers().len() == 1);
    write_atomically(&lost, "");
    assert_eq!(reads.wait_timeout(MINUTE).unwrap(), 1 << 20);
}

#[test]
fn a_task_that_waits_beyond_the_limit_fails_and_names_the_setting() {
    for options in [THREADS, PROCESSES] {
        let (controller, client) = cluster();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env("MARLINE_MAX_BLOCKED_EXECUTORS", "1");
        let _worker = start_worker_as(command, &controller, options);
        let nested = |depth: u64| {
            let args = (controller.address(), depth);
            client.task("nested").submit::<u64>(args).unwrap().wait_timeout(MINUTE)
        };
        assert_eq!(nested(1).unwrap(), 1, "one task may wait");
        let error = nested(2).unwrap_err();
        assert!(error.message().contains("max_blocked_executors"), "{options:?}: {error}");
        assert_eq!(nested(1).unwrap(), 1, "none waits any more");
    }
}

#[test]
fn every_way_of_waiting_fails_at_a_limit_of_zero_blocked_executors() {
    for options in [THREADS, PROCESSES] {
        let (controller, client) = cluster();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env("MARLINE_MAX_BLOCKED_EXECUTORS", "0");
        let _worker = start_worker_as(command, &controller, options);
        let args = (controller.address(),);
        let mut outer = client.task("wait in vain").submit::<Vec<(String, bool)>>(args).unwrap();
        let said = outer.wait_timeout(MINUTE).unwrap();
        assert_eq!(said, vec![("Exhausted".to_owned(), true); 4], "{options:?}");
    }
}
