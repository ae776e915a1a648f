//! The counters of oneshots, broadcasts and watches.

use std::{
    pin::pin,
    time::{Duration, Instant},
};

use marline_channel::{CancelToken, Kind, Select, broadcast, oneshot, rendezvous, watch};

use crate::{
    conformance::{park, ready},
    totals, without_bytes,
};

const MOMENT: Duration = Duration::from_millis(2);

// ---- oneshot -----------------------------------------------------------------------------------

#[test]
fn a_oneshot_snapshot_has_its_kind_capacity_and_ends() {
    let (tx, rx) = oneshot::<u32>();
    let snapshot = rx.snapshot();
    assert_eq!((snapshot.kind, snapshot.capacity, snapshot.len), (Kind::Oneshot, Some(1), 0));
    assert_eq!((snapshot.senders, snapshot.receivers, snapshot.closed), (1, 1, false));
    drop(rx);
    let snapshot = tx.snapshot();
    assert_eq!((snapshot.senders, snapshot.receivers, snapshot.closed), (1, 0, true));
}

#[test]
fn the_snapshot_of_a_sent_oneshot_shows_one_value_inside() {
    let (tx, rx) = oneshot::<u32>();
    tx.send(1).unwrap();
    let snapshot = rx.snapshot();
    assert_eq!((snapshot.len, snapshot.high_water, snapshot.senders), (1, 1, 0));
    assert_eq!(without_bytes(snapshot.totals), totals! { sends: 1 });
}

#[test]
fn a_received_oneshot_is_empty_and_counts_the_receive() {
    let (tx, mut rx) = oneshot::<u32>();
    tx.send(1).unwrap();
    assert_eq!(rx.try_recv(), Ok(1));
    let snapshot = rx.snapshot();
    assert_eq!((snapshot.len, snapshot.high_water), (0, 1));
    assert_eq!(without_bytes(snapshot.totals), totals! { sends: 1, recvs: 1 });
}

#[test]
fn a_oneshot_snapshot_counts_a_parked_receive() {
    let (tx, mut rx) = oneshot::<u32>();
    {
        let mut receive = pin!(rx.recv());
        park(receive.as_mut());
        assert_eq!(tx.snapshot().waiting_recv, 1);
    }
    assert_eq!(tx.snapshot().waiting_recv, 0, "it was dropped");
}

// ---- broadcast ---------------------------------------------------------------------------------

#[test]
fn a_broadcast_snapshot_has_its_kind_capacity_and_ends() {
    let (tx, rx) = broadcast::<u32>(3);
    let more = tx.subscribe();
    let snapshot = rx.snapshot();
    assert_eq!((snapshot.kind, snapshot.capacity, snapshot.len), (Kind::Broadcast, Some(4), 0));
    assert_eq!((snapshot.senders, snapshot.receivers, snapshot.closed), (1, 2, false));
    drop(more);
    assert_eq!(tx.snapshot().receivers, 1);
    tx.close_channel();
    assert!(rx.snapshot().closed);
}

#[test]
fn a_broadcast_counts_a_send_once_and_a_receive_per_receiver() {
    let (tx, mut a) = broadcast::<u32>(4);
    let mut b = tx.subscribe();
    tx.send(1).unwrap();
    assert_eq!((a.try_recv(), b.try_recv()), (Ok(1), Ok(1)));
    let totals = tx.snapshot().totals;
    assert_eq!(without_bytes(totals), totals! { sends: 1, recvs: 2 });
    assert_eq!((totals.bytes_sent, totals.bytes_received), (4, 8));
    assert_eq!((tx.snapshot().len, tx.snapshot().high_water), (0, 1));
}

#[test]
fn a_broadcast_counts_overwritten_values_as_dropped_oldest() {
    let (tx, mut rx) = broadcast::<u32>(2);
    for value in 0..5 {
        tx.send(value).unwrap();
    }
    assert!(rx.try_recv().is_err());
    assert_eq!(without_bytes(tx.snapshot().totals), totals! { sends: 5, dropped_oldest: 3 });
}

#[test]
fn a_broadcast_counts_unseen_values_as_undelivered() {
    let (tx, rx) = broadcast::<u32>(4);
    let more = tx.subscribe();
    tx.send(1).unwrap();
    drop(rx);
    assert_eq!(tx.snapshot().totals.undelivered, 0, "one receiver is left");
    drop(more);
    assert_eq!(without_bytes(tx.snapshot().totals), totals! { sends: 1, undelivered: 1 });
    assert!(tx.send(2).is_err());
    let expected = totals! { sends: 1, undelivered: 1, send_closed: 1 };
    assert_eq!(without_bytes(tx.snapshot().totals), expected);
}

#[test]
fn a_broadcast_counts_empty_timed_out_and_cancelled_receives() {
    let (tx, mut rx) = broadcast::<u32>(4);
    assert!(rx.try_recv().is_err());
    assert!(rx.recv().timeout(MOMENT).wait().is_err());
    assert!(rx.recv().deadline(Instant::now()).wait().is_err());
    let token = CancelToken::new();
    token.cancel();
    assert!(rx.recv().cancel(&token).wait().is_err());
    let expected = totals! { recv_empty: 1, recv_timeout: 2, recv_cancelled: 1 };
    assert_eq!(without_bytes(tx.snapshot().totals), expected);
}

