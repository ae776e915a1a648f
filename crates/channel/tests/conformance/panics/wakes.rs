//! Wakers that panic when they are woken. All other operations are woken all the same.

use std::{
    collections::VecDeque,
    pin::pin,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use marline_channel::{
    CancelToken, Error, ErrorKind, Receiver, Select, Selector, Sent, bounded, broadcast, oneshot,
    rendezvous, unbounded, watch,
};

use crate::{
    assert_usable,
    conformance::{Wakes, panic_of, park, poll_with, queues, ready, send_each, until},
    trick::{Trick, panicking_wake},
};

#[test]
fn a_panic_in_a_receivers_waker_reaches_the_sender_and_the_value_arrives() {
    for (name, make) in queues() {
        let (tx, rx) = make().build().unwrap();
        let mut receive = pin!(rx.recv());
        assert!(poll_with(receive.as_mut(), &panicking_wake()).is_pending());
        assert_eq!(panic_of(|| tx.try_send(7)), "wake", "{name}");
        assert_eq!(ready(receive), Ok(7), "{name}");
        assert_usable(&tx, &rx);
    }
}

#[test]
fn a_panic_in_a_senders_waker_reaches_the_receiver_and_loses_no_value() {
    for (name, make) in [queues()[0], queues()[1]] {
        type Receive = fn(&Receiver<u32>) -> Result<u32, Error>;
        let receives: [(&str, Receive); 4] = [
            ("try_recv", |rx| rx.try_recv()),
            ("wait", |rx| rx.recv().wait()),
            ("poll", |rx| ready(pin!(rx.recv()))),
            ("select", |rx| Select::new().on(rx.recv(), |got| got).wait().unwrap()),
        ];
        for (how, receive) in receives {
            let (tx, rx) = make().build().unwrap();
            let inside = if tx.capacity() == Some(0) { 0 } else { 2 };
            send_each(&tx, 0..inside);
            let mut send = pin!(tx.send(inside));
            assert!(poll_with(send.as_mut(), &panicking_wake()).is_pending());
            assert_eq!(panic_of(|| receive(&rx)), "wake", "{name}, {how}");
            assert_eq!(ready(send), Ok(Sent::Accepted), "{name}, {how}");
            let all: Vec<u32> = rx.try_iter().collect();
            assert_eq!(all, (0..=inside).collect::<Vec<_>>(), "{name}, {how}: back at the front");
            assert_usable(&tx, &rx);
        }
    }
}

#[test]
fn a_panic_in_a_senders_waker_loses_no_value_of_recv_many() {
    let (tx, rx) = bounded(2);
    send_each(&tx, 0..2);
    let mut sends: Vec<_> = (2..5).map(|value| Box::pin(tx.send(value))).collect();
    assert!(poll_with(sends[0].as_mut(), &panicking_wake()).is_pending());
    sends.iter_mut().skip(1).for_each(|send| park(send.as_mut()));
    let mut values = vec![];
    assert_eq!(panic_of(|| rx.recv_many(&mut values, 10).wait()), "wake");
    values.extend(rx.try_iter());
    assert_eq!(values, [0, 1, 2, 3, 4]);
    assert!(sends.iter_mut().all(|send| ready(send.as_mut()).is_ok()));
    assert_usable(&tx, &rx);
}

#[test]
fn a_panic_in_a_receivers_waker_leaves_unsent_values_in_the_batch() {
    let (tx, rx) = rendezvous();
    let mut receives: Vec<_> = (0..3).map(|_| Box::pin(rx.recv())).collect();
    assert!(poll_with(receives[0].as_mut(), &panicking_wake()).is_pending());
    let (wakes, waker) = Wakes::pair();
    for receive in receives.iter_mut().skip(1) {
        assert!(poll_with(receive.as_mut(), &waker).is_pending());
    }
    let mut values = VecDeque::from([1, 2, 3, 4, 5]);
    assert_eq!(panic_of(|| tx.send_all(&mut values).deadline(Instant::now()).wait()), "wake");
    assert_eq!(wakes.count(), 2, "the others are woken");
    let received: Vec<u32> = receives.iter_mut().map(|op| ready(op.as_mut()).unwrap()).collect();
    assert_eq!((received, values), (vec![1, 2, 3], VecDeque::from([4, 5])));
    drop(receives);
    assert_usable(&tx, &rx);
}

#[test]
fn a_close_wakes_every_other_receive_although_a_waker_panics() {
    for (name, make) in queues::<u32>() {
        let (tx, rx) = make().build().unwrap();
        let (wakes, waker) = Wakes::pair();
        let mut receives: Vec<_> = (0..100).map(|_| Box::pin(rx.recv())).collect();
        for (index, receive) in receives.iter_mut().enumerate() {
            let waker = if index % 40 == 0 { panicking_wake() } else { waker.clone() };
            assert!(poll_with(receive.as_mut(), &waker).is_pending());
        }
        assert_eq!(panic_of(|| tx.close_channel()), "wake", "{name}");
        assert_eq!(wakes.count(), 97, "{name}");
        assert!(receives.iter_mut().all(|op| ready(op.as_mut()).is_err()), "{name}");
        assert!(!tx.close_channel(), "{name}: it is closed");
    }
}

#[test]
fn dropping_the_last_sender_wakes_every_receive_although_a_waker_panics() {
    let (tx, rx) = rendezvous::<u32>();
    let (wakes, waker) = Wakes::pair();
    let mut first = pin!(rx.recv());
    let mut second = pin!(rx.recv());
    assert!(poll_with(first.as_mut(), &panicking_wake()).is_pending());
    assert!(poll_with(second.as_mut(), &waker).is_pending());
    assert_eq!(panic_of(|| drop(tx)), "wake");
    assert_eq!((wakes.count(), rx.sender_count(), rx.is_closed()), (1, 0, true));
    assert!(ready(second).unwrap_err().is_closed());
}

#[test]
fn a_token_wakes_every_operation_although_a_waker_panics() {
    let (_tx, rx) = rendezvous::<u32>();
    let token = CancelToken::new();
    let child = token.child();
    let (wakes, waker) = Wakes::pair();
    let mut receives: Vec<_> = (0..40)
        .map(|index| Box::pin(rx.recv().cancel(if index % 2 == 0 { &token } else { &child })))
        .collect();
    for (index, receive) in receives.iter_mut().enumerate() {
        let waker = if index < 2 { panicking_wake() } else { waker.clone() };
        assert!(poll_with(receive.as_mut(), &waker).is_pending());
    }
    assert_eq!(panic_of(|| token.cancel()), "wake");
    assert_eq!((wakes.count(), child.is_cancelled()), (38, true));
    for receive in &mut receives {
        assert_eq!(ready(receive.as_mut()).unwrap_err().kind(), ErrorKind::Cancelled);
    }
}

#[test]
fn a_broadcast_wakes_every_receiver_although_a_waker_panics() {
    let (tx, mut first) = broadcast(2);
    let mut second = tx.subscribe();
    let (wakes, waker) = Wakes::pair();
    let (mut first, mut second) = (pin!(first.recv()), pin!(second.recv()));
    assert!(poll_with(first.as_mut(), &panicking_wake()).is_pending());
    assert!(poll_with(second.as_mut(), &waker).is_pending());
    assert_eq!(panic_of(|| tx.send(7)), "wake");
    assert_eq!((wakes.count(), ready(first), ready(second)), (1, Ok(7), Ok(7)));
}

#[test]
fn a_watch_wakes_every_receiver_although_a_waker_panics() {
    let (tx, mut first) = watch(0);
    let mut second = first.clone();
    let (wakes, waker) = Wakes::pair();
    {
        let (mut first, mut second) = (pin!(first.changed()), pin!(second.changed()));
        assert!(poll_with(first.as_mut(), &panicking_wake()).is_pending());
        assert!(poll_with(second.as_mut(), &waker).is_pending());
        assert_eq!(panic_of(|| tx.send(7)), "wake");
        assert_eq!((wakes.count(), ready(first), ready(second)), (1, Ok(()), Ok(())));
    }
    assert_eq!(*second.borrow(), 7);
    tx.send(8).unwrap();
    assert_eq!((first.try_changed(), *first.borrow()), (Ok(()), 8));
}

#[test]
fn a_panic_in_a_oneshots_waker_reaches_the_sender_and_the_value_arrives() {
    let (tx, mut rx) = oneshot();
    {
        let mut receive = pin!(rx.recv());
        assert!(poll_with(receive.as_mut(), &panicking_wake()).is_pending());
        assert_eq!(panic_of(|| tx.send(7)), "wake");
    }
    assert_eq!(rx.try_recv(), Ok(7));
}

#[test]
fn a_panic_in_a_selects_waker_reaches_the_sender_and_the_value_arrives() {
    let (tx, rx) = rendezvous();
    let (_other_tx, other_rx) = rendezvous();
    let mut select = pin!(Select::new().on(rx.recv(), |got| got).on(other_rx.recv(), |got| got));
    assert!(poll_with(select.as_mut(), &panicking_wake()).is_pending());
    assert_eq!(panic_of(|| tx.try_send(7)), "wake");
    assert_eq!(ready(select), Ok(Ok(7)));
    assert_usable(&tx, &rx);
}

#[test]
fn a_selector_keeps_its_chosen_value_when_a_waker_panics() {
    let (tx, rx) = bounded(1);
    tx.try_send(1).unwrap();
    let mut send = pin!(tx.send(2));
    assert!(poll_with(send.as_mut(), &panicking_wake()).is_pending());
    let mut selector = Selector::new();
    let key = selector.recv(&rx);
    assert_eq!(panic_of(|| selector.next().wait()), "wake");
    assert_eq!(selector.next().wait(), Ok(0));
    assert_eq!(selector.received(&key), Some(Ok(1)));
    assert_eq!(selector.next().wait(), Ok(0));
    assert_eq!(selector.received(&key), Some(Ok(2)));
}

#[test]
fn a_panic_in_a_waker_loses_neither_a_permit_nor_its_value() {
    let (tx, rx) = bounded(1);
    let permit = tx.try_reserve().unwrap();
    let mut reserve = pin!(tx.reserve());
    assert!(poll_with(reserve.as_mut(), &panicking_wake()).is_pending());
    assert_eq!(panic_of(|| drop(permit)), "wake");
    let permit = ready(reserve).unwrap();
    let mut receive = pin!(rx.recv());
    assert!(poll_with(receive.as_mut(), &panicking_wake()).is_pending());
    assert_eq!(panic_of(|| permit.send(7)), "wake");
    assert_eq!(ready(receive), Ok(7));
    assert_usable(&tx, &rx);
}

#[test]
fn a_panic_in_a_waker_while_a_value_returns_reaches_the_drop_of_its_receive() {
    let (tx, rx) = rendezvous();
    let mut quits = Box::pin(rx.recv());
    park(quits.as_mut());
    let mut stays = pin!(rx.recv());
    assert!(poll_with(stays.as_mut(), &panicking_wake()).is_pending());
    tx.try_send(7).unwrap();
    assert_eq!(panic_of(|| drop(quits)), "wake");
    assert_eq!(ready(stays), Ok(7));
    assert_usable(&tx, &rx);
}

#[test]
fn other_deadlines_ring_although_a_waker_panicked() {
    let (_tx, rx) = unbounded::<u32>();
    let trick = Trick::new();
    trick.at_wake.store(true, Ordering::SeqCst);
    let soon = Instant::now() + Duration::from_millis(2);
    let mut first = pin!(rx.recv().deadline(soon));
    let mut second = pin!(rx.recv().deadline(soon));
    let (wakes, waker) = Wakes::pair();
    if poll_with(first.as_mut(), &trick.waker()).is_pending() {
        until("the first rang", || trick.wakes.load(Ordering::SeqCst) > 0);
    }
    if poll_with(second.as_mut(), &waker).is_pending() {
        until("the second rang", || wakes.count() > 0);
    }
    let mut third = pin!(rx.recv().timeout(Duration::from_millis(2)));
    if poll_with(third.as_mut(), &waker).is_pending() {
        let before = wakes.count();
        until("the third rang", || wakes.count() > before);
    }
    assert_eq!(ready(first).unwrap_err().kind(), ErrorKind::Timeout);
}
