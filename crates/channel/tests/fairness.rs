//! First come, first served: parked operations keep their order, and an operation that does not
//! wait does not overtake them.

mod conformance;

use std::{
    collections::VecDeque,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
};

use conformance::{PATIENCE, Wakes, join, park, poll_with, queues, ready, send_each, until};
use marline_channel::{CancelToken, Select, Sent, bounded, rendezvous};

// ---- the line ----------------------------------------------------------------------------------

#[test]
fn parked_receives_are_served_in_order() {
    for (name, make) in queues() {
        let (tx, rx) = make().build().unwrap();
        let mut receives: Vec<_> = (0..10).map(|_| Box::pin(rx.recv())).collect();
        receives.iter_mut().for_each(|op| park(op.as_mut()));
        send_each(&tx, 0..10);
        let got: Vec<u32> = receives.iter_mut().map(|op| ready(op.as_mut()).unwrap()).collect();
        assert_eq!(got, (0..10).collect::<Vec<_>>(), "{name}");
    }
}

#[test]
fn parked_sends_are_served_in_order() {
    for (name, make) in [queues()[0], queues()[1]] {
        let (tx, rx) = make().build().unwrap();
        let inside = tx.capacity().unwrap() as u32;
        send_each(&tx, 0..inside);
        let mut sends: Vec<_> = (inside..10).map(|value| Box::pin(tx.send(value))).collect();
        sends.iter_mut().for_each(|op| park(op.as_mut()));
        assert_eq!(rx.try_iter().collect::<Vec<_>>(), (0..10).collect::<Vec<_>>(), "{name}");
        assert!(sends.iter_mut().all(|op| ready(op.as_mut()) == Ok(Sent::Accepted)), "{name}");
    }
}

#[test]
fn waiting_threads_receive_in_order() {
    for (name, make) in queues() {
        let (tx, rx) = make().build().unwrap();
        let mut threads = vec![];
        for place in 0..4 {
            let end = rx.clone();
            threads.push(thread::spawn(move || end.recv().wait()));
            until("the thread is in line", || rx.snapshot().waiting_recv == place + 1);
        }
        send_each(&tx, 0..4);
        let got: Vec<u32> = threads.into_iter().map(|thread| join(thread).unwrap()).collect();
        assert_eq!(got, [0, 1, 2, 3], "{name}");
    }
}

#[test]
fn waiting_threads_send_in_order() {
    for (name, make) in [queues()[0], queues()[1]] {
        let (tx, rx) = make().build().unwrap();
        let inside = tx.capacity().unwrap() as u32;
        send_each(&tx, 0..inside);
        let mut threads = vec![];
        for place in 0..4 {
            let end = tx.clone();
            threads.push(thread::spawn(move || end.send(inside + place).wait()));
            until("the thread is in line", || tx.snapshot().waiting_send == place as usize + 1);
        }
        let got: Vec<u32> = rx.try_iter().collect();
        assert_eq!(got, (0..inside + 4).collect::<Vec<_>>(), "{name}");
        assert!(threads.into_iter().all(|thread| join(thread).is_ok()), "{name}");
    }
}

#[test]
fn threads_tasks_batches_and_selects_are_served_in_one_order() {
    let (tx, rx) = rendezvous();
    let (_other_tx, other_rx) = rendezvous::<u32>();
    let mut awaited = Box::pin(rx.recv());
    park(awaited.as_mut());
    let end = rx.clone();
    let blocked = thread::spawn(move || end.recv().wait());
    until("the thread is in line", || rx.snapshot().waiting_recv == 2);
    let mut select = pin!(Select::new().on(rx.recv(), |got| got).on(other_rx.recv(), |got| got));
    park(select.as_mut());
    let mut values = vec![];
    let mut batch = Box::pin(rx.recv_many(&mut values, 1));
    park(batch.as_mut());
    send_each(&tx, 0..4);
    assert_eq!((ready(awaited.as_mut()), join(blocked)), (Ok(0), Ok(1)));
    assert_eq!((ready(select), ready(batch.as_mut())), (Ok(Ok(2)), Ok(1)));
    drop(batch);
    assert_eq!(values, [3]);
}

#[test]
fn each_value_of_a_batch_waits_behind_sends_that_parked_before_it() {
    let (tx, rx) = rendezvous();
    let mut first = Box::pin(tx.send(1));
    park(first.as_mut());
    let mut values = VecDeque::from([2, 3]);
    let mut batch = Box::pin(tx.send_all(&mut values));
    park(batch.as_mut());
    let mut last = Box::pin(tx.send(4));
    park(last.as_mut());
    assert_eq!((rx.try_recv(), rx.try_recv()), (Ok(1), Ok(2)));
    park(batch.as_mut()); // the batch's next value joins the line at the end
    assert_eq!((rx.try_recv(), rx.try_recv()), (Ok(4), Ok(3)));
}

#[test]
fn a_receive_polled_again_keeps_its_place() {
    let (tx, rx) = rendezvous();
    let (mut first, mut second) = (pin!(rx.recv()), pin!(rx.recv()));
    park(first.as_mut());
    park(second.as_mut());
    let (_wakes, waker) = Wakes::pair();
    assert!(poll_with(first.as_mut(), &waker).is_pending(), "even from another task");
    send_each(&tx, [1, 2]);
    assert_eq!((ready(first), ready(second)), (Ok(1), Ok(2)));
}

