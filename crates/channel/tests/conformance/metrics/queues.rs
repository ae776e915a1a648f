//! The counters of queue channels: each operation counts once, by its result, and nothing else
//! counts.

use std::{
    collections::VecDeque,
    pin::pin,
    time::{Duration, Instant},
};

use marline_channel::{
    Builder, CancelToken, ErrorKind, Overflow, Receiver, Select, Selector, Sent, Totals, bounded,
    conflated, rendezvous, unbounded,
};

use crate::{
    conformance::{join, park, put_inside, queues, ready, send_each, until},
    totals, without_bytes,
};

const MOMENT: Duration = Duration::from_millis(2);

fn counted<T>(rx: &Receiver<T>) -> Totals {
    without_bytes(rx.snapshot().totals)
}

// ---- sends and receives ------------------------------------------------------------------------

#[test]
fn a_value_through_the_buffer_counts_as_a_send_and_a_receive() {
    for (name, make) in queues().into_iter().skip(1) {
        let (tx, rx) = make().build().unwrap();
        tx.try_send(1).unwrap();
        assert_eq!(counted(&rx), totals! { sends: 1 }, "{name}");
        assert_eq!(rx.try_recv(), Ok(1), "{name}");
        assert_eq!(counted(&rx), totals! { sends: 1, recvs: 1 }, "{name}");
    }
}

#[test]
fn a_value_handed_to_a_parked_receive_counts_as_a_send_and_a_receive() {
    for (name, make) in queues() {
        let (tx, rx) = make().build().unwrap();
        let mut receive = pin!(rx.recv());
        park(receive.as_mut());
        tx.try_send(1).unwrap();
        assert_eq!(counted(&rx), totals! { sends: 1, recvs: 1 }, "{name}");
        assert_eq!(ready(receive), Ok(1), "{name}");
        assert_eq!(counted(&rx), totals! { sends: 1, recvs: 1 }, "{name}: a poll changes nothing");
    }
}

#[test]
fn a_parked_send_counts_when_it_is_admitted() {
    let (tx, rx) = bounded(1);
    tx.try_send(1).unwrap();
    let mut send = pin!(tx.send(2));
    park(send.as_mut());
    assert_eq!(counted(&rx), totals! { sends: 1 });
    assert_eq!(rx.try_recv(), Ok(1));
    assert_eq!(counted(&rx), totals! { sends: 2, recvs: 1 });
    assert_eq!(ready(send), Ok(Sent::Accepted));
    assert_eq!(counted(&rx), totals! { sends: 2, recvs: 1 });
}

#[test]
fn a_parked_rendezvous_send_counts_when_its_value_is_received() {
    let (tx, rx) = rendezvous();
    let mut send = pin!(tx.send(1));
    park(send.as_mut());
    assert_eq!(counted(&rx), totals! {});
    assert_eq!(rx.try_recv(), Ok(1));
    assert_eq!(counted(&rx), totals! { sends: 1, recvs: 1 });
}

#[test]
fn blocking_operations_count_like_the_others() {
    let (tx, rx) = rendezvous();
    let sender = std::thread::spawn(move || {
        for value in 0..200 {
            tx.send(value).wait().unwrap();
        }
    });
    assert_eq!(rx.iter().count(), 200);
    join(sender);
    assert_eq!(counted(&rx), totals! { sends: 200, recvs: 200, recv_closed: 1 });
}

#[test]
fn a_permit_counts_as_a_send_when_it_sends() {
    let (tx, rx) = bounded(2);
    drop(tx.try_reserve().unwrap());
    let permit = tx.reserve().wait().unwrap();
    assert_eq!(counted(&rx), totals! {});
    permit.send(1).unwrap();
    assert_eq!(counted(&rx), totals! { sends: 1 });
}

#[test]
fn batches_count_their_values() {
    let (tx, rx) = unbounded();
    tx.send_all(&mut (0..100).collect()).wait().unwrap();
    rx.recv_many(&mut vec![], 70).wait().unwrap();
    assert_eq!(counted(&rx), totals! { sends: 100, recvs: 70 });
}

