//! tokio's oneshot, awaited and blocking.

use super::Tokio;
use crate::shapes::oneshot::{TaskOneshot, ThreadOneshot};
use tokio::sync::oneshot;

impl TaskOneshot for Tokio {
    const NAME: &'static str = "tokio";
    type Tx = oneshot::Sender<u64>;
    type Rx = oneshot::Receiver<u64>;

    fn open() -> (Self::Tx, Self::Rx) {
        oneshot::channel()
    }

    fn send(tx: Self::Tx, value: u64) {
        tx.send(value).expect("the receiver lives");
    }

    async fn recv(rx: Self::Rx) -> u64 {
        rx.await.expect("a value was sent")
    }
}

impl ThreadOneshot for Tokio {
    const NAME: &'static str = "tokio";
    type Tx = oneshot::Sender<u64>;
    type Rx = oneshot::Receiver<u64>;

    fn open() -> (Self::Tx, Self::Rx) {
        oneshot::channel()
    }

    fn send(tx: Self::Tx, value: u64) {
        tx.send(value).expect("the receiver lives");
    }

    fn recv(rx: Self::Rx) -> u64 {
        rx.blocking_recv().expect("a value was sent")
    }
}
