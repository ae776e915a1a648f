//! The same claims about limits for every operation.

use std::{
    collections::VecDeque,
    pin::pin,
    task::Waker,
    thread,
    time::{Duration, Instant},
};

use marline_channel::{
    CancelToken, ErrorKind, Permit, Select, Selector, Sent, bounded, broadcast, oneshot, unbounded,
    watch,
};

use crate::{
    Failed, MOMENT, MOST_TRIES,
    conformance::{PATIENCE, Wakes, park, poll_with, ready, run, until},
    past, wait_for,
};

/// Tests the claims about limits, for one operation. `setup` creates the ends so that `op` has to
/// wait. `peer` does what `op` waits for. `waiting` counts the parked operations, and `done` is the
/// result of `op` if it succeeds. `after` must hold if `op` failed.
macro_rules! limits_of {
    ($name:ident {
        setup: { $($setup:tt)* }
        op: $op:expr,
        peer: $peer:expr,
        waiting: $waiting:expr,
        done: $done:pat,
        after: $after:expr $(,)?
    }) => {
        #[allow(unused, reason = "not every claim needs every end")]
        mod $name {
            use super::*;

            #[test]
            fn times_out_when_awaited() {
                $($setup)*
                assert_eq!(run($op.timeout(MOMENT)).kind(), ErrorKind::Timeout);
                assert!($after);
            }

            #[test]
            fn times_out_when_blocking() {
                $($setup)*
                assert_eq!($op.timeout(MOMENT).wait().kind(), ErrorKind::Timeout);
                assert!($after);
            }

            #[test]
            fn a_passed_deadline_ends_the_operation_at_once() {
                $($setup)*
                assert_eq!(ready(pin!($op.deadline(past()))).kind(), ErrorKind::Timeout);
                assert_eq!($op.deadline(past()).wait().kind(), ErrorKind::Timeout);
                assert!($after);
            }

            #[test]
            fn a_passed_deadline_still_allows_one_attempt_when_awaited() {
                $($setup)*
                $peer;
                assert!(matches!(ready(pin!($op.deadline(past()))), $done));
            }

            #[test]
            fn a_passed_deadline_still_allows_one_attempt_when_blocking() {
                $($setup)*
                $peer;
                assert!(matches!($op.deadline(past()).wait(), $done));
            }

            #[test]
            fn an_already_triggered_token_ends_an_await_without_an_attempt() {
                $($setup)*
                $peer;
                let token = CancelToken::new();
                token.cancel();
                assert_eq!(ready(pin!($op.cancel(&token))).kind(), ErrorKind::Cancelled);
                assert!($after);
                assert!(matches!(ready(pin!($op)), $done), "it changed nothing");
            }

            #[test]
            fn an_already_triggered_token_ends_a_blocking_wait_without_an_attempt() {
                $($setup)*
                $peer;
                let token = CancelToken::new();
                token.cancel();
                assert_eq!($op.cancel(&token).wait().kind(), ErrorKind::Cancelled);
                assert!($after);
                assert!(matches!(ready(pin!($op)), $done), "it changed nothing");
            }

            #[test]
            fn a_triggered_token_wakes_and_ends_an_awaited_operation() {
                $($setup)*
                let token = CancelToken::new();
                let (wakes, waker) = Wakes::pair();
                let mut op = Box::pin($op.cancel(&token));
                assert!(poll_with(op.as_mut(), &waker).is_pending());
                token.cancel();
                assert_eq!(wakes.count(), 1);
                let output = ready(op.as_mut());
                drop(op);
                assert_eq!(output.kind(), ErrorKind::Cancelled);
                assert!($after);
                assert_eq!($waiting, 0, "it has left the line");
            }

            #[test]
            fn a_triggered_token_wakes_and_ends_a_blocking_operation() {
                $($setup)*
                let token = CancelToken::new();
                let kind = thread::scope(|scope| {
                    let waiter =
                        scope.spawn(|| $op.cancel(&token).timeout(PATIENCE).wait().kind());
                    until("the operation waits", || $waiting == 1);
                    token.cancel();
                    waiter.join().unwrap()
                });
                assert_eq!(kind, ErrorKind::Cancelled);
                assert!($after);
            }

            #[test]
            fn completion_beats_a_token_triggered_afterwards() {
                $($setup)*
                let token = CancelToken::new();
                let mut op = Box::pin($op.cancel(&token));
                park(op.as_mut());
                $peer;
                token.cancel();
                assert!(matches!(ready(op.as_mut()), $done));
            }

            #[test]
            fn completion_beats_a_deadline_that_passes_afterwards() {
                for _ in 0..MOST_TRIES {
                    $($setup)*
                    let deadline = Instant::now() + MOMENT;
                    let mut op = Box::pin($op.deadline(deadline));
                    // There is no poll between the peer's step and the deadline.
                    if poll_with(op.as_mut(), Waker::noop()).is_pending() {
                        $peer;
                        wait_for(deadline);
                        assert!(matches!(ready(op.as_mut()), $done));
                        return;
                    }
                }
                panic!("the deadline passed before every first poll");
            }

            #[test]
            fn a_token_beats_a_deadline() {
                for _ in 0..MOST_TRIES {
                    $($setup)*
                    let token = CancelToken::new();
                    let deadline = Instant::now() + MOMENT;
                    let mut op = Box::pin($op.deadline(deadline).cancel(&token));
                    if poll_with(op.as_mut(), Waker::noop()).is_pending() {
                        wait_for(deadline);
                        token.cancel();
                        assert_eq!(ready(op.as_mut()).kind(), ErrorKind::Cancelled);
                        return;
                    }
                }
                panic!("the deadline passed before every first poll");
            }

            #[test]
            fn limits_that_are_not_reached_change_nothing() {
                $($setup)*
                let token = CancelToken::new();
                let far = Instant::now() + 10 * PATIENCE;
                let mut op = Box::pin($op.deadline(far).timeout(Duration::MAX).cancel(&token));
                park(op.as_mut());
                $peer;
                assert!(matches!(ready(op.as_mut()), $done));
            }
        }
    };
}

