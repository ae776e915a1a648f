//! `measure`, and the handlers of a select, that panic.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    task::{Poll, Waker},
};

use marline_channel::{Builder, Select, unbounded};

use crate::{
    assert_usable,
    conformance::{panic_of, park, poll_with, send_each},
};

#[test]
fn a_panic_in_measure_counts_zero_bytes_and_reaches_no_caller() {
    fn measure(value: &u32) -> usize {
        if *value == 1 { panic!("measure") } else { 10 }
    }
    let (tx, rx) = Builder::bounded(4).measure(measure).build().unwrap();
    send_each(&tx, [1, 2]);
    assert_eq!((rx.try_recv(), rx.try_recv()), (Ok(1), Ok(2)));
    let totals = rx.snapshot().totals;
    if cfg!(feature = "metrics") {
        assert_eq!((totals.bytes_sent, totals.bytes_received), (10, 10));
    }
    assert_usable(&tx, &rx);
}

#[test]
fn a_panic_in_measure_at_the_hand_off_does_not_lose_a_returned_value() {
    static FAILS: AtomicBool = AtomicBool::new(true);
    fn measure(_: &u32) -> usize {
        if FAILS.load(Ordering::SeqCst) { panic!("measure") } else { 10 }
    }
    let (tx, rx) = Builder::bounded(4).measure(measure).build().unwrap();
    let mut receive = Box::pin(rx.recv());
    park(receive.as_mut());
    tx.try_send(7).unwrap(); // measured as 0 bytes
    FAILS.store(false, Ordering::SeqCst);
    drop(receive); // measured as 10 bytes
    assert_eq!(rx.try_recv(), Ok(7));
    assert_usable(&tx, &rx);
}

#[test]
fn a_panic_in_a_select_handler_reaches_the_poll_and_channels_stay_usable() {
    let (tx, rx) = unbounded();
    let (other_tx, other_rx) = unbounded::<u32>();
    tx.try_send(7).unwrap();
    let mut select = Box::pin(
        Select::new()
            .on(rx.recv(), |got| std::panic::panic_any(if got == Ok(7) { "handler" } else { "?" }))
            .on(other_rx.recv(), |_| ()),
    );
    let polled = panic_of(|| matches!(poll_with(select.as_mut(), Waker::noop()), Poll::Ready(_)));
    assert_eq!(polled, "handler");
    drop(select);
    assert_usable(&tx, &rx);
    assert_usable(&other_tx, &other_rx);
}
