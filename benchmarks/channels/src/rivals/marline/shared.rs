//! Our broadcast and watch: every receiver sees the values.

use crate::shapes::newest::{Kind, TaskNewest};
use marline_channel::{ErrorKind, broadcast, watch};

pub struct MarlineBroadcast;
pub struct MarlineWatch;

impl TaskNewest for MarlineBroadcast {
    const NAME: &'static str = "marline";
    type Tx = broadcast::Sender<u64>;
    type Rx = broadcast::Receiver<u64>;

    fn open(kind: Kind) -> Option<(Self::Tx, Vec<Self::Rx>)> {
        if kind != Kind::Broadcast {
            return None;
        }
        let (tx, first) = marline_channel::broadcast(Kind::CAPACITY);
        let rest = (1..kind.receivers()).map(|_| tx.subscribe());
        let receivers = std::iter::once(first).chain(rest).collect();
        Some((tx, receivers))
    }

    fn send(tx: &mut Self::Tx, value: u64) {
        assert!(tx.send(value).is_ok(), "a receiver lives");
    }

    async fn recv(rx: &mut Self::Rx) -> Option<u64> {
        loop {
            match rx.recv().await {
                Ok(value) => return Some(value),
                Err(error) if matches!(error.kind(), ErrorKind::Lagged(_)) => continue,
                Err(_) => return None,
            }
        }
    }
}

impl TaskNewest for MarlineWatch {
    const NAME: &'static str = "marline";
    type Tx = watch::Sender<u64>;
    type Rx = watch::Receiver<u64>;

    fn open(kind: Kind) -> Option<(Self::Tx, Vec<Self::Rx>)> {
        if kind != Kind::Watch {
            return None;
        }
        let (tx, rx) = marline_channel::watch(0);
        Some((tx, vec![rx; kind.receivers()]))
    }

    fn send(tx: &mut Self::Tx, value: u64) {
        assert!(tx.send(value).is_ok(), "a receiver lives");
    }

    async fn recv(rx: &mut Self::Rx) -> Option<u64> {
        rx.changed().await.ok()?;
        Some(*rx.borrow())
    }
}
