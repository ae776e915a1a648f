//! Cancellation fuzz that its seed decides: async senders and receivers on one thread, polled in
//! random order. They lose patience at random moments, use every operation and select, and close.
//! No task may sleep for ever, and the ledger must add up.
//!
//! `MARLINE_SEED=n` replays one run, `MARLINE_FUZZ=n` runs n times as many.

mod ledger;

use std::{
    cell::RefCell,
    collections::VecDeque,
    future::Future,
    pin::{Pin, pin},
    rc::Rc,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use ledger::{Ledger, Message, Random, assert_adds_up, for_each_seed};
use marline_channel::{
    Builder, CancelToken, ErrorKind, Overflow, Receiver, Select, Selector, Sender, Sending,
};

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Flag>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Polls `future` up to `patience` more times. It wakes itself for the next poll.
async fn impatient<F: Future>(mut future: Pin<&mut F>, patience: u64) -> Option<F::Output> {
    let mut left = patience;
    std::future::poll_fn(move |context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Some(output));
        }
        if left == 0 {
            return Poll::Ready(None);
        }
        if left != FOREVER {
            left -= 1;
            context.waker().wake_by_ref();
        }
        Poll::Pending
    })
    .await
}

const FOREVER: u64 = u64::MAX;
/// Added to a sender's number on the other channel, because order is kept per channel only.
const OTHER: u32 = 100;

fn patience(random: &mut Random) -> u64 {
    match random.below(4) {
        0 => FOREVER,
        1 => 0,
        _ => random.below(6),
    }
}

type Task = Pin<Box<dyn Future<Output = ()>>>;

struct Party {
    random: Random,
    ledger: Rc<RefCell<Ledger>>,
}

impl Party {
    fn give_unsent(&self, op: Pin<&mut Sending<'_, Message>>) {
        self.ledger.borrow_mut().returned.extend(op.into_unsent());
    }

    fn give(&self, message: Message) {
        self.ledger.borrow_mut().returned.push(message);
    }

    fn take(&self, message: Message) {
        self.ledger.borrow_mut().received.push(message);
    }

    async fn sends(mut self, tx: Sender<Message>, other: Sender<Message>, me: u32, count: u64) {
        for _ in 0..count {
            let message = self.ledger.borrow_mut().make(me);
            self.ledger.borrow_mut().operations += 1;
            let patience = patience(&mut self.random);
            match self.random.below(8) {
                0 => {
                    if let Err(error) = tx.try_send(message) {
                        self.give(error.into_inner());
                    }
                }
                1 => {
                    let token = CancelToken::new();
                    let late = token.child();
                    let mut op = pin!(tx.send(message).cancel(&late));
                    let ended = impatient(op.as_mut(), patience % 5).await;
                    token.cancel();
                    let result = match ended {
                        Some(result) => Some(result),
                        None => impatient(op.as_mut(), 0).await,
                    };
                    match result.expect("a cancelled send ends") {
                        Ok(_) => {}
                        Err(error) => self.give(error.into_inner()),
                    }
                }
                2 => {
                    // Either channel, by select; the losing send keeps its value.
                    let twin = self.ledger.borrow_mut().make(me + OTHER);
                    let mut first = pin!(tx.send(message));
                    let mut second = pin!(other.send(twin));
                    {
                        let select = Select::new()
                            .on(first.as_mut(), |sent| sent.map(drop))
                            .on(second.as_mut(), |sent| sent.map(drop));
                        let mut select = pin!(select);
                        if let Some(Ok(Err(error))) = impatient(select.as_mut(), patience).await {
                            self.give(error.into_inner());
                        }
                    }
                    self.give_unsent(first);
                    self.give_unsent(second);
                }
                3 => match impatient(pin!(tx.reserve()), patience).await {
                    Some(Ok(permit)) => {
                        if self.random.one_in(4) {
                            drop(permit);
                            self.give(message);
                        } else if let Err(error) = permit.send(message) {
                            self.give(error.into_inner());
                        }
                    }
                    _ => self.give(message),
                },
                4 => {
                    let mut batch = VecDeque::from([message]);
                    for _ in 0..self.random.below(5) {
                        batch.push_back(self.ledger.borrow_mut().make(me));
                    }
                    let _ = impatient(pin!(tx.send_all(&mut batch)), patience).await;
                    batch.into_iter().for_each(|message| self.give(message));
                }
                _ => {
                    let mut op = pin!(tx.send(message));
                    let ended = impatient(op.as_mut(), patience).await;
                    if let Some(Err(error)) = ended {
                        self.give(error.into_inner());
                    } else if ended.is_none() {
                        self.give_unsent(op);
                    }
                }
            }
        }
    }

