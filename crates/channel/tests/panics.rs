//! User code that panics (`on_drop`, a waker, a value's `Drop`, a metrics callback, a `Clone`). The
//! panic reaches the caller that ran it. All other parties are still woken and still get their
//! values, the channel goes on, and no value is lost or doubled.

mod conformance;

#[path = "conformance/panics/callbacks.rs"]
mod callbacks;
#[cfg(feature = "metrics")]
#[path = "conformance/panics/observers.rs"]
mod observers;
#[path = "conformance/panics/trick.rs"]
mod trick;
#[path = "conformance/panics/values.rs"]
mod values;
#[path = "conformance/panics/wakers.rs"]
mod wakers;
#[path = "conformance/panics/wakes.rs"]
mod wakes;

use std::pin::pin;

use marline_channel::{Receiver, Sender, Sent};

use conformance::{Wakes, poll_with, put_inside, ready};

/// Asserts that a channel still sends, receives and wakes.
#[track_caller]
fn assert_usable(tx: &Sender<u32>, rx: &Receiver<u32>) {
    put_inside(tx, rx, 1000);
    assert_eq!(rx.try_recv(), Ok(1000));
    let mut receive = pin!(rx.recv());
    let (wakes, waker) = Wakes::pair();
    assert!(poll_with(receive.as_mut(), &waker).is_pending());
    assert_eq!(tx.try_send(1001), Ok(Sent::Accepted));
    assert_eq!((wakes.count(), ready(receive)), (1, Ok(1001)));
    let snapshot = rx.snapshot();
    assert_eq!((snapshot.len, snapshot.waiting_send, snapshot.waiting_recv), (0, 0, 0));
}
