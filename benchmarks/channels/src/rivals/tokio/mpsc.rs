//! tokio's mpsc: one consumer, no rendezvous. Bounded and unbounded are different
//! types, so there are two adapters under one name.

use super::Tokio;
use crate::channel::{Capacity, Ends, Message, Opened, TaskChannel, ThreadChannel};
use crate::shapes::batch::{BATCH, TaskBatch, ThreadBatch};
use crate::shapes::select::TaskSelect;
use std::collections::VecDeque;
use tokio::sync::mpsc;

pub struct TokioUnbounded;

fn bounded<T>(capacity: Capacity, ends: Ends) -> Opened<mpsc::Sender<T>, mpsc::Receiver<T>> {
    match capacity {
        Capacity::Bounded(size) if size > 0 && ends.receivers == 1 => {
            let (tx, rx) = mpsc::channel(size);
            Some((vec![tx; ends.senders], vec![rx]))
        }
        _ => None,
    }
}

type UnboundedEnds<T> = Opened<mpsc::UnboundedSender<T>, mpsc::UnboundedReceiver<T>>;

fn unbounded<T>(capacity: Capacity, ends: Ends) -> UnboundedEnds<T> {
    if capacity != Capacity::Unbounded || ends.receivers != 1 {
        return None;
    }
    let (tx, rx) = mpsc::unbounded_channel();
    Some((vec![tx; ends.senders], vec![rx]))
}

impl<T: Message> TaskChannel<T> for Tokio {
    const NAME: &'static str = "tokio";
    const SPECIALISED: bool = true;
    type Tx = mpsc::Sender<T>;
    type Rx = mpsc::Receiver<T>;

    fn open(capacity: Capacity, ends: Ends) -> Opened<Self::Tx, Self::Rx> {
        bounded(capacity, ends)
    }

    async fn send(tx: &mut Self::Tx, value: T) -> bool {
        tx.send(value).await.is_ok()
    }

    async fn recv(rx: &mut Self::Rx) -> Option<T> {
        rx.recv().await
    }

    fn try_recv(rx: &mut Self::Rx) -> Option<T> {
        rx.try_recv().ok()
    }
}

impl<T: Message> ThreadChannel<T> for Tokio {
    const NAME: &'static str = "tokio";
    const SPECIALISED: bool = true;
    type Tx = mpsc::Sender<T>;
    type Rx = mpsc::Receiver<T>;

    fn open(capacity: Capacity, ends: Ends) -> Opened<Self::Tx, Self::Rx> {
        bounded(capacity, ends)
    }

    fn send(tx: &mut Self::Tx, value: T) -> bool {
        tx.blocking_send(value).is_ok()
    }

    fn recv(rx: &mut Self::Rx) -> Option<T> {
        rx.blocking_recv()
    }

    fn try_recv(rx: &mut Self::Rx) -> Option<T> {
        rx.try_recv().ok()
    }
}

impl<T: Message> TaskChannel<T> for TokioUnbounded {
    const NAME: &'static str = "tokio";
    const SPECIALISED: bool = true;
    type Tx = mpsc::UnboundedSender<T>;
    type Rx = mpsc::UnboundedReceiver<T>;

    fn open(capacity: Capacity, ends: Ends) -> Opened<Self::Tx, Self::Rx> {
        unbounded(capacity, ends)
    }

    async fn send(tx: &mut Self::Tx, value: T) -> bool {
        tx.send(value).is_ok()
    }

    async fn recv(rx: &mut Self::Rx) -> Option<T> {
        rx.recv().await
    }

    fn try_recv(rx: &mut Self::Rx) -> Option<T> {
        rx.try_recv().ok()
    }
}

impl<T: Message> ThreadChannel<T> for TokioUnbounded {
    const NAME: &'static str = "tokio";
    const SPECIALISED: bool = true;
    type Tx = mpsc::UnboundedSender<T>;
    type Rx = mpsc::UnboundedReceiver<T>;

    fn open(capacity: Capacity, ends: Ends) -> Opened<Self::Tx, Self::Rx> {
        unbounded(capacity, ends)
    }

    fn send(tx: &mut Self::Tx, value: T) -> bool {
        tx.send(value).is_ok()
    }

    fn recv(rx: &mut Self::Rx) -> Option<T> {
        rx.blocking_recv()
    }

    fn try_recv(rx: &mut Self::Rx) -> Option<T> {
        rx.try_recv().ok()
    }
}

impl TaskSelect for Tokio {}

impl TaskBatch for Tokio {
    async fn send_batch(tx: &mut Self::Tx, batch: &mut VecDeque<u64>) {
        let permits = tx.reserve_many(batch.len()).await;
        for permit in permits.expect("the receiver lives") {
            permit.send(batch.pop_front().expect("one permit per value"));
        }
    }

    async fn recv_batch(rx: &mut Self::Rx, batch: &mut Vec<u64>) {
        rx.recv_many(batch, BATCH).await;
    }
}

impl ThreadBatch for Tokio {
    fn send_batch(tx: &mut Self::Tx, batch: &mut VecDeque<u64>) {
        for value in batch.drain(..) {
            tx.blocking_send(value).expect("the receiver lives");
        }
    }

    fn recv_batch(rx: &mut Self::Rx, batch: &mut Vec<u64>) {
        rx.blocking_recv_many(batch, BATCH);
    }
}
