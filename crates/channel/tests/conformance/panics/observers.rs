//! Metrics callbacks that panic.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use marline_channel::{Sender, Snapshot, Subscription, rendezvous};

use crate::{
    assert_usable,
    conformance::{panic_of, park, queues, ready},
};

/// Subscribes an observer that panics when armed, and behind it an observer that counts.
fn observed(tx: &Sender<u32>) -> (Arc<AtomicBool>, Arc<AtomicUsize>, [Subscription; 2]) {
    let (armed, calls) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let (flag, count) = (armed.clone(), calls.clone());
    let panics = move |_: &Snapshot| {
        if flag.swap(false, Ordering::SeqCst) {
            std::panic::panic_any("observer");
        }
    };
    let counts = move |_: &Snapshot| {
        count.fetch_add(1, Ordering::SeqCst);
    };
    let subscriptions = [
        tx.subscribe_metrics(1, Duration::ZERO, panics).unwrap(),
        tx.subscribe_metrics(1, Duration::ZERO, counts).unwrap(),
    ];
    (armed, calls, subscriptions)
}

#[test]
fn a_panic_in_an_observer_reaches_the_sender_and_the_value_stays_inside() {
    for (name, make) in queues().into_iter().skip(1) {
        let (tx, rx) = make().build().unwrap();
        let (armed, calls, _subscriptions) = observed(&tx);
        armed.store(true, Ordering::SeqCst);
        assert_eq!(panic_of(|| tx.try_send(7)), "observer", "{name}");
        assert_eq!(calls.load(Ordering::SeqCst), 1, "{name}: the other observer is still called");
        assert_eq!((rx.len(), rx.try_recv()), (1, Ok(7)), "{name}");
        assert_usable(&tx, &rx);
    }
}

#[test]
fn a_panic_in_an_observer_reaches_the_receiver_and_its_value_returns() {
    for (name, make) in queues().into_iter().skip(1) {
        let (tx, rx) = make().build().unwrap();
        let (armed, _calls, _subscriptions) = observed(&tx);
        tx.try_send(7).unwrap();
        armed.store(true, Ordering::SeqCst);
        assert_eq!(panic_of(|| rx.recv().wait()), "observer", "{name}");
        assert_eq!((rx.len(), rx.try_recv()), (1, Ok(7)), "{name}");
        assert_eq!(rx.snapshot().totals.recvs, 1, "{name}: received once");
        assert_usable(&tx, &rx);
    }
}

#[test]
fn a_panic_in_an_observer_reaches_the_closer_after_the_close_is_done() {
    let (tx, rx) = rendezvous::<u32>();
    let (armed, calls, _subscriptions) = observed(&tx);
    let mut receive = pin!(rx.recv());
    park(receive.as_mut());
    armed.store(true, Ordering::SeqCst);
    assert_eq!(panic_of(|| tx.close_channel()), "observer");
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    assert!(ready(receive).unwrap_err().is_closed());
}
