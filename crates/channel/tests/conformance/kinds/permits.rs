//! Permits: granted in order, given back, closed meanwhile, unsupported.

use std::pin::pin;

use marline_channel::{ErrorKind, Sent, bounded, unbounded};

use crate::conformance::{park, queues, ready};

#[test]
fn a_permit_takes_room_and_its_send_uses_it() {
    let (tx, rx) = bounded(1);
    let permit = tx.try_reserve().unwrap();
    assert_eq!((rx.len(), tx.is_full()), (0, true));
    assert_eq!(tx.try_send(1).unwrap_err().kind(), ErrorKind::Full);
    permit.send(2).unwrap();
    assert_eq!(rx.try_recv(), Ok(2));
}

#[test]
fn a_dropped_permit_gives_its_room_to_the_first_parked_sender() {
    let (tx, rx) = bounded(1);
    let permit = tx.reserve().wait().unwrap();
    let mut first = pin!(tx.send(1));
    let mut second = pin!(tx.send(2));
    park(first.as_mut());
    park(second.as_mut());
    drop(permit);
    assert_eq!(ready(first), Ok(Sent::Accepted));
    park(second.as_mut());
    assert_eq!(rx.try_recv(), Ok(1));
}

#[test]
fn reserves_and_sends_get_room_in_the_order_in_which_they_parked() {
    let (tx, rx) = bounded(1);
    tx.try_send(0).unwrap();
    let mut reserve = pin!(tx.reserve());
    let mut send = pin!(tx.send(2));
    park(reserve.as_mut());
    park(send.as_mut());
    assert_eq!(rx.try_recv(), Ok(0));
    park(send.as_mut());
    ready(reserve).unwrap().send(1).unwrap();
    assert_eq!(rx.try_recv(), Ok(1));
    assert_eq!(ready(send), Ok(Sent::Accepted));
}

#[test]
fn a_reserve_dropped_after_it_was_granted_gives_the_room_back() {
    let (tx, rx) = bounded(1);
    tx.try_send(0).unwrap();
    {
        let mut reserve = pin!(tx.reserve());
        park(reserve.as_mut());
        assert_eq!(rx.try_recv(), Ok(0));
    }
    assert_eq!(tx.try_send(1), Ok(Sent::Accepted));
}

#[test]
fn a_send_to_a_parked_receive_needs_no_room() {
    let (tx, rx) = bounded(1);
    let _permit = tx.try_reserve().unwrap();
    let mut receive = pin!(rx.recv());
    park(receive.as_mut());
    assert_eq!(tx.try_send(2), Ok(Sent::Accepted));
    assert_eq!(ready(receive), Ok(2));
}

#[test]
fn a_permit_sends_straight_to_a_parked_receive_and_frees_its_room() {
    let (tx, rx) = bounded(1);
    let permit = tx.try_reserve().unwrap();
    let mut receive = pin!(rx.recv());
    park(receive.as_mut());
    permit.send(3).unwrap();
    assert_eq!(ready(receive), Ok(3));
    assert_eq!(tx.try_send(4), Ok(Sent::Accepted), "the permit's room is free again");
}

#[test]
fn a_permit_of_a_closed_channel_gives_the_value_back() {
    let (tx, rx) = bounded(1);
    let permit = tx.try_reserve().unwrap();
    rx.close_channel();
    let error = permit.send(7).unwrap_err();
    assert_eq!((error.kind(), error.into_inner()), (ErrorKind::Closed, 7));
    assert_eq!(rx.try_recv().unwrap_err().kind(), ErrorKind::Closed);
}

#[test]
fn a_permit_dropped_after_the_close_does_nothing() {
    let (tx, rx) = bounded::<u32>(1);
    let permit = tx.try_reserve().unwrap();
    rx.close_channel();
    drop(permit);
    assert_eq!(tx.len(), 0);
}

#[test]
fn a_permit_still_sends_after_its_sender_is_released() {
    let (tx, rx) = bounded(1);
    let _other = tx.clone();
    let permit = tx.try_reserve().unwrap();
    tx.close();
    permit.send(1).unwrap();
    assert_eq!(rx.try_recv(), Ok(1));
}

#[test]
fn a_close_ends_a_parked_reserve() {
    let (tx, rx) = bounded(1);
    tx.try_send(0).unwrap();
    let mut reserve = pin!(tx.reserve());
    park(reserve.as_mut());
    rx.close_channel();
    assert!(ready(reserve).unwrap_err().is_closed());
}

#[test]
fn a_permit_stays_valid_although_a_returned_value_fills_the_channel() {
    let (tx, rx) = bounded(1);
    let mut receive = Box::pin(rx.recv());
    park(receive.as_mut());
    tx.try_send(1).unwrap();
    let permit = tx.try_reserve().unwrap();
    drop(receive); // the value goes back into a channel whose room is reserved
    assert_eq!(rx.len(), 1);
    permit.send(2).unwrap();
    assert_eq!(rx.try_iter().collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn unbounded_channels_always_grant_permits() {
    let (tx, rx) = unbounded();
    let permits: Vec<_> = (0..100).map(|_| tx.reserve().wait().unwrap()).collect();
    for (n, permit) in permits.into_iter().enumerate() {
        permit.send(n).unwrap();
    }
    assert_eq!(rx.try_iter().count(), 100);
}

#[test]
fn reserve_on_a_kind_without_permits_says_to_use_send() {
    for (name, make) in queues::<u32>() {
        let (tx, _rx) = make().build().unwrap();
        if matches!(name, "bounded" | "unbounded") {
            continue;
        }
        let error = tx.try_reserve().map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{name}");
        assert!(error.to_string().contains("use `send`"), "{name}: {error}");
        assert_eq!(tx.reserve().wait().map(drop).unwrap_err(), error, "{name}");
    }
}