limits_of! { send_to_a_full_channel {
    setup: { let (tx, rx) = bounded(1); tx.try_send(0).unwrap(); }
    op: tx.send(7),
    peer: assert_eq!(rx.try_recv(), Ok(0)),
    waiting: tx.snapshot().waiting_send,
    done: Ok(Sent::Accepted),
    after: rx.try_iter().all(|value| value == 0),
} }

limits_of! { recv_from_an_empty_channel {
    setup: { let (tx, rx) = unbounded::<u32>(); }
    op: rx.recv(),
    peer: tx.try_send(7).unwrap(),
    waiting: rx.snapshot().waiting_recv,
    done: Ok(7),
    after: true,
} }

limits_of! { reserve_of_a_full_channel {
    setup: { let (tx, rx) = bounded(1); tx.try_send(0).unwrap(); }
    op: tx.reserve(),
    peer: assert_eq!(rx.try_recv(), Ok(0)),
    waiting: tx.snapshot().waiting_send,
    done: Ok(Permit { .. }),
    after: true,
} }

limits_of! { send_all_to_a_full_channel {
    setup: {
        let (tx, rx) = bounded(1);
        tx.try_send(0).unwrap();
        let mut values = VecDeque::from([7]);
    }
    op: tx.send_all(&mut values),
    peer: assert_eq!(rx.try_recv(), Ok(0)),
    waiting: tx.snapshot().waiting_send,
    done: Ok(1),
    after: values == [7],
} }

limits_of! { recv_many_from_an_empty_channel {
    setup: { let (tx, rx) = unbounded::<u32>(); let mut values = vec![]; }
    op: rx.recv_many(&mut values, 10),
    peer: tx.try_send(7).unwrap(),
    waiting: rx.snapshot().waiting_recv,
    done: Ok(1),
    after: values.is_empty(),
} }

limits_of! { recv_of_a_oneshot {
    setup: { let (tx, mut rx) = oneshot::<u32>(); let mut tx = Some(tx); }
    op: rx.recv(),
    peer: tx.take().unwrap().send(7).unwrap(),
    waiting: tx.as_ref().map_or(0, |tx| tx.snapshot().waiting_recv),
    done: Ok(7),
    after: true,
} }

limits_of! { recv_of_a_broadcast {
    setup: { let (tx, mut rx) = broadcast::<u32>(2); }
    op: rx.recv(),
    peer: tx.send(7).unwrap(),
    waiting: tx.snapshot().waiting_recv,
    done: Ok(7),
    after: true,
} }

limits_of! { changed_of_a_watch {
    setup: { let (tx, mut rx) = watch(0); }
    op: rx.changed(),
    peer: tx.send(7).unwrap(),
    waiting: tx.snapshot().waiting_recv,
    done: Ok(()),
    after: true,
} }

limits_of! { a_select_of_receives_and_sends {
    setup: {
        let (tx, rx) = unbounded::<u32>();
        let (full_tx, full_rx) = bounded(1);
        full_tx.try_send(0).unwrap();
    }
    op: Select::new().on(rx.recv(), |got| got.unwrap()).on(full_tx.send(1), |_| 0),
    peer: tx.try_send(7).unwrap(),
    waiting: full_rx.snapshot().waiting_send,
    done: Ok(7),
    after: full_rx.len() == 1,
} }

limits_of! { the_next_of_a_selector {
    setup: {
        let (tx, rx) = unbounded::<u32>();
        let (full_tx, full_rx) = bounded(1);
        full_tx.try_send(0).unwrap();
        let mut selector = Selector::new();
        let key = selector.recv(&rx);
        selector.send(&full_tx, 1);
        tx.try_send(1).unwrap();
        assert_eq!(selector.next().wait(), Ok(key.index()));
        assert_eq!(selector.received(&key), Some(Ok(1)));
    }
    op: selector.next(),
    peer: tx.try_send(7).unwrap(),
    waiting: full_rx.snapshot().waiting_send,
    done: Ok(0),
    after: full_rx.len() == 1,
} }