#[test]
fn long_queues_count_exactly() {
    let (tx, rx) = unbounded();
    send_each(&tx, 0..50_000u64);
    assert_eq!(counted(&rx), totals! { sends: 50_000 });
    assert_eq!(rx.try_iter().take(30_000).count(), 30_000);
    send_each(&tx, 0..10_000);
    assert_eq!(counted(&rx), totals! { sends: 60_000, recvs: 30_000 });
    drop(rx);
    let expected = totals! { sends: 60_000, recvs: 30_000, undelivered: 30_000 };
    assert_eq!(without_bytes(tx.snapshot().totals), expected);
}

// ---- failures ----------------------------------------------------------------------------------

#[test]
fn try_send_and_try_reserve_without_room_count_as_full() {
    let (tx, rx) = bounded(1);
    tx.try_send(1).unwrap();
    assert!(tx.try_send(2).is_err());
    assert_eq!(counted(&rx), totals! { sends: 1, send_full: 1 });
    assert!(tx.try_reserve().is_err());
    assert_eq!(counted(&rx), totals! { sends: 1, send_full: 2 });
}

#[test]
fn try_recv_without_a_value_counts_as_empty() {
    for (name, make) in queues::<u32>() {
        let (_tx, rx) = make().build().unwrap();
        assert!(rx.try_recv().is_err());
        assert_eq!(counted(&rx), totals! { recv_empty: 1 }, "{name}");
    }
}

#[test]
fn timed_out_sends_count_once_each() {
    let (tx, rx) = bounded(1);
    tx.try_send(1).unwrap();
    assert!(tx.send(2).timeout(MOMENT).wait().is_err());
    assert!(tx.send(2).deadline(Instant::now()).wait().is_err());
    assert!(tx.reserve().timeout(MOMENT).wait().is_err());
    assert!(tx.send_all(&mut VecDeque::from([2, 3])).timeout(MOMENT).wait().is_err());
    assert!(ready(pin!(tx.send(2).deadline(Instant::now()))).is_err());
    assert_eq!(counted(&rx), totals! { sends: 1, send_timeout: 5 });
}

#[test]
fn timed_out_receives_count_once_each() {
    let (_tx, rx) = bounded::<u32>(1);
    assert!(rx.recv().timeout(MOMENT).wait().is_err());
    assert!(rx.recv().deadline(Instant::now()).wait().is_err());
    assert!(rx.recv_many(&mut vec![], 2).timeout(MOMENT).wait().is_err());
    assert!(ready(pin!(rx.recv().deadline(Instant::now()))).is_err());
    assert_eq!(counted(&rx), totals! { recv_timeout: 4 });
}

#[test]
fn cancelled_sends_count_once_each_also_when_they_never_began() {
    let (tx, rx) = rendezvous::<u32>();
    let token = CancelToken::new();
    let mut send = Box::pin(tx.send(1).cancel(&token));
    park(send.as_mut());
    token.cancel();
    assert!(ready(send.as_mut()).is_err());
    drop(send);
    assert_eq!(counted(&rx), totals! { send_cancelled: 1 });
    assert!(tx.send(1).cancel(&token).wait().is_err());
    assert_eq!(counted(&rx), totals! { send_cancelled: 2 });
}

#[test]
fn cancelled_receives_count_once_each_also_when_they_never_began() {
    let (_tx, rx) = rendezvous::<u32>();
    let token = CancelToken::new();
    let mut receive = Box::pin(rx.recv().cancel(&token));
    park(receive.as_mut());
    token.cancel();
    assert!(ready(receive.as_mut()).is_err());
    drop(receive);
    assert_eq!(counted(&rx), totals! { recv_cancelled: 1 });
    assert!(rx.recv().cancel(&token).wait().is_err());
    assert_eq!(counted(&rx), totals! { recv_cancelled: 2 });
}

#[test]
fn operations_dropped_while_they_wait_count_as_cancelled() {
    let (tx, rx) = rendezvous();
    park(pin!(rx.recv()));
    park(pin!(rx.recv_many(&mut vec![], 2)));
    assert_eq!(counted(&rx), totals! { recv_cancelled: 2 });
    park(pin!(tx.send(1)));
    park(pin!(tx.send_all(&mut VecDeque::from([1]))));
    assert_eq!(counted(&rx), totals! { recv_cancelled: 2, send_cancelled: 2 });
    let mut send = pin!(tx.send(1));
    park(send.as_mut());
    assert_eq!(send.into_unsent(), Some(1));
    assert_eq!(counted(&rx), totals! { recv_cancelled: 2, send_cancelled: 3 });
}

