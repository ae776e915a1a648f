//! Property test: random operations on a real channel beside a reference, which says in the
//! plainest terms what must happen. After every step the test compares results, wake-ups, length
//! and invariants.
//!
//! The test has one thread, so the seed decides each run. `MARLINE_SEED=n` replays one run.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use super::*;
use crate::{CancelToken, ErrorKind, lock::Hint};

const SEEDS: u64 = 3_000;
const STEPS: usize = 400;

/// A small random generator, with the same numbers on every machine.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

type Id = usize;

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq)]
enum OperationOutcome {
    Sent,
    Dropped,
    Closed,
    Got { ticket: u64, value: u64 },
    Permitted,
}

/// The value that a parked sender wants to send, or None if it wants a permit.
type Wish = Option<u64>;

#[derive(Default)]
struct Reference {
    capacity: usize,
    overflow: Overflow,
    buffer: VecDeque<u64>,
    returned: BTreeMap<u64, u64>,
    senders: VecDeque<(Id, Wish)>,
    receivers: VecDeque<Id>,
    /// Parked operations that a peer has ended.
    settled: HashMap<Id, OperationOutcome>,
    reserved: usize,
    closed: bool,
    tickets: u64,
    discarded: Vec<u64>,
}

impl Reference {
    fn len(&self) -> usize {
        self.buffer.len() + self.returned.len()
    }

    fn room(&self) -> bool {
        self.len().saturating_add(self.reserved) < self.capacity
    }

    fn hand_over(&mut self, receiver: Id, value: u64) {
        self.tickets += 1;
        self.settled.insert(receiver, OperationOutcome::Got { ticket: self.tickets, value });
    }

    fn try_send(&mut self, value: u64) -> Option<OperationOutcome> {
        if self.closed {
            return Some(OperationOutcome::Closed);
        }
        if let Some(receiver) = self.receivers.pop_front() {
            self.hand_over(receiver, value);
            return Some(OperationOutcome::Sent);
        }
        if !self.room() {
            match self.overflow {
                Overflow::Block => return None,
                Overflow::DropNewest => {
                    self.discarded.push(value);
                    return Some(OperationOutcome::Dropped);
                }
                Overflow::DropOldest => {
                    let oldest = self.pop().expect("full, so not empty");
                    self.discarded.push(oldest);
                }
            }
        }
        self.buffer.push_back(value);
        Some(OperationOutcome::Sent)
    }

    fn pop(&mut self) -> Option<u64> {
        match self.returned.pop_first() {
            Some((_, value)) => Some(value),
            None => self.buffer.pop_front(),
        }
    }

    fn try_recv(&mut self) -> Result<u64, ErrorKind> {
        if let Some(value) = self.pop() {
            self.admit();
            return Ok(value);
        }
        if let Some(at) = self.senders.iter().position(|(_, wish)| wish.is_some()) {
            let (sender, wish) = self.senders.remove(at).expect("found");
            self.settled.insert(sender, OperationOutcome::Sent);
            return Ok(wish.expect("found by it"));
        }
        Err(if self.closed { ErrorKind::Closed } else { ErrorKind::Empty })
    }

    fn try_reserve(&mut self) -> Option<OperationOutcome> {
        if self.closed {
            return Some(OperationOutcome::Closed);
        }
        self.room().then(|| {
            self.reserved += 1;
            OperationOutcome::Permitted
        })
    }

    fn admit(&mut self) {
        if self.room()
            && let Some((sender, wish)) = self.senders.pop_front()
        {
            match wish {
                None => {
                    self.reserved += 1;
                    self.settled.insert(sender, OperationOutcome::Permitted);
                }
                Some(value) => {
                    self.buffer.push_back(value);
                    self.settled.insert(sender, OperationOutcome::Sent);
                }
            }
        }
    }

    fn send_permitted(&mut self, value: u64) -> OperationOutcome {
        self.reserved -= 1;
        if self.closed {
            return OperationOutcome::Closed;
        }
        match self.receivers.pop_front() {
            Some(receiver) => self.hand_over(receiver, value),
            None => self.buffer.push_back(value),
        }
        self.admit();
        OperationOutcome::Sent
    }

    fn drop_permit(&mut self) {
        self.reserved -= 1;
        self.admit();
    }

