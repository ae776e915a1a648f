//! Our oneshot.

use super::Marline;
use crate::shapes::oneshot::{TaskOneshot, ThreadOneshot};
use marline_channel::oneshot;

impl TaskOneshot for Marline {
    const NAME: &'static str = "marline";
    type Tx = oneshot::Sender<u64>;
    type Rx = oneshot::Receiver<u64>;

    fn open() -> (Self::Tx, Self::Rx) {
        marline_channel::oneshot()
    }

    fn send(tx: Self::Tx, value: u64) {
        assert!(tx.send(value).is_ok(), "the receiver lives");
    }

    async fn recv(mut rx: Self::Rx) -> u64 {
        rx.recv().await.expect("a value was sent")
    }
}

impl ThreadOneshot for Marline {
    const NAME: &'static str = "marline";
    type Tx = oneshot::Sender<u64>;
    type Rx = oneshot::Receiver<u64>;

    fn open() -> (Self::Tx, Self::Rx) {
        marline_channel::oneshot()
    }

    fn send(tx: Self::Tx, value: u64) {
        assert!(tx.send(value).is_ok(), "the receiver lives");
    }

    fn recv(mut rx: Self::Rx) -> u64 {
        rx.recv().wait().expect("a value was sent")
    }
}
