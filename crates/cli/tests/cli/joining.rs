//! Joining a cluster that has just begun to listen, or that begins to listen while a worker already
//! waits for it.

use crate::harness::{Home, Running, until};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;

/// Returns an address of this machine with a port that was free a moment ago.
fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

fn has_record(home: &Home) -> bool {
    home.runtime_files().iter().any(|name| name.ends_with(".cluster"))
}

/// Starts a cluster, and checks that its record exists as soon as a process can connect.
fn is_written_down_before(home: &Home, args: &[&str], connects: impl Fn() -> bool) -> Running {
    let running = home.start(args);
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !connects() {
        assert!(std::time::Instant::now() < end, "waited a minute: {args:?} listens");
        std::hint::spin_loop(); // The check must run in the moment after.
    }
    assert!(has_record(home), "{args:?} listens, and has no record: {:?}", home.runtime_files());
    running
}

#[test]
fn a_cluster_writes_its_record_before_it_listens() {
    for _ in 0..5 {
        for args in [&["controller"][..], &["up", "--cpus", "1", "--quiet"]] {
            let (home, address) = (Home::new(), free_address());
            let args = [args, &["--listen", &address]].concat();
            let connects = || TcpStream::connect(&address).is_ok();
            let _running = is_written_down_before(&home, &args, connects);
            home.marline(&["--address", &address, "status"]).succeeded();
        }
    }
}

#[test]
fn a_cluster_on_a_socket_writes_its_record_before_it_listens() {
    for _ in 0..5 {
        let home = Home::new();
        let path = home.path().join("mine.sock");
        let at = format!("unix:{}", path.display());
        let connects = || UnixStream::connect(&path).is_ok();
        let _running = is_written_down_before(&home, &["controller", "--listen", &at], connects);
        home.marline(&["--address", &at, "status"]).succeeded();
    }
}

#[test]
fn a_worker_started_before_its_controller_finds_the_token_later() {
    let (home, address) = (Home::new(), free_address());
    let worker = home.start(&["worker", "--quiet", "--json", "--address", &address]);
    until("the worker has looked for the cluster", || !home.runtime_files().is_empty());
    let _controller = home.start(&["controller", "--listen", &address]);
    let worker = worker.announced();
    assert_eq!(worker.announced["controller"], address.as_str(), "{:?}", worker.announced);
    // The controller accepts the worker, and the worker accepts clients that have the same token.
    let answer = home.marline(&["run", "--", "echo", "hello"]).succeeded();
    assert_eq!(answer.out(), "hello\n");
}
