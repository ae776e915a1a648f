//! Workers inside a test binary: its `main` is the test harness, which their executors must not
//! run.

use crate::harness::{EXECUTOR, MINUTE, append, impatient_cluster, program};
use marline::{Budget, Controller, ErrorKind, Worker, WorkerBuilder};
use std::process::{Command, Stdio};

/// The variable that names a file. Each process that runs the tests of [`bystanders`] appends its
/// id to the file.
const FILE: &str = "MARLINE_TEST_BYSTANDERS";

/// Not tests of their own: the tests of a test binary that run side by side, as in `cargo test`.
mod bystanders {
    use super::*;

    #[test]
    fn leaves_its_mark() {
        let Ok(file) = std::env::var(FILE) else { return };
        append(&file, &std::process::id().to_string());
    }

    #[test]
    fn uses_a_worker() {
        if std::env::var_os(FILE).is_none() {
            return;
        }
        let (controller, worker) = (controller(), Worker::of(program()).executor_test(EXECUTOR));
        let _worker = worker.join(controller.address()).unwrap();
        assert_ne!(pid(&controller), std::process::id());
    }
}

fn controller() -> Controller {
    Controller::listen("127.0.0.1:0").unwrap()
}

/// Returns the id of the process in which a task runs.
fn pid(controller: &Controller) -> u32 {
    let mut task = controller.client().task("pid").submit::<u32>(()).unwrap();
    task.wait_timeout(MINUTE).unwrap()
}

#[test]
fn a_worker_whose_executors_would_run_every_test_is_rejected() {
    let controller = controller();
    let join: [fn(WorkerBuilder, &str) -> _; 2] =
        [|worker, at| worker.join(at).map(drop), |worker, at| worker.run(at)];
    for join in join {
        let error = join(Worker::of(program()), controller.address()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        for way in ["marline::executor_main(program)", "executor_test", ".threads()"] {
            assert!(error.message().contains(way), "it names the remedies: {error}");
        }
    }
    // A test calls this here, not `main`, so it does not count.
    marline::executor_main(program());
    assert!(Worker::of(program()).join(controller.address()).is_err());
    assert!(controller.workers().is_empty());
}

#[test]
fn executors_of_a_worker_inside_a_test_run_no_other_test() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    let mut tests = Command::new(std::env::current_exe().unwrap());
    tests.arg("test_binaries::bystanders::").env(FILE, &file).stdin(Stdio::null());
    let tests = tests.output().unwrap();
    let out = String::from_utf8_lossy(&tests.stdout);
    assert!(tests.status.success() && out.contains("2 passed"), "{out}");
    let marks = std::fs::read_to_string(&file).unwrap();
    assert_eq!(marks.lines().count(), 1, "the tests ran in these processes: {marks}");
}

#[test]
fn an_executor_that_never_reaches_executor_main_fails_with_that_reason() {
    let (controller, client) = impatient_cluster();
    let worker = Worker::of(program()).executor_test("no such test").quiet();
    let _worker = worker.join(controller.address()).unwrap();
    let task = client.task("pid").max_retries(Budget::Times(0));
    let error = task.submit::<u32>(()).unwrap().wait_timeout(MINUTE).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let words = "exited with status 0 before it came to `marline::executor_main`";
    assert!(error.message().contains(words), "{error}");
}
