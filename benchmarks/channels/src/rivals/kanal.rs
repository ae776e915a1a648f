//! kanal: the fastest rival, but lossy. If a receive is dropped after a hand-off, its
//! value is lost. So kanal is shown beside the ratio to the best lossless rival, and
//! never counts as that rival (`verdict.rs`).

use crate::channel::{Capacity, Ends, Message, Opened, TaskChannel, ThreadChannel};
use crate::shapes::batch::{TaskBatch, ThreadBatch};
use crate::shapes::select::TaskSelect;
use std::collections::VecDeque;

pub struct Kanal;

impl<T: Message> TaskChannel<T> for Kanal {
    const NAME: &'static str = "kanal";
    type Tx = kanal::AsyncSender<T>;
    type Rx = kanal::AsyncReceiver<T>;

    fn open(capacity: Capacity, ends: Ends) -> Opened<Self::Tx, Self::Rx> {
        let (tx, rx) = match capacity {
            Capacity::Bounded(size) => kanal::bounded_async(size),
            Capacity::Unbounded => kanal::unbounded_async(),
        };
        Some((vec![tx; ends.senders], vec![rx; ends.receivers]))
    }

    async fn send(tx: &mut Self::Tx, value: T) -> bool {
        tx.send(value).await.is_ok()
    }

    async fn recv(rx: &mut Self::Rx) -> Option<T> {
        rx.recv().await.ok()
    }

    fn try_recv(rx: &mut Self::Rx) -> Option<T> {
        rx.try_recv().ok().flatten()
    }
}

impl<T: Message> ThreadChannel<T> for Kanal {
    const NAME: &'static str = "kanal";
    type Tx = kanal::Sender<T>;
    type Rx = kanal::Receiver<T>;

    fn open(capacity: Capacity, ends: Ends) -> Opened<Self::Tx, Self::Rx> {
        let (tx, rx) = match capacity {
            Capacity::Bounded(size) => kanal::bounded(size),
            Capacity::Unbounded => kanal::unbounded(),
        };
        Some((vec![tx; ends.senders], vec![rx; ends.receivers]))
    }

    fn send(tx: &mut Self::Tx, value: T) -> bool {
        tx.send(value).is_ok()
    }

    fn recv(rx: &mut Self::Rx) -> Option<T> {
        rx.recv().ok()
    }

    fn try_recv(rx: &mut Self::Rx) -> Option<T> {
        rx.try_recv().ok().flatten()
    }
}

impl TaskSelect for Kanal {}

impl TaskBatch for Kanal {
    async fn send_batch(tx: &mut Self::Tx, batch: &mut VecDeque<u64>) {
        for value in batch.drain(..) {
            tx.send(value).await.expect("the receiver lives");
        }
    }

    async fn recv_batch(rx: &mut Self::Rx, batch: &mut Vec<u64>) {
        if let Ok(value) = rx.recv().await {
            batch.push(value);
            let _ = rx.drain_into(batch);
        }
    }
}

impl ThreadBatch for Kanal {
    fn send_batch(tx: &mut Self::Tx, batch: &mut VecDeque<u64>) {
        for value in batch.drain(..) {
            tx.send(value).expect("the receiver lives");
        }
    }

    fn recv_batch(rx: &mut Self::Rx, batch: &mut Vec<u64>) {
        if let Ok(value) = rx.recv() {
            batch.push(value);
            let _ = rx.drain_into(batch);
        }
    }
}
