//! `send_all` and `recv_many`: whole, partial, closed half-way, dropped half-way.

use std::{collections::VecDeque, pin::pin};

use marline_channel::{ErrorKind, bounded, rendezvous, unbounded};

use crate::conformance::{park, put_inside, queues, ready, send_each};

fn batch(values: impl IntoIterator<Item = u32>) -> VecDeque<u32> {
    values.into_iter().collect()
}

// ---- send_all ----------------------------------------------------------------------------------

#[test]
fn send_all_sends_in_order_and_returns_the_count() {
    let (tx, rx) = unbounded();
    let mut values = batch(0..100);
    assert_eq!(tx.send_all(&mut values).wait(), Ok(100));
    assert!(values.is_empty());
    assert_eq!(rx.try_iter().collect::<Vec<_>>(), (0..100).collect::<Vec<_>>());
}

#[test]
fn send_all_waits_for_room_until_every_value_is_sent() {
    let (tx, rx) = bounded(2);
    let mut values = batch(1..=6);
    let mut op = pin!(tx.send_all(&mut values));
    let mut received = vec![];
    while received.len() < 4 {
        park(op.as_mut());
        received.push(rx.try_recv().unwrap());
    }
    assert_eq!(ready(op), Ok(6));
    received.extend(rx.try_iter());
    assert_eq!(received, [1, 2, 3, 4, 5, 6]);
}

#[test]
fn send_all_on_a_rendezvous_sends_one_value_at_a_time() {
    let (tx, rx) = rendezvous();
    let mut values = batch(1..=3);
    let mut op = pin!(tx.send_all(&mut values));
    for expected in 1..=3 {
        park(op.as_mut());
        assert_eq!(rx.try_recv(), Ok(expected));
    }
    assert_eq!(ready(op), Ok(3));
}

#[test]
fn send_all_serves_every_parked_receive() {
    let (tx, rx) = rendezvous();
    let mut first = pin!(rx.recv());
    let mut second = pin!(rx.recv());
    park(first.as_mut());
    park(second.as_mut());
    assert_eq!(tx.send_all(&mut batch([1, 2])).wait(), Ok(2));
    assert_eq!((ready(first), ready(second)), (Ok(1), Ok(2)));
}

#[test]
fn send_all_of_an_empty_batch_ends_at_once() {
    for (name, make) in queues() {
        let (tx, _rx) = make().build().unwrap();
        assert_eq!(tx.send_all(&mut batch([])).wait(), Ok(0), "{name}");
    }
}

#[test]
fn send_all_to_a_closed_channel_leaves_every_value_in_the_batch() {
    for (name, make) in queues() {
        let (tx, _rx) = make().build().unwrap();
        tx.close_channel();
        let mut values = batch([1, 2]);
        assert!(tx.send_all(&mut values).wait().unwrap_err().is_closed(), "{name}");
        assert_eq!(values, [1, 2], "{name}");
    }
}

