//! The reusable selector: repeated waits, refills, results that are not taken, leaked waits.

use std::pin::pin;

use marline_channel::{ErrorKind, Selector, Sent, bounded, rendezvous, unbounded};

use crate::conformance::{panic_of, park, ready};

#[test]
fn a_selector_can_be_waited_on_repeatedly() {
    let (tx, rx) = rendezvous();
    let (_other_tx, other_rx) = rendezvous::<u32>();
    let mut selector = Selector::new();
    let key = selector.recv(&rx);
    selector.recv(&other_rx);
    for value in 0..5 {
        let mut next = Box::pin(selector.next());
        park(next.as_mut());
        assert_eq!(tx.try_send(value), Ok(Sent::Accepted));
        assert_eq!(ready(next.as_mut()), Ok(key.index()));
        drop(next);
        assert_eq!(selector.received(&key), Some(Ok(value)));
        assert_eq!(selector.received(&key), None, "taken already");
    }
}

#[test]
fn a_selector_has_no_parked_clause_between_waits() {
    let (tx, rx) = rendezvous::<u32>();
    let mut selector = Selector::new();
    selector.recv(&rx);
    park(pin!(selector.next()));
    assert_eq!(rx.snapshot().waiting_recv, 0);
    assert_eq!(tx.try_send(1).unwrap_err().kind(), ErrorKind::Full);
}

#[test]
fn a_spent_send_clause_is_skipped_until_it_is_refilled() {
    let (tx, rx) = unbounded();
    let (_other_tx, other_rx) = unbounded::<u32>();
    let mut selector = Selector::new();
    let key = selector.send(&tx, 1);
    selector.recv(&other_rx);
    assert_eq!(selector.next().wait(), Ok(key.index()));
    assert_eq!(selector.sent(&key), Some(Ok(Sent::Accepted)));
    park(pin!(selector.next()));
    assert_eq!(selector.refill(&key, 2), None);
    assert_eq!(selector.refill(&key, 3), Some(2), "replaces the value that it still had");
    assert_eq!(selector.next().wait(), Ok(key.index()));
    assert_eq!(selector.sent(&key), Some(Ok(Sent::Accepted)));
    assert_eq!(rx.try_iter().collect::<Vec<_>>(), [1, 3]);
}

#[test]
fn a_send_clause_on_a_closed_channel_gives_its_value_back() {
    let (tx, rx) = unbounded();
    drop(rx);
    let mut selector = Selector::new();
    let key = selector.send(&tx, 7);
    assert_eq!(selector.next().wait(), Ok(0));
    let error = selector.sent(&key).unwrap().unwrap_err();
    assert_eq!((error.kind(), error.into_inner()), (ErrorKind::Closed, 7));
}

#[test]
fn a_selector_with_skip_closed_fails_when_every_channel_is_closed() {
    let (tx, rx) = unbounded();
    let (tx2, rx2) = unbounded::<u32>();
    tx.try_send(1).unwrap();
    drop((tx, tx2));
    let mut selector = Selector::new().skip_closed();
    let key = selector.recv(&rx);
    selector.recv(&rx2);
    assert_eq!(selector.next().wait(), Ok(key.index()));
    assert_eq!(selector.received(&key), Some(Ok(1)));
    assert_eq!(selector.next().wait().unwrap_err().kind(), ErrorKind::Closed);
}

#[test]
fn an_untaken_result_returns_to_its_channel_at_the_next_wait() {
    let (tx, rx) = unbounded();
    tx.try_send(1).unwrap();
    tx.try_send(2).unwrap();
    let mut selector = Selector::new();
    let key = selector.recv(&rx);
    assert_eq!(selector.next().wait(), Ok(0));
    assert_eq!(rx.len(), 1);
    assert_eq!(selector.next().wait(), Ok(0));
    assert_eq!(selector.received(&key), Some(Ok(1)), "it went back to the front");
}

#[test]
fn an_untaken_result_returns_to_its_channel_when_the_selector_is_dropped() {
    let (tx, rx) = unbounded();
    tx.try_send(1).unwrap();
    let mut selector = Selector::new();
    selector.recv(&rx);
    assert_eq!(selector.next().wait(), Ok(0));
    drop(selector);
    assert_eq!(rx.try_recv(), Ok(1));
}

#[test]
fn a_wait_dropped_after_the_hand_off_gives_its_value_back() {
    let (tx, rx) = rendezvous();
    let mut selector = Selector::new();
    selector.recv(&rx);
    {
        let mut next = pin!(selector.next());
        park(next.as_mut());
        assert_eq!(tx.try_send(1), Ok(Sent::Accepted));
    }
    assert_eq!(rx.try_recv(), Ok(1));
}

