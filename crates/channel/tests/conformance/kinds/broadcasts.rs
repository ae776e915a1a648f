//! Broadcast: every receiver gets every value, as long as it keeps up.

use std::{
    pin::pin,
    sync::atomic::{AtomicUsize, Ordering},
};

use marline_channel::{ErrorKind, broadcast};

use crate::conformance::{Wakes, join, park, poll_with, ready};

#[test]
fn every_receiver_gets_every_value_in_order() {
    let (tx, mut a) = broadcast(8);
    let mut b = tx.subscribe();
    for value in 0..5 {
        assert_eq!(tx.send(value), Ok(2), "the number of receivers");
    }
    for rx in [&mut a, &mut b] {
        let seen: Vec<u32> = (0..5).map(|_| rx.try_recv().unwrap()).collect();
        assert_eq!(seen, [0, 1, 2, 3, 4]);
        assert_eq!(rx.try_recv().unwrap_err().kind(), ErrorKind::Empty);
    }
}

#[test]
fn the_capacity_is_rounded_up_to_a_power_of_two() {
    for (asked, got) in [(1, 1), (2, 2), (3, 4), (5, 8), (64, 64), (65, 128)] {
        assert_eq!(broadcast::<u32>(asked).0.capacity(), got);
    }
}

#[test]
#[should_panic(expected = "broadcast(0): the capacity must be from 1")]
fn a_broadcast_of_capacity_zero_panics() {
    broadcast::<u32>(0);
}

#[test]
fn a_lagging_receiver_fails_with_lagged_then_gets_the_values_left() {
    let (tx, mut rx) = broadcast(4);
    for value in 0..10 {
        tx.send(value).unwrap();
    }
    assert_eq!(rx.try_recv().unwrap_err().kind(), ErrorKind::Lagged(6));
    assert_eq!((0..4).map(|_| rx.try_recv().unwrap()).collect::<Vec<_>>(), [6, 7, 8, 9]);
    assert_eq!(rx.try_recv().unwrap_err().kind(), ErrorKind::Empty);
}

#[test]
fn recv_fails_with_lagged_like_try_recv() {
    let (tx, mut rx) = broadcast(1);
    for value in 0..3 {
        tx.send(value).unwrap();
    }
    let error = rx.recv().wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lagged(2));
    assert!(error.to_string().contains("missed 2 values: receive again"), "{error}");
    assert_eq!(rx.recv().wait(), Ok(2));
}

#[test]
fn one_slow_receiver_does_not_hold_the_others_up() {
    let (tx, mut slow) = broadcast(2);
    let mut quick = tx.subscribe();
    for value in 0..10 {
        tx.send(value).unwrap();
        assert_eq!(quick.try_recv(), Ok(value));
    }
    assert_eq!(slow.try_recv().unwrap_err().kind(), ErrorKind::Lagged(8));
    assert_eq!(slow.try_recv(), Ok(8));
}

#[test]
fn a_new_receiver_starts_at_the_next_value() {
    let (tx, mut first) = broadcast(8);
    tx.send(1).unwrap();
    let mut subscribed = tx.subscribe();
    let mut resubscribed = first.resubscribe();
    assert_eq!(tx.receiver_count(), 3);
    assert_eq!(subscribed.try_recv().unwrap_err().kind(), ErrorKind::Empty);
    assert_eq!(tx.send(2), Ok(3));
    assert_eq!((subscribed.try_recv(), resubscribed.try_recv()), (Ok(2), Ok(2)));
    assert_eq!((first.try_recv(), first.try_recv()), (Ok(1), Ok(2)));
}

#[test]
fn a_broadcast_without_receivers_gives_values_back_until_one_subscribes() {
    let (tx, rx) = broadcast(2);
    drop(rx);
    let error = tx.send(1).unwrap_err();
    assert_eq!((error.kind(), error.into_inner()), (ErrorKind::Closed, 1));
    assert!(!tx.is_closed(), "a broadcast without receivers is not closed");
    let mut rx = tx.subscribe();
    assert_eq!(tx.send(2), Ok(1));
    assert_eq!(rx.try_recv(), Ok(2));
}

#[test]
fn receivers_drain_a_broadcast_after_its_last_sender_is_dropped() {
    let (tx, mut rx) = broadcast(2);
    let other = tx.clone();
    tx.send(1).unwrap();
    drop(tx);
    assert!(!rx.is_closed());
    drop(other);
    assert!(rx.is_closed());
    assert_eq!(rx.recv().wait(), Ok(1));
    assert!(rx.recv().wait().unwrap_err().is_closed());
}

