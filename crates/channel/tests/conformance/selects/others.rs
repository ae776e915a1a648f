//! Clauses of the kinds that are not queues (oneshot, broadcast, watch), alone and beside a queue.

use std::{pin::pin, thread};

use marline_channel::{
    CancelToken, ErrorKind, Select, Sent, broadcast, oneshot, rendezvous, unbounded, watch,
};

use crate::conformance::{Log, PATIENCE, Wakes, join, park, poll_with, ready, until};

#[test]
fn a_oneshot_clause_is_chosen_when_its_value_comes() {
    let (tx, mut once) = oneshot();
    let (_other_tx, other_rx) = rendezvous::<u32>();
    let (wakes, waker) = Wakes::pair();
    let mut select = pin!(Select::new().on(once.recv(), |got| got).on(other_rx.recv(), |got| got));
    assert!(poll_with(select.as_mut(), &waker).is_pending());
    tx.send(1).unwrap();
    assert_eq!(wakes.count(), 1);
    assert_eq!(ready(select), Ok(Ok(1)));
    assert_eq!(other_rx.snapshot().waiting_recv, 0);
}

#[test]
fn a_losing_oneshot_clause_keeps_its_value() {
    let (tx, mut once) = oneshot();
    let (other_tx, other_rx) = rendezvous();
    {
        let mut select =
            pin!(Select::new().on(once.recv(), |got| got).on(other_rx.recv(), |got| got));
        park(select.as_mut());
        assert_eq!(other_tx.try_send(2), Ok(Sent::Accepted));
        tx.send(1).unwrap();
        assert_eq!(ready(select), Ok(Ok(2)), "the channel was first");
    }
    assert_eq!(once.try_recv(), Ok(1));
}

#[test]
fn a_broadcast_clause_is_chosen_with_a_value_or_with_lagged() {
    let (tx, mut rx) = broadcast(1);
    let (_other_tx, other_rx) = rendezvous::<u32>();
    {
        let mut select =
            pin!(Select::new().on(rx.recv(), |got| got).on(other_rx.recv(), |got| got));
        park(select.as_mut());
        tx.send(1).unwrap();
        assert_eq!(ready(select), Ok(Ok(1)));
    }
    for value in 2..=4 {
        tx.send(value).unwrap();
    }
    let lagged = Select::new().on(rx.recv(), |got| got).on(other_rx.recv(), |got| got).wait();
    assert_eq!(lagged, Ok(Err(ErrorKind::Lagged(2).into())));
}

#[test]
fn a_watch_clause_is_chosen_by_a_change_and_by_the_close() {
    let (tx, mut rx) = watch(0);
    let (_other_tx, other_rx) = rendezvous::<()>();
    {
        let mut select =
            pin!(Select::new().on(rx.changed(), |got| got).on(other_rx.recv(), |got| got));
        park(select.as_mut());
        tx.send(1).unwrap();
        assert_eq!(ready(select), Ok(Ok(())));
    }
    drop(tx);
    let closed = Select::new().on(rx.changed(), |got| got).on(other_rx.recv(), |got| got).wait();
    assert_eq!(closed, Ok(Err(ErrorKind::Closed.into())));
}

#[test]
fn a_losing_watch_clause_leaves_the_value_unseen() {
    let (tx, mut rx) = watch(0);
    let (other_tx, other_rx) = unbounded();
    tx.send(1).unwrap();
    other_tx.try_send(2).unwrap();
    let chosen =
        Select::new().biased().on(other_rx.recv(), |got| got).on(rx.changed(), |_| panic!()).wait();
    assert_eq!((chosen, rx.has_changed()), (Ok(Ok(2)), Ok(true)));
}

#[test]
fn a_blocking_select_waits_for_a_queue_oneshot_broadcast_and_watch() {
    let (once_tx, mut once) = oneshot::<u32>();
    let (news_tx, mut news) = broadcast::<u32>(2);
    let (state_tx, mut state) = watch(0);
    let (queue_tx, queue) = rendezvous::<u32>();
    let seen = Log::new();
    let log = seen.clone();
    let queue_end = queue.clone();
    let waiter = thread::spawn(move || {
        for _ in 0..4 {
            Select::new()
                .skip_closed()
                .on(once.recv(), |got| log.push(("once", got.is_ok())))
                .on(news.recv(), |got| log.push(("news", got.is_ok())))
                .on(state.changed(), |got| log.push(("state", got.is_ok())))
                .on(queue_end.recv(), |got| log.push(("queue", got.is_ok())))
                .wait()
                .unwrap();
        }
    });
    let waits = || until("the select waits", || queue.snapshot().waiting_recv == 1);
    waits();
    news_tx.send(1).unwrap();
    until("the news came", || seen.count() == 1);
    waits();
    state_tx.send(1).unwrap();
    until("the state came", || seen.count() == 2);
    waits();
    queue_tx.send(1).timeout(PATIENCE).wait().unwrap();
    until("the value came", || seen.count() == 3);
    waits();
    once_tx.send(1).unwrap();
    join(waiter);
    assert_eq!(seen.take(), [("news", true), ("state", true), ("queue", true), ("once", true)]);
}

/// Tests that a clause that has its value when its token is triggered is chosen with its value.
macro_rules! completion_beats_its_token {
    ($name:ident, $ends:expr, $operation:ident, |$tx:ident| $peer:expr, $done:pat) => {
        #[test]
        #[allow(unused_mut, reason = "a queue's receiver need not be mutable")]
        fn $name() {
            let ($tx, mut rx) = $ends;
            let (_other_tx, other_rx) = rendezvous::<u32>();
            let token = CancelToken::new();
            let select = Select::new()
                .on(rx.$operation().cancel(&token), |got| matches!(got, $done))
                .on(other_rx.recv(), |_| false);
            let mut select = pin!(select);
            park(select.as_mut());
            $peer;
            token.cancel();
            assert_eq!(ready(select), Ok(true));
        }
    };
}

completion_beats_its_token!(
    a_oneshot_clause_that_has_its_value_beats_its_token,
    oneshot(),
    recv,
    |tx| tx.send(7).unwrap(),
    Ok(7)
);
completion_beats_its_token!(
    a_broadcast_clause_that_has_its_value_beats_its_token,
    broadcast(2),
    recv,
    |tx| tx.send(7).unwrap(),
    Ok(7)
);
completion_beats_its_token!(
    a_watch_clause_that_has_its_value_beats_its_token,
    watch(0),
    changed,
    |tx| tx.send(7).unwrap(),
    Ok(())
);
completion_beats_its_token!(
    a_queue_clause_that_has_its_value_beats_its_token,
    unbounded(),
    recv,
    |tx| tx.try_send(7).unwrap(),
    Ok(7)
);
