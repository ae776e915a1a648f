//! Exactly one of several clauses happens, of any types, and the losers keep their values.

use std::{pin::pin, thread};

use marline_channel::{ErrorKind, Select, Selector, Sent, bounded, rendezvous, unbounded};

use crate::{
    MOMENT,
    conformance::{PATIENCE, Wakes, join, park, poll_with, ready, run, until},
};

// ---- one of several -----------------------------------------------------------------------------

#[test]
fn clauses_of_different_types_mix() {
    let (numbers_tx, numbers) = unbounded::<u64>();
    let (words, words_rx) = bounded::<String>(1);
    let choose = || {
        Select::new()
            .biased()
            .on(numbers.recv(), |number| format!("{number:?}"))
            .on(words.send("word".to_string()), |sent| format!("{sent:?}"))
    };
    assert_eq!(choose().wait().unwrap(), "Ok(Accepted)");
    numbers_tx.try_send(5).unwrap();
    assert_eq!(run(choose()).unwrap(), "Ok(5)");
    assert_eq!(words_rx.try_recv(), Ok("word".to_string()));
    assert_eq!(words_rx.try_recv().unwrap_err().kind(), ErrorKind::Empty, "the loser sent nothing");
}

#[test]
fn a_waiting_task_is_woken_by_the_clause_that_happens() {
    let (tx, rx) = rendezvous();
    let (full_tx, full_rx) = bounded(1);
    full_tx.try_send(0).unwrap();
    let select = Select::new().on(rx.recv(), |got| got.unwrap()).on(full_tx.send(1), |_| 0);
    let mut select = pin!(select);
    let (wakes, waker) = Wakes::pair();
    assert!(poll_with(select.as_mut(), &waker).is_pending());
    assert_eq!(tx.try_send(7), Ok(Sent::Accepted));
    assert_eq!(wakes.count(), 1);
    assert_eq!(ready(select), Ok(7));
    assert_eq!((full_rx.len(), full_rx.snapshot().waiting_send), (1, 0), "the loser left");
}

#[test]
fn a_waiting_thread_is_woken_by_a_receive_clause() {
    let (tx, rx) = rendezvous();
    let (_other_tx, other_rx) = rendezvous::<u32>();
    let end = rx.clone();
    let waiter = thread::spawn(move || {
        Select::new().on(end.recv(), |got| got.unwrap()).on(other_rx.recv(), |_| 0).wait()
    });
    until("the select waits", || rx.snapshot().waiting_recv == 1);
    assert_eq!(tx.try_send(7), Ok(Sent::Accepted));
    assert_eq!(join(waiter), Ok(7));
}

#[test]
fn a_waiting_thread_is_woken_by_a_send_clause() {
    let (tx, rx) = rendezvous();
    let (_other_tx, other_rx) = rendezvous::<u32>();
    let waiter = thread::spawn(move || {
        Select::new().on(tx.send(7), |sent| sent.unwrap()).on(other_rx.recv(), |_| panic!()).wait()
    });
    until("the select waits", || rx.snapshot().waiting_send == 1);
    assert_eq!(rx.recv().timeout(PATIENCE).wait(), Ok(7));
    assert_eq!(join(waiter), Ok(Sent::Accepted));
}

#[test]
fn exactly_one_clause_happens() {
    let (tx1, rx1) = rendezvous();
    let (tx2, rx2) = rendezvous();
    let mut select = pin!(Select::new().on(rx1.recv(), |got| got).on(rx2.recv(), |got| got));
    park(select.as_mut());
    assert_eq!(tx2.try_send(2), Ok(Sent::Accepted));
    assert_eq!(tx1.try_send(1).unwrap_err().kind(), ErrorKind::Full, "the select is decided");
    assert_eq!(ready(select), Ok(Ok(2)));
}

#[test]
fn a_dropped_select_gives_its_value_back() {
    let (tx, rx) = rendezvous();
    let (_other_tx, other_rx) = rendezvous::<u32>();
    {
        let mut select = pin!(Select::new().on(rx.recv(), drop).on(other_rx.recv(), drop));
        park(select.as_mut());
        assert_eq!(tx.try_send(7), Ok(Sent::Accepted));
    }
    assert_eq!((rx.len(), rx.try_recv()), (1, Ok(7)));
}

