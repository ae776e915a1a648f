//! Times are sampled: at every `SAMPLE_EVERY`th send, and when a thread goes to sleep.

use std::time::{Duration, Instant};

use marline_channel::{SAMPLE_EVERY, Snapshot, rendezvous, unbounded};

use crate::conformance::{join, send_each, until};

#[test]
fn an_unused_channel_has_no_operation_times() {
    let (tx, _rx) = unbounded::<u32>();
    let snapshot = tx.snapshot();
    assert_eq!((snapshot.first_operation, snapshot.last_operation), (None, None));
}

#[test]
fn operation_times_are_set_within_sample_every_sends() {
    let (tx, rx) = unbounded();
    let before = Instant::now();
    send_each(&tx, 0..SAMPLE_EVERY);
    let (first, last) = times(&rx.snapshot());
    assert!(before <= first && first <= last && last <= Instant::now());
}

#[test]
fn first_operation_stays_and_last_operation_advances() {
    let (tx, rx) = unbounded();
    send_each(&tx, 0..SAMPLE_EVERY);
    let (first, last) = times(&rx.snapshot());
    until("the clock goes on", || Instant::now() > last);
    let between = Instant::now();
    send_each(&tx, 0..SAMPLE_EVERY);
    let later = times(&rx.snapshot());
    assert!(later.0 == first && later.1 >= between);
}

#[test]
fn a_thread_that_goes_to_sleep_sets_the_operation_times() {
    let (tx, rx) = rendezvous::<u32>();
    let end = rx.clone();
    let before = Instant::now();
    let waiter = std::thread::spawn(move || end.recv().wait());
    until("the sleep was seen", || rx.snapshot().last_operation.is_some());
    let (first, last) = times(&rx.snapshot());
    assert!(before <= first && first <= last);
    tx.send(1).timeout(crate::conformance::PATIENCE).wait().unwrap();
    assert_eq!(join(waiter), Ok(1));
}

fn times(snapshot: &Snapshot) -> (Instant, Instant) {
    (snapshot.first_operation.expect("used"), snapshot.last_operation.expect("used"))
}

// ---- rates -------------------------------------------------------------------------------------

#[test]
fn a_rate_is_the_count_divided_by_the_time_between_snapshots() {
    let (tx, rx) = unbounded::<u32>();
    send_each(&tx, 0..10);
    let mut before = tx.snapshot();
    send_each(&tx, 0..300);
    assert_eq!(rx.try_iter().take(100).count(), 100);
    let mut after = tx.snapshot();
    before.at = Instant::now();
    after.at = before.at + Duration::from_secs(10);
    let rate = after.rate(&before);
    assert_eq!((rate.sends, rate.recvs), (30.0, 10.0));
    assert_eq!((rate.bytes_sent, rate.bytes_received), (120.0, 40.0));
}

#[test]
fn snapshots_of_the_same_instant_have_a_rate_of_zero() {
    let (tx, _rx) = unbounded::<u32>();
    let before = tx.snapshot();
    tx.try_send(1).unwrap();
    let mut after = tx.snapshot();
    after.at = before.at;
    assert_eq!(after.rate(&before).sends, 0.0);
}

#[test]
fn snapshots_in_the_wrong_order_have_a_rate_of_zero() {
    let (tx, _rx) = unbounded::<u32>();
    let before = tx.snapshot();
    tx.try_send(1).unwrap();
    let after = tx.snapshot();
    assert_eq!(before.rate(&after).sends, 0.0);
}
