//! Metrics: every field of a snapshot and of its totals after known operations, rates, times, and
//! pushed snapshots.

mod conformance;

use std::{pin::pin, time::Instant};

use conformance::{park, ready};
use marline_channel::{Kind, Receiver, SNAPSHOT_VERSION, Sender, Totals, bounded};

#[cfg(feature = "metrics")]
#[path = "conformance/metrics/others.rs"]
mod others;
#[cfg(feature = "metrics")]
#[path = "conformance/metrics/pushes.rs"]
mod pushes;
#[cfg(feature = "metrics")]
#[path = "conformance/metrics/queues.rs"]
mod queues;
#[cfg(feature = "metrics")]
#[path = "conformance/metrics/times.rs"]
mod times;

// ---- known with and without the feature --------------------------------------------------------

#[test]
fn a_snapshot_has_the_name_kind_capacity_and_ends_of_its_channel() {
    let (tx, rx) = marline_channel::Builder::<u32>::bounded(3).name("jobs").build().unwrap();
    let more = [tx.clone(), tx.clone()];
    let before = Instant::now();
    let snapshot = rx.snapshot();
    assert_eq!(snapshot.version, SNAPSHOT_VERSION);
    assert_eq!((snapshot.kind, snapshot.name.as_deref()), (Kind::Bounded, Some("jobs")));
    assert_eq!((snapshot.capacity, snapshot.len), (Some(3), 0));
    assert_eq!((snapshot.senders, snapshot.receivers), (3, 1));
    assert!(!snapshot.closed && snapshot.at >= before);
    drop((tx, more));
    let snapshot = rx.snapshot();
    assert_eq!((snapshot.senders, snapshot.receivers, snapshot.closed), (0, 1, true));
}

#[test]
fn snapshots_of_both_ends_agree() {
    let (tx, rx) = bounded(2);
    tx.try_send(1).unwrap();
    let (a, b) = (tx.snapshot(), rx.snapshot());
    assert_eq!((a.kind, a.len, a.totals, a.senders), (b.kind, b.len, b.totals, b.senders));
}

#[test]
fn a_snapshot_counts_parked_sends_and_receives_separately() {
    let (tx, rx): (Sender<u32>, Receiver<u32>) = bounded(1);
    let waiting = || (rx.snapshot().waiting_send, rx.snapshot().waiting_recv);
    {
        let (mut first, mut second) = (pin!(rx.recv()), pin!(rx.recv()));
        park(first.as_mut());
        assert_eq!(waiting(), (0, 1));
        park(second.as_mut());
        assert_eq!(waiting(), (0, 2));
        tx.try_send(1).unwrap();
        assert_eq!(waiting(), (0, 1), "one was served");
        assert_eq!(ready(first), Ok(1));
    }
    assert_eq!(waiting(), (0, 0));
    tx.try_send(1).unwrap();
    let (mut send, mut reserve) = (pin!(tx.send(2)), pin!(tx.reserve()));
    park(send.as_mut());
    park(reserve.as_mut());
    assert_eq!(waiting(), (2, 0));
}

#[cfg(not(feature = "metrics"))]
#[test]
fn without_metrics_counters_stay_zero_and_subscribing_fails_with_a_reason() {
    use marline_channel::ErrorKind;
    let (tx, rx) = bounded(1);
    tx.try_send(1).unwrap();
    assert!(tx.try_send(2).is_err());
    assert_eq!(rx.try_recv(), Ok(1));
    let snapshot = rx.snapshot();
    assert_eq!((snapshot.totals, snapshot.high_water), (Totals::default(), 0));
    assert_eq!(snapshot.first_operation, None);
    let error = tx.subscribe_metrics(1, std::time::Duration::ZERO, |_| {}).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("`metrics` feature"), "{error}");
}

/// Returns totals with these counters and no others.
#[macro_export]
macro_rules! totals {
    ($($field:ident: $count:expr),* $(,)?) => {{
        #[allow(unused_mut, reason = "there may be no fields")]
        let mut totals = marline_channel::Totals::default();
        $(totals.$field = $count;)*
        totals
    }};
}

/// Returns the totals without the bytes, which have their own tests.
pub fn without_bytes(totals: Totals) -> Totals {
    let mut totals = totals;
    (totals.bytes_sent, totals.bytes_received) = (0, 0);
    totals
}

#[test]
fn totals_begin_at_zero() {
    assert_eq!(without_bytes(bounded::<u32>(1).0.snapshot().totals), totals! {});
}
