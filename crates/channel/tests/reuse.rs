//! Operations that are used again after they have ended. That may panic, but it must not disturb
//! other operations. Values that go back keep their order, in whichever order they go back.

use std::{
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
};

use marline_channel::{Select, Selector, Sent, bounded, rendezvous, unbounded};

fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn panics<R>(f: impl FnOnce() -> R) -> bool {
    catch_unwind(AssertUnwindSafe(f)).is_err()
}

#[test]
fn a_select_polled_after_its_end_leaves_parked_receivers_alone() {
    let (tx, rx) = rendezvous();
    let mut first = pin!(rx.recv());
    assert!(poll(first.as_mut()).is_pending());
    let mut select = pin!(Select::new().on(tx.send(1), |sent| sent.unwrap()));
    assert_eq!(poll(select.as_mut()), Poll::Ready(Ok(Sent::Accepted)));
    let mut second = pin!(rx.recv());
    assert!(poll(second.as_mut()).is_pending());
    assert!(panics(|| poll(select.as_mut())));
    assert_eq!(poll(first), Poll::Ready(Ok(1)));
    assert_eq!(rx.snapshot().waiting_recv, 1);
    assert_eq!(tx.try_send(2), Ok(Sent::Accepted));
    assert_eq!(poll(second), Poll::Ready(Ok(2)));
}

#[test]
fn a_select_polled_after_its_end_parks_nothing_on_a_full_channel() {
    let (tx, rx) = bounded(1);
    let mut select = pin!(Select::new().on(tx.send(1), |sent| sent.unwrap()));
    assert!(poll(select.as_mut()).is_ready());
    assert!(panics(|| poll(select.as_mut())));
    assert_eq!(tx.snapshot().waiting_send, 0);
    assert_eq!(rx.try_recv(), Ok(1));
    for value in 0..1_000 {
        tx.try_send(value).unwrap();
        assert_eq!(rx.try_recv(), Ok(value));
    }
}

#[test]
fn a_send_polled_after_it_gave_its_value_back_leaves_parked_receivers_alone() {
    let (tx, rx) = rendezvous();
    let mut send = pin!(tx.send(1));
    assert!(poll(send.as_mut()).is_pending());
    assert_eq!(send.as_mut().into_unsent(), Some(1));
    let mut receive = pin!(rx.recv());
    assert!(poll(receive.as_mut()).is_pending());
    assert!(panics(|| poll(send.as_mut())));
    assert_eq!(tx.try_send(2), Ok(Sent::Accepted));
    assert_eq!(poll(receive), Poll::Ready(Ok(2)));
}

#[test]
fn a_send_that_is_waited_on_twice_sends_once() {
    let (tx, rx) = bounded(128);
    let mut send = pin!(tx.send(1));
    assert_eq!(send.as_mut().wait_interruptible(), Ok(Ok(Sent::Accepted)));
    assert_eq!(send.as_mut().wait_interruptible(), Ok(Ok(Sent::Accepted)));
    assert_eq!(rx.try_iter().collect::<Vec<_>>(), [1]);
}

#[test]
fn values_taken_by_dropped_selectors_return_in_order() {
    let (tx, rx) = unbounded();
    (1..=4).for_each(|value| assert_eq!(tx.try_send(value), Ok(Sent::Accepted)));
    let mut selectors = [(); 3].map(|()| {
        let mut selector = Selector::new();
        selector.recv(&rx);
        assert_eq!(selector.next().wait(), Ok(0));
        selector
    });
    // No result is taken, and the selectors are dropped: the second, the third, the first.
    selectors.swap(0, 1);
    selectors.swap(1, 2);
    drop(selectors);
    assert_eq!(rx.try_iter().collect::<Vec<_>>(), [1, 2, 3, 4]);
}
