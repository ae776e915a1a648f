//! The life of a value: it returns to its sender on any failure, it reaches `on_drop` exactly once,
//! and it goes back to the front if its receive is dropped after the hand-off.

use std::pin::pin;

use marline_channel::{Builder, ErrorKind, Overflow, Receiver, Sender, Sent, bounded, rendezvous};

use crate::conformance::{Log, park, put_inside, queues, ready, send_each};

fn logged(builder: Builder<u32>) -> (Sender<u32>, Receiver<u32>, Log<u32>) {
    let dropped = Log::new();
    let log = dropped.clone();
    let (tx, rx) = builder.on_drop(move |value| log.push(value)).build().unwrap();
    (tx, rx, dropped)
}

// ---- back to the sender ------------------------------------------------------------------------

#[test]
fn the_value_of_a_dropped_pending_send_is_never_received() {
    for (name, make) in [queues()[0], queues()[1]] {
        let (tx, rx) = make().build().unwrap();
        while tx.try_send(0).is_ok() {}
        {
            let mut send = pin!(tx.send(1));
            park(send.as_mut());
        }
        assert_eq!(rx.snapshot().waiting_send, 0, "{name}");
        assert!(rx.try_iter().all(|value| value == 0), "{name}");
    }
}

#[test]
fn into_unsent_gives_the_value_of_a_pending_send_back() {
    let (tx, rx) = rendezvous();
    let mut send = pin!(tx.send(1));
    park(send.as_mut());
    assert_eq!(send.as_mut().into_unsent(), Some(1));
    assert_eq!(send.into_unsent(), None, "once");
    assert_eq!(rx.try_recv().unwrap_err().kind(), ErrorKind::Empty);
}

#[test]
fn into_unsent_of_a_send_that_never_began_gives_the_value_back() {
    let (tx, _rx) = bounded(1);
    assert_eq!(pin!(tx.send(1)).into_unsent(), Some(1));
    assert_eq!(tx.len(), 0);
}

#[test]
fn into_unsent_after_the_send_succeeded_returns_none() {
    let (tx, rx) = rendezvous();
    let mut send = pin!(tx.send(1));
    park(send.as_mut());
    assert_eq!(rx.try_recv(), Ok(1));
    assert_eq!(send.into_unsent(), None);
}

#[test]
fn the_value_of_a_dropped_send_does_not_reach_on_drop() {
    let (tx, _rx, dropped) = logged(Builder::rendezvous());
    {
        let mut send = pin!(tx.send(1));
        park(send.as_mut());
    }
    assert_eq!(dropped.take(), [], "the value never was in the channel");
}

// ---- to on_drop, once --------------------------------------------------------------------------

#[test]
fn received_values_never_reach_on_drop() {
    for (name, make) in queues() {
        let (tx, rx, dropped) = logged(make());
        put_inside(&tx, &rx, 1);
        assert_eq!(rx.try_recv(), Ok(1), "{name}");
        drop((tx, rx));
        assert_eq!(dropped.take(), [], "{name}");
    }
}

#[test]
fn discarded_values_reach_on_drop_once_and_in_order() {
    let (tx, rx, dropped) = logged(Builder::bounded(2).overflow(Overflow::DropOldest));
    send_each(&tx, 1..=5);
    assert_eq!(dropped.take(), [1, 2, 3]);
    drop(rx);
    assert_eq!(dropped.take(), [4, 5]);
    drop(tx);
    assert_eq!(dropped.take(), []);
}

#[test]
fn a_value_discarded_by_drop_newest_reaches_on_drop() {
    let (tx, rx, dropped) = logged(Builder::bounded(1).overflow(Overflow::DropNewest));
    assert_eq!(tx.try_send(1), Ok(Sent::Accepted));
    assert_eq!(tx.send(2).wait(), Ok(Sent::Dropped));
    assert_eq!(dropped.take(), [2]);
    assert_eq!(rx.try_recv(), Ok(1));
}

#[test]
fn a_value_returned_to_a_channel_without_receivers_reaches_on_drop_once() {
    for (name, make) in queues() {
        let (tx, rx, dropped) = logged(make());
        let mut receive = Box::pin(rx.recv());
        park(receive.as_mut());
        tx.try_send(1).unwrap();
        rx.close();
        assert_eq!(dropped.take(), [], "{name}: the receive still has it");
        drop(receive);
        assert_eq!(dropped.take(), [1], "{name}");
    }
}

#[test]
fn on_drop_may_use_its_own_channel() {
    let (own_tx, own_rx) = bounded::<Sender<u32>>(1);
    let seen = Log::new();
    let log = seen.clone();
    let builder = Builder::bounded(1).overflow(Overflow::DropOldest).on_drop(move |value| {
        if let Ok(tx) = own_rx.try_recv() {
            log.push((value, tx.len()));
        }
    });
    let (tx, _rx) = builder.build().unwrap();
    own_tx.try_send(tx.clone()).unwrap();
    tx.try_send(1).unwrap();
    tx.try_send(2).unwrap();
    assert_eq!(seen.take(), [(1, 1)], "it ran outside the lock");
}

