//! Limits in corner cases, beyond the claims that hold for every operation.

use std::{
    collections::VecDeque,
    pin::pin,
    thread,
    time::{Duration, Instant},
};

use marline_channel::{CancelToken, ErrorKind, Sent, bounded, rendezvous, unbounded};

use crate::{
    Failed, MOMENT, MOST_TRIES,
    conformance::{PATIENCE, Wakes, join, park, poll_with, ready, run, until},
    past,
};

#[test]
fn the_value_of_a_timed_out_send_is_not_received() {
    let (tx, rx) = rendezvous();
    assert_eq!(tx.send(7).timeout(MOMENT).wait().kind(), ErrorKind::Timeout);
    assert_eq!(rx.try_recv().unwrap_err().kind(), ErrorKind::Empty);
    assert_eq!((rx.len(), rx.snapshot().waiting_send), (0, 0));
}

#[test]
fn a_timed_out_send_all_leaves_unsent_values_in_the_batch() {
    let (tx, rx) = bounded(2);
    let mut values = VecDeque::from([1, 2, 3, 4]);
    assert_eq!(tx.send_all(&mut values).timeout(MOMENT).wait().kind(), ErrorKind::Timeout);
    assert_eq!(values, [3, 4]);
    assert_eq!(rx.try_iter().collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn send_all_succeeds_if_cancelled_after_its_last_value_was_received() {
    let (tx, rx) = rendezvous();
    let token = CancelToken::new();
    let mut values = VecDeque::from([1]);
    let mut op = Box::pin(tx.send_all(&mut values).cancel(&token));
    park(op.as_mut());
    assert_eq!(rx.try_recv(), Ok(1));
    token.cancel();
    assert_eq!(ready(op.as_mut()), Ok(1));
}

#[test]
fn send_all_cancelled_between_two_values_leaves_the_second_in_the_batch() {
    let (tx, rx) = rendezvous();
    let token = CancelToken::new();
    let mut values = VecDeque::from([1, 2]);
    let mut op = Box::pin(tx.send_all(&mut values).cancel(&token));
    park(op.as_mut());
    assert_eq!(rx.try_recv(), Ok(1));
    token.cancel();
    assert_eq!(ready(op.as_mut()).kind(), ErrorKind::Cancelled);
    drop(op);
    assert_eq!(values, [2]);
}

#[test]
fn a_close_before_a_cancel_ends_a_send_with_closed() {
    let (tx, rx) = rendezvous();
    let token = CancelToken::new();
    let mut op = Box::pin(tx.send(7).cancel(&token));
    park(op.as_mut());
    rx.close_channel();
    token.cancel();
    assert_eq!(ready(op.as_mut()).kind(), ErrorKind::Closed);
}

#[test]
fn a_close_before_a_cancel_ends_send_all_with_closed() {
    let (tx, rx) = rendezvous();
    let token = CancelToken::new();
    let mut values = VecDeque::from([7]);
    let mut op = Box::pin(tx.send_all(&mut values).cancel(&token));
    park(op.as_mut());
    rx.close_channel();
    token.cancel();
    assert_eq!(ready(op.as_mut()).kind(), ErrorKind::Closed);
}

#[test]
fn a_close_before_a_cancel_ends_a_receive_with_closed() {
    let (tx, rx) = rendezvous::<u32>();
    let token = CancelToken::new();
    let mut op = Box::pin(rx.recv().cancel(&token));
    park(op.as_mut());
    tx.close_channel();
    token.cancel();
    assert_eq!(ready(op.as_mut()).kind(), ErrorKind::Closed);
}

#[test]
fn a_cancelled_reserve_takes_no_room() {
    let (tx, rx) = bounded(1);
    tx.try_send(0).unwrap();
    let token = CancelToken::new();
    let mut op = Box::pin(tx.reserve().cancel(&token));
    park(op.as_mut());
    token.cancel();
    assert_eq!(ready(op.as_mut()).kind(), ErrorKind::Cancelled);
    assert_eq!(rx.try_recv(), Ok(0));
    assert_eq!(tx.try_send(1), Ok(Sent::Accepted), "the room is free");
}

#[test]
fn of_two_deadlines_the_earlier_counts() {
    let (_tx, rx) = unbounded::<u32>();
    let far = Instant::now() + 10 * PATIENCE;
    assert_eq!(rx.recv().deadline(far).deadline(past()).wait().kind(), ErrorKind::Timeout);
    assert_eq!(rx.recv().deadline(past()).deadline(far).wait().kind(), ErrorKind::Timeout);
    assert_eq!(rx.recv().timeout(MOMENT).timeout(Duration::MAX).wait().kind(), ErrorKind::Timeout);
}

#[test]
fn of_two_tokens_the_last_one_counts() {
    let (_tx, rx) = unbounded::<u32>();
    let (first, second) = (CancelToken::new(), CancelToken::new());
    let mut op = pin!(rx.recv().cancel(&first).cancel(&second));
    first.cancel();
    park(op.as_mut());
    second.cancel();
    assert_eq!(ready(op).kind(), ErrorKind::Cancelled);
}

#[test]
fn a_receive_with_a_deadline_in_a_century_waits_and_gets_its_value() {
    let century = Instant::now() + Duration::from_secs(100 * 365 * 24 * 3600);
    let (tx, rx) = rendezvous();
    let blocking = {
        let rx = rx.clone();
        thread::spawn(move || rx.recv().deadline(century).wait())
    };
    until("the thread waits", || rx.snapshot().waiting_recv == 1);
    let mut awaited = pin!(rx.recv().deadline(century));
    park(awaited.as_mut());
    tx.try_send(1).unwrap();
    tx.try_send(2).unwrap();
    assert_eq!((join(blocking), ready(awaited)), (Ok(1), Ok(2)));
}

#[test]
fn a_thousand_deadlines_end_their_receives_and_none_too_early() {
    let (_tx, rx) = unbounded::<u32>();
    let start = Instant::now();
    let waits = (0..1000u64).map(|n| {
        let deadline = start + Duration::from_micros((n * 7919) % 4000);
        let rx = &rx;
        async move {
            let kind = rx.recv().deadline(deadline).await.kind();
            assert!(Instant::now() >= deadline, "not before its time");
            kind
        }
    });
    let kinds = run(futures_util::future::join_all(waits));
    assert!(kinds.iter().all(|kind| *kind == ErrorKind::Timeout));
    assert_eq!(rx.snapshot().waiting_recv, 0);
}

#[test]
fn the_task_that_polled_last_is_woken_at_the_deadline() {
    let (_tx, rx) = unbounded::<u32>();
    for _ in 0..MOST_TRIES {
        let mut op = pin!(rx.recv().timeout(MOMENT));
        let ((_, early), (late_wakes, late)) = (Wakes::pair(), Wakes::pair());
        let is_early = poll_with(op.as_mut(), &early).is_pending();
        if is_early && poll_with(op.as_mut(), &late).is_pending() {
            until("the late task is woken", || late_wakes.count() > 0);
            assert_eq!(ready(op).kind(), ErrorKind::Timeout);
            return;
        }
    }
    panic!("the deadline passed before every second poll");
}