#[test]
fn a_broadcast_counts_a_dropped_parked_receive_as_cancelled() {
    let (tx, mut rx) = broadcast::<u32>(4);
    park(pin!(rx.recv()));
    assert_eq!(without_bytes(tx.snapshot().totals), totals! { recv_cancelled: 1 });
}

#[test]
fn a_closed_broadcast_counts_failed_receives() {
    let (tx, mut rx) = broadcast::<u32>(4);
    drop(tx);
    assert!(rx.try_recv().is_err());
    assert!(rx.recv().wait().is_err());
    assert_eq!(without_bytes(rx.snapshot().totals), totals! { recv_closed: 2 });
}

#[test]
fn a_losing_broadcast_clause_is_not_counted() {
    let (tx, mut rx) = broadcast::<u32>(4);
    let (other_tx, other_rx) = rendezvous();
    {
        let mut select = pin!(Select::new().on(rx.recv(), |_| 0).on(other_rx.recv(), |_| 1));
        park(select.as_mut());
        other_tx.try_send(7).unwrap();
        assert_eq!(ready(select), Ok(1));
    }
    assert_eq!(without_bytes(tx.snapshot().totals), totals! {});
    assert_eq!(tx.snapshot().waiting_recv, 0);
}

// ---- watch -------------------------------------------------------------------------------------

#[test]
fn a_watch_snapshot_has_its_kind_capacity_and_ends() {
    let (tx, rx) = watch(0u32);
    let more = rx.clone();
    let snapshot = rx.snapshot();
    assert_eq!((snapshot.kind, snapshot.capacity, snapshot.len), (Kind::Watch, Some(1), 1));
    assert_eq!((snapshot.senders, snapshot.receivers, snapshot.closed), (1, 2, false));
    drop(more);
    drop(tx);
    let snapshot = rx.snapshot();
    assert_eq!((snapshot.senders, snapshot.receivers, snapshot.closed), (0, 1, true));
}

#[test]
fn a_watch_counts_changes_as_sends_and_seen_changes_as_receives() {
    let (tx, mut rx) = watch(0u32);
    tx.send(1).unwrap();
    tx.send_replace(2);
    assert!(!tx.send_if_modified(|_| false));
    assert_eq!(rx.try_changed(), Ok(()));
    let totals = tx.snapshot().totals;
    assert_eq!(without_bytes(totals), totals! { sends: 2, recvs: 1 });
    assert_eq!(totals.bytes_sent, 8);
}

#[test]
fn a_watch_counts_the_bytes_that_receivers_saw() {
    let (tx, mut rx) = watch(0u32);
    tx.send(1).unwrap();
    assert_eq!(rx.try_changed(), Ok(()));
    assert_eq!(tx.snapshot().totals.bytes_received, 4);
}

#[test]
fn a_watch_counts_empty_timed_out_and_cancelled_waits() {
    let (tx, mut rx) = watch(0u32);
    assert!(rx.try_changed().is_err());
    assert!(rx.changed().timeout(MOMENT).wait().is_err());
    let token = CancelToken::new();
    let mut changed = Box::pin(rx.changed().cancel(&token));
    park(changed.as_mut());
    assert_eq!(tx.snapshot().waiting_recv, 1);
    token.cancel();
    assert!(ready(changed.as_mut()).is_err());
    drop(changed);
    let expected = totals! { recv_empty: 1, recv_timeout: 1, recv_cancelled: 1 };
    assert_eq!(without_bytes(tx.snapshot().totals), expected);
}

#[test]
fn a_watch_counts_a_dropped_parked_wait_as_cancelled() {
    let (tx, mut rx) = watch(0u32);
    park(pin!(rx.changed()));
    assert_eq!(without_bytes(tx.snapshot().totals), totals! { recv_cancelled: 1 });
}

#[test]
fn a_closed_watch_counts_failed_waits() {
    let (tx, mut rx) = watch(0u32);
    drop(tx);
    assert!(rx.try_changed().is_err());
    assert!(rx.changed().wait().is_err());
    assert_eq!(without_bytes(rx.snapshot().totals), totals! { recv_closed: 2 });
}

#[test]
fn a_watch_counts_sends_without_receivers_as_closed() {
    let (tx, rx) = watch(0u32);
    drop(rx);
    assert!(tx.send(1).is_err());
    assert_eq!(without_bytes(tx.snapshot().totals), totals! { send_closed: 1 });
}

#[test]
fn a_losing_watch_clause_is_not_counted() {
    let (tx, mut rx) = watch(0u32);
    let (other_tx, other_rx) = rendezvous();
    {
        let mut select = pin!(Select::new().on(rx.changed(), |_| 0).on(other_rx.recv(), |_| 1));
        park(select.as_mut());
        other_tx.try_send(7).unwrap();
        assert_eq!(ready(select), Ok(1));
    }
    assert_eq!(without_bytes(tx.snapshot().totals), totals! {});
    assert_eq!(tx.snapshot().waiting_recv, 0);
}