#[test]
fn a_dropped_select_leaves_no_clause_parked() {
    let (tx, rx) = bounded(1);
    tx.try_send(0).unwrap();
    let (_other_tx, other_rx) = rendezvous::<u32>();
    {
        let mut select = pin!(Select::new().on(tx.send(1), drop).on(other_rx.recv(), drop));
        park(select.as_mut());
        assert_eq!((rx.snapshot().waiting_send, other_rx.snapshot().waiting_recv), (1, 1));
    }
    assert_eq!((rx.snapshot().waiting_send, other_rx.snapshot().waiting_recv), (0, 0));
    assert_eq!(rx.try_iter().collect::<Vec<_>>(), [0]);
}

#[test]
fn a_losing_send_keeps_its_value_and_can_still_be_sent() {
    let (tx, rx) = bounded(1);
    tx.try_send(0).unwrap();
    let (other_tx, other_rx) = unbounded::<u32>();
    let mut send = pin!(tx.send(1));
    for round in 0..3 {
        other_tx.try_send(round).unwrap();
        let select =
            Select::new().on(send.as_mut(), |_| 99).on(other_rx.recv(), |got| got.unwrap());
        assert_eq!(select.wait(), Ok(round));
    }
    park(send.as_mut());
    assert_eq!(rx.try_recv(), Ok(0));
    assert_eq!(ready(send), Ok(Sent::Accepted));
    assert_eq!(rx.try_recv(), Ok(1));
}

#[test]
fn into_unsent_of_a_losing_send_gives_its_value_back() {
    let (tx, _rx) = rendezvous();
    let (other_tx, other_rx) = unbounded();
    other_tx.try_send(1).unwrap();
    let mut send = pin!(tx.send("precious"));
    Select::new().on(send.as_mut(), drop).on(other_rx.recv(), drop).wait().unwrap();
    assert_eq!(send.into_unsent(), Some("precious"));
}

#[test]
fn a_parked_receive_can_become_a_clause() {
    let (tx, rx) = rendezvous();
    let (_other_tx, other_rx) = rendezvous::<u32>();
    let mut receive = pin!(rx.recv());
    park(receive.as_mut());
    let mut select =
        pin!(Select::new().on(receive.as_mut(), |got| got).on(other_rx.recv(), |got| got));
    park(select.as_mut());
    assert_eq!(rx.snapshot().waiting_recv, 1, "in its line once");
    tx.try_send(7).unwrap();
    assert_eq!(ready(select), Ok(Ok(7)));
}

#[test]
fn a_select_polled_with_a_new_waker_wakes_the_new_one() {
    let (tx, rx) = rendezvous();
    let (_other_tx, other_rx) = rendezvous::<u32>();
    let mut select = pin!(Select::new().on(rx.recv(), |got| got).on(other_rx.recv(), |got| got));
    let ((early, early_waker), (late, late_waker)) = (Wakes::pair(), Wakes::pair());
    assert!(poll_with(select.as_mut(), &early_waker).is_pending());
    assert!(poll_with(select.as_mut(), &late_waker).is_pending());
    tx.try_send(7).unwrap();
    assert_eq!((early.count(), late.count()), (0, 1));
    assert_eq!(ready(select), Ok(Ok(7)));
}

