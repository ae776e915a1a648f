//! Closed channels in a select: ready with their error, or skipped.

use std::{pin::pin, time::Instant};

use marline_channel::{ErrorKind, Select, bounded, oneshot, rendezvous, unbounded};

use crate::conformance::{Wakes, park, poll_with, ready};

#[test]
fn a_clause_on_a_closed_channel_is_ready_with_its_error() {
    let (tx, rx) = unbounded::<u32>();
    let (_open_tx, open_rx) = unbounded::<u32>();
    drop(tx);
    let chosen =
        Select::new().on(rx.recv(), |got| (0, got)).on(open_rx.recv(), |got| (1, got)).wait();
    assert_eq!(chosen, Ok((0, Err(ErrorKind::Closed.into()))));
}

#[test]
fn a_send_clause_on_a_closed_channel_gives_its_value_back() {
    let (tx, rx) = bounded(1);
    drop(rx);
    let (_open_tx, open_rx) = unbounded::<u32>();
    let error = Select::new()
        .on(tx.send(7), |sent| sent.unwrap_err())
        .on(open_rx.recv(), |_| panic!("nothing was sent"))
        .wait()
        .unwrap();
    assert_eq!((error.kind(), error.into_inner()), (ErrorKind::Closed, 7));
}

#[test]
fn a_clause_of_a_released_end_fails_with_closed() {
    let (tx, rx) = unbounded();
    let other = rx.clone();
    tx.try_send(1).unwrap();
    rx.close();
    let select = || Select::new().on(rx.recv(), |got| got).wait();
    assert_eq!(select(), Ok(Err(ErrorKind::Closed.into())));
    assert_eq!(other.len(), 1);
}

#[test]
fn a_close_ends_a_waiting_select() {
    let (tx, rx) = unbounded::<u32>();
    let (_open_tx, open_rx) = unbounded::<u32>();
    let (wakes, waker) = Wakes::pair();
    let mut select = pin!(Select::new().on(rx.recv(), |got| got).on(open_rx.recv(), |got| got));
    assert!(poll_with(select.as_mut(), &waker).is_pending());
    drop(tx);
    assert_eq!(wakes.count(), 1);
    assert_eq!(ready(select), Ok(Err(ErrorKind::Closed.into())));
}

#[test]
fn skip_closed_passes_over_closed_channels() {
    let (tx, rx) = unbounded::<u32>();
    let (open_tx, open_rx) = unbounded::<u32>();
    drop(tx);
    let select = || {
        Select::new().biased().skip_closed().on(rx.recv(), |got| got).on(open_rx.recv(), |got| got)
    };
    let mut waits = pin!(select());
    park(waits.as_mut());
    open_tx.try_send(7).unwrap();
    assert_eq!(ready(waits), Ok(Ok(7)));
    open_tx.try_send(8).unwrap();
    assert_eq!(select().wait(), Ok(Ok(8)));
}

#[test]
fn skip_closed_still_takes_the_values_inside_a_closed_channel() {
    let (tx, rx) = unbounded();
    tx.try_send(1).unwrap();
    drop(tx);
    let select = || Select::new().skip_closed().on(rx.recv(), |got| got).wait();
    assert_eq!(select(), Ok(Ok(1)));
    assert_eq!(select().unwrap_err().kind(), ErrorKind::Closed);
}

#[test]
fn skip_closed_keeps_waiting_when_one_channel_closes() {
    let (tx, rx) = unbounded::<u32>();
    let (open_tx, open_rx) = unbounded::<u32>();
    let select = Select::new().skip_closed().on(rx.recv(), |got| got).on(open_rx.recv(), |got| got);
    let mut select = pin!(select);
    park(select.as_mut());
    drop(tx);
    park(select.as_mut());
    open_tx.try_send(7).unwrap();
    assert_eq!(ready(select), Ok(Ok(7)));
}

#[test]
fn skip_closed_fails_with_closed_when_every_channel_is_closed() {
    let (tx, rx) = unbounded::<u32>();
    let (full_tx, full_rx) = rendezvous::<u32>();
    let mut waits = pin!(Select::new().skip_closed().on(rx.recv(), drop).on(full_tx.send(1), drop));
    park(waits.as_mut());
    drop(tx);
    park(waits.as_mut());
    drop(full_rx);
    assert_eq!(ready(waits).unwrap_err().kind(), ErrorKind::Closed);
}

#[test]
fn skip_closed_passes_over_a_closed_clause_whose_deadline_passed() {
    let (tx, rx) = unbounded::<u32>();
    let (open_tx, open_rx) = unbounded::<u32>();
    drop(tx);
    let select = Select::new()
        .skip_closed()
        .on(rx.recv().deadline(Instant::now()), |got| got)
        .on(open_rx.recv(), |got| got);
    let mut select = pin!(select);
    park(select.as_mut());
    open_tx.try_send(7).unwrap();
    assert_eq!(ready(select), Ok(Ok(7)));
}

#[test]
fn skip_closed_passes_over_a_oneshot_that_was_received() {
    let (tx, mut once) = oneshot();
    let (open_tx, open_rx) = unbounded();
    tx.send(1).unwrap();
    open_tx.try_send(2).unwrap();
    let mut select = || {
        Select::new()
            .biased()
            .skip_closed()
            .on(once.recv(), |got| got)
            .on(open_rx.recv(), |got| got)
            .wait()
    };
    assert_eq!(select(), Ok(Ok(1)));
    assert_eq!(select(), Ok(Ok(2)), "no value can come from the oneshot any more");
}
