//! Watch: the latest value.

use std::pin::pin;

use marline_channel::{ErrorKind, watch};

use crate::conformance::{Wakes, join, panic_of, park, poll_with, ready, until};

#[test]
fn the_first_value_can_be_borrowed_and_counts_as_seen() {
    let (tx, rx) = watch(1);
    assert_eq!((*tx.borrow(), *rx.borrow()), (1, 1));
    assert_eq!(rx.has_changed(), Ok(false));
}

#[test]
fn a_receiver_sees_the_latest_value_not_every_value() {
    let (tx, mut rx) = watch(0);
    (1..=5).for_each(|value| tx.send(value).unwrap());
    assert_eq!(rx.changed().wait(), Ok(()));
    assert_eq!(*rx.borrow(), 5);
    assert_eq!(rx.try_changed().unwrap_err().kind(), ErrorKind::Empty);
}

#[test]
fn borrow_leaves_the_value_unseen_and_borrow_and_update_marks_it_seen() {
    let (tx, mut rx) = watch(0);
    tx.send(1).unwrap();
    assert_eq!((*rx.borrow(), rx.has_changed()), (1, Ok(true)));
    assert_eq!(*rx.borrow_and_update(), 1);
    assert_eq!(rx.has_changed(), Ok(false));
}

#[test]
fn try_changed_marks_the_value_as_seen() {
    let (tx, mut rx) = watch(0);
    assert_eq!(rx.try_changed().unwrap_err().kind(), ErrorKind::Empty);
    tx.send(1).unwrap();
    assert_eq!(rx.try_changed(), Ok(()));
    assert_eq!(rx.try_changed().unwrap_err().kind(), ErrorKind::Empty);
}

#[test]
fn a_closed_watch_reports_an_unseen_value_once_and_then_closed() {
    let (tx, mut rx) = watch(0);
    tx.send(1).unwrap();
    drop(tx);
    assert!(rx.is_closed());
    assert_eq!(rx.has_changed(), Ok(true));
    assert_eq!(rx.changed().wait(), Ok(()));
    assert_eq!(*rx.borrow(), 1);
    assert!(rx.changed().wait().unwrap_err().is_closed());
    assert!(rx.try_changed().unwrap_err().is_closed());
    assert!(rx.has_changed().unwrap_err().is_closed());
}

#[test]
fn the_value_can_be_borrowed_after_the_close() {
    let (tx, mut rx) = watch(3);
    tx.close_channel();
    assert_eq!((*tx.borrow(), *rx.borrow()), (3, 3));
    assert_eq!(*rx.borrow_and_update(), 3);
}

#[test]
fn close_channel_returns_true_once_and_ends_every_parked_wait() {
    let (tx, mut rx) = watch(0);
    let mut other = rx.clone();
    let mut changes = [Box::pin(rx.changed()), Box::pin(other.changed())];
    changes.iter_mut().for_each(|op| park(op.as_mut()));
    assert_eq!((tx.close_channel(), tx.close_channel()), (true, false));
    assert!(changes.iter_mut().all(|op| ready(op.as_mut()).unwrap_err().is_closed()));
    let error = tx.send(1).unwrap_err();
    assert_eq!((error.kind(), error.into_inner()), (ErrorKind::Closed, 1));
}

#[test]
fn dropping_the_last_sender_closes_the_watch() {
    let (tx, rx) = watch(0);
    let other = tx.clone();
    assert_eq!((rx.sender_count(), rx.receiver_count()), (2, 1));
    drop(tx);
    assert!(!rx.is_closed());
    drop(other);
    assert!(rx.is_closed());
}

#[test]
fn a_watch_without_receivers_gives_values_back_until_one_subscribes() {
    let (tx, rx) = watch(0);
    drop(rx);
    assert_eq!(tx.send(1).unwrap_err().into_inner(), 1);
    assert!(!tx.is_closed(), "a watch without receivers is not closed");
    let mut rx = tx.subscribe();
    assert_eq!((*rx.borrow(), rx.has_changed()), (0, Ok(false)));
    tx.send(2).unwrap();
    assert_eq!((rx.try_changed(), *rx.borrow()), (Ok(()), 2));
}

#[test]
fn send_replace_works_without_receivers_and_returns_the_old_value() {
    let (tx, rx) = watch(1);
    drop(rx);
    assert_eq!(tx.send_replace(2), 1);
    assert_eq!(*tx.borrow(), 2);
    assert_eq!(tx.subscribe().has_changed(), Ok(false), "a new receiver has seen the value");
}

#[test]
fn send_if_modified_marks_a_change_only_when_its_closure_returns_true() {
    let (tx, rx) = watch(1);
    assert!(!tx.send_if_modified(|_| false));
    assert_eq!(rx.has_changed(), Ok(false));
    assert!(tx.send_if_modified(|value| {
        *value += 1;
        true
    }));
    assert_eq!((*rx.borrow(), rx.has_changed()), (2, Ok(true)));
}

#[test]
fn a_panic_in_send_if_modified_reaches_its_caller_and_leaves_the_watch_usable() {
    let (tx, mut rx) = watch(1);
    let message = panic_of(|| tx.send_if_modified(|_| panic!("no idea")));
    assert_eq!(message, "no idea");
    assert_eq!((rx.has_changed(), *rx.borrow()), (Ok(false), 1));
    tx.send(2).unwrap();
    assert_eq!((rx.try_changed(), *rx.borrow()), (Ok(()), 2));
}

#[test]
fn a_cloned_receiver_starts_with_the_seen_state_of_its_original() {
    let (tx, mut rx) = watch(0);
    tx.send(1).unwrap();
    let behind = rx.clone();
    drop(rx.borrow_and_update());
    let level = rx.clone();
    assert_eq!((behind.has_changed(), level.has_changed()), (Ok(true), Ok(false)));
}

#[test]
fn a_change_wakes_every_parked_receiver_once() {
    let (tx, rx) = watch(0);
    let mut receivers: Vec<_> = (0..40).map(|_| rx.clone()).collect();
    let (wakes, waker) = Wakes::pair();
    let mut changes: Vec<_> = receivers.iter_mut().map(|rx| Box::pin(rx.changed())).collect();
    for op in &mut changes {
        assert!(poll_with(op.as_mut(), &waker).is_pending());
    }
    assert_eq!(tx.snapshot().waiting_recv, 40);
    tx.send(7).unwrap();
    assert_eq!(wakes.count(), 40);
    assert!(changes.iter_mut().all(|op| ready(op.as_mut()) == Ok(())));
}

#[test]
fn a_dropped_wait_is_unparked_and_leaves_the_change_unseen() {
    let (tx, mut rx) = watch(0);
    park(pin!(rx.changed()));
    assert_eq!(tx.snapshot().waiting_recv, 0);
    tx.send(1).unwrap();
    assert_eq!(rx.try_changed(), Ok(()), "the change is still to be seen");
}

#[test]
fn a_blocking_receiver_is_woken_by_a_change_and_by_the_close() {
    let (tx, mut rx) = watch(0);
    let receiver = std::thread::spawn(move || {
        let mut last = 0;
        while rx.changed().wait().is_ok() {
            last = *rx.borrow();
        }
        last
    });
    until("the receiver waits", || tx.snapshot().waiting_recv == 1);
    (1..=20).for_each(|value| tx.send(value).unwrap());
    drop(tx);
    assert_eq!(join(receiver), 20);
}