// ---- back to the front -------------------------------------------------------------------------

#[test]
fn a_receive_dropped_after_the_hand_off_gives_its_value_back() {
    for (name, make) in queues() {
        let (tx, rx) = make().build().unwrap();
        put_inside(&tx, &rx, 1);
        assert_eq!((rx.len(), rx.try_recv()), (1, Ok(1)), "{name}");
    }
}

#[test]
fn a_returned_value_goes_to_the_front_of_the_channel() {
    let (tx, rx) = bounded(4);
    let mut receive = Box::pin(rx.recv());
    park(receive.as_mut());
    send_each(&tx, 1..=3);
    drop(receive);
    assert_eq!(rx.try_iter().collect::<Vec<_>>(), [1, 2, 3]);
}

#[test]
fn returned_values_are_received_in_the_order_in_which_they_were_sent() {
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [2, 0, 1]] {
        let (tx, rx) = rendezvous();
        let mut receives: Vec<_> = (0..3).map(|_| Some(Box::pin(rx.recv()))).collect();
        receives.iter_mut().flatten().for_each(|op| park(op.as_mut()));
        send_each(&tx, 1..=3);
        order.into_iter().for_each(|index| drop(receives[index].take()));
        assert_eq!(rx.try_iter().collect::<Vec<_>>(), [1, 2, 3], "came back as {order:?}");
    }
}

#[test]
fn a_returned_value_goes_to_the_next_parked_receive() {
    let (tx, rx) = rendezvous();
    let mut quits = Box::pin(rx.recv());
    let mut stays = pin!(rx.recv());
    park(quits.as_mut());
    park(stays.as_mut());
    tx.try_send(1).unwrap();
    drop(quits);
    assert_eq!(ready(stays), Ok(1));
}

#[test]
fn a_value_returned_twice_keeps_its_place() {
    let (tx, rx) = rendezvous();
    let mut receives: Vec<_> = (0..3).map(|_| Box::pin(rx.recv())).collect();
    receives.iter_mut().for_each(|op| park(op.as_mut()));
    tx.try_send(1).unwrap();
    tx.try_send(2).unwrap();
    drop(receives.remove(0)); // 1 goes on to the third receive
    drop(receives); // 2 comes back, then 1
    assert_eq!(rx.try_iter().collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn a_returned_value_may_exceed_the_capacity_and_parked_sends_wait_for_room() {
    let (tx, rx) = bounded(1);
    let mut receive = Box::pin(rx.recv());
    park(receive.as_mut());
    tx.try_send(1).unwrap();
    tx.try_send(2).unwrap();
    drop(receive);
    assert_eq!((rx.len(), rx.is_full()), (2, true), "one over the capacity");
    let mut send = pin!(tx.send(3));
    park(send.as_mut());
    assert_eq!(rx.try_recv(), Ok(1));
    park(send.as_mut()); // back at the capacity: still no room
    assert_eq!(rx.try_recv(), Ok(2));
    assert_eq!(ready(send), Ok(Sent::Accepted));
}

#[test]
fn a_rendezvous_channel_holds_a_returned_value() {
    let (tx, rx) = rendezvous();
    put_inside(&tx, &rx, 1);
    let mut send = pin!(tx.send(2));
    park(send.as_mut());
    assert_eq!((rx.len(), rx.try_recv(), rx.try_recv()), (1, Ok(1), Ok(2)));
    assert_eq!(ready(send), Ok(Sent::Accepted));
}

#[test]
fn drop_oldest_and_conflated_drop_a_returned_value_without_room() {
    for (name, make) in [queues()[3], queues()[5]] {
        let (tx, rx, dropped) = logged(make());
        let mut receive = Box::pin(rx.recv());
        park(receive.as_mut());
        tx.try_send(1).unwrap();
        while !tx.is_full() {
            tx.try_send(2).unwrap();
        }
        drop(receive);
        assert_eq!(dropped.take(), [1], "{name}: the returned value is the oldest");
        assert!(rx.try_iter().all(|value| value == 2), "{name}");
    }
}

#[test]
fn drop_oldest_and_conflated_keep_a_returned_value_with_room() {
    for (name, make) in [queues()[3], queues()[5]] {
        let (tx, rx, dropped) = logged(make());
        put_inside(&tx, &rx, 1);
        assert_eq!((rx.len(), dropped.count()), (1, 0), "{name}");
        assert_eq!(rx.try_recv(), Ok(1), "{name}");
    }
}

#[test]
fn a_value_returned_after_the_close_is_still_received() {
    let (tx, rx) = rendezvous();
    let mut receive = Box::pin(rx.recv());
    park(receive.as_mut());
    tx.try_send(1).unwrap();
    drop(tx);
    drop(receive);
    assert_eq!((rx.is_closed(), rx.len()), (true, 1));
    assert_eq!(rx.recv().wait(), Ok(1));
    assert!(rx.recv().wait().unwrap_err().is_closed());
}
