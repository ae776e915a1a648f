//! One channel with every sort of user at once: tokio (both schedulers), smol, the futures executor
//! and plain threads, as senders and as receivers. Every value that is sent is received once.

mod conformance;

use std::{collections::HashSet, future::Future, pin::Pin, thread, time::Duration};

use conformance::{Log, PATIENCE, join, queues, until};
use marline_channel::{
    Builder, CancelToken, ErrorKind, Receiver, Select, Selector, Sender, bounded, broadcast,
    oneshot, rendezvous, watch,
};

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs a future to its end on its own thread.
type Runner = fn(Task);

fn on_tokio_threads(task: Task) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    runtime.block_on(async { tokio::spawn(task).await.unwrap() });
}

fn on_one_tokio_thread(task: Task) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async { tokio::spawn(task).await.unwrap() });
}

fn on_smol(task: Task) {
    smol::block_on(smol::spawn(task));
}

fn on_the_futures_executor(task: Task) {
    futures_executor::block_on(task);
}

const RUNTIMES: [(&str, Runner); 4] = [
    ("tokio, multi-thread", on_tokio_threads),
    ("tokio, current-thread", on_one_tokio_thread),
    ("smol", on_smol),
    ("futures executor", on_the_futures_executor),
];

const EACH: u32 = 500;

/// Runs a sender and a receiver in each runtime and on two plain threads, all on one channel.
fn everybody_at_once(name: &str, make: fn() -> Builder<(u32, u32)>) {
    let (tx, rx) = make().build().unwrap();
    let received = Log::new();
    let mut parties = vec![];
    let mut senders = 0;
    for (_, runner) in RUNTIMES {
        let (tx, me) = (tx.clone(), senders);
        senders += 1;
        let sends = async move {
            for number in 0..EACH {
                tx.send((me, number)).await.unwrap();
            }
        };
        parties.push(thread::spawn(move || runner(Box::pin(sends))));
        let (rx, log) = (rx.clone(), received.clone());
        let receives = async move {
            while let Ok(value) = rx.recv().await {
                log.push(value);
            }
        };
        parties.push(thread::spawn(move || runner(Box::pin(receives))));
    }
    for _ in 0..2 {
        let (tx, me) = (tx.clone(), senders);
        senders += 1;
        parties.push(thread::spawn(move || {
            for number in 0..EACH {
                tx.send((me, number)).wait().unwrap();
            }
        }));
        let (rx, log) = (rx.clone(), received.clone());
        parties.push(thread::spawn(move || rx.iter().for_each(|value| log.push(value))));
    }
    drop((tx, rx));
    parties.into_iter().for_each(join);
    let received = received.take();
    let distinct: HashSet<_> = received.iter().copied().collect();
    assert_eq!(received.len(), distinct.len(), "{name}: a value came twice");
    assert_eq!(distinct.len() as u32, senders * EACH, "{name}: a value was lost");
}

#[test]
fn every_runtime_and_thread_shares_a_rendezvous_channel() {
    everybody_at_once("rendezvous", Builder::rendezvous);
}

#[test]
fn every_runtime_and_thread_shares_a_bounded_channel() {
    everybody_at_once("bounded", || Builder::bounded(3));
}

#[test]
fn every_runtime_and_thread_shares_an_unbounded_channel() {
    everybody_at_once("unbounded", Builder::unbounded);
}

#[test]
fn every_runtime_receives_every_value_of_a_broadcast() {
    let (tx, rx) = broadcast(EACH as usize);
    let mut parties = vec![];
    for (_, runner) in RUNTIMES {
        let mut rx = rx.resubscribe();
        let receives = async move {
            for expected in 0..EACH {
                assert_eq!(rx.recv().await, Ok(expected));
            }
            assert!(rx.recv().await.unwrap_err().is_closed());
        };
        parties.push(thread::spawn(move || runner(Box::pin(receives))));
    }
    drop(rx);
    for value in 0..EACH {
        tx.send(value).unwrap();
    }
    drop(tx);
    parties.into_iter().for_each(join);
}

#[test]
fn every_runtime_sees_the_last_value_of_a_watch() {
    let (tx, rx) = watch(0);
    let mut parties = vec![];
    for (_, runner) in RUNTIMES {
        let mut rx = rx.clone();
        let looks = async move {
            let mut last = 0;
            while rx.changed().await.is_ok() {
                let value = *rx.borrow();
                assert!(value >= last, "{value} after {last}");
                last = value;
            }
            assert_eq!(last, EACH);
        };
        parties.push(thread::spawn(move || runner(Box::pin(looks))));
    }
    drop(rx);
    for value in 1..=EACH {
        tx.send(value).unwrap();
    }
    drop(tx);
    parties.into_iter().for_each(join);
}