    fn drop_operation(&mut self, id: Id) {
        self.senders.retain(|(other, _)| *other != id);
        self.receivers.retain(|other| *other != id);
        match self.settled.remove(&id) {
            Some(OperationOutcome::Got { ticket, value }) => {
                if let Some(receiver) = self.receivers.pop_front() {
                    self.settled.insert(receiver, OperationOutcome::Got { ticket, value });
                } else if self.overflow == Overflow::DropOldest && self.len() >= self.capacity {
                    self.discarded.push(value);
                } else {
                    self.returned.insert(ticket, value);
                }
            }
            Some(OperationOutcome::Permitted) => self.drop_permit(),
            _ => {}
        }
    }

    fn close(&mut self) {
        self.closed = true;
        for receiver in self.receivers.drain(..) {
            self.settled.insert(receiver, OperationOutcome::Closed);
        }
        for (sender, _) in self.senders.drain(..) {
            self.settled.insert(sender, OperationOutcome::Closed);
        }
    }
}

#[derive(Default)]
struct Bell(AtomicU32);

impl Wake for Bell {
    fn wake(self: Arc<Bell>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

enum Pending<'a> {
    Send(Pin<Box<Sending<'a, u64>>>),
    Recv(Pin<Box<Receiving<'a, u64>>>),
    Reserve(Pin<Box<Reserving<'a, u64>>>),
}

struct Live<'a> {
    id: Id,
    op: Pending<'a>,
    bell: Arc<Bell>,
    token: CancelToken,
}

impl<'a> Live<'a> {
    /// Polls the operation. A permit goes to `permits`.
    fn poll(&mut self, permits: &mut Vec<Permit<'a, u64>>) -> Poll<OperationOutcome> {
        let waker = Waker::from(self.bell.clone());
        let mut context = Context::from_waker(&waker);
        match &mut self.op {
            Pending::Send(op) => op.as_mut().poll(&mut context).map(|result| match result {
                Ok(Sent::Accepted) => OperationOutcome::Sent,
                Ok(Sent::Dropped) => OperationOutcome::Dropped,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Closed);
                    OperationOutcome::Closed
                }
            }),
            Pending::Recv(op) => op.as_mut().poll(&mut context).map(|result| match result {
                Ok(value) => OperationOutcome::Got { ticket: 0, value },
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Closed);
                    OperationOutcome::Closed
                }
            }),
            Pending::Reserve(op) => op.as_mut().poll(&mut context).map(|result| match result {
                Ok(permit) => {
                    permits.push(permit);
                    OperationOutcome::Permitted
                }
                Err(_) => OperationOutcome::Closed,
            }),
        }
    }
}

/// Returns an outcome without its hand-off number, which users do not see.
fn plain(outcome: OperationOutcome) -> OperationOutcome {
    match outcome {
        OperationOutcome::Got { value, .. } => OperationOutcome::Got { ticket: 0, value },
        other => other,
    }
}

