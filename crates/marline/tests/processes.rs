//! Clusters of real processes, killed with real signals. The test binary starts itself again as a
//! worker: `MARLINE_TEST_JOIN` says which controller to join.

use marline::channel::rendezvous;
use marline::{Budget, Client, Controller, ErrorKind, Program, Resources, Worker, context};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

struct Counter(u64);

impl Counter {
    fn add(&mut self, n: u64) -> u64 {
        self.0 += n;
        self.0
    }

    fn pid(&mut self) -> u32 {
        std::process::id()
    }
}

fn program() -> Program {
    Program::new()
        .task("pid", std::process::id)
        .task("double", |x: u64| x * 2)
        .task("nap", |ms: u64| {
            // Nobody sends: it ends when it is cancelled, or its time is over.
            let (_bell, door) = rendezvous::<()>();
            let cancel = context().expect("it runs as a task").cancel;
            let _ = door.recv().timeout(Duration::from_millis(ms)).cancel(&cancel).wait();
            std::process::id()
        })
        .task("die", || -> () { std::process::abort() })
        .actor("Counter", Counter, |counter| {
            counter.method("add", Counter::add).method("pid", Counter::pid)
        })
}

/// Not a test: what the other processes run.
#[test]
fn worker_process() {
    let Ok(controller) = std::env::var("MARLINE_TEST_JOIN") else { return };
    let _worker = Worker::of(program()).resources(Resources::cpus(2)).join(&controller).unwrap();
    // It ends with the test that started it: its input is that process's.
    let _ = std::io::stdin().read_line(&mut String::new());
}

/// Not a test: a controller in a process of its own, which says where it listens in the file that
/// `MARLINE_TEST_LISTEN` names.
#[test]
fn controller_process() {
    let Ok(file) = std::env::var("MARLINE_TEST_LISTEN") else { return };
    let controller = Controller::listen("127.0.0.1:0").unwrap();
    std::fs::write(format!("{file}.new"), controller.address()).unwrap();
    std::fs::rename(format!("{file}.new"), file).unwrap();
    let _ = std::io::stdin().read_line(&mut String::new());
}

/// This test binary again, as something else; it dies with its input.
fn again(what: &str, variable: &str, value: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([what, "--exact", "--nocapture", "--test-threads=1"]).env(variable, value);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

/// A worker process that dies with this value.
struct WorkerProcess(Child);

impl WorkerProcess {
    fn start(controller: &Controller) -> WorkerProcess {
        let before = controller.workers().len();
        let child = again("worker_process", "MARLINE_TEST_JOIN", controller.address());
        let worker = WorkerProcess(child);
        until("the worker has joined", || controller.workers().len() > before);
        worker
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits for a condition; far longer than it takes on a busy machine.
fn until(what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < end, "waited a minute: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn cluster() -> (Controller, Client) {
    let controller = Controller::listen("127.0.0.1:0").unwrap();
    let client = Client::connect(controller.address()).unwrap();
    (controller, client)
}

#[test]
fn tasks_run_in_other_processes() {
    let (controller, client) = cluster();
    let worker = WorkerProcess::start(&controller);
    let pid: u32 = client.task("pid").submit(()).unwrap().wait().unwrap();
    assert_eq!(pid, worker.0.id());
    let doubled: Vec<_> =
        (0..1_000_u64).map(|x| client.task("double").submit::<u64>((x,)).unwrap()).collect();
    for (x, doubled) in doubled.into_iter().enumerate() {
        assert_eq!(doubled.wait().unwrap(), x as u64 * 2);
    }
}

#[test]
fn tasks_of_a_killed_worker_run_again_elsewhere() {
    let (controller, client) = cluster();
    let mut first = WorkerProcess::start(&controller);
    let naps: Vec<_> =
        (0..2).map(|_| client.task("nap").submit::<u32>((60_000_u64,)).unwrap()).collect();
    until("both run", || controller.workers()[0].tasks == 2);
    first.kill();
    until("the loss is seen, by proof and not by silence", || controller.workers().is_empty());
    for nap in &naps {
        nap.cancel();
    }
    for nap in naps {
        assert_eq!(nap.wait().unwrap_err().kind(), ErrorKind::Cancelled);
    }
    let quick: Vec<_> =
        (0..4).map(|_| client.task("nap").submit::<u32>((1_u64,)).unwrap()).collect();
    let second = WorkerProcess::start(&controller);
    for nap in quick {
        assert_eq!(nap.wait().unwrap(), second.0.id());
    }
    assert_eq!(controller.counters().lost, 2);
}

#[test]
fn a_task_that_kills_its_worker_every_time_fails_after_its_budget() {
    let (controller, client) = cluster();
    let mut workers: Vec<_> = (0..3).map(|_| WorkerProcess::start(&controller)).collect();
    let dies = client.task("die").max_retries(Budget::Times(2)).submit::<()>(()).unwrap();
    let error = dies.wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.may_have_run());
    assert_eq!(controller.counters().lost, 3);
    workers.push(WorkerProcess::start(&controller));
    assert_eq!(client.task("double").submit::<u64>((21_u64,)).unwrap().wait().unwrap(), 42);
}

#[test]
fn an_actor_of_a_killed_worker_starts_again_with_fresh_state() {
    let (controller, client) = cluster();
    let mut first = WorkerProcess::start(&controller);
    let counter = client.actor("Counter").max_restarts(Budget::Times(1)).create((10_u64,)).unwrap();
    assert_eq!(counter.call::<u64>("add", (5_u64,)).unwrap().wait().unwrap(), 15);
    assert_eq!(counter.call::<u32>("pid", ()).unwrap().wait().unwrap(), first.0.id());
    let mut second = WorkerProcess::start(&controller);
    first.kill();
    // A call may meet the old instance's end: then it says so, and is not repeated behind our back.
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
fn a_killed_client_takes_its_actors_and_tasks_with_it() {
    let (controller, client) = cluster();
    let _worker = WorkerProcess::start(&controller);
    let counter = client.actor("Counter").create((0_u64,)).unwrap();
    assert_eq!(counter.call::<u64>("add", (1_u64,)).unwrap().wait().unwrap(), 1);
    assert_eq!(controller.workers()[0].actors, 1);
    drop((counter, client));
    until("the actor ended with its last handle", || controller.workers()[0].actors == 0);
}

#[test]
fn a_controller_that_is_gone_ends_every_wait() {
    let (controller, client) = cluster();
    let _worker = WorkerProcess::start(&controller);
    let nap = client.task("nap").submit::<u32>((60_000_u64,)).unwrap();
    until("it runs", || controller.workers()[0].tasks == 1);
    drop(controller);
    let error = nap.wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.may_have_run());
}

#[test]
fn a_killed_controller_ends_every_wait() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("address").display().to_string();
    let mut controller = WorkerProcess(again("controller_process", "MARLINE_TEST_LISTEN", &file));
    until("the controller listens", || std::fs::exists(&file).unwrap());
    let address = std::fs::read_to_string(&file).unwrap();
    let client = Client::connect(&address).unwrap();
    let mut worker = WorkerProcess(again("worker_process", "MARLINE_TEST_JOIN", &address));
    assert_eq!(client.task("double").submit::<u64>((4_u64,)).unwrap().wait().unwrap(), 8);
    let nap = client.task("nap").submit::<u32>((60_000_u64,)).unwrap();
    controller.kill();
    let error = nap.wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.may_have_run());
    assert!(worker.0.try_wait().unwrap().is_none(), "the worker waits to join again");
    worker.kill();
}
