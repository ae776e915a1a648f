//! Our select, and our channels under `tokio::select!`. The latter drops the receives
//! and sends that do not win.

use super::Marline;
use super::queue::open;
use crate::channel::{Capacity, Ends, Opened, TaskChannel};
use crate::shapes::select::{Ledger, TaskSelect, ThreadMixedSelect, ThreadSelect};
use marline_channel::{Receiver, Sender, select, select_blocking};

pub struct MarlineInTokioSelect;

impl TaskSelect for Marline {
    async fn receive(rx: &mut [Self::Rx; 4], operations: u64, ledger: &mut Ledger) {
        let [a, b, c, d] = rx;
        for _ in 0..operations {
            select! {
                value = a.recv() => ledger.received(0, value.ok()),
                value = b.recv() => ledger.received(1, value.ok()),
                value = c.recv() => ledger.received(2, value.ok()),
                value = d.recv() => ledger.received(3, value.ok()),
            }
        }
    }

    async fn mix(
        rx: &mut [Self::Rx; 2],
        tx: &mut [Self::Tx; 2],
        operations: u64,
        ledger: &mut Ledger,
    ) {
        let ([a, b], [c, d]) = (rx, tx);
        for _ in 0..operations {
            let (third, fourth) = (ledger.next(0), ledger.next(1));
            select! {
                value = a.recv() => ledger.received(0, value.ok()),
                value = b.recv() => ledger.received(1, value.ok()),
                sent = c.send(third) => ledger.sent(0, sent.is_ok()),
                sent = d.send(fourth) => ledger.sent(1, sent.is_ok()),
            }
        }
    }
}

impl ThreadSelect for Marline {
    fn receive(rx: &mut [Self::Rx; 4], operations: u64, ledger: &mut Ledger) {
        let [a, b, c, d] = rx;
        for _ in 0..operations {
            select_blocking! {
                value = a.recv() => ledger.received(0, value.ok()),
                value = b.recv() => ledger.received(1, value.ok()),
                value = c.recv() => ledger.received(2, value.ok()),
                value = d.recv() => ledger.received(3, value.ok()),
            }
        }
    }
}

impl ThreadMixedSelect for Marline {
    fn mix(rx: &mut [Self::Rx; 2], tx: &mut [Self::Tx; 2], operations: u64, ledger: &mut Ledger) {
        let ([a, b], [c, d]) = (rx, tx);
        for _ in 0..operations {
            let (third, fourth) = (ledger.next(0), ledger.next(1));
            select_blocking! {
                value = a.recv() => ledger.received(0, value.ok()),
                value = b.recv() => ledger.received(1, value.ok()),
                sent = c.send(third) => ledger.sent(0, sent.is_ok()),
                sent = d.send(fourth) => ledger.sent(1, sent.is_ok()),
            }
        }
    }
}

impl TaskChannel<u64> for MarlineInTokioSelect {
    const NAME: &'static str = "marline in tokio::select!";
    type Tx = Sender<u64>;
    type Rx = Receiver<u64>;

    fn open(capacity: Capacity, ends: Ends) -> Opened<Self::Tx, Self::Rx> {
        open(capacity, ends)
    }

    async fn send(tx: &mut Self::Tx, value: u64) -> bool {
        tx.send(value).await.is_ok()
    }

    async fn recv(rx: &mut Self::Rx) -> Option<u64> {
        rx.recv().await.ok()
    }

    fn try_recv(rx: &mut Self::Rx) -> Option<u64> {
        rx.try_recv().ok()
    }
}

impl TaskSelect for MarlineInTokioSelect {}
