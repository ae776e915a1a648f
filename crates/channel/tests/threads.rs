//! Cancellation fuzz with real threads: blocking and async parties on the same channels, with
//! deadlines that fire, tokens triggered from other threads, futures dropped half-way, selects and
//! closes. The ledger must add up, and every thread must end.
//!
//! Each party's decisions follow from the seed; the machine decides the interleaving.
//! `MARLINE_SEED=n` runs one seed, `MARLINE_FUZZ=n` runs n times as many.

mod ledger;

use std::{
    future::Future,
    pin::{Pin, pin},
    sync::{Arc, Mutex},
    task::{Context, Waker},
    thread,
    time::Duration,
};

use ledger::{Ledger, Message, Random, assert_adds_up, for_each_seed};
use marline_channel::{
    Builder, CancelToken, ErrorKind, Overflow, Receiver, Select, Sender, Sending, broadcast,
    oneshot, watch,
};

/// Polls once. The caller then drops the operation at a moment when a peer may be filling it.
fn poll_once<F: Future>(future: Pin<&mut F>) -> Option<F::Output> {
    match future.poll(&mut Context::from_waker(Waker::noop())) {
        std::task::Poll::Ready(output) => Some(output),
        std::task::Poll::Pending => None,
    }
}

fn micros(random: &mut Random) -> Duration {
    Duration::from_micros(random.below(30))
}

struct Party {
    random: Random,
    ledger: Ledger,
    /// The token of all parties. Each of them triggers it now and then.
    token: Arc<Mutex<CancelToken>>,
}

impl Party {
    fn token(&mut self) -> CancelToken {
        let mut shared = self.token.lock().unwrap();
        if self.random.one_in(3) {
            shared.cancel();
            *shared = CancelToken::new();
        }
        shared.child()
    }

    fn give_unsent(&mut self, op: Pin<&mut Sending<'_, Message>>) {
        self.ledger.returned.extend(op.into_unsent());
    }

    fn sends(mut self, tx: Sender<Message>, other: Sender<Message>, me: u32, count: u64) -> Ledger {
        const OTHER: u32 = 100;
        for _ in 0..count {
            self.ledger.operations += 1;
            let message = self.ledger.make(me);
            let result = match self.random.below(8) {
                0 => tx.try_send(message),
                1 => tx.send(message).timeout(micros(&mut self.random)).wait(),
                2 => tx.send(message).cancel(&self.token()).wait(),
                3 => {
                    let op = tx.send(message).timeout(micros(&mut self.random));
                    futures_executor::block_on(op)
                }
                4 => {
                    let mut op = pin!(tx.send(message));
                    match poll_once(op.as_mut()) {
                        Some(result) => result,
                        None => {
                            self.give_unsent(op);
                            continue;
                        }
                    }
                }
                5 => {
                    let twin = self.ledger.make(me + OTHER);
                    let mut first = pin!(tx.send(message));
                    let mut second = pin!(other.send(twin));
                    let select = Select::new()
                        .on(first.as_mut(), |sent| sent)
                        .on(second.as_mut(), |sent| sent)
                        .timeout(micros(&mut self.random));
                    if let Ok(Err(error)) = select.wait() {
                        self.ledger.returned.push(error.into_inner());
                    }
                    self.give_unsent(first);
                    self.give_unsent(second);
                    continue;
                }
                6 => futures_executor::block_on(tx.send(message)),
                _ => tx.send(message).wait(),
            };
            if let Err(error) = result {
                self.ledger.returned.push(error.into_inner());
            }
        }
        self.ledger
    }

    fn receives(mut self, rx: Receiver<Message>, other: Receiver<Message>) -> Ledger {
        let mut open = [true, true];
        while open[0] || open[1] {
            self.ledger.operations += 1;
            let which = usize::from(!open[0] || open[1] && self.random.one_in(4));
            let end = [&rx, &other][which];
            let result = match self.random.below(8) {
                0 => end.try_recv(),
                1 => end.recv().timeout(micros(&mut self.random)).wait(),
                2 => end.recv().cancel(&self.token()).timeout(MOST).wait(),
                3 => {
                    let op = end.recv().timeout(micros(&mut self.random));
                    futures_executor::block_on(op)
                }
                4 => match poll_once(pin!(end.recv())) {
                    Some(result) => result,
                    None => continue,
                },
                5 => {
                    let select = Select::new()
                        .on(rx.recv(), |got| got)
                        .on(other.recv(), |got| got)
                        .skip_closed()
                        .timeout(micros(&mut self.random));
                    match select.wait() {
                        Ok(got) => got,
                        Err(error) => {
                            open = open.map(|open| open && !error.is_closed());
                            continue;
                        }
                    }
                }
                6 => {
                    let select = Select::new().on(rx.recv(), |got| got).on(other.recv(), |got| got);
                    match poll_once(pin!(select)) {
                        Some(Ok(Ok(message))) => Ok(message),
                        _ => continue,
                    }
                }
                _ => end.recv().timeout(MOST).wait(),
            };
            match result {
                Ok(message) => self.ledger.received.push(message),
                Err(error) if error.kind() == ErrorKind::Closed => open[which] = false,
                Err(_) => {}
            }
        }
        self.ledger
    }
}

/// The longest a receive waits in this test, so that senders that select elsewhere get their turn.
const MOST: Duration = Duration::from_millis(1);

