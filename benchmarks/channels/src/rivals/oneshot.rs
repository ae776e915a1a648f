//! The `oneshot` crate. It has a receiver that blocks and one that is awaited. Each
//! adapter uses the one for its context.

use crate::shapes::oneshot::{TaskOneshot, ThreadOneshot};

pub struct Oneshot;

impl TaskOneshot for Oneshot {
    const NAME: &'static str = "oneshot";
    type Tx = oneshot::Sender<u64>;
    type Rx = oneshot::AsyncReceiver<u64>;

    fn open() -> (Self::Tx, Self::Rx) {
        oneshot::async_channel()
    }

    fn send(tx: Self::Tx, value: u64) {
        tx.send(value).expect("the receiver lives");
    }

    async fn recv(rx: Self::Rx) -> u64 {
        rx.await.expect("a value was sent")
    }
}

impl ThreadOneshot for Oneshot {
    const NAME: &'static str = "oneshot";
    type Tx = oneshot::Sender<u64>;
    type Rx = oneshot::Receiver<u64>;

    fn open() -> (Self::Tx, Self::Rx) {
        oneshot::channel()
    }

    fn send(tx: Self::Tx, value: u64) {
        tx.send(value).expect("the receiver lives");
    }

    fn recv(rx: Self::Rx) -> u64 {
        rx.recv().expect("a value was sent")
    }
}
