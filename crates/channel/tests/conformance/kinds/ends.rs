//! Ends of queue channels: closing, released ends, weak ends, counts, sizes, and what the builder
//! rejects.

use std::pin::pin;

use marline_channel::{
    Builder, ErrorKind, Kind, MAX_CAPACITY, Overflow, Receiver, Sender, Sent, bounded, conflated,
    rendezvous, unbounded,
};

use crate::conformance::{Log, park, put_inside, queues, ready, send_each};

fn each_queue(check: impl Fn(&'static str, Sender<u32>, Receiver<u32>)) {
    for (name, make) in queues() {
        let (tx, rx) = make().build().unwrap();
        check(name, tx, rx);
    }
}

// ---- closing -----------------------------------------------------------------------------------

#[test]
fn dropping_the_last_sender_closes_the_channel_and_receivers_drain_it() {
    each_queue(|name, tx, rx| {
        put_inside(&tx, &rx, 1);
        let other = tx.clone();
        drop(tx);
        assert!(!rx.is_closed(), "{name}: one sender is left");
        drop(other);
        assert!(rx.is_closed(), "{name}");
        assert_eq!(rx.recv().wait(), Ok(1), "{name}: the value inside is delivered");
        assert_eq!(rx.recv().wait().unwrap_err().kind(), ErrorKind::Closed, "{name}");
    });
}

#[test]
fn dropping_the_last_receiver_closes_and_sends_give_their_values_back() {
    each_queue(|name, tx, rx| {
        let other = rx.clone();
        drop(rx);
        assert!(!tx.is_closed(), "{name}: one receiver is left");
        drop(other);
        assert!(tx.is_closed(), "{name}");
        let error = tx.send(7).wait().unwrap_err();
        assert_eq!((error.kind(), error.into_inner()), (ErrorKind::Closed, 7), "{name}");
    });
}

#[test]
fn releasing_the_last_receiver_passes_the_values_inside_to_on_drop() {
    for (name, make) in queues() {
        let dropped = Log::new();
        let log = dropped.clone();
        let (tx, rx) = make().on_drop(move |value| log.push(value)).build().unwrap();
        put_inside(&tx, &rx, 1);
        let other = rx.clone();
        drop(rx);
        assert_eq!(dropped.take(), [], "{name}: one receiver is left");
        other.close();
        assert_eq!(dropped.take(), [1], "{name}");
        assert_eq!(tx.len(), 0, "{name}");
    }
}

#[test]
fn close_channel_closes_for_every_end_and_keeps_the_values_inside() {
    each_queue(|name, tx, rx| {
        put_inside(&tx, &rx, 1);
        let (more_tx, more_rx) = (tx.clone(), rx.clone());
        assert!(rx.close_channel(), "{name}");
        assert!(tx.is_closed() && more_tx.is_closed() && more_rx.is_closed(), "{name}");
        assert_eq!(more_tx.try_send(2).unwrap_err().into_inner(), 2, "{name}");
        assert_eq!(more_rx.try_recv(), Ok(1), "{name}");
        assert_eq!(rx.try_recv().unwrap_err().kind(), ErrorKind::Closed, "{name}");
    });
}

#[test]
fn only_the_first_close_channel_returns_true() {
    each_queue(|name, tx, rx| {
        let closed = [tx.close_channel(), tx.close_channel(), rx.close_channel()];
        assert_eq!(closed, [true, false, false], "{name}");
    });
}

#[test]
fn close_channel_on_a_released_end_still_closes() {
    each_queue(|name, tx, rx| {
        let _other = tx.clone();
        tx.close();
        assert!(tx.close_channel(), "{name}");
        assert!(rx.is_closed(), "{name}");
    });
}

#[test]
fn close_channel_gives_parked_sends_their_values_back() {
    for (name, make) in [queues()[0], queues()[1]] {
        let (tx, rx) = make().build().unwrap();
        while tx.try_send(0).is_ok() {}
        let mut first = pin!(tx.send(1));
        let mut second = pin!(tx.send(2));
        park(first.as_mut());
        park(second.as_mut());
        rx.close_channel();
        for (op, value) in [(first, 1), (second, 2)] {
            let error = ready(op).unwrap_err();
            assert_eq!((error.kind(), error.into_inner()), (ErrorKind::Closed, value), "{name}");
        }
    }
}

#[test]
fn close_channel_ends_parked_receives() {
    each_queue(|name, tx, rx| {
        let mut first = pin!(rx.recv());
        let mut second = pin!(rx.recv());
        park(first.as_mut());
        park(second.as_mut());
        tx.close_channel();
        assert!(ready(first).unwrap_err().is_closed(), "{name}");
        assert!(ready(second).unwrap_err().is_closed(), "{name}");
    });
}

#[test]
fn a_close_ends_a_hundred_parked_receives() {
    let (tx, rx) = rendezvous::<u32>();
    let mut parked: Vec<_> = (0..100).map(|_| Box::pin(rx.recv())).collect();
    parked.iter_mut().for_each(|op| park(op.as_mut()));
    drop(tx);
    for op in &mut parked {
        assert!(ready(op.as_mut()).unwrap_err().is_closed());
    }
}

#[test]
fn a_second_close_or_a_drop_does_not_release_an_end_again() {
    each_queue(|name, tx, rx| {
        let other = tx.clone();
        tx.close();
        tx.close();
        assert_eq!(rx.sender_count(), 1, "{name}");
        drop(tx);
        assert_eq!(rx.sender_count(), 1, "{name}: the drop afterwards does not count again");
        assert!(!rx.is_closed(), "{name}");
        other.close();
        assert!(rx.is_closed(), "{name}");
    });
}

#[test]
fn a_released_end_fails_with_closed_while_other_ends_still_work() {
    each_queue(|name, tx, rx| {
        let (other_tx, other_rx) = (tx.clone(), rx.clone());
        tx.close();
        rx.close();
        assert_eq!(tx.try_send(1).unwrap_err().kind(), ErrorKind::Closed, "{name}");
        assert_eq!(rx.try_recv().unwrap_err().kind(), ErrorKind::Closed, "{name}");
        put_inside(&other_tx, &other_rx, 2);
        assert_eq!(other_rx.try_recv(), Ok(2), "{name}");
    });
}

#[test]
fn the_clone_of_a_released_end_is_released_too() {
    each_queue(|name, tx, rx| {
        let _other = tx.clone();
        tx.close();
        let late = tx.clone();
        assert_eq!(rx.sender_count(), 1, "{name}");
        assert_eq!(late.try_send(1).unwrap_err().kind(), ErrorKind::Closed, "{name}");
    });
}

#[test]
fn releasing_a_clone_does_not_release_the_original() {
    each_queue(|name, tx, rx| {
        let (clone_tx, clone_rx) = (tx.clone(), rx.clone());
        clone_tx.close();
        clone_rx.close();
        assert_eq!((rx.sender_count(), tx.receiver_count()), (1, 1), "{name}");
        put_inside(&tx, &rx, 3);
        assert_eq!(rx.try_recv(), Ok(3), "{name}");
    });
}

#[test]
fn a_parked_receive_goes_on_after_its_end_is_released() {
    let (tx, rx) = rendezvous();
    let (_other_tx, _other_rx) = (tx.clone(), rx.clone());
    let mut receive = pin!(rx.recv());
    park(receive.as_mut());
    rx.close();
    assert_eq!(tx.try_send(5), Ok(Sent::Accepted));
    assert_eq!(ready(receive), Ok(5));
}

#[test]
fn a_value_handed_off_before_the_last_receiver_closes_is_received() {
    let (tx, rx) = rendezvous();
    let mut receive = pin!(rx.recv());
    park(receive.as_mut());
    tx.try_send(5).unwrap();
    rx.close();
    assert_eq!(ready(receive), Ok(5));
}

#[test]
fn a_closed_channel_stays_closed_when_ends_are_cloned() {
    each_queue(|name, tx, rx| {
        tx.close_channel();
        let (tx, rx) = (tx.clone(), rx.clone());
        assert_eq!(tx.try_send(1).unwrap_err().kind(), ErrorKind::Closed, "{name}");
        assert_eq!(rx.try_recv().unwrap_err().kind(), ErrorKind::Closed, "{name}");
    });
}

// ---- weak ends ---------------------------------------------------------------------------------

#[test]
fn weak_senders_do_not_keep_the_channel_open() {
    each_queue(|name, tx, rx| {
        let weak = tx.downgrade();
        assert_eq!(rx.sender_count(), 1, "{name}");
        drop(tx);
        assert!(rx.is_closed(), "{name}");
        assert!(weak.upgrade().is_none(), "{name}");
    });
}

#[test]
fn weak_receivers_do_not_keep_the_channel_open() {
    each_queue(|name, tx, rx| {
        let weak = rx.downgrade();
        assert_eq!(tx.receiver_count(), 1, "{name}");
        drop(rx);
        assert!(tx.is_closed(), "{name}");
        assert!(weak.clone().upgrade().is_none(), "{name}");
    });
}

#[test]
fn an_upgraded_weak_end_is_counted_and_keeps_the_channel_open() {
    each_queue(|name, tx, rx| {
        let again = tx.downgrade().upgrade().unwrap();
        assert_eq!(rx.sender_count(), 2, "{name}");
        drop(tx);
        assert!(!rx.is_closed(), "{name}");
        let receiver = rx.downgrade().upgrade().unwrap();
        assert_eq!(again.receiver_count(), 2, "{name}");
        assert!(receiver.same_channel(&rx), "{name}");
    });
}

#[test]
fn a_weak_end_of_a_released_end_upgrades_while_another_end_is_left() {
    let (tx, rx) = unbounded();
    let other = tx.clone();
    tx.close();
    let again = tx.downgrade().upgrade().expect("another sender is left");
    again.try_send(1).unwrap();
    assert_eq!(rx.try_recv(), Ok(1));
    assert!(again.same_channel(&other));
}

// ---- counts and sizes --------------------------------------------------------------------------

#[test]
fn end_counts_follow_clones_and_drops() {
    each_queue(|name, tx, rx| {
        let senders = [tx.clone(), tx.clone()];
        let receiver = rx.clone();
        assert_eq!((tx.sender_count(), tx.receiver_count()), (3, 2), "{name}");
        drop(senders);
        drop(receiver);
        assert_eq!((rx.sender_count(), rx.receiver_count()), (1, 1), "{name}");
    });
}

#[test]
fn same_channel_tells_ends_of_one_channel_from_ends_of_another() {
    let (tx, rx) = bounded::<u32>(1);
    let (other_tx, other_rx) = bounded::<u32>(1);
    assert!(tx.same_channel(&tx.clone()) && rx.same_channel(&rx.clone()));
    assert!(!tx.same_channel(&other_tx) && !rx.same_channel(&other_rx));
}

#[test]
fn kind_name_and_capacity_are_as_built() {
    let (tx, rx) = Builder::<u32>::bounded(3).name("jobs").build().unwrap();
    assert_eq!((tx.kind(), tx.name(), tx.capacity()), (Kind::Bounded, Some("jobs"), Some(3)));
    assert_eq!((rx.kind(), rx.name(), rx.capacity()), (Kind::Bounded, Some("jobs"), Some(3)));
    let facts = |tx: Sender<u32>| (tx.kind(), tx.capacity());
    assert_eq!(facts(rendezvous().0), (Kind::Rendezvous, Some(0)));
    assert_eq!(facts(unbounded().0), (Kind::Unbounded, None));
    assert_eq!(facts(conflated().0), (Kind::Conflated, Some(1)));
    assert_eq!(rendezvous::<u32>().0.name(), None);
}

#[test]
fn len_is_full_and_is_empty_agree() {
    let (tx, rx) = bounded(2);
    let sizes = || (tx.len(), tx.is_empty(), tx.is_full(), rx.len(), rx.is_empty(), rx.is_full());
    assert_eq!(sizes(), (0, true, false, 0, true, false));
    tx.try_send(1).unwrap();
    assert_eq!(sizes(), (1, false, false, 1, false, false));
    tx.try_send(2).unwrap();
    assert_eq!(sizes(), (2, false, true, 2, false, true));
}

#[test]
fn a_rendezvous_channel_is_empty_and_full() {
    let (tx, _rx) = rendezvous::<u32>();
    assert_eq!((tx.len(), tx.is_empty(), tx.is_full()), (0, true, true));
}

#[test]
fn an_unbounded_channel_is_never_full() {
    let (tx, _rx) = unbounded();
    send_each(&tx, 0..1000);
    assert_eq!((tx.len(), tx.is_full()), (1000, false));
}

#[test]
fn a_parked_send_is_not_counted_in_len() {
    let (tx, rx) = bounded(1);
    tx.try_send(1).unwrap();
    let mut send = pin!(tx.send(2));
    park(send.as_mut());
    assert_eq!((rx.len(), rx.snapshot().waiting_send), (1, 1));
}

#[test]
fn a_closed_channel_keeps_its_len_until_it_is_drained() {
    let (tx, rx) = bounded(4);
    send_each(&tx, 1..=3);
    tx.close_channel();
    assert_eq!((rx.len(), rx.is_closed()), (3, true));
    assert_eq!(rx.try_iter().count(), 3);
    assert_eq!(rx.len(), 0);
}

// ---- building ----------------------------------------------------------------------------------

/// Returns the message of a builder's error, whose kind must be Invalid.
fn refusal(builder: Builder<u32>) -> String {
    let error = builder.build().map(drop).expect_err("the builder rejects the options");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    error.to_string()
}

#[test]
fn builder_errors_name_the_next_step() {
    assert!(refusal(Builder::bounded(0)).contains("use `rendezvous`"));
    assert!(refusal(Builder::bounded(MAX_CAPACITY + 1)).contains("use `unbounded`"));
    for policy in [Overflow::DropOldest, Overflow::DropNewest] {
        assert!(refusal(Builder::rendezvous().overflow(policy)).contains("use `Builder::bounded`"));
        assert!(refusal(Builder::unbounded().overflow(policy)).contains("use `Builder::bounded`"));
    }
    for policy in [Overflow::Block, Overflow::DropNewest] {
        let message = refusal(Builder::conflated().overflow(policy));
        assert!(message.contains("use `Builder::bounded(1)`"), "{message}");
    }
    assert!(refusal(Builder::unbounded().name(&"x".repeat(256))).contains("at most 255 bytes"));
}

#[test]
fn the_builder_accepts_values_at_their_limits() {
    let (tx, _rx) = Builder::<u32>::bounded(MAX_CAPACITY).build().unwrap();
    assert_eq!(tx.capacity(), Some(MAX_CAPACITY));
    let (tx, _rx) = Builder::<u32>::unbounded().name(&"x".repeat(255)).build().unwrap();
    assert_eq!(tx.name().unwrap().len(), 255);
    assert!(Builder::<u32>::conflated().overflow(Overflow::DropOldest).build().is_ok());
}

#[test]
#[should_panic(expected = "bounded(0): a bounded channel needs a capacity of at least 1")]
fn bounded_with_capacity_zero_panics() {
    bounded::<u32>(0);
}

// ---- overflow ----------------------------------------------------------------------------------

#[test]
fn the_overflow_policy_of_a_bounded_channel_can_change() {
    let (tx, rx) = bounded(1);
    tx.try_send(1).unwrap();
    assert_eq!(tx.try_send(2).unwrap_err().kind(), ErrorKind::Full);
    rx.set_overflow(Overflow::DropNewest).unwrap();
    assert_eq!(tx.try_send(3), Ok(Sent::Dropped));
    tx.set_overflow(Overflow::DropOldest).unwrap();
    assert_eq!(tx.try_send(4), Ok(Sent::Accepted));
    assert_eq!(rx.try_iter().collect::<Vec<_>>(), [4]);
}

#[test]
fn set_overflow_fails_on_every_kind_but_bounded() {
    each_queue(|name, tx, rx| {
        if tx.kind() != Kind::Bounded {
            let error = tx.set_overflow(Overflow::DropOldest).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{name}");
            assert!(error.to_string().contains("only a bounded channel"), "{name}");
            assert_eq!(rx.set_overflow(Overflow::Block), Err(error), "{name}");
        }
    });
}

#[test]
fn a_send_parked_before_the_policy_changed_still_waits() {
    let (tx, rx) = bounded(1);
    tx.try_send(1).unwrap();
    let mut send = pin!(tx.send(2));
    park(send.as_mut());
    tx.set_overflow(Overflow::DropNewest).unwrap();
    park(send.as_mut());
    assert_eq!(rx.try_recv(), Ok(1));
    assert_eq!(ready(send), Ok(Sent::Accepted));
}
