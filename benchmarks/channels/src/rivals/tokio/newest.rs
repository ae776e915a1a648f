//! tokio's broadcast and watch. They also stand for the kinds that tokio does not
//! have: broadcast with one receiver for drop oldest, watch with one receiver for
//! conflated.

use crate::shapes::newest::{Kind, TaskNewest};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, watch};

pub struct TokioBroadcast;
pub struct TokioWatch;

impl TaskNewest for TokioBroadcast {
    const NAME: &'static str = "tokio";
    type Tx = broadcast::Sender<u64>;
    type Rx = broadcast::Receiver<u64>;

    fn open(kind: Kind) -> Option<(Self::Tx, Vec<Self::Rx>)> {
        match kind {
            Kind::Broadcast | Kind::DropOldest => {
                let tx = broadcast::Sender::new(Kind::CAPACITY);
                let rx = (0..kind.receivers()).map(|_| tx.subscribe()).collect();
                Some((tx, rx))
            }
            Kind::Conflated | Kind::Watch => None,
        }
    }

    fn send(tx: &mut Self::Tx, value: u64) {
        tx.send(value).expect("a receiver lives");
    }

    async fn recv(rx: &mut Self::Rx) -> Option<u64> {
        loop {
            match rx.recv().await {
                Ok(value) => return Some(value),
                Err(RecvError::Lagged(_)) => continue,
                Err(RecvError::Closed) => return None,
            }
        }
    }
}

impl TaskNewest for TokioWatch {
    const NAME: &'static str = "tokio";
    type Tx = watch::Sender<u64>;
    type Rx = watch::Receiver<u64>;

    fn open(kind: Kind) -> Option<(Self::Tx, Vec<Self::Rx>)> {
        match kind {
            Kind::Watch | Kind::Conflated => {
                let (tx, rx) = watch::channel(0);
                Some((tx, vec![rx; kind.receivers()]))
            }
            Kind::Broadcast | Kind::DropOldest => None,
        }
    }

    fn send(tx: &mut Self::Tx, value: u64) {
        tx.send(value).expect("a receiver lives");
    }

    async fn recv(rx: &mut Self::Rx) -> Option<u64> {
        rx.changed().await.ok()?;
        Some(*rx.borrow())
    }
}
