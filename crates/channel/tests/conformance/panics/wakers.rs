//! Wakers that panic when they are cloned or dropped.

use std::{
    pin::pin,
    sync::{Arc, Mutex, atomic::Ordering},
    time::{Duration, Instant},
};

use marline_channel::{
    CancelToken, Select, Sender, Sent, bounded, broadcast, oneshot, rendezvous, unbounded, watch,
};

use crate::{
    assert_usable,
    conformance::{Wakes, panic_of, park, poll_with, queues, ready},
    trick::Trick,
};

// ---- clone --------------------------------------------------------------------------------------

/// Polls with a waker that panics when it is cloned, then with a good waker, and expects to wait.
macro_rules! survives_a_panicking_clone {
    ($op:expr) => {
        let trick = Trick::new();
        trick.at_clone.store(true, Ordering::SeqCst);
        assert_eq!(panic_of(|| poll_with($op.as_mut(), &trick.waker()).is_ready()), "clone");
        park($op.as_mut());
    };
}

#[test]
fn a_waker_that_panics_when_cloned_leaves_a_send_intact() {
    for (name, make) in [queues()[0], queues()[1]] {
        let (tx, rx) = make().build().unwrap();
        while tx.try_send(0).is_ok() {}
        let mut send = Box::pin(tx.send(7));
        survives_a_panicking_clone!(send);
        assert_eq!(rx.snapshot().waiting_send, 1, "{name}");
        assert_eq!(send.as_mut().into_unsent(), Some(7), "{name}");
        assert_eq!(rx.try_iter().filter(|value| *value == 7).count(), 0, "{name}");
        drop(send);
        assert_usable(&tx, &rx);
    }
}

#[test]
fn a_waker_that_panics_when_cloned_leaves_a_receive_intact() {
    for (name, make) in queues() {
        let (tx, rx) = make().build().unwrap();
        let mut receive = Box::pin(rx.recv());
        survives_a_panicking_clone!(receive);
        assert_eq!(rx.snapshot().waiting_recv, 1, "{name}");
        tx.try_send(7).unwrap();
        assert_eq!(ready(receive.as_mut()), Ok(7), "{name}");
    }
}

#[test]
fn a_waker_that_panics_when_cloned_leaves_every_other_operation_intact() {
    let (tx, rx) = bounded(1);
    tx.try_send(0).unwrap();
    let mut reserve = Box::pin(tx.reserve());
    survives_a_panicking_clone!(reserve);
    assert_eq!(rx.try_recv(), Ok(0));
    drop(ready(reserve.as_mut()).unwrap());

    let (once_tx, mut once) = oneshot();
    let mut receive = Box::pin(once.recv());
    survives_a_panicking_clone!(receive);
    once_tx.send(1).unwrap();
    assert_eq!(ready(receive.as_mut()), Ok(1));

    let (news_tx, mut news) = broadcast(1);
    let mut receive = Box::pin(news.recv());
    survives_a_panicking_clone!(receive);
    news_tx.send(2).unwrap();
    assert_eq!(ready(receive.as_mut()), Ok(2));

    let (state_tx, mut state) = watch(0);
    let mut changed = Box::pin(state.changed());
    survives_a_panicking_clone!(changed);
    state_tx.send(3).unwrap();
    assert_eq!(ready(changed.as_mut()), Ok(()));

    let (_none_tx, none) = rendezvous::<u32>();
    let mut select = Box::pin(Select::new().on(rx.recv(), |got| got).on(none.recv(), |got| got));
    survives_a_panicking_clone!(select);
    tx.try_send(4).unwrap();
    assert_eq!(ready(select.as_mut()), Ok(Ok(4)));
}

#[test]
fn a_waker_that_panics_when_cloned_for_a_limit_leaves_the_operation_parked() {
    let (tx, rx) = unbounded();
    let token = CancelToken::new();
    let far = Instant::now() + Duration::from_secs(1000);
    for limited in [rx.recv().cancel(&token), rx.recv().deadline(far)] {
        let mut receive = Box::pin(limited);
        let trick = Trick::new();
        // The first clone is for the channel; the second, for the limit, panics.
        *trick.on_clone.lock().unwrap() = Some(Box::new(|| {
            let again: Box<dyn FnOnce() + Send> = Box::new(|| trick_armed(trick));
            *trick.on_clone.lock().unwrap() = Some(again);
        }));
        assert_eq!(panic_of(|| poll_with(receive.as_mut(), &trick.waker()).is_ready()), "clone");
        assert_eq!(rx.snapshot().waiting_recv, 1);
        tx.try_send(7).unwrap();
        assert_eq!(trick.wakes.load(Ordering::SeqCst), 1);
        assert_eq!(ready(receive.as_mut()), Ok(7));
    }
}