#[test]
fn a_select_polled_by_another_task_goes_to_the_end_of_the_list() {
    let (tx, rx) = rendezvous();
    let (_other_tx, other_rx) = rendezvous::<u32>();
    let mut select = pin!(Select::new().on(rx.recv(), |got| got).on(other_rx.recv(), |got| got));
    park(select.as_mut());
    let mut behind = pin!(rx.recv());
    park(behind.as_mut());
    park(select.as_mut()); // the same task: the select keeps its place
    let (_wakes, waker) = Wakes::pair();
    assert!(poll_with(select.as_mut(), &waker).is_pending());
    send_each(&tx, [1, 2]);
    assert_eq!((ready(behind), ready(select)), (Ok(1), Ok(Ok(2))));
}

#[test]
fn dropped_and_cancelled_receives_do_not_disturb_the_order() {
    let (tx, rx) = rendezvous();
    let token = CancelToken::new();
    let mut first = pin!(rx.recv());
    let mut quits = Box::pin(rx.recv());
    let mut cancelled = pin!(rx.recv().cancel(&token));
    let mut last = pin!(rx.recv());
    park(first.as_mut());
    park(quits.as_mut());
    park(cancelled.as_mut());
    park(last.as_mut());
    drop(quits);
    token.cancel();
    assert!(ready(cancelled).is_err());
    send_each(&tx, [1, 2]);
    assert_eq!((ready(first), ready(last)), (Ok(1), Ok(2)));
}

#[test]
fn a_select_claimed_by_another_channel_is_skipped() {
    let (tx, rx) = rendezvous();
    let (other_tx, other_rx) = rendezvous();
    let mut select = pin!(Select::new().on(rx.recv(), |got| got).on(other_rx.recv(), |got| got));
    park(select.as_mut());
    let mut behind = pin!(rx.recv());
    park(behind.as_mut());
    assert_eq!(other_tx.try_send(1), Ok(Sent::Accepted));
    assert_eq!(tx.try_send(2), Ok(Sent::Accepted), "to the receive behind the select");
    assert_eq!((ready(select), ready(behind)), (Ok(Ok(1)), Ok(2)));
}

// ---- operations that do not wait ---------------------------------------------------------------

#[test]
fn try_recv_does_not_overtake_a_parked_receive() {
    for (name, make) in queues() {
        let (tx, rx) = make().build().unwrap();
        let mut receive = pin!(rx.recv());
        park(receive.as_mut());
        tx.try_send(1).unwrap();
        assert!(rx.try_recv().is_err(), "{name}: the value belongs to the parked receive");
        assert_eq!(ready(receive), Ok(1), "{name}");
    }
}

#[test]
fn try_send_does_not_overtake_a_parked_send() {
    let (tx, rx) = bounded(1);
    tx.try_send(0).unwrap();
    let mut send = pin!(tx.send(1));
    park(send.as_mut());
    assert_eq!(rx.try_recv(), Ok(0));
    assert!(tx.try_send(2).is_err(), "the room belongs to the parked send");
    assert_eq!((ready(send), rx.try_recv()), (Ok(Sent::Accepted), Ok(1)));
}

const ROUNDS: u32 = 200;

#[test]
fn a_thread_that_loops_on_try_recv_starves_no_parked_receive() {
    for (name, make) in [queues()[0], queues()[1], queues()[2]] {
        let (tx, rx) = make().build().unwrap();
        let (end, its) = (rx.clone(), rx.clone());
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, stolen) = (stop.clone(), Arc::new(AtomicUsize::new(0)));
        let count = stolen.clone();
        let thief = thread::spawn(move || {
            while !stopped.load(Ordering::SeqCst) {
                count.fetch_add(its.try_iter().count(), Ordering::SeqCst);
                thread::yield_now();
            }
        });
        let waiter = thread::spawn(move || {
            (0..ROUNDS).map(|_| end.recv().wait().unwrap()).collect::<Vec<_>>()
        });
        for round in 0..ROUNDS {
            until("the receive is parked", || rx.snapshot().waiting_recv == 1);
            tx.try_send(round).unwrap();
        }
        assert_eq!(join(waiter), (0..ROUNDS).collect::<Vec<_>>(), "{name}");
        stop.store(true, Ordering::SeqCst);
        join(thief);
        assert_eq!(stolen.load(Ordering::SeqCst), 0, "{name}");
    }
}

#[test]
fn a_thread_that_loops_on_try_send_starves_no_parked_send() {
    const BARGING: u32 = u32::MAX;
    let (tx, rx) = bounded(1);
    let (end, its) = (tx.clone(), tx.clone());
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let barger = thread::spawn(move || {
        while !stopped.load(Ordering::SeqCst) {
            let _ = its.try_send(BARGING);
            thread::yield_now();
        }
    });
    let turn = Arc::new(AtomicUsize::new(0));
    let its_turn = turn.clone();
    let waiter = thread::spawn(move || {
        for round in 0..ROUNDS {
            until("the waiter's turn came", || its_turn.load(Ordering::SeqCst) > round as usize);
            end.send(round).wait().unwrap();
        }
    });
    for round in 0..ROUNDS {
        until("the barger filled the channel", || rx.is_full());
        turn.fetch_add(1, Ordering::SeqCst);
        until("the waiter is parked", || rx.snapshot().waiting_send == 1);
        // The receive that makes room admits the parked send, so that value comes next.
        assert_eq!(rx.recv().timeout(PATIENCE).wait(), Ok(BARGING));
        assert_eq!(rx.recv().timeout(PATIENCE).wait(), Ok(round));
    }
    join(waiter);
    stop.store(true, Ordering::SeqCst);
    join(barger);
}
