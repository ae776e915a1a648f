//! Controllers that are frozen or killed.

use crate::harness::{Process, start_controller, start_self, until};
use marline::{Client, ErrorKind};
use std::time::Duration;

#[test]
fn direct_calls_go_on_while_the_controller_is_frozen() {
    let (controller, address) = start_controller("");
    let client = Client::connect(&address).unwrap();
    let _worker = Process(start_self("worker_process", "MARLINE_TEST_JOIN", &address));
    let counter = client.actor("Counter").create((0_u64,)).unwrap();
    assert_eq!(counter.call::<u64>("add", (1_u64,)).unwrap().wait().unwrap(), 1);
    controller.signal("STOP");
    for total in 2..=1_001 {
        assert_eq!(counter.call::<u64>("add", (1_u64,)).unwrap().wait().unwrap(), total);
    }
    controller.signal("CONT");
    assert_eq!(client.task("double").submit::<u64>((4_u64,)).unwrap().wait().unwrap(), 8);
}

#[test]
fn a_killed_controller_ends_every_wait_and_its_workers_join_the_next() {
    let (mut controller, address) = start_controller("");
    let client = Client::connect(&address).unwrap();
    let worker = Process(start_self("worker_process", "MARLINE_TEST_JOIN", &address));
    let counter = client.actor("Counter").create((0_u64,)).unwrap();
    let executor: u32 = counter.call("pid", ()).unwrap().wait().unwrap();
    let nap = client.task("nap").submit::<u32>((600_000_u64,)).unwrap();
    controller.kill();
    let error = nap.wait().unwrap_err();
    assert_eq!((error.kind(), error.may_have_run()), (ErrorKind::Unavailable, true), "{error}");
    assert!(error.message().contains(&format!("the cluster at {address} has ended")), "{error}");
    until("the worker has stopped what it ran", || !crate::harness::is_alive(executor));
    let late = client.task("double").submit::<u64>((4_u64,));
    if let Ok(mut late) = late {
        let error = late.wait_timeout(Duration::from_millis(200)).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Unavailable), "{error}");
    }
    assert!(crate::harness::is_alive(worker.id()), "the worker waits for a controller");
    let (_next, again_at) = start_controller(&address);
    assert_eq!(again_at, address);
    let client = Client::connect(&address).unwrap();
    assert_eq!(client.task("double").submit::<u64>((21_u64,)).unwrap().wait().unwrap(), 42);
}