#[test]
fn an_empty_select_is_invalid() {
    let error = Select::<(), ()>::new().wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("at least one clause"), "{error}");
    assert_eq!(run(Select::<(), ()>::new()).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(Selector::new().next().wait().unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn a_send_whose_select_was_leaked_goes_on_by_itself() {
    let (tx, rx) = rendezvous();
    let (_other_tx, other_rx) = rendezvous::<u32>();
    let mut send = pin!(tx.send(7));
    {
        let select = Select::new().on(send.as_mut(), drop).on(other_rx.recv(), drop);
        let mut select = Box::pin(select);
        park(select.as_mut());
        std::mem::forget(select);
    }
    let (wakes, waker) = Wakes::pair();
    assert!(poll_with(send.as_mut(), &waker).is_pending());
    assert_eq!(rx.try_recv(), Ok(7));
    assert_eq!(wakes.count(), 1, "wakes the task that waits for the send now");
    assert_eq!(ready(send), Ok(Sent::Accepted));
}

// ---- the same channel twice ---------------------------------------------------------------------

#[test]
fn one_channel_may_be_in_several_clauses() {
    let (tx, rx) = rendezvous();
    let mut select = pin!(Select::new().on(rx.recv(), |got| got).on(rx.recv(), |got| got));
    park(select.as_mut());
    assert_eq!(tx.try_send(1), Ok(Sent::Accepted));
    assert_eq!(tx.try_send(2).unwrap_err().kind(), ErrorKind::Full);
    assert_eq!(ready(select), Ok(Ok(1)));
    assert_eq!(rx.snapshot().waiting_recv, 0);
}

#[test]
fn the_send_and_the_receive_of_one_select_never_meet() {
    let (tx, rx) = rendezvous();
    let sends_and_receives = || {
        Select::new()
            .on(tx.send(1), |sent| format!("{sent:?}"))
            .on(rx.recv(), |got| format!("{got:?}"))
    };
    let mut select = pin!(sends_and_receives());
    park(select.as_mut());
    park(select.as_mut());
    assert_eq!(rx.try_recv(), Ok(1), "other operations meet the select's send");
    assert_eq!(ready(select).unwrap(), "Ok(Accepted)");
    let mut select = pin!(sends_and_receives());
    park(select.as_mut());
    assert_eq!(tx.try_send(2), Ok(Sent::Accepted), "and the select's receive");
    assert_eq!(ready(select).unwrap(), "Ok(2)");
    let waited = sends_and_receives().timeout(MOMENT).wait();
    assert_eq!(waited.unwrap_err().kind(), ErrorKind::Timeout);
}

#[test]
fn two_selects_that_both_send_and_receive_meet_each_other() {
    let (tx, rx) = rendezvous();
    let select = |value| {
        Select::new()
            .on(tx.send(value), |sent| sent.map(|_| 0))
            .on(rx.recv(), |got| Ok(got.unwrap()))
    };
    let mut first = pin!(select(1));
    park(first.as_mut());
    let second = ready(pin!(select(2))).unwrap().unwrap();
    let first = ready(first).unwrap().unwrap();
    assert!(matches!((first, second), (0, 1) | (2, 0)), "{first} {second}");
}

// ---- many clauses -------------------------------------------------------------------------------

#[test]
fn a_selector_may_have_forty_clauses() {
    let channels: Vec<_> = (0..40).map(|_| rendezvous()).collect();
    for winner in [0, 15, 16, 17, 39] {
        let mut selector = Selector::new();
        let keys: Vec<_> = channels.iter().map(|(_, rx)| selector.recv(rx)).collect();
        {
            let mut next = pin!(selector.next());
            park(next.as_mut());
            assert_eq!(channels[winner].0.try_send(winner), Ok(Sent::Accepted));
            assert_eq!(ready(next), Ok(winner));
        }
        assert_eq!(selector.received(&keys[winner]), Some(Ok(winner)));
        assert!(channels.iter().all(|(_, rx)| rx.snapshot().waiting_recv == 0));
    }
}

#[test]
fn a_typed_select_may_have_twenty_clauses() {
    let (tx, rx) = rendezvous();
    let (_other_tx, other) = rendezvous::<u32>();
    let none = || other.recv();
    let end = rx.clone();
    let mut select = pin!(
        Select::new()
            .on(none(), |_| 0)
            .on(none(), |_| 1)
            .on(none(), |_| 2)
            .on(none(), |_| 3)
            .on(none(), |_| 4)
            .on(none(), |_| 5)
            .on(none(), |_| 6)
            .on(none(), |_| 7)
            .on(none(), |_| 8)
            .on(none(), |_| 9)
            .on(none(), |_| 10)
            .on(none(), |_| 11)
            .on(none(), |_| 12)
            .on(none(), |_| 13)
            .on(none(), |_| 14)
            .on(none(), |_| 15)
            .on(none(), |_| 16)
            .on(none(), |_| 17)
            .on(none(), |_| 18)
            .on(end.recv(), |got| 19 + got.unwrap())
    );
    park(select.as_mut());
    assert_eq!(other.snapshot().waiting_recv, 19);
    tx.try_send(100).unwrap();
    assert_eq!(ready(select), Ok(119));
    assert_eq!(other.snapshot().waiting_recv, 0);
}