#[test]
fn operations_dropped_before_they_began_are_not_counted() {
    let (tx, rx) = rendezvous();
    drop(rx.recv());
    drop(tx.send(1));
    drop(tx.reserve());
    assert_eq!(pin!(tx.send(1)).into_unsent(), Some(1));
    assert_eq!(counted(&rx), totals! {});
}

#[test]
fn sends_to_a_closed_channel_count_once_each() {
    for (name, make) in queues() {
        let (tx, rx) = make().build().unwrap();
        tx.close_channel();
        assert!(tx.try_send(1).is_err());
        assert!(tx.send(1).wait().is_err());
        assert!(ready(pin!(tx.send(1))).is_err());
        assert!(tx.send_all(&mut VecDeque::from([1, 2])).wait().is_err());
        assert_eq!(counted(&rx), totals! { send_closed: 4 }, "{name}");
    }
}

#[test]
fn receives_of_a_closed_channel_count_once_each() {
    for (name, make) in queues::<u32>() {
        let (tx, rx) = make().build().unwrap();
        drop(tx);
        assert!(rx.try_recv().is_err());
        assert!(rx.recv().wait().is_err());
        assert!(ready(pin!(rx.recv())).is_err());
        assert!(rx.recv_many(&mut vec![], 2).wait().is_err());
        assert_eq!(counted(&rx), totals! { recv_closed: 4 }, "{name}");
    }
}

#[test]
fn operations_that_a_close_ends_count_once_each() {
    let (tx, rx) = rendezvous::<u32>();
    let mut receive = pin!(rx.recv());
    park(receive.as_mut());
    tx.close_channel();
    assert!(ready(receive).is_err());
    assert_eq!(counted(&rx), totals! { recv_closed: 1 });
    let (tx, rx) = bounded(1);
    tx.try_send(0).unwrap();
    let (mut send, mut reserve) = (pin!(tx.send(1)), pin!(tx.reserve()));
    park(send.as_mut());
    park(reserve.as_mut());
    rx.close_channel();
    assert!(ready(send).is_err() && ready(reserve).is_err());
    assert_eq!(counted(&rx), totals! { sends: 1, send_closed: 2 });
}

#[test]
fn operations_of_a_released_end_are_not_counted() {
    let (tx, rx) = unbounded();
    let (_other_tx, other_rx) = (tx.clone(), rx.clone());
    tx.close();
    rx.close();
    assert!(tx.try_send(1).is_err() && tx.send(1).wait().is_err());
    assert!(rx.try_recv().is_err() && rx.recv().wait().is_err());
    assert_eq!(counted(&other_rx), totals! {});
}

// ---- values that are never received ------------------------------------------------------------

#[test]
fn a_discarded_oldest_value_and_the_send_that_discards_it_both_count() {
    for (name, make) in [queues()[3], queues()[5]] {
        let (tx, rx) = make().build().unwrap();
        let room = tx.capacity().unwrap() as u64;
        send_each(&tx, 0..5);
        let dropped = 5 - room;
        assert_eq!(counted(&rx), totals! { sends: 5, dropped_oldest: dropped }, "{name}");
        assert_eq!(rx.try_iter().count() as u64, room, "{name}");
        let expected = totals! { sends: 5, recvs: room, dropped_oldest: dropped, recv_empty: 1 };
        assert_eq!(counted(&rx), expected, "{name}");
    }
}

#[test]
fn a_value_discarded_by_drop_newest_counts_as_dropped_and_not_as_sent() {
    let (tx, rx) = Builder::bounded(1).overflow(Overflow::DropNewest).build().unwrap();
    send_each(&tx, 0..3);
    assert_eq!(counted(&rx), totals! { sends: 1, dropped_newest: 2 });
}

#[test]
fn values_inside_when_the_last_receiver_is_dropped_count_as_undelivered() {
    for (name, make) in queues() {
        let (tx, rx) = make().build().unwrap();
        put_inside(&tx, &rx, 1);
        drop(rx);
        let expected = totals! { sends: 1, undelivered: 1 };
        assert_eq!(without_bytes(tx.snapshot().totals), expected, "{name}");
    }
}