#[test]
fn send_all_ended_by_a_close_leaves_unsent_values_in_the_batch() {
    let (tx, rx) = bounded(2);
    let mut values = batch(1..=5);
    {
        let mut op = pin!(tx.send_all(&mut values));
        park(op.as_mut());
        rx.close_channel();
        assert!(ready(op).unwrap_err().is_closed());
    }
    assert_eq!(values, [3, 4, 5]);
    assert_eq!(rx.try_iter().collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn a_dropped_send_all_leaves_unsent_values_in_the_batch() {
    let (tx, rx) = bounded(2);
    let mut values = batch(1..=5);
    {
        let mut op = pin!(tx.send_all(&mut values));
        park(op.as_mut());
        assert_eq!(rx.try_recv(), Ok(1)); // admits the third value, which is parked
    }
    assert_eq!(values, [4, 5]);
    assert_eq!(rx.try_iter().collect::<Vec<_>>(), [2, 3]);
}

#[test]
fn send_all_counts_discarded_values_as_sent() {
    for (name, make) in queues().into_iter().skip(3) {
        let (tx, rx) = make().build().unwrap();
        let mut values = batch(1..=4);
        assert_eq!(tx.send_all(&mut values).wait(), Ok(4), "{name}");
        assert!(values.is_empty(), "{name}");
        let expected: &[u32] = match name {
            "drop-oldest" => &[3, 4],
            "drop-newest" => &[1, 2],
            _ => &[4],
        };
        assert_eq!(rx.try_iter().collect::<Vec<_>>(), expected, "{name}");
    }
}

// ---- recv_many ---------------------------------------------------------------------------------

#[test]
fn recv_many_takes_the_values_inside_up_to_its_limit() {
    let (tx, rx) = unbounded();
    send_each(&tx, 0..100);
    let mut values = vec![];
    assert_eq!(rx.recv_many(&mut values, 70).wait(), Ok(70));
    assert_eq!(rx.recv_many(&mut values, 70).wait(), Ok(30), "the rest, without waiting");
    assert_eq!(values, (0..100).collect::<Vec<_>>(), "appended in order");
}

#[test]
fn recv_many_with_a_limit_of_zero_ends_at_once() {
    for (name, make) in queues::<u32>() {
        let (tx, rx) = make().build().unwrap();
        put_inside(&tx, &rx, 1);
        assert_eq!(rx.recv_many(&mut vec![], 0).wait(), Ok(0), "{name}");
        assert_eq!(rx.len(), 1, "{name}");
    }
}

#[test]
fn recv_many_waits_for_the_first_value() {
    let (tx, rx) = unbounded();
    let mut values = vec![];
    {
        let mut op = pin!(rx.recv_many(&mut values, 10));
        park(op.as_mut());
        tx.try_send(1).unwrap();
        tx.try_send(2).unwrap();
        assert_eq!(ready(op), Ok(2), "and takes the value behind it");
    }
    assert_eq!(values, [1, 2]);
}

#[test]
fn recv_many_takes_the_values_of_parked_sends_too() {
    let (tx, rx) = bounded(2);
    send_each(&tx, 1..=2);
    let mut sends: Vec<_> = (3..=5).map(|n| Box::pin(tx.send(n))).collect();
    sends.iter_mut().for_each(|op| park(op.as_mut()));
    let mut values = vec![];
    assert_eq!(rx.recv_many(&mut values, 10).wait(), Ok(5));
    assert_eq!(values, [1, 2, 3, 4, 5]);
    assert!(sends.iter_mut().all(|op| ready(op.as_mut()).is_ok()));
}

#[test]
fn recv_many_on_a_rendezvous_takes_one_value_at_a_time() {
    let (tx, rx) = rendezvous();
    let mut sends: Vec<_> = (1..=2).map(|n| Box::pin(tx.send(n))).collect();
    sends.iter_mut().for_each(|op| park(op.as_mut()));
    let mut values = vec![];
    assert_eq!(rx.recv_many(&mut values, 10).wait(), Ok(1));
    assert_eq!(rx.recv_many(&mut values, 10).wait(), Ok(1));
    assert_eq!(values, [1, 2]);
}

#[test]
fn recv_many_drains_a_closed_channel_then_fails_with_closed() {
    for (name, make) in queues() {
        let (tx, rx) = make().build().unwrap();
        put_inside(&tx, &rx, 1);
        tx.close_channel();
        let mut values = vec![];
        assert_eq!(rx.recv_many(&mut values, 10).wait(), Ok(1), "{name}");
        let error = rx.recv_many(&mut values, 10).wait().unwrap_err();
        assert_eq!((error.kind(), values.len()), (ErrorKind::Closed, 1), "{name}");
    }
}

#[test]
fn a_close_ends_a_parked_recv_many() {
    let (tx, rx) = unbounded::<u32>();
    let mut values = vec![];
    let mut op = pin!(rx.recv_many(&mut values, 10));
    park(op.as_mut());
    drop(tx);
    assert!(ready(op).unwrap_err().is_closed());
}

#[test]
fn recv_many_dropped_after_the_hand_off_gives_its_value_back() {
    for (name, make) in queues() {
        let (tx, rx) = make().build().unwrap();
        let mut values = vec![];
        {
            let mut op = pin!(rx.recv_many(&mut values, 10));
            park(op.as_mut());
            tx.try_send(1).unwrap();
        }
        assert!(values.is_empty(), "{name}");
        assert_eq!(rx.try_recv(), Ok(1), "{name}");
    }
}
