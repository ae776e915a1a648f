//! Faults around executors: programs that are replaced, floods of output, results that are too
//! large, and workers that die or are asked to leave at a bad moment.

use crate::harness::{
    Process, cluster, is_alive, quick_cluster, start_controller, start_self, start_worker,
    start_worker_as, until,
};
use marline::channel::unbounded;
use marline::{Budget, Client, CommandLine, Config, Controller, ErrorKind};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

#[test]
fn a_task_that_prints_without_end_does_not_block_its_worker() {
    let (controller, client) = quick_cluster();
    let _worker = start_worker(&controller, &[]);
    let session = controller.workers()[0].session;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("begun").display().to_string();
    let flood = client.task("flood").submit::<()>((file.clone(),)).unwrap();
    until("it prints", || std::fs::exists(&file).unwrap());
    // For three leases, other tasks are served and the lease is renewed.
    let end = Instant::now() + Duration::from_secs(3);
    while Instant::now() < end {
        assert_eq!(client.task("double").submit::<u64>((4_u64,)).unwrap().wait().unwrap(), 8);
    }
    assert_eq!(controller.workers()[0].session, session, "its session goes on");
    flood.cancel();
    let _ = flood.wait();
    assert_eq!(controller.counters().lost, 0);
}

#[test]
fn a_command_ends_although_its_child_prints_without_end() {
    let (controller, client) = cluster();
    let _worker = start_worker(&controller, &["commands"]);
    let argv = ["sh", "-c", "yes & echo $! >&2; exit 0"].map(String::from);
    let line = CommandLine { argv: argv.into(), ..Default::default() };
    let mut task = client.command(&line).submit().unwrap();
    let end = task.wait_timeout(Duration::from_secs(20)).expect("it has ended");
    let left: u32 = String::from_utf8(end.stderr).unwrap().trim().parse().unwrap();
    until("what it left is gone", || !is_alive(left));
}

#[test]
fn a_result_without_room_fails_its_task_and_the_executor_goes_on() {
    let (controller, client) = cluster();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env("MARLINE_STORE_MEMORY", "50000000");
    let _worker = start_worker_as(command, &controller, &[]);
    let before: u32 = client.task("pid").submit(()).unwrap().wait().unwrap();
    let large = client.task("large").submit::<String>((40_usize << 20,)).unwrap().wait();
    assert_eq!(large.unwrap().len(), 40 << 20, "it goes to the worker's store");
    let error = client.task("large").submit::<String>((100_usize << 20,)).unwrap().wait();
    let error = error.unwrap_err();
    assert_eq!((error.kind(), error.may_have_run()), (ErrorKind::Exhausted, true), "{error}");
    assert_eq!(controller.counters().lost, 0);
    assert_eq!(client.task("pid").submit::<u32>(()).unwrap().wait().unwrap(), before);
}

#[test]
fn an_executor_whose_worker_died_before_it_started_ends() {
    let (controller, client) = cluster();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pid").display().to_string();
    let mut worker = start_worker(&controller, &["run", &format!("late={file}")]);
    let _task = client.task("pid").submit::<u32>(()).unwrap();
    until("its executor starts", || std::fs::exists(&file).unwrap());
    let executor: u32 = std::fs::read_to_string(&file).unwrap().parse().unwrap();
    worker.kill();
    let joined = || controller.workers().iter().any(|worker| worker.info.pid == executor);
    until("it decides", || !is_alive(executor) || joined());
    assert!(!joined(), "it does not become a worker");
}

#[test]
fn a_worker_whose_program_file_was_replaced_still_starts_executors() {
    let (controller, client) = cluster();
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let mut command = Command::new(&program);
    command.arg0("a name of its own");
    let _worker = start_worker_as(command, &controller, &[]);
    let name = || client.task("own name").max_retries(Budget::Times(0)).submit::<String>(());
    assert_eq!(name().unwrap().wait().unwrap(), "a name of its own");
    std::fs::remove_file(&program).unwrap();
    std::fs::write(&program, "something else").unwrap();
    // The first executor is busy, so the worker starts another.
    let nap = client.task("nap").submit::<u32>((600_000_u64,)).unwrap();
    assert_eq!(name().unwrap().wait().unwrap(), "a name of its own");
    nap.cancel();
}

#[test]
fn a_worker_started_with_sigchld_ignored_still_sees_its_children_end() {
    let (controller, client) = cluster();
    let mut command = Command::new("bash");
    command.args(["-c", "trap '' CHLD; exec \"$0\" \"$@\""]).arg(std::env::current_exe().unwrap());
    let _worker = start_worker_as(command, &controller, &["commands"]);
    let line = CommandLine { argv: vec!["true".into()], ..Default::default() };
    assert_eq!(client.command(&line).submit().unwrap().wait().unwrap().code, Some(0));
    let exits = client.task("exit").max_retries(Budget::Times(0)).submit::<()>((7,)).unwrap();
    let error = exits.wait().unwrap_err();
    assert!(error.message().contains("exited with status 7"), "{error}");
}

#[test]
fn a_worker_without_a_session_ends_on_sigterm() {
    let (mut controller, address) = start_controller("");
    let words = format!("{address} run");
    let mut worker = Process(start_self("worker_process", "MARLINE_TEST_JOIN", &words));
    let client = Client::connect(&address).unwrap();
    let executor: u32 = client.task("pid").submit(()).unwrap().wait().unwrap();
    controller.kill();
    until("its session is over", || !is_alive(executor));
    worker.signal("TERM");
    until("it ends", || !is_alive(worker.id()));
    assert!(worker.0.wait().unwrap().success());
}

#[test]
fn a_worker_that_loses_its_session_while_it_drains_ends() {
    let (controller, client) = cluster();
    let mut worker = start_worker(&controller, &["run"]);
    let _nap = client.task("nap").submit::<u32>((600_000_u64,)).unwrap();
    until("it runs", || controller.workers()[0].tasks == 1);
    worker.signal("TERM");
    until("it drains", || format!("{:?}", controller.workers()[0].state) == "Draining");
    drop(controller);
    until("it ends", || !is_alive(worker.id()));
    assert!(worker.0.wait().unwrap().success());
}

#[test]
fn a_task_whose_arguments_are_too_large_together_fails_alone() {
    let (controller, client) = cluster();
    // No process on this machine has an object store, so values travel with the work that needs
    // them.
    let large = "x".repeat(40 << 20);
    let [first, second] = [&large, &large].map(|text| client.put(text).unwrap());
    let _worker = start_worker(&controller, &[]);
    let both = client.task("double").submit::<u64>((&first, &second)).unwrap();
    let error = both.wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge, "{error}");
    assert_eq!(client.task("double").submit::<u64>((4_u64,)).unwrap().wait().unwrap(), 8);
}

#[test]
fn a_task_without_a_worker_warns_the_client_and_runs_when_one_joins() {
    let config = Config { warn_after: Duration::from_millis(50), ..Config::default() };
    let controller = Controller::builder().config(config).listen("127.0.0.1:0").unwrap();
    let client = Client::connect(controller.address()).unwrap();
    let (told, warnings) = unbounded();
    client.on_warning(move |words| drop(told.send(words.to_owned()).wait()));
    let doubled = client.task("double").submit::<u64>((2_u64,)).unwrap();
    let warning = warnings.recv().timeout(Duration::from_secs(60)).wait().unwrap();
    assert_eq!(warning, "\"double\" waits: no worker is here: start one with `marline worker`");
    let _worker = start_worker(&controller, &["threads"]);
    assert_eq!(doubled.wait().unwrap(), 4);
}