#[test]
fn drop_oldest_discards_no_value_when_a_permit_holds_the_room() {
    let (tx, rx) = bounded(1);
    let permit = tx.try_reserve().unwrap();
    tx.set_overflow(Overflow::DropOldest).unwrap();
    tx.try_send(1).unwrap();
    assert_eq!(counted(&rx).dropped_oldest, 0, "nothing was discarded");
    drop(permit);
}

// ---- values that come back ---------------------------------------------------------------------

#[test]
fn a_returned_value_does_not_count_as_received() {
    for (name, make) in queues() {
        let (tx, rx) = make().build().unwrap();
        put_inside(&tx, &rx, 1);
        assert_eq!(counted(&rx), totals! { sends: 1 }, "{name}");
        assert_eq!(rx.try_recv(), Ok(1), "{name}");
        assert_eq!(counted(&rx), totals! { sends: 1, recvs: 1 }, "{name}: and then it was, once");
    }
}

#[test]
fn a_returned_value_that_reaches_another_receive_counts_as_one_receive() {
    let (tx, rx) = rendezvous();
    let mut quits = Box::pin(rx.recv());
    let mut stays = pin!(rx.recv());
    park(quits.as_mut());
    park(stays.as_mut());
    tx.try_send(1).unwrap();
    drop(quits);
    assert_eq!(counted(&rx), totals! { sends: 1, recvs: 1 });
}

#[test]
fn a_returned_value_without_room_counts_as_dropped() {
    let (tx, rx) = conflated();
    let mut receive = Box::pin(rx.recv());
    park(receive.as_mut());
    tx.try_send(1).unwrap();
    tx.try_send(2).unwrap();
    drop(receive);
    assert_eq!(counted(&rx), totals! { sends: 2, dropped_oldest: 1 });
}

#[test]
fn a_value_returned_without_receivers_counts_as_undelivered() {
    let (tx, rx) = rendezvous();
    let mut receive = Box::pin(rx.recv());
    park(receive.as_mut());
    tx.try_send(1).unwrap();
    rx.close();
    drop(receive);
    let expected = totals! { sends: 1, undelivered: 1 };
    assert_eq!(without_bytes(tx.snapshot().totals), expected);
}

#[test]
fn a_returned_value_that_is_discarded_counts_as_dropped() {
    let (tx, rx) = conflated();
    put_inside(&tx, &rx, 1);
    tx.try_send(2).unwrap();
    assert_eq!(counted(&rx), totals! { sends: 2, dropped_oldest: 1 });
    assert_eq!(rx.try_recv(), Ok(2));
    assert_eq!(counted(&rx), totals! { sends: 2, recvs: 1, dropped_oldest: 1 });
}

// ---- selects -----------------------------------------------------------------------------------

#[test]
fn the_chosen_clause_counts_and_the_losers_do_not() {
    let (tx, rx) = rendezvous();
    let (full_tx, full_rx) = bounded(1);
    full_tx.try_send(0).unwrap();
    let mut select = pin!(Select::new().on(rx.recv(), drop).on(full_tx.send(1), drop));
    park(select.as_mut());
    tx.try_send(7).unwrap();
    ready(select).unwrap();
    assert_eq!(counted(&rx), totals! { sends: 1, recvs: 1 });
    assert_eq!(counted(&full_rx), totals! { sends: 1 });
}

#[test]
fn a_clause_that_timed_out_counts_and_the_select_itself_does_not() {
    let (_tx, rx) = rendezvous::<u32>();
    let (_other_tx, other_rx) = rendezvous::<u32>();
    Select::new().on(rx.recv().timeout(MOMENT), drop).on(other_rx.recv(), drop).wait().unwrap();
    assert_eq!((counted(&rx), counted(&other_rx)), (totals! { recv_timeout: 1 }, totals! {}));
    let select = Select::new().on(rx.recv(), drop).on(other_rx.recv(), drop);
    assert_eq!(select.timeout(MOMENT).wait().unwrap_err().kind(), ErrorKind::Timeout);
    assert_eq!((counted(&rx), counted(&other_rx)), (totals! { recv_timeout: 1 }, totals! {}));
}