fn run(seed: u64, builder: fn() -> Builder<Message>, drops: bool, rounds: u64) {
    let mut random = Random::new(seed);
    let dropped = Arc::new(Mutex::new(vec![]));
    let make = || {
        let dropped = dropped.clone();
        let on_drop = move |message| dropped.lock().unwrap().push(message);
        builder().on_drop(on_drop).build().unwrap()
    };
    let ((tx, rx), (other_tx, other_rx)) = (make(), make());
    let token = Arc::new(Mutex::new(CancelToken::new()));
    let mut party = || Party {
        random: Random::new(random.below(1 << 30)),
        ledger: Ledger::default(),
        token: token.clone(),
    };
    let receivers = 1 + seed % 2;
    let mut threads = vec![];
    for me in 0..2 {
        let (party, tx, other) = (party(), tx.clone(), other_tx.clone());
        threads.push(thread::spawn(move || party.sends(tx, other, me, rounds)));
    }
    for _ in 0..receivers {
        let (party, rx, other) = (party(), rx.clone(), other_rx.clone());
        threads.push(thread::spawn(move || party.receives(rx, other)));
    }
    if seed % 4 == 3 {
        let tx = tx.clone();
        threads.push(thread::spawn(move || {
            thread::yield_now();
            tx.close_channel();
            Ledger::default()
        }));
    }
    drop((tx, rx, other_tx, other_rx));
    let mut ledgers: Vec<Ledger> =
        threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    if receivers == 1 {
        ledgers.iter().for_each(Ledger::assert_in_order);
    }
    let dropped = std::mem::take(&mut *dropped.lock().unwrap());
    assert!(drops || dropped.is_empty(), "a blocking channel dropped {dropped:?}");
    ledgers.push(Ledger { dropped, ..Ledger::default() });
    assert_adds_up(&ledgers);
}

fn fuzz(builder: fn() -> Builder<Message>, drops: bool) {
    for_each_seed(40, |seed| run(seed, builder, drops, 2_000));
}

#[test]
fn rendezvous_loses_nothing() {
    fuzz(Builder::rendezvous, false);
}

#[test]
fn bounded_loses_nothing() {
    fuzz(|| Builder::bounded(2), false);
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

#[test]
fn oneshot_value_is_received_or_returned_exactly_once() {
    for_each_seed(200, |seed| {
        let mut random = Random::new(seed);
        for _ in 0..100 {
            let count = Arc::new(());
            let (tx, mut rx) = oneshot::<Arc<()>>();
            let value = count.clone();
            let (sends, takes, how) = (!random.one_in(5), !random.one_in(5), random.below(4));
            let sender = thread::spawn(move || {
                if sends { tx.send(value).map_err(|error| error.into_inner()) } else { Err(value) }
            });
            let received = match how {
                _ if !takes => None,
                0 => rx.recv().wait().ok(),
                1 => futures_executor::block_on(rx.recv().timeout(micros(&mut random))).ok(),
                2 => {
                    let first = poll_once(pin!(rx.recv()));
                    first.unwrap_or_else(|| rx.recv().wait()).ok()
                }
                _ => rx.try_recv().ok(),
            };
            drop(rx);
            let returned = sender.join().unwrap().err();
            assert!(received.is_none() || returned.is_none());
            let kept = usize::from(received.is_some()) + usize::from(returned.is_some());
            assert_eq!(Arc::strong_count(&count), 1 + kept, "neither leaked nor freed twice");
        }
    });
}

#[test]
fn broadcast_receivers_get_every_value_or_the_exact_lag() {
    for_each_seed(200, |seed| {
        const COUNT: u64 = 5_000;
        let mut random = Random::new(seed);
        let (tx, rx) = broadcast::<u64>(1 << random.below(8));
        let receivers: Vec<_> = (0..3)
            .map(|_| (rx.resubscribe(), Random::new(random.below(1 << 30))))
            .map(|(mut rx, mut random)| {
                thread::spawn(move || {
                    let mut next = 0;
                    loop {
                        let result = match random.below(4) {
                            0 => rx.try_recv(),
                            1 => rx.recv().timeout(micros(&mut random)).wait(),
                            2 => match poll_once(pin!(rx.recv())) {
                                Some(result) => result,
                                None => continue,
                            },
                            _ => futures_executor::block_on(rx.recv()),
                        };
                        match result.map_err(|error| error.kind()) {
                            Ok(value) => {
                                assert_eq!(value, next);
                                next += 1;
                            }
                            Err(ErrorKind::Lagged(missed)) => next += missed,
                            Err(ErrorKind::Closed) => return next,
                            Err(_) => {}
                        }
                    }
                })
            })
            .collect();
        drop(rx);
        for value in 0..COUNT {
            assert_eq!(tx.send(value).unwrap(), 3);
        }
        drop(tx);
        for receiver in receivers {
            assert_eq!(receiver.join().unwrap(), COUNT);
        }
    });
}

#[test]
fn watch_receivers_see_the_last_value_and_never_go_back() {
    for_each_seed(200, |seed| {
        const COUNT: u64 = 5_000;
        let mut random = Random::new(seed);
        let (tx, rx) = watch(0u64);
        let receivers: Vec<_> = (0..3)
            .map(|_| (rx.clone(), Random::new(random.below(1 << 30))))
            .map(|(mut rx, mut random)| {
                thread::spawn(move || {
                    let mut last = 0;
                    loop {
                        let result = match random.below(4) {
                            0 => rx.try_changed(),
                            1 => rx.changed().timeout(micros(&mut random)).wait(),
                            2 => poll_once(pin!(rx.changed()))
                                .unwrap_or(Err(ErrorKind::Empty.into())),
                            _ => futures_executor::block_on(rx.changed()),
                        };
                        if result.is_err_and(|error| error.is_closed()) {
                            return last;
                        }
                        let value = *rx.borrow();
                        assert!(value >= last, "{value} after {last}");
                        last = value;
                    }
                })
            })
            .collect();
        drop(rx);
        for value in 1..=COUNT {
            tx.send(value).unwrap();
        }
        drop(tx);
        for receiver in receivers {
            assert_eq!(receiver.join().unwrap(), COUNT);
        }
    });
}
