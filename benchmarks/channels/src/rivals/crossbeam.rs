//! crossbeam-channel: for threads only. Its `select!` is the one that other selects
//! are measured against.

use crate::channel::{Capacity, Ends, Message, Opened, ThreadChannel};
use crate::shapes::batch::{BATCH, ThreadBatch};
use crate::shapes::select::{Ledger, ThreadMixedSelect, ThreadSelect};
use crossbeam_channel::{Receiver, Sender, select};
use std::collections::VecDeque;

pub struct Crossbeam;

impl<T: Message> ThreadChannel<T> for Crossbeam {
    const NAME: &'static str = "crossbeam";
    type Tx = Sender<T>;
    type Rx = Receiver<T>;

    fn open(capacity: Capacity, ends: Ends) -> Opened<Self::Tx, Self::Rx> {
        let (tx, rx) = match capacity {
            Capacity::Bounded(size) => crossbeam_channel::bounded(size),
            Capacity::Unbounded => crossbeam_channel::unbounded(),
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
        rx.try_recv().ok()
    }
}

impl ThreadSelect for Crossbeam {
    fn receive(rx: &mut [Self::Rx; 4], operations: u64, ledger: &mut Ledger) {
        let [a, b, c, d] = rx;
        for _ in 0..operations {
            select! {
                recv(a) -> value => ledger.received(0, value.ok()),
                recv(b) -> value => ledger.received(1, value.ok()),
                recv(c) -> value => ledger.received(2, value.ok()),
                recv(d) -> value => ledger.received(3, value.ok()),
            }
        }
    }
}

impl ThreadMixedSelect for Crossbeam {
    fn mix(rx: &mut [Self::Rx; 2], tx: &mut [Self::Tx; 2], operations: u64, ledger: &mut Ledger) {
        let ([a, b], [c, d]) = (rx, tx);
        for _ in 0..operations {
            select! {
                recv(a) -> value => ledger.received(0, value.ok()),
                recv(b) -> value => ledger.received(1, value.ok()),
                send(c, ledger.next(0)) -> sent => ledger.sent(0, sent.is_ok()),
                send(d, ledger.next(1)) -> sent => ledger.sent(1, sent.is_ok()),
            }
        }
    }
}

impl ThreadBatch for Crossbeam {
    fn send_batch(tx: &mut Self::Tx, batch: &mut VecDeque<u64>) {
        for value in batch.drain(..) {
            tx.send(value).expect("the receiver lives");
        }
    }

    fn recv_batch(rx: &mut Self::Rx, batch: &mut Vec<u64>) {
        batch.extend(rx.recv());
        batch.extend(rx.try_iter().take(BATCH - 1));
    }
}
