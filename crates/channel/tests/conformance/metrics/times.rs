//! Times are sampled: at every `SAMPLE_EVERY`th send, and when a thread goes to sleep.

use std::time::{Duration, Instant};

use marline_channel::{SAMPLE_EVERY, Snapshot, rendezvous, unbounded};

use crate::conformance::{join, send_each, until};

#[test]
fn a_channel_that_was_never_used_has_no_times() {
    let (tx, _rx) = unbounded::<u32>();
    let snapshot = tx.snapshot();
    assert_eq!((snapshot.first_operation, snapshot.last_operation), (None, None));
}

#[test]
fn the_clock_is_read_within_a_sample_of_sends() {
    let (tx, rx) = unbounded();
    let before = Instant::now();
    send_each(&tx, 0..SAMPLE_EVERY);
    let (first, last) = times(&rx.snapshot());
    assert!(before <= first && first <= last && last <= Instant::now());
}

#[test]
fn the_first_time_stays_and_the_last_goes_on() {
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
fn a_thread_that_goes_to_sleep_is_seen() {
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
fn the_rate_is_what_was_counted_over_the_time_between() {
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
fn no_time_is_no_rate() {
    let (tx, _rx) = unbounded::<u32>();
    let before = tx.snapshot();
    tx.try_send(1).unwrap();
    let mut after = tx.snapshot();
    after.at = before.at;
    assert_eq!(after.rate(&before).sends, 0.0);
}

#[test]
fn snapshots_in_the_wrong_order_have_no_rate() {
    let (tx, _rx) = unbounded::<u32>();
    let before = tx.snapshot();
    tx.try_send(1).unwrap();
    let after = tx.snapshot();
    assert_eq!(before.rate(&after).sends, 0.0);
}
