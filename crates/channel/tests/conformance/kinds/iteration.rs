//! Iterators over a receiver: until closed, until empty, by value, and as a `Stream`.

use marline_channel::{bounded, rendezvous, unbounded};

use crate::conformance::{join, put_inside, queues, send_each};

#[test]
fn iter_ends_when_closed_and_drained() {
    let (tx, rx) = bounded(2);
    let sender = std::thread::spawn(move || {
        for n in 0..50 {
            tx.send(n).wait().unwrap();
        }
    });
    assert_eq!(rx.iter().collect::<Vec<u32>>(), (0..50).collect::<Vec<_>>());
    assert_eq!(rx.iter().next(), None, "and stays ended");
    join(sender);
}

#[test]
fn a_receiver_is_iterated_by_reference() {
    let (tx, rx) = unbounded();
    send_each(&tx, 0..3);
    drop(tx);
    let mut seen = vec![];
    for value in &rx {
        seen.push(value);
    }
    assert_eq!((seen, rx.len()), (vec![0, 1, 2], 0));
}

#[test]
fn into_iter_owns_its_receiver() {
    let (tx, rx) = unbounded();
    send_each(&tx, 0..3);
    let mut iter = rx.into_iter();
    assert_eq!(iter.next(), Some(0));
    assert!(!tx.is_closed());
    drop(iter);
    assert!(tx.is_closed() && tx.is_empty());
}

#[test]
fn try_iter_ends_when_empty_and_a_later_one_yields_new_values() {
    let (tx, rx) = unbounded();
    send_each(&tx, 0..3);
    assert_eq!(rx.try_iter().collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(rx.try_iter().next(), None);
    tx.try_send(3).unwrap();
    assert_eq!(rx.try_iter().next(), Some(3));
}

#[test]
fn a_released_receiver_iterates_over_nothing() {
    for (name, make) in queues() {
        let (tx, rx) = make().build().unwrap();
        let _other = rx.clone();
        put_inside(&tx, &rx, 1);
        rx.close();
        assert_eq!((rx.iter().next(), rx.try_iter().next()), (None, None), "{name}");
    }
}

#[test]
fn iteration_receives_from_a_rendezvous() {
    let (tx, rx) = rendezvous();
    let sender = std::thread::spawn(move || {
        for n in 0..5 {
            tx.send(n).wait().unwrap();
        }
    });
    assert_eq!(rx.into_iter().sum::<u32>(), 10);
    join(sender);
}

#[cfg(feature = "stream")]
mod stream {
    use std::pin::pin;

    use futures_util::StreamExt;

    use super::*;
    use crate::conformance::{park, ready, run};

    #[test]
    fn a_stream_ends_when_closed_and_drained() {
        let (tx, rx) = bounded(2);
        let sender = std::thread::spawn(move || {
            for n in 0..50 {
                tx.send(n).wait().unwrap();
            }
        });
        let mut stream = pin!(rx.into_stream());
        let mut seen = vec![];
        run(async {
            while let Some(value) = stream.next().await {
                seen.push(value);
            }
        });
        assert_eq!(seen, (0..50).collect::<Vec<u32>>());
        assert_eq!(run(stream.next()), None, "and stays ended");
        join(sender);
    }

    #[test]
    fn a_stream_dropped_after_the_hand_off_gives_its_value_back() {
        let (tx, rx) = rendezvous();
        let mut stream = Box::pin(rx.stream());
        park(pin!(stream.next()));
        tx.try_send(1).unwrap();
        drop(stream);
        assert_eq!(rx.try_recv(), Ok(1));
    }

    #[test]
    fn a_stream_stays_parked_when_its_pending_next_is_dropped() {
        let (tx, rx) = rendezvous();
        let mut stream = Box::pin(rx.stream());
        park(pin!(stream.next()));
        assert_eq!(rx.snapshot().waiting_recv, 1);
        tx.try_send(1).unwrap();
        assert_eq!(ready(pin!(stream.next())), Some(1));
    }

    #[test]
    fn a_stream_counts_as_a_receiver() {
        let (tx, rx) = bounded::<u32>(1);
        let stream = rx.stream();
        assert_eq!(tx.receiver_count(), 2);
        drop(rx);
        assert!(!tx.is_closed());
        drop(stream);
        assert!(tx.is_closed());
    }

    #[test]
    fn the_stream_of_a_released_receiver_ends_at_once() {
        let (_tx, rx) = bounded::<u32>(1);
        rx.close();
        assert_eq!(ready(pin!(Box::pin(rx.into_stream()).next())), None);
    }
}
