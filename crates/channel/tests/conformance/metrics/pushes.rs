//! Pushed snapshots: no more often than the subscription asks, on the thread that uses the channel,
//! a last one at the close, none after the subscription is dropped.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use marline_channel::{Builder, Receiver, Sender, Subscription, bounded, unbounded};

use crate::conformance::{Log, send_each, until};

const HOUR: Duration = Duration::from_secs(3600);

/// The pushed snapshots: the operations so far, and whether the channel was closed.
type Pushes = Log<(u64, bool)>;

fn subscribe(tx: &Sender<u32>, operations: u64, interval: Duration) -> (Pushes, Subscription) {
    let pushes = Log::new();
    let log = pushes.clone();
    let subscription = tx
        .subscribe_metrics(operations, interval, move |snapshot| {
            log.push((snapshot.totals.sends + snapshot.totals.recvs, snapshot.closed));
        })
        .unwrap();
    (pushes, subscription)
}

/// Does a thousand operations.
fn use_it(tx: &Sender<u32>, rx: &Receiver<u32>) {
    for value in 0..500 {
        tx.try_send(value).unwrap();
        rx.try_recv().unwrap();
    }
}

#[test]
fn a_minimum_of_one_operation_pushes_a_snapshot_for_each() {
    let (tx, rx) = unbounded();
    let (pushes, _subscription) = subscribe(&tx, 1, Duration::ZERO);
    use_it(&tx, &rx);
    let expected: Vec<_> = (1..=1000).map(|operations| (operations, false)).collect();
    assert_eq!(pushes.take(), expected);
}

#[test]
fn pushes_are_at_least_the_minimum_of_operations_apart() {
    for minimum in [2, 10, 64, 100] {
        let (tx, rx) = unbounded();
        let (pushes, _subscription) = subscribe(&tx, minimum, Duration::ZERO);
        use_it(&tx, &rx);
        let at: Vec<u64> = pushes.take().into_iter().map(|(operations, _)| operations).collect();
        assert!(at[0] >= minimum, "{minimum}: the first at {}", at[0]);
        let gaps = || at.windows(2).map(|pair| pair[1] - pair[0]);
        assert!(gaps().all(|gap| gap >= minimum), "{minimum}: {at:?}");
        assert!(gaps().all(|gap| gap <= 2 * minimum + 128), "{minimum}: {at:?}");
        assert!(at.len() as u64 >= 1000 / (2 * minimum + 128), "{minimum}: {at:?}");
    }
}

#[test]
fn no_second_push_comes_within_the_minimum_interval() {
    let (tx, rx) = unbounded();
    let (pushes, _subscription) = subscribe(&tx, 1, HOUR);
    use_it(&tx, &rx);
    assert_eq!(pushes.take(), [(1, false)], "one, and no other before the hour is over");
}

#[test]
fn a_push_follows_once_the_interval_has_passed() {
    let (tx, rx) = unbounded();
    let interval = Duration::from_millis(2);
    let (pushes, _subscription) = subscribe(&tx, 1, interval);
    tx.try_send(1).unwrap();
    assert_eq!(pushes.count(), 1);
    let start = Instant::now();
    until("the interval passed", || start.elapsed() > interval);
    assert_eq!(rx.try_recv(), Ok(1));
    assert_eq!(pushes.count(), 2);
}

#[test]
fn the_close_is_pushed_regardless_of_the_minimums() {
    let closes: [fn(Sender<u32>) -> bool; 2] =
        [|tx| tx.close_channel(), |tx| tx.receiver_count() == 1];
    for close in closes {
        let (tx, rx) = unbounded();
        let (pushes, _subscription) = subscribe(&tx, 1000, HOUR);
        tx.try_send(1).unwrap();
        assert!(close(tx));
        assert_eq!(pushes.take(), [(1, true)]);
        assert_eq!(rx.len(), 1);
    }
}

#[test]
fn draining_a_closed_channel_respects_the_minimums() {
    let (tx, rx) = unbounded();
    let (pushes, _subscription) = subscribe(&tx, 1, HOUR);
    send_each(&tx, 0..200);
    drop(tx);
    assert_eq!(pushes.take(), [(1, false), (200, true)]);
    assert_eq!(rx.iter().count(), 200);
    assert_eq!(pushes.take(), [], "the hour is not over");
}

#[test]
fn dropping_the_last_receiver_pushes_the_undelivered_count() {
    let (tx, rx) = bounded::<u32>(4);
    let undelivered = Log::new();
    let log = undelivered.clone();
    let callback = move |snapshot: &marline_channel::Snapshot| {
        log.push((snapshot.totals.undelivered, snapshot.len, snapshot.closed));
    };
    let _subscription = tx.subscribe_metrics(1000, HOUR, callback).unwrap();
    send_each(&tx, 0..3);
    drop(rx);
    assert_eq!(undelivered.take(), [(3, 0, true)]);
}

#[test]
fn a_dropped_subscription_gets_no_more_pushes() {
    let (tx, rx) = unbounded();
    let (pushes, subscription) = subscribe(&tx, 1, Duration::ZERO);
    tx.try_send(1).unwrap();
    drop(subscription);
    use_it(&tx, &rx);
    drop(tx);
    assert_eq!(pushes.take(), [(1, false)]);
}

#[test]
fn subscriptions_keep_their_own_minimums() {
    let (tx, rx) = unbounded();
    let (often, _often) = subscribe(&tx, 1, Duration::ZERO);
    let (seldom, _seldom) = subscribe(&tx, 500, Duration::ZERO);
    use_it(&tx, &rx);
    assert_eq!((often.count(), seldom.count()), (1000, 2));
}

#[test]
fn either_end_can_subscribe() {
    let (tx, rx) = unbounded();
    let pushes = Log::new();
    let log = pushes.clone();
    let _subscription = rx.subscribe_metrics(1, Duration::ZERO, move |_| log.push(())).unwrap();
    tx.try_send(1).unwrap();
    assert_eq!(pushes.count(), 1);
}

#[test]
fn a_callback_runs_on_the_thread_that_used_the_channel_outside_its_lock() {
    let (tx, rx) = Builder::<u32>::bounded(4).build().unwrap();
    let seen = Log::new();
    let (log, end) = (seen.clone(), rx.clone());
    let callback = move |_: &marline_channel::Snapshot| {
        log.push((std::thread::current().id(), end.len()));
    };
    let _subscription = tx.subscribe_metrics(1, Duration::ZERO, callback).unwrap();
    tx.try_send(1).unwrap();
    assert_eq!(seen.take(), [(std::thread::current().id(), 1)]);
}

#[test]
fn a_subscription_dropped_by_an_earlier_callback_is_not_called() {
    let (tx, _rx) = unbounded::<u32>();
    let second: Arc<Mutex<Option<Subscription>>> = Arc::default();
    let ended = second.clone();
    let _first =
        tx.subscribe_metrics(1, Duration::ZERO, move |_| drop(ended.lock().unwrap().take()));
    let called = Arc::new(AtomicBool::new(false));
    let flag = called.clone();
    let subscription = tx
        .subscribe_metrics(1, Duration::ZERO, move |_| flag.store(true, Ordering::SeqCst))
        .unwrap();
    *second.lock().unwrap() = Some(subscription);
    tx.try_send(1).unwrap();
    assert!(!called.load(Ordering::SeqCst));
}