#[test]
fn only_the_chosen_clause_has_a_result() {
    let (tx, rx) = unbounded();
    let (_tx2, rx2) = unbounded::<u32>();
    tx.try_send(1).unwrap();
    let mut selector = Selector::new();
    let (key, other) = (selector.recv(&rx), selector.recv(&rx2));
    assert_eq!(selector.received(&key), None, "before any wait");
    assert_eq!(selector.next().wait(), Ok(0));
    assert_eq!(selector.received(&other), None);
    assert_eq!(selector.received(&key), Some(Ok(1)));
}

#[test]
fn a_key_of_another_selector_panics() {
    let (_tx, rx) = unbounded::<u32>();
    let key = Selector::new().recv(&rx);
    let message = panic_of(|| Selector::new().received(&key));
    assert!(message.contains("the key belongs to another selector"), "{message}");
}

#[test]
fn refilling_before_the_result_was_taken_sends_nothing_twice() {
    let (tx, rx) = bounded(1);
    let mut selector = Selector::new();
    let key = selector.send(&tx, 1);
    assert_eq!(selector.next().wait(), Ok(0));
    selector.refill(&key, 2);
    let taken = selector.sent(&key);
    assert!(matches!(taken, None | Some(Ok(Sent::Accepted))), "{taken:?}");
    assert_eq!(rx.try_recv(), Ok(1));
    assert_eq!(rx.try_recv().unwrap_err().kind(), ErrorKind::Empty, "2 was not waited for yet");
}

#[test]
fn a_selector_with_only_spent_clauses_fails_and_says_to_refill() {
    let (tx, _rx) = bounded(4);
    let mut selector = Selector::new();
    let key = selector.send(&tx, 1);
    assert_eq!(selector.next().wait(), Ok(0));
    assert!(selector.sent(&key).is_some());
    let error = selector.next().wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("refill"), "{error}");
}

/// Polls a wait once and leaks it, while it is still in every list.
fn leak_a_wait(selector: &mut Selector<'_>) {
    let mut next = Box::pin(selector.next());
    park(next.as_mut());
    std::mem::forget(next);
}

#[test]
fn a_value_handed_to_a_leaked_wait_goes_to_the_next_wait() {
    let (tx, rx) = rendezvous();
    let mut selector = Selector::new();
    let key = selector.recv(&rx);
    leak_a_wait(&mut selector);
    assert_eq!(tx.try_send(1), Ok(Sent::Accepted));
    assert_eq!(selector.next().wait(), Ok(0));
    assert_eq!(selector.received(&key), Some(Ok(1)));
}

#[test]
fn a_value_handed_to_a_leaked_wait_returns_when_the_selector_is_dropped() {
    let (tx, rx) = rendezvous();
    let mut selector = Selector::new();
    selector.recv(&rx);
    leak_a_wait(&mut selector);
    let selector = Box::new(selector); // moved while its clauses are in lists
    assert_eq!(tx.try_send(1), Ok(Sent::Accepted));
    drop(selector);
    assert_eq!(rx.try_recv(), Ok(1));
}

#[test]
fn a_dropped_selector_with_a_leaked_wait_leaves_no_clause_parked() {
    let (tx, rx) = rendezvous();
    let mut selector = Selector::new();
    selector.recv(&rx);
    selector.send(&tx, 1);
    leak_a_wait(&mut selector);
    drop(selector);
    assert_eq!((rx.snapshot().waiting_recv, rx.snapshot().waiting_send), (0, 0));
    assert_eq!(tx.try_send(2).unwrap_err().kind(), ErrorKind::Full);
}

#[test]
fn a_clause_added_after_a_leaked_wait_can_be_chosen() {
    let (_tx, rx) = rendezvous::<u32>();
    let (tx2, rx2) = unbounded();
    tx2.try_send(2).unwrap();
    let mut selector = Selector::new();
    selector.recv(&rx);
    leak_a_wait(&mut selector);
    let key = selector.recv(&rx2);
    assert_eq!(ready(pin!(selector.next())), Ok(key.index()));
    assert_eq!(selector.received(&key), Some(Ok(2)));
}

#[test]
fn a_refill_after_a_leaked_wait_gives_the_old_value_back() {
    let (tx, rx) = rendezvous();
    let mut selector = Selector::new();
    let key = selector.send(&tx, 1);
    leak_a_wait(&mut selector);
    assert_eq!(selector.refill(&key, 2), Some(1));
    drop(selector);
    assert_eq!(rx.snapshot().waiting_send, 0);
    assert_eq!(rx.try_recv().unwrap_err().kind(), ErrorKind::Empty);
}