fn run(seed: u64) {
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let discarded = Arc::new(Mutex::new(vec![]));
    let log = discarded.clone();
    let (builder, capacity, overflow) = match random.below(6) {
        0 => (Builder::rendezvous(), 0, Overflow::Block),
        1 => (Builder::unbounded(), usize::MAX, Overflow::Block),
        2 => (Builder::conflated(), 1, Overflow::DropOldest),
        kind => {
            let capacity = 1 + random.below(3);
            let overflow = [Overflow::Block, Overflow::DropOldest, Overflow::DropNewest][kind - 3];
            (Builder::bounded(capacity).overflow(overflow), capacity, overflow)
        }
    };
    let permits_work = overflow == Overflow::Block && capacity > 0;
    let (tx, rx) = builder.on_drop(move |v| log.lock().unwrap().push(v)).build().unwrap();
    let mut reference = Reference { capacity, overflow, ..Reference::default() };
    let mut live: Vec<Live<'_>> = vec![];
    let mut permits = vec![];
    let (mut next_id, mut next_value) = (0, 0);
    for _ in 0..STEPS {
        match random.below(40) {
            // A new operation, polled once.
            0..=17 => {
                let token = CancelToken::new();
                next_id += 1;
                next_value += 1;
                let kind = random.below(if permits_work { 9 } else { 8 });
                let (op, expected) = match kind {
                    0..=3 => {
                        let expected = reference.try_send(next_value);
                        if expected.is_none() {
                            reference.senders.push_back((next_id, Some(next_value)));
                        }
                        (Pending::Send(Box::pin(tx.send(next_value).cancel(&token))), expected)
                    }
                    4..=7 => {
                        let expected = match reference.try_recv() {
                            Ok(value) => Some(OperationOutcome::Got { ticket: 0, value }),
                            Err(ErrorKind::Closed) => Some(OperationOutcome::Closed),
                            Err(_) => {
                                reference.receivers.push_back(next_id);
                                None
                            }
                        };
                        (Pending::Recv(Box::pin(rx.recv().cancel(&token))), expected)
                    }
                    _ => {
                        let expected = reference.try_reserve();
                        if expected.is_none() {
                            reference.senders.push_back((next_id, None));
                        }
                        (Pending::Reserve(Box::pin(tx.reserve().cancel(&token))), expected)
                    }
                };
                let mut new = Live { id: next_id, op, bell: Arc::default(), token };
                match (new.poll(&mut permits), expected) {
                    (Poll::Pending, None) => live.push(new),
                    (Poll::Ready(outcome), Some(expected)) => assert_eq!(outcome, expected),
                    (polled, expected) => panic!("{polled:?}, expected {expected:?}"),
                }
            }
            // A live operation, polled again, dropped, or cancelled.
            18..=31 if !live.is_empty() => {
                let at = random.below(live.len());
                let settled = reference.settled.get(&live[at].id).copied();
                let rung = live[at].bell.0.load(Ordering::Relaxed);
                assert_eq!(rung > 0, settled.is_some(), "woken exactly when a peer ended it");
                match random.below(3) {
                    0 => match (live[at].poll(&mut permits), settled) {
                        (Poll::Pending, None) => {}
                        (Poll::Ready(outcome), Some(expected)) => {
                            assert_eq!(plain(outcome), plain(expected));
                            reference.settled.remove(&live[at].id);
                            live.swap_remove(at);
                        }
                        (polled, settled) => panic!("{polled:?}, expected {settled:?}"),
                    },
                    1 => {
                        let gone = live.swap_remove(at);
                        reference.drop_operation(gone.id);
                        drop(gone);
                    }
                    _ => {
                        let mut gone = live.swap_remove(at);
                        gone.token.cancel();
                        let Pending::Send(op) = &mut gone.op else {
                            reference.drop_operation(gone.id);
                            continue;
                        };
                        let unsent = op.as_mut().into_unsent().is_some();
                        assert_eq!(
                            unsent,
                            matches!(settled, None | Some(OperationOutcome::Closed))
                        );
                        reference.drop_operation(gone.id);
                    }
                }
            }
            32..=33 => {
                next_value += 1;
                let expected = reference.try_send(next_value);
                match tx.try_send(next_value) {
                    Ok(Sent::Accepted) => assert_eq!(expected, Some(OperationOutcome::Sent)),
                    Ok(Sent::Dropped) => assert_eq!(expected, Some(OperationOutcome::Dropped)),
                    Err(error) if error.is_closed() => {
                        assert_eq!(expected, Some(OperationOutcome::Closed))
                    }
                    Err(error) => {
                        assert_eq!(
                            (error.kind(), error.into_inner()),
                            (ErrorKind::Full, next_value)
                        );
                        assert_eq!(expected, None);
                    }
                }
            }
            34..=35 => {
                assert_eq!(rx.try_recv().map_err(|error| error.kind()), reference.try_recv());
            }
            36..=37 if !permits.is_empty() => {
                let permit = permits.swap_remove(random.below(permits.len()));
                if random.below(2) == 0 {
                    reference.drop_permit();
                    drop(permit);
                } else {
                    next_value += 1;
                    let expected = reference.send_permitted(next_value);
                    let sent = permit.send(next_value);
                    assert_eq!(sent.is_ok(), expected == OperationOutcome::Sent);
                }
            }
            38 if random.below(20) == 0 => {
                reference.close();
                tx.close_channel();
            }
            _ => {}
        }
        assert_eq!(rx.len(), reference.len());
        assert_eq!(*discarded.lock().unwrap(), reference.discarded);
        let (empty, full) = (tx.channel.state.says(Hint::EMPTY), tx.channel.state.says(Hint::FULL));
        let state = tx.channel.state.lock();
        assert!(!(empty && state.could_take()), "the hint says empty, but a receive could end");
        assert!(!(full && state.could_offer()), "the hint says full, but a send could end");
        state.check_invariants();
        assert_eq!(state.waiting(), (reference.senders.len(), reference.receivers.len()));
    }
}

#[test]
fn a_channel_agrees_with_the_reference_under_random_operations() {
    if let Ok(seed) = std::env::var("MARLINE_SEED") {
        return run(seed.parse().expect("MARLINE_SEED is a number"));
    }
    for seed in 0..SEEDS {
        if std::panic::catch_unwind(|| run(seed)).is_err() {
            panic!("failed with MARLINE_SEED={seed}");
        }
    }
}
