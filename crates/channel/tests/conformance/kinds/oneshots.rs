//! Oneshot: one value, once.

use std::{
    pin::pin,
    sync::atomic::{AtomicUsize, Ordering},
};

use marline_channel::{ErrorKind, oneshot};

use crate::conformance::{Wakes, join, park, poll_with, ready, run};

#[test]
fn the_value_arrives_once() {
    let (tx, mut rx) = oneshot();
    assert!(!rx.is_settled());
    tx.send(1).unwrap();
    assert!(rx.is_settled());
    assert_eq!(rx.try_recv(), Ok(1));
    assert_eq!(rx.try_recv().unwrap_err().kind(), ErrorKind::Closed, "there is no second value");
    assert!(rx.recv().wait().unwrap_err().is_closed());
}

#[test]
fn a_sender_that_goes_without_sending_closes() {
    let (tx, mut rx) = oneshot::<u32>();
    let mut receive = pin!(rx.recv());
    let (wakes, waker) = Wakes::pair();
    assert!(poll_with(receive.as_mut(), &waker).is_pending());
    drop(tx);
    assert_eq!(wakes.count(), 1);
    assert!(ready(receive).unwrap_err().is_closed());
}

#[test]
fn a_receiver_that_is_gone_gives_the_value_back() {
    let (tx, rx) = oneshot();
    assert!(!tx.is_closed());
    drop(rx);
    assert!(tx.is_closed());
    let error = tx.send(7).unwrap_err();
    assert_eq!((error.kind(), error.into_inner()), (ErrorKind::Closed, 7));
}

#[test]
fn a_dropped_receive_loses_nothing() {
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
fn a_blocking_receive_is_woken_by_the_value() {
    let (tx, mut rx) = oneshot();
    let receiver = std::thread::spawn(move || rx.recv().wait());
    tx.send(4).unwrap();
    assert_eq!(join(receiver), Ok(4));
}

#[test]
fn a_blocking_receive_is_woken_by_the_end_of_the_sender() {
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
fn a_value_nobody_received_is_dropped_with_the_receiver() {
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
