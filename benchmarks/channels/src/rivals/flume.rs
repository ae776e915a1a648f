//! flume: one mutex around two queues. It has a `Selector` for threads, with receive
//! and send clauses.

use crate::channel::{Capacity, Ends, Message, Opened, TaskChannel, ThreadChannel};
use crate::shapes::batch::{TaskBatch, ThreadBatch};
use crate::shapes::select::{Ledger, TaskSelect, ThreadMixedSelect, ThreadSelect};
use flume::{Receiver, Selector, Sender};
use std::collections::VecDeque;

pub struct Flume;

fn open<T>(capacity: Capacity, ends: Ends) -> Opened<Sender<T>, Receiver<T>> {
    let (tx, rx) = match capacity {
        Capacity::Bounded(size) => flume::bounded(size),
        Capacity::Unbounded => flume::unbounded(),
    };
    Some((vec![tx; ends.senders], vec![rx; ends.receivers]))
}

impl<T: Message> TaskChannel<T> for Flume {
    const NAME: &'static str = "flume";
    type Tx = Sender<T>;
    type Rx = Receiver<T>;

    fn open(capacity: Capacity, ends: Ends) -> Opened<Self::Tx, Self::Rx> {
        open(capacity, ends)
    }

    async fn send(tx: &mut Self::Tx, value: T) -> bool {
        tx.send_async(value).await.is_ok()
    }

    async fn recv(rx: &mut Self::Rx) -> Option<T> {
        rx.recv_async().await.ok()
    }

    fn try_recv(rx: &mut Self::Rx) -> Option<T> {
        rx.try_recv().ok()
    }
}

impl<T: Message> ThreadChannel<T> for Flume {
    const NAME: &'static str = "flume";
    type Tx = Sender<T>;
    type Rx = Receiver<T>;

    fn open(capacity: Capacity, ends: Ends) -> Opened<Self::Tx, Self::Rx> {
        open(capacity, ends)
    }

    fn send(tx: &mut Self::Tx, value: T) -> bool {
        tx.send(value).is_ok()
    }

    fn recv(rx: &mut Self::Rx) -> Option<T> {
        rx.recv().ok()
    }

    fn try_recv(rx: &mut Self::Rx) -> Option<T> {
        rx.try_recv().ok()
    }
}

impl TaskSelect for Flume {}

impl ThreadSelect for Flume {
    fn receive(rx: &mut [Self::Rx; 4], operations: u64, ledger: &mut Ledger) {
        for _ in 0..operations {
            let (from, value) = Selector::new()
                .recv(&rx[0], |value| (0, value))
                .recv(&rx[1], |value| (1, value))
                .recv(&rx[2], |value| (2, value))
                .recv(&rx[3], |value| (3, value))
                .wait();
            ledger.received(from, value.ok());
        }
    }
}

impl ThreadMixedSelect for Flume {
    fn mix(rx: &mut [Self::Rx; 2], tx: &mut [Self::Tx; 2], operations: u64, ledger: &mut Ledger) {
        enum Done {
            Received(usize, Option<u64>),
            Sent(usize, bool),
        }
        for _ in 0..operations {
            let done = Selector::new()
                .recv(&rx[0], |value| Done::Received(0, value.ok()))
                .recv(&rx[1], |value| Done::Received(1, value.ok()))
                .send(&tx[0], ledger.next(0), |sent| Done::Sent(0, sent.is_ok()))
                .send(&tx[1], ledger.next(1), |sent| Done::Sent(1, sent.is_ok()))
                .wait();
            match done {
                Done::Received(from, value) => ledger.received(from, value),
                Done::Sent(to, accepted) => ledger.sent(to, accepted),
            }
        }
    }
}

impl TaskBatch for Flume {
    async fn send_batch(tx: &mut Self::Tx, batch: &mut VecDeque<u64>) {
        for value in batch.drain(..) {
            tx.send_async(value).await.expect("the receiver lives");
        }
    }

    async fn recv_batch(rx: &mut Self::Rx, batch: &mut Vec<u64>) {
        batch.extend(rx.recv_async().await);
        batch.extend(rx.drain());
    }
}

impl ThreadBatch for Flume {
    fn send_batch(tx: &mut Self::Tx, batch: &mut VecDeque<u64>) {
        for value in batch.drain(..) {
            tx.send(value).expect("the receiver lives");
        }
    }

    fn recv_batch(rx: &mut Self::Rx, batch: &mut Vec<u64>) {
        batch.extend(rx.recv());
        batch.extend(rx.drain());
    }
}