#[test]
fn a_oneshot_sends_a_value_from_any_runtime_to_any_other() {
    for (from, sends) in RUNTIMES {
        for (to, receives) in RUNTIMES {
            let (tx, rx) = oneshot();
            let name = format!("{from} to {to}");
            let receiver = thread::spawn(move || {
                receives(Box::pin(async move { assert_eq!(rx.await, Ok(7), "{name}") }));
            });
            let sender = thread::spawn(move || sends(Box::pin(async move { tx.send(7).unwrap() })));
            join(sender);
            join(receiver);
        }
    }
}

#[test]
fn selects_wait_in_every_runtime() {
    for (name, runner) in RUNTIMES {
        let (tx, rx) = rendezvous();
        let (_other_tx, other_rx) = rendezvous::<u32>();
        let end = rx.clone();
        let waiter = thread::spawn(move || {
            runner(Box::pin(async move {
                let (first, second) = (end.recv(), other_rx.recv());
                let select = Select::new().on(first, |got| got).on(second, |got| got);
                assert_eq!(select.await, Ok(Ok(7)), "{name}");
            }));
        });
        until("the select waits", || rx.snapshot().waiting_recv == 1);
        tx.send(7).timeout(PATIENCE).wait().unwrap();
        join(waiter);
    }
}

#[test]
fn deadlines_need_no_timer_of_the_runtime() {
    for (name, runner) in RUNTIMES {
        let (_tx, rx) = rendezvous::<u32>();
        let waiter = thread::spawn(move || {
            runner(Box::pin(async move {
                let error = rx.recv().timeout(Duration::from_millis(2)).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Timeout, "{name}");
            }));
        });
        join(waiter);
    }
}

#[test]
fn a_token_ends_receives_in_every_runtime() {
    let token = CancelToken::new();
    let (tx, rx) = rendezvous::<u32>();
    let mut parties = vec![];
    for (name, runner) in RUNTIMES {
        let (rx, token) = (rx.clone(), token.child());
        parties.push(thread::spawn(move || {
            runner(Box::pin(async move {
                let error = rx.recv().cancel(&token).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Cancelled, "{name}");
            }));
        }));
    }
    until("all wait", || tx.snapshot().waiting_recv == RUNTIMES.len());
    token.cancel();
    parties.into_iter().for_each(join);
}

#[test]
fn a_task_aborted_by_tokio_loses_no_value() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    for (name, make) in queues().into_iter().take(3) {
        let (tx, rx) = make().build().unwrap();
        let (mut sent, received) = (0, Log::new());
        for round in 0..100 {
            let (end, log) = (rx.clone(), received.clone());
            let task = runtime.spawn(async move {
                if let Ok(value) = end.recv().await {
                    log.push(value);
                }
            });
            until("the task waits", || rx.snapshot().waiting_recv > 0);
            tx.try_send(round).unwrap();
            sent += 1;
            task.abort();
            until("the task is gone", || task.is_finished());
            // Either the task had received the value, or the value went back to the front.
            if let Ok(value) = rx.try_recv() {
                received.push(value);
            }
        }
        let all = received.take();
        assert_eq!(all, (0..sent).collect::<Vec<_>>(), "{name}");
    }
}

#[test]
fn a_receive_dropped_by_tokios_select_loses_no_value() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let (tx, rx) = bounded(4);
        for value in 0..100 {
            let received = tokio::select! {
                biased;
                got = rx.recv() => Some(got),
                _ = async { tx.send(value).await.unwrap(); } => None,
            };
            match received {
                Some(got) => assert_eq!(got, Ok(value)),
                None => assert_eq!(rx.recv().await, Ok(value)),
            }
        }
    });
}

#[test]
fn operations_are_send() {
    fn assert_send<T: Send>(_: &T) {}
    let (tx, rx): (Sender<u32>, Receiver<u32>) = bounded(1);
    assert_send(&tx.send(1));
    assert_send(&rx.recv());
    assert_send(&tx.reserve());
    assert_send(&tx.send_all(&mut Default::default()));
    assert_send(&rx.recv_many(&mut vec![], 1));
    assert_send(&Select::new().on(rx.recv(), drop).on(tx.send(1), drop));
    let mut selector = Selector::new();
    selector.recv(&rx);
    assert_send(&selector.next());
    let (_tx, mut rx) = broadcast::<u32>(1);
    assert_send(&rx.recv());
    let (_tx, mut rx) = watch(0);
    assert_send(&rx.changed());
    let (_tx, mut rx) = oneshot::<u32>();
    assert_send(&rx.recv());
}
