//! A program with a `main` of its own, which calls `executor_main` first: its executors go no
//! further, and any thread may join a worker. This file has no test harness; its `main` answers
//! `--list` and filters, as test runners expect.

use marline::{Controller, Program, Worker};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const NAME: &str = "any_thread_joins_a_worker_after_executor_main";

/// Whether this process has returned from `executor_main`.
static PAST: AtomicBool = AtomicBool::new(false);

fn program() -> Program {
    Program::new().task("which", || (std::process::id(), PAST.load(Ordering::Relaxed)))
}

fn main() {
    marline::executor_main(program());
    PAST.store(true, Ordering::Relaxed);
    let args: Vec<String> = std::env::args().skip(1).collect();
    let has = |word: &str| args.iter().any(|arg| arg == word);
    if has("--list") {
        if !has("--ignored") {
            println!("{NAME}: test");
        }
        return;
    }
    let names = args.iter().find(|arg| !arg.starts_with('-'));
    if has("--ignored") || names.is_some_and(|name| !NAME.contains(name.as_str())) {
        return;
    }
    std::thread::spawn(any_thread_joins_a_worker).join().unwrap();
    println!("test {NAME} ... ok");
}

fn any_thread_joins_a_worker() {
    let controller = Controller::listen("127.0.0.1:0").unwrap();
    let _worker = Worker::of(program()).join(controller.address()).unwrap();
    let mut which = controller.client().task("which").submit::<(u32, bool)>(()).unwrap();
    let (pid, past) = which.wait_timeout(Duration::from_secs(60)).unwrap();
    assert_ne!(pid, std::process::id());
    assert!(!past, "executors go no further than `executor_main`");
}
