//! A process that is asked to end in its first moments ends in good order.

use crate::harness::{Home, Running};
use rustix::process::{Pid, Signal, kill_process};
use std::time::{Duration, Instant};

/// Whether a process has installed a handler for SIGTERM: `SigCgt` of proc(5).
fn handles_terminate(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    caught.is_some_and(|bits| bits & 1 << (Signal::TERM.as_raw() - 1) != 0)
}

/// Sends SIGTERM as soon as the process has a handler for it, and waits for the end of the process.
fn ends_when_asked_early(running: Running, args: &[&str]) {
    let until = Instant::now() + Duration::from_secs(60);
    while !handles_terminate(running.pid()) {
        assert!(Instant::now() < until, "waited a minute: {args:?} handles SIGTERM");
        std::hint::spin_loop(); // The signal must come in the moment after.
    }
    kill_process(Pid::from_raw(running.pid() as i32).unwrap(), Signal::TERM).unwrap();
    running.end().succeeded();
}

#[test]
fn a_process_that_gets_sigterm_right_after_its_start_ends_cleanly() {
    let listen = ["--listen", "127.0.0.1:0"];
    for args in [&["controller"][..], &["up", "--cpus", "1", "--quiet"]] {
        let args = [args, &listen].concat();
        for _ in 0..20 {
            let home = Home::new();
            ends_when_asked_early(home.start(&args), &args);
            assert_eq!(home.runtime_files(), [""; 0], "{args:?} leaves nothing behind");
        }
    }
    let home = Home::new();
    let _controller = home.start(&["--json", "controller", "--listen", "127.0.0.1:0"]).announced();
    let args = ["worker", "--cpus", "1", "--quiet"];
    for _ in 0..20 {
        ends_when_asked_early(home.start(&args), &args);
    }
}
