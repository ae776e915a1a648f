//! `std::sync::mpsc`: for one consumer and for threads only, without a select. Its
//! bounded and unbounded senders are different types, so there are two adapters
//! under one name.

use crate::channel::{Capacity, Ends, Message, Opened, ThreadChannel};
use std::sync::mpsc;

pub struct Std;
pub struct StdUnbounded;

impl<T: Message> ThreadChannel<T> for Std {
    const NAME: &'static str = "std";
    const SPECIALISED: bool = true;
    type Tx = mpsc::SyncSender<T>;
    type Rx = mpsc::Receiver<T>;

    fn open(capacity: Capacity, ends: Ends) -> Opened<Self::Tx, Self::Rx> {
        match capacity {
            Capacity::Bounded(size) if ends.receivers == 1 => {
                let (tx, rx) = mpsc::sync_channel(size);
                Some((vec![tx; ends.senders], vec![rx]))
            }
            _ => None,
        }
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

impl<T: Message> ThreadChannel<T> for StdUnbounded {
    const NAME: &'static str = "std";
    const SPECIALISED: bool = true;
    type Tx = mpsc::Sender<T>;
    type Rx = mpsc::Receiver<T>;

    fn open(capacity: Capacity, ends: Ends) -> Opened<Self::Tx, Self::Rx> {
        if capacity != Capacity::Unbounded || ends.receivers != 1 {
            return None;
        }
        let (tx, rx) = mpsc::channel();
        Some((vec![tx; ends.senders], vec![rx]))
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