    async fn receives(mut self, rx: Receiver<Message>, other: Receiver<Message>) {
        let mut open = [true, true];
        while open[0] || open[1] {
            self.ledger.borrow_mut().operations += 1;
            let patience = patience(&mut self.random);
            let patience = if open[0] { patience } else { patience % 4 };
            match self.random.below(8) {
                0 => match rx.try_recv() {
                    Ok(message) => self.take(message),
                    Err(error) => open[0] = error.kind() != ErrorKind::Closed,
                },
                1 => match impatient(pin!(other.recv()), patience.min(5)).await {
                    Some(Ok(message)) => self.take(message),
                    Some(Err(_)) => open[1] = false,
                    None => {}
                },
                2 => {
                    let mut batch = vec![];
                    let max = 1 + self.random.below(40) as usize;
                    if let Some(Err(_)) =
                        impatient(pin!(rx.recv_many(&mut batch, max)), patience).await
                    {
                        open[0] = false;
                    }
                    batch.into_iter().for_each(|message| self.take(message));
                }
                3 | 4 => {
                    let mut select = Select::new()
                        .on(rx.recv(), |got| (0, got))
                        .on(other.recv(), |got| (1, got));
                    if self.random.one_in(2) {
                        select = select.skip_closed();
                    }
                    match impatient(pin!(select), patience).await {
                        Some(Ok((_, Ok(message)))) => self.take(message),
                        Some(Ok((channel, Err(_)))) => open[channel] = false,
                        Some(Err(_)) => open = [false, false],
                        None => {}
                    }
                }
                5 => {
                    let mut selector = Selector::new();
                    let keys = [selector.recv(&rx), selector.recv(&other)];
                    for _ in 0..3 {
                        let chosen = impatient(pin!(selector.next()), patience).await;
                        let Some(Ok(index)) = chosen else { break };
                        if self.random.one_in(4) {
                            continue; // the result is not taken: it must go back
                        }
                        match selector.received(&keys[index]).expect("chosen") {
                            Ok(message) => self.take(message),
                            Err(_) => open[index] = false,
                        }
                    }
                }
                _ => match impatient(pin!(rx.recv()), patience).await {
                    Some(Ok(message)) => self.take(message),
                    Some(Err(_)) => open[0] = false,
                    None => {}
                },
            }
        }
        while let Ok(message) = other.try_recv() {
            self.take(message);
        }
    }
}

/// Runs three sender tasks and `receivers` receiver tasks on two channels of the same kind. Returns
/// the number of operations.
fn run(
    seed: u64,
    builder: fn() -> Builder<Message>,
    drops: bool,
    receivers: usize,
    rounds: u64,
) -> u64 {
    let mut random = Random::new(seed);
    let dropped = Arc::new(Mutex::new(vec![]));
    let make = || {
        let dropped = dropped.clone();
        let on_drop = move |message| dropped.lock().unwrap().push(message);
        builder().on_drop(on_drop).build().unwrap()
    };
    let ((tx, rx), (other_tx, other_rx)) = (make(), make());
    let mut ledgers: Vec<Rc<RefCell<Ledger>>> = vec![];
    let mut tasks: Vec<(Task, Arc<Flag>)> = vec![];
    let mut party = |random: &mut Random| {
        ledgers.push(Rc::default());
        let random = Random::new(random.below(1 << 30));
        Party { random, ledger: ledgers.last().unwrap().clone() }
    };
    for me in 0..3 {
        let sends = party(&mut random).sends(tx.clone(), other_tx.clone(), me, rounds);
        tasks.push((Box::pin(sends), Arc::new(Flag(true.into()))));
    }
    for _ in 0..receivers {
        let receives = party(&mut random).receives(rx.clone(), other_rx.clone());
        tasks.push((Box::pin(receives), Arc::new(Flag(true.into()))));
    }
    let closer = tx.downgrade();
    drop((tx, rx, other_tx, other_rx));
    let closes_early = random.one_in(4);
    while !tasks.is_empty() {
        let ready: Vec<usize> =
            (0..tasks.len()).filter(|&index| tasks[index].1.0.load(Ordering::Relaxed)).collect();
        assert!(!ready.is_empty(), "all tasks sleep: a wake-up was lost");
        let index = ready[random.below(ready.len() as u64) as usize];
        let (task, flag) = &mut tasks[index];
        flag.0.store(false, Ordering::Relaxed);
        let waker = Waker::from(flag.clone());
        if task.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
            drop(tasks.swap_remove(index));
        }
        if closes_early
            && random.one_in(500)
            && let Some(tx) = closer.upgrade()
        {
            tx.close_channel();
        }
    }
    let mut all: Vec<Ledger> = ledgers.iter().map(|ledger| ledger.borrow().clone()).collect();
    if receivers == 1 {
        all.iter().for_each(Ledger::assert_in_order);
    }
    let operations =
        all.iter().map(|ledger| ledger.operations + ledger.received.len() as u64).sum();
    let dropped = std::mem::take(&mut *dropped.lock().unwrap());
    assert!(drops || dropped.is_empty(), "a blocking channel dropped {dropped:?}");
    all.push(Ledger { dropped, ..Ledger::default() });
    assert_adds_up(&all);
    operations
}

