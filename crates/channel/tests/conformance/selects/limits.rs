//! Deadlines and tokens of clauses and of the select itself.

use std::{pin::pin, thread, time::Instant};

use marline_channel::{CancelToken, Error, ErrorKind, Select, bounded, rendezvous, unbounded};

use crate::{
    MOMENT,
    conformance::{Wakes, join, park, poll_with, ready, run, until},
    far,
};

#[test]
fn the_earliest_deadline_of_the_clauses_chooses_its_clause() {
    let (_tx, rx) = unbounded::<u32>();
    for soon in 0..2 {
        let deadline = |index| if index == soon { Instant::now() + MOMENT } else { far() };
        let select = || {
            Select::new()
                .on(rx.recv().deadline(deadline(0)), |got| (0, got))
                .on(rx.recv().deadline(deadline(1)), |got| (1, got))
        };
        let expected = Ok((soon, Err(Error::from(ErrorKind::Timeout))));
        assert_eq!(select().wait(), expected);
        assert_eq!(run(select()), expected);
    }
}

#[test]
fn a_send_clause_that_timed_out_gives_its_value_back() {
    let (tx, _rx) = rendezvous();
    let (_other_tx, other_rx) = unbounded::<u32>();
    let select = Select::new()
        .on(tx.send(7).timeout(MOMENT), |sent| sent.unwrap_err())
        .on(other_rx.recv(), |_| panic!("nothing was sent"));
    let error = select.wait().unwrap();
    assert_eq!((error.kind(), error.into_inner()), (ErrorKind::Timeout, 7));
}

#[test]
fn the_selects_own_deadline_ends_it_with_timeout() {
    let (_tx, rx) = unbounded::<u32>();
    let select = || Select::new().on(rx.recv().deadline(far()), drop).timeout(MOMENT);
    assert_eq!(select().wait().unwrap_err().kind(), ErrorKind::Timeout);
    assert_eq!(run(select()).unwrap_err().kind(), ErrorKind::Timeout);
}

#[test]
fn a_clauses_deadline_before_the_selects_own_chooses_the_clause() {
    let (_tx, rx) = unbounded::<u32>();
    let select = || Select::new().on(rx.recv().timeout(MOMENT), |got| got).deadline(far());
    assert_eq!(select().wait().unwrap().unwrap_err().kind(), ErrorKind::Timeout);
    assert_eq!(run(select()).unwrap().unwrap_err().kind(), ErrorKind::Timeout);
}

#[test]
fn a_passed_deadline_of_a_clause_still_allows_an_attempt_at_every_clause() {
    let (_tx, rx) = unbounded::<u32>();
    let (ready_tx, ready_rx) = unbounded();
    ready_tx.try_send(7).unwrap();
    let select = Select::new()
        .biased()
        .on(rx.recv().deadline(Instant::now()), |got| got)
        .on(ready_rx.recv(), |got| got);
    assert_eq!(select.wait(), Ok(Ok(7)));
}

#[test]
fn a_triggered_token_chooses_its_clause() {
    let (_tx, rx) = rendezvous::<u32>();
    let (full, _full_rx) = rendezvous();
    let token = CancelToken::new();
    let (wakes, waker) = Wakes::pair();
    let select = Select::new().on(rx.recv(), |got| got.map(drop).unwrap_err().kind()).on(
        full.send(7).cancel(&token),
        |sent| {
            let error = sent.unwrap_err();
            assert_eq!(*error.value(), 7);
            error.kind()
        },
    );
    let mut select = pin!(select);
    assert!(poll_with(select.as_mut(), &waker).is_pending());
    token.cancel();
    assert_eq!(wakes.count(), 1);
    assert_eq!(ready(select), Ok(ErrorKind::Cancelled));
}

#[test]
fn a_clauses_token_ends_the_blocking_wait_of_its_select() {
    let (_tx, rx) = rendezvous::<u32>();
    let token = CancelToken::new();
    let (end, its) = (rx.clone(), token.clone());
    let waiter = thread::spawn(move || Select::new().on(end.recv().cancel(&its), |got| got).wait());
    until("the select waits", || rx.snapshot().waiting_recv == 1);
    token.cancel();
    assert_eq!(join(waiter), Ok(Err(ErrorKind::Cancelled.into())));
}

#[test]
fn a_clause_whose_token_was_triggered_before_is_chosen_without_an_attempt() {
    let (tx, rx) = unbounded();
    tx.try_send(1).unwrap();
    let token = CancelToken::new();
    token.cancel();
    let chosen = Select::new().on(rx.recv().cancel(&token), |got| got).wait();
    assert_eq!(chosen, Ok(Err(ErrorKind::Cancelled.into())));
    assert_eq!(rx.len(), 1);
}

#[test]
fn a_select_with_a_triggered_token_ends_without_an_attempt() {
    let (tx, rx) = bounded(1);
    let token = CancelToken::new();
    token.cancel();
    let mut send = pin!(tx.send(7));
    let error = Select::new().on(send.as_mut(), drop).cancel(&token).wait().unwrap_err();
    assert_eq!((error.kind(), rx.len()), (ErrorKind::Cancelled, 0));
    assert_eq!(send.into_unsent(), Some(7));
}

#[test]
fn the_selects_own_token_ends_it_and_a_send_keeps_its_value() {
    let (tx, rx) = rendezvous();
    let token = CancelToken::new();
    let mut send = pin!(tx.send(7));
    {
        let mut select = pin!(Select::new().on(send.as_mut(), drop).cancel(&token));
        park(select.as_mut());
        token.cancel();
        assert_eq!(ready(select).unwrap_err().kind(), ErrorKind::Cancelled);
    }
    assert_eq!(rx.snapshot().waiting_send, 0);
    assert_eq!(send.into_unsent(), Some(7));
}
