//! Our rendezvous, bounded and unbounded channels, value by value and in batches.

use super::Marline;
use crate::channel::{Capacity, Ends, Message, Opened, TaskChannel, ThreadChannel};
use crate::shapes::batch::{BATCH, TaskBatch, ThreadBatch};
use marline_channel::{Receiver, Sender};
use std::collections::VecDeque;

pub fn open<T>(capacity: Capacity, ends: Ends) -> Opened<Sender<T>, Receiver<T>> {
    let (tx, rx) = match capacity {
        Capacity::Bounded(0) => marline_channel::rendezvous(),
        Capacity::Bounded(size) => marline_channel::bounded(size),
        Capacity::Unbounded => marline_channel::unbounded(),
    };
    Some((vec![tx; ends.senders], vec![rx; ends.receivers]))
}

impl<T: Message> TaskChannel<T> for Marline {
    const NAME: &'static str = "marline";
    type Tx = Sender<T>;
    type Rx = Receiver<T>;

    fn open(capacity: Capacity, ends: Ends) -> Opened<Self::Tx, Self::Rx> {
        open(capacity, ends)
    }

    async fn send(tx: &mut Self::Tx, value: T) -> bool {
        tx.send(value).await.is_ok()
    }

    async fn recv(rx: &mut Self::Rx) -> Option<T> {
        rx.recv().await.ok()
    }

    fn try_recv(rx: &mut Self::Rx) -> Option<T> {
        rx.try_recv().ok()
    }
}

impl<T: Message> ThreadChannel<T> for Marline {
    const NAME: &'static str = "marline";
    type Tx = Sender<T>;
    type Rx = Receiver<T>;

    fn open(capacity: Capacity, ends: Ends) -> Opened<Self::Tx, Self::Rx> {
        open(capacity, ends)
    }

    fn send(tx: &mut Self::Tx, value: T) -> bool {
        tx.send(value).wait().is_ok()
    }

    fn recv(rx: &mut Self::Rx) -> Option<T> {
        rx.recv().wait().ok()
    }

    fn try_recv(rx: &mut Self::Rx) -> Option<T> {
        rx.try_recv().ok()
    }
}

impl TaskBatch for Marline {
    async fn send_batch(tx: &mut Self::Tx, batch: &mut VecDeque<u64>) {
        tx.send_all(batch).await.expect("the receiver lives");
    }

    async fn recv_batch(rx: &mut Self::Rx, batch: &mut Vec<u64>) {
        // If the channel is closed, the batch stays empty, which the shape checks.
        let _ = rx.recv_many(batch, BATCH).await;
    }
}

impl ThreadBatch for Marline {
    fn send_batch(tx: &mut Self::Tx, batch: &mut VecDeque<u64>) {
        tx.send_all(batch).wait().expect("the receiver lives");
    }

    fn recv_batch(rx: &mut Self::Rx, batch: &mut Vec<u64>) {
        let _ = rx.recv_many(batch, BATCH).wait();
    }
}