#[test]
fn a_selector_result_that_is_not_taken_does_not_count_as_received() {
    let (tx, rx) = unbounded();
    tx.try_send(1).unwrap();
    let mut selector = Selector::new();
    selector.recv(&rx);
    assert_eq!(selector.next().wait(), Ok(0));
    drop(selector);
    assert_eq!(counted(&rx), totals! { sends: 1 });
}

// ---- bytes -------------------------------------------------------------------------------------

fn bytes<T>(rx: &Receiver<T>) -> (u64, u64) {
    let totals = rx.snapshot().totals;
    (totals.bytes_sent, totals.bytes_received)
}

#[test]
fn bytes_count_the_size_of_the_value_type() {
    for (name, make) in queues::<[u8; 24]>() {
        let (tx, rx) = make().build().unwrap();
        put_inside(&tx, &rx, [0; 24]);
        assert_eq!(bytes(&rx), (24, 0), "{name}");
        assert!(rx.try_recv().is_ok(), "{name}");
        assert_eq!(bytes(&rx), (24, 24), "{name}");
    }
}

#[test]
fn bytes_count_what_measure_returns() {
    for (name, make) in queues::<&'static str>() {
        let (tx, rx) = make().measure(|word| word.len()).build().unwrap();
        put_inside(&tx, &rx, "four");
        assert_eq!(bytes(&rx), (4, 0), "{name}: the value that came back was not received");
        assert!(rx.try_recv().is_ok(), "{name}");
        let mut receive = pin!(rx.recv());
        park(receive.as_mut());
        tx.try_send("fifteen letters").unwrap();
        assert_eq!(bytes(&rx), (19, 19), "{name}");
    }
}

#[test]
fn values_discarded_by_drop_newest_add_no_bytes() {
    let builder =
        Builder::bounded(1).overflow(Overflow::DropNewest).measure(|word: &&str| word.len());
    let (tx, rx) = builder.build().unwrap();
    tx.try_send("inside").unwrap();
    tx.try_send("refused").unwrap();
    assert_eq!(bytes(&rx), (6, 0));
}

// ---- levels ------------------------------------------------------------------------------------

#[test]
fn high_water_is_the_largest_len_ever() {
    let (tx, rx) = unbounded();
    let high_water = || rx.snapshot().high_water;
    assert_eq!(high_water(), 0);
    send_each(&tx, 0..5);
    assert_eq!(rx.try_iter().count(), 5);
    send_each(&tx, 0..3);
    assert_eq!((high_water(), rx.len()), (5, 3));
    send_each(&tx, 0..3);
    assert_eq!(high_water(), 6);
}

#[test]
fn a_hand_off_does_not_raise_high_water() {
    let (tx, rx) = bounded(4);
    let mut receive = pin!(rx.recv());
    park(receive.as_mut());
    tx.try_send(1).unwrap();
    assert_eq!(rx.snapshot().high_water, 0);
}

#[test]
fn a_returned_value_over_the_capacity_raises_high_water() {
    let (tx, rx) = bounded(1);
    let mut receive = Box::pin(rx.recv());
    park(receive.as_mut());
    send_each(&tx, [1, 2]);
    drop(receive);
    assert_eq!((rx.snapshot().high_water, rx.len()), (2, 2));
}

// ---- the close ---------------------------------------------------------------------------------

#[test]
fn counters_survive_the_close() {
    let (tx, rx) = bounded(4);
    send_each(&tx, 0..3);
    assert_eq!(rx.try_recv(), Ok(0));
    drop(tx);
    assert_eq!(counted(&rx), totals! { sends: 3, recvs: 1 });
    assert_eq!(rx.iter().count(), 2);
    assert_eq!(counted(&rx), totals! { sends: 3, recvs: 3, recv_closed: 1 });
}

#[test]
fn a_snapshot_counts_a_waiting_thread_until_it_is_served() {
    let (tx, rx) = bounded::<u32>(1);
    let end = rx.clone();
    let waiter = std::thread::spawn(move || end.recv().wait());
    until("the thread waits", || rx.snapshot().waiting_recv == 1);
    tx.try_send(1).unwrap();
    assert_eq!(rx.snapshot().waiting_recv, 0);
    assert_eq!(join(waiter), Ok(1));
}
