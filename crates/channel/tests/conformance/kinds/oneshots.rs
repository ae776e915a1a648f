//! Oneshot: one value, once.

use std::{
    pin::pin,
    sync::atomic::{AtomicUsize, Ordering},
};

use marline_channel::{ErrorKind, oneshot};

use crate::conformance::{Wakes, join, park, poll_with, ready, run};

#[test]
fn a_oneshot_delivers_its_value_once() {
    let (tx, mut rx) = oneshot();
    assert!(!rx.is_settled());
    tx.send(1).unwrap();
    assert!(rx.is_settled());
    assert_eq!(rx.try_recv(), Ok(1));
    assert_eq!(rx.try_recv().unwrap_err().kind(), ErrorKind::Closed, "there is no second value");
    assert!(rx.recv().wait().unwrap_err().is_closed());
}

#[test]
fn dropping_the_sender_without_a_send_ends_a_parked_receive() {
    let (tx, mut rx) = oneshot::<u32>();
    let mut receive = pin!(rx.recv());
    let (wakes, waker) = Wakes::pair();
    assert!(poll_with(receive.as_mut(), &waker).is_pending());
    drop(tx);
    assert_eq!(wakes.count(), 1);
    assert!(ready(receive).unwrap_err().is_closed());
}

#[test]
fn a_send_to_a_dropped_receiver_gives_its_value_back() {
    let (tx, rx) = oneshot();
    assert!(!tx.is_closed());
    drop(rx);
    assert!(tx.is_closed());
    let error = tx.send(7).unwrap_err();
    assert_eq!((error.kind(), error.into_inner()), (ErrorKind::Closed, 7));
}

#[test]
fn a_dropped_receive_does_not_lose_the_value() {
    let (tx, mut rx) = oneshot();
    park(pin!(rx.recv()));
    tx.send(1).unwrap();
    assert_eq!(rx.recv().wait(), Ok(1));
}

#[test]
fn the_receiver_is_a_future() {
    let (tx, rx) = oneshot();
    let sender = std::thread::spawn(move || tx.send(3).unwrap());
    assert_eq!(run(rx), Ok(3));
    join(sender);
}

#[test]
fn a_blocking_receive_gets_the_value() {
    let (tx, mut rx) = oneshot();
    let receiver = std::thread::spawn(move || rx.recv().wait());
    tx.send(4).unwrap();
    assert_eq!(join(receiver), Ok(4));
}

#[test]
fn a_blocking_receive_ends_when_the_sender_is_dropped() {
    let (tx, mut rx) = oneshot::<u32>();
    let receiver = std::thread::spawn(move || rx.recv().wait());
    drop(tx);
    assert!(join(receiver).unwrap_err().is_closed());
}

#[test]
fn the_task_that_polled_last_is_woken() {
    let (tx, mut rx) = oneshot();
    let mut receive = pin!(rx.recv());
    let ((early, early_waker), (late, late_waker)) = (Wakes::pair(), Wakes::pair());
    assert!(poll_with(receive.as_mut(), &early_waker).is_pending());
    assert!(poll_with(receive.as_mut(), &late_waker).is_pending());
    tx.send(1).unwrap();
    assert_eq!((early.count(), late.count()), (0, 1));
}

#[test]
fn an_unreceived_value_is_dropped_with_the_receiver() {
    static DROPS: AtomicUsize = AtomicUsize::new(0);
    struct Counted;
    impl Drop for Counted {
        fn drop(&mut self) {
            DROPS.fetch_add(1, Ordering::SeqCst);
        }
    }
    let (tx, rx) = oneshot();
    assert!(tx.send(Counted).is_ok());
    assert_eq!(DROPS.load(Ordering::SeqCst), 0);
    drop(rx);
    assert_eq!(DROPS.load(Ordering::SeqCst), 1);
}
