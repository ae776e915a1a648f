//! Our conflated and drop-oldest channels: queues whose sender never waits.

use super::Marline;
use crate::shapes::newest::{Kind, TaskNewest, ThreadNewest};
use marline_channel::{Builder, Overflow, Receiver, Sender};

fn open_newest(kind: Kind) -> Option<(Sender<u64>, Vec<Receiver<u64>>)> {
    let builder = match kind {
        Kind::Conflated => Builder::conflated(),
        Kind::DropOldest => Builder::bounded(Kind::CAPACITY).overflow(Overflow::DropOldest),
        Kind::Broadcast | Kind::Watch => return None,
    };
    let (tx, rx) = builder.build().expect("a valid channel");
    Some((tx, vec![rx; kind.receivers()]))
}

impl TaskNewest for Marline {
    const NAME: &'static str = "marline";
    type Tx = Sender<u64>;
    type Rx = Receiver<u64>;

    fn open(kind: Kind) -> Option<(Self::Tx, Vec<Self::Rx>)> {
        open_newest(kind)
    }

    fn send(tx: &mut Self::Tx, value: u64) {
        assert!(tx.try_send(value).is_ok(), "the receiver lives");
    }

    async fn recv(rx: &mut Self::Rx) -> Option<u64> {
        rx.recv().await.ok()
    }
}

impl ThreadNewest for Marline {
    const NAME: &'static str = "marline";
    type Tx = Sender<u64>;
    type Rx = Receiver<u64>;

    fn open(kind: Kind) -> Option<(Self::Tx, Vec<Self::Rx>)> {
        open_newest(kind)
    }

    fn send(tx: &mut Self::Tx, value: u64) {
        assert!(tx.try_send(value).is_ok(), "the receiver lives");
    }

    fn recv(rx: &mut Self::Rx) -> Option<u64> {
        rx.recv().wait().ok()
    }
}