/// Runs all seeds, and asserts that they did a million operations.
fn fuzz(builder: fn() -> Builder<Message>, drops: bool) {
    let operations = std::sync::atomic::AtomicU64::new(0);
    for_each_seed(4_000, |seed| {
        let receivers = 1 + (seed % 3) as usize;
        operations.fetch_add(run(seed, builder, drops, receivers, 300), Ordering::Relaxed);
    });
    let operations = operations.into_inner();
    println!("{operations} operations");
    assert!(operations >= 1_000_000 || std::env::var("MARLINE_SEED").is_ok(), "{operations}");
}

#[test]
fn rendezvous_loses_nothing() {
    fuzz(Builder::rendezvous, false);
}

#[test]
fn bounded_one_loses_nothing() {
    fuzz(|| Builder::bounded(1), false);
}

#[test]
fn bounded_loses_nothing() {
    fuzz(|| Builder::bounded(3), false);
}

#[test]
fn unbounded_loses_nothing() {
    fuzz(Builder::unbounded, false);
}

#[test]
fn conflated_loses_nothing() {
    fuzz(Builder::conflated, true);
}

#[test]
fn drop_oldest_loses_nothing() {
    fuzz(|| Builder::bounded(2).overflow(Overflow::DropOldest), true);
}

#[test]
fn drop_newest_loses_nothing() {
    fuzz(|| Builder::bounded(2).overflow(Overflow::DropNewest), true);
}

/// Polls, cancels, drops, selects on and sends to oneshots in random order: the value is received,
/// returned, or goes with its receiver, exactly once.
#[test]
fn oneshot_loses_nothing() {
    use marline_channel::oneshot;
    use std::sync::atomic::AtomicU64;

    let operations = AtomicU64::new(0);
    for_each_seed(400, |seed| {
        let mut random = Random::new(seed);
        for _ in 0..1_000 {
            let value = Arc::new(());
            let (tx, mut rx) = oneshot::<Arc<()>>();
            let (mut tx, mut got, mut back) = (Some(tx), None, None);
            let flag = Arc::new(Flag(false.into()));
            let waker = Waker::from(flag.clone());
            let mut waits = false;
            for _ in 0..1 + random.below(6) {
                operations.fetch_add(1, Ordering::Relaxed);
                match random.below(8) {
                    0 | 1 if tx.is_some() => {
                        let sent = tx.take().unwrap().send(value.clone());
                        assert!(sent.is_ok(), "the receiver is there");
                        assert_eq!(flag.0.load(Ordering::Relaxed), waits, "woken if it waits");
                    }
                    2 if random.one_in(4) => drop(tx.take()),
                    3 => got = got.or(rx.try_recv().ok()),
                    4 => {
                        let token = CancelToken::new();
                        token.cancel();
                        assert!(rx.recv().cancel(&token).wait().is_err(), "without an attempt");
                    }
                    5 => {
                        let (_other_tx, other) = marline_channel::rendezvous::<()>();
                        let select = Select::new()
                            .biased()
                            .on(rx.recv(), Result::ok)
                            .on(other.recv(), |_| None);
                        if let Poll::Ready(Ok(value)) =
                            pin!(select).poll(&mut Context::from_waker(Waker::noop()))
                        {
                            got = got.or(value);
                        }
                        waits = false;
                    }
                    6 => {
                        // The receiver as a future, which stays, and its waker with it.
                        if let Poll::Ready(value) =
                            pin!(&mut rx).poll(&mut Context::from_waker(&waker))
                        {
                            got = got.or(value.ok());
                        } else {
                            flag.0.store(false, Ordering::Relaxed);
                            waits = true;
                        }
                    }
                    _ => {
                        // A receive that is polled and dropped: after that no task waits.
                        let polled = pin!(rx.recv()).poll(&mut Context::from_waker(Waker::noop()));
                        if let Poll::Ready(value) = polled {
                            got = got.or(value.ok());
                        }
                        waits = false;
                    }
                }
            }
            drop(rx);
            if let Some(tx) = tx {
                back = tx.send(value.clone()).err().map(|error| error.into_inner());
                assert!(back.is_some(), "the receiver is gone");
            }
            let kept = usize::from(got.is_some()) + usize::from(back.is_some());
            assert_eq!(Arc::strong_count(&value), 1 + kept, "neither lost nor doubled");
        }
    });
    let operations = operations.into_inner();
    assert!(operations >= 1_000_000 || std::env::var("MARLINE_SEED").is_ok(), "{operations}");
}