fn trick_armed(trick: &Trick) {
    trick.at_clone.store(true, Ordering::SeqCst);
}

// ---- drop ---------------------------------------------------------------------------------------

#[test]
fn a_waker_that_panics_when_dropped_reaches_the_drop_of_its_operation() {
    for (name, make) in queues::<u32>() {
        let (tx, rx) = make().build().unwrap();
        let trick = Trick::new();
        let mut receive = Box::pin(rx.recv());
        assert!(poll_with(receive.as_mut(), &trick.waker()).is_pending());
        trick.at_drop.store(true, Ordering::SeqCst);
        assert_eq!(panic_of(|| drop(receive)), "drop", "{name}");
        assert_eq!(rx.snapshot().waiting_recv, 0, "{name}: it left the line");
        assert_usable(&tx, &rx);
    }
}

#[test]
fn a_waker_that_panics_when_replaced_leaves_the_operation_parked() {
    let (tx, rx) = rendezvous();
    let trick = Trick::new();
    let mut receive = pin!(rx.recv());
    assert!(poll_with(receive.as_mut(), &trick.waker()).is_pending());
    trick.at_drop.store(true, Ordering::SeqCst);
    let (wakes, waker) = Wakes::pair();
    assert_eq!(panic_of(|| poll_with(receive.as_mut(), &waker).is_ready()), "drop");
    assert_eq!(tx.try_send(7), Ok(Sent::Accepted));
    assert_eq!((wakes.count(), ready(receive)), (1, Ok(7)));
    assert_usable(&tx, &rx);
}

#[test]
fn a_waker_that_panics_when_dropped_at_a_cancel_leaves_the_send_its_value() {
    let (tx, rx) = rendezvous();
    let token = CancelToken::new();
    let trick = Trick::new();
    let mut send = pin!(tx.send(7).cancel(&token));
    assert!(poll_with(send.as_mut(), &trick.waker()).is_pending());
    token.cancel();
    trick.at_drop.store(true, Ordering::SeqCst);
    assert_eq!(panic_of(|| ready(send.as_mut())), "drop");
    assert_eq!(send.into_unsent(), Some(7));
    assert_usable(&tx, &rx);
}

/// The value comes between the two attempts of a poll, while the waker is cloned. Then the clone is
/// not needed, and its drop panics.
#[test]
fn an_unneeded_waker_clone_that_panics_when_dropped_loses_no_value() {
    let (tx, rx) = unbounded();
    let trick = Trick::new();
    let end = tx.clone();
    *trick.on_clone.lock().unwrap() = Some(Box::new(move || {
        end.try_send(7).unwrap();
        trick.at_drop.store(true, Ordering::SeqCst);
    }));
    let mut receive = Box::pin(rx.recv());
    let waker = trick.waker();
    let message = panic_of(|| poll_with(receive.as_mut(), &waker).is_ready());
    assert_eq!(message, "drop");
    drop(receive);
    assert_eq!(rx.try_recv(), Ok(7), "it went back");
}

/// As above, with a send that parks meanwhile and that this receive admits.
#[test]
fn an_unneeded_waker_clone_that_panics_when_dropped_loses_no_wake_up() {
    let (tx, rx) = bounded(1);
    let tx: &'static Sender<u32> = Box::leak(Box::new(tx));
    let send = Arc::new(Mutex::new(Box::pin(tx.send(8))));
    let trick = Trick::new();
    let (wakes, waker) = Wakes::pair();
    let its = send.clone();
    *trick.on_clone.lock().unwrap() = Some(Box::new(move || {
        tx.try_send(7).unwrap();
        assert!(poll_with(its.lock().unwrap().as_mut(), &waker).is_pending());
        trick.at_drop.store(true, Ordering::SeqCst);
    }));
    let mut receive = Box::pin(rx.recv());
    let waker = trick.waker();
    assert_eq!(panic_of(|| poll_with(receive.as_mut(), &waker).is_ready()), "drop");
    assert_eq!(wakes.count(), 1, "the admitted send is woken");
    assert_eq!(ready(send.lock().unwrap().as_mut()), Ok(Sent::Accepted));
}