#[test]
fn a_lagging_receiver_of_a_closed_broadcast_still_gets_the_values_left() {
    let (tx, mut rx) = broadcast(2);
    for value in 0..5 {
        tx.send(value).unwrap();
    }
    drop(tx);
    assert_eq!(rx.try_recv().unwrap_err().kind(), ErrorKind::Lagged(3));
    assert_eq!((rx.try_recv(), rx.try_recv()), (Ok(3), Ok(4)));
    assert!(rx.try_recv().unwrap_err().is_closed());
}

#[test]
fn close_channel_ends_every_parked_receive() {
    let (tx, mut a) = broadcast::<u32>(2);
    let mut b = tx.subscribe();
    let mut receives = [Box::pin(a.recv()), Box::pin(b.recv())];
    receives.iter_mut().for_each(|op| park(op.as_mut()));
    assert_eq!((tx.close_channel(), tx.close_channel()), (true, false));
    for op in &mut receives {
        assert!(ready(op.as_mut()).unwrap_err().is_closed());
    }
    assert_eq!(tx.send(1).unwrap_err().into_inner(), 1);
}

#[test]
fn a_receiver_subscribed_after_the_close_fails_with_closed() {
    let (tx, _rx) = broadcast::<u32>(2);
    tx.send(1).unwrap();
    tx.close_channel();
    assert!(tx.subscribe().try_recv().unwrap_err().is_closed());
}

#[test]
fn a_send_wakes_every_parked_receiver() {
    let (tx, first) = broadcast(2);
    let mut receivers: Vec<_> = (0..40).map(|_| first.resubscribe()).collect();
    let (wakes, waker) = Wakes::pair();
    let mut receives: Vec<_> = receivers.iter_mut().map(|rx| Box::pin(rx.recv())).collect();
    for op in &mut receives {
        assert!(poll_with(op.as_mut(), &waker).is_pending());
    }
    assert_eq!(tx.snapshot().waiting_recv, 40);
    tx.send(7).unwrap();
    assert_eq!(wakes.count(), 40);
    assert!(receives.iter_mut().all(|op| ready(op.as_mut()) == Ok(7)));
}

#[test]
fn blocking_receivers_get_every_value() {
    let (tx, rx) = broadcast(64);
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let mut rx = rx.resubscribe();
            std::thread::spawn(move || std::iter::from_fn(|| rx.recv().wait().ok()).sum::<u32>())
        })
        .collect();
    drop(rx);
    for value in 1..=50 {
        tx.send(value).unwrap();
    }
    drop(tx);
    assert!(threads.into_iter().all(|thread| join(thread) == 1275));
}

#[test]
fn a_value_is_dropped_once_every_receiver_has_seen_it() {
    static ALIVE: AtomicUsize = AtomicUsize::new(0);
    struct Counted;
    impl Counted {
        fn new() -> Counted {
            ALIVE.fetch_add(1, Ordering::SeqCst);
            Counted
        }
    }
    impl Clone for Counted {
        fn clone(&self) -> Counted {
            Counted::new()
        }
    }
    impl Drop for Counted {
        fn drop(&mut self) {
            ALIVE.fetch_sub(1, Ordering::SeqCst);
        }
    }
    let (tx, mut a) = broadcast(8);
    let b = tx.subscribe();
    assert!(tx.send(Counted::new()).is_ok() && tx.send(Counted::new()).is_ok());
    drop(a.try_recv());
    assert_eq!((tx.len(), ALIVE.load(Ordering::SeqCst)), (2, 2), "b has seen neither");
    drop(b);
    assert_eq!((tx.len(), ALIVE.load(Ordering::SeqCst)), (1, 1), "a has seen the first");
    drop(a.try_recv());
    assert_eq!((tx.len(), tx.is_empty(), ALIVE.load(Ordering::SeqCst)), (0, true, 0));
}

#[test]
fn the_last_receiver_to_see_a_value_gets_it_without_a_clone() {
    static CLONES: AtomicUsize = AtomicUsize::new(0);
    struct Counted;
    impl Clone for Counted {
        fn clone(&self) -> Counted {
            CLONES.fetch_add(1, Ordering::SeqCst);
            Counted
        }
    }
    let (tx, mut a) = broadcast(8);
    let mut b = tx.subscribe();
    assert!(tx.send(Counted).is_ok());
    assert!(a.try_recv().is_ok());
    assert_eq!(CLONES.load(Ordering::SeqCst), 1);
    assert!(b.try_recv().is_ok());
    assert_eq!(CLONES.load(Ordering::SeqCst), 1);
}

#[test]
fn a_receiver_misses_no_value_after_a_dropped_receive() {
    let (tx, mut rx) = broadcast(2);
    park(pin!(rx.recv()));
    tx.send(1).unwrap();
    assert_eq!(rx.recv().wait(), Ok(1));
    assert_eq!(tx.snapshot().waiting_recv, 0);
}
