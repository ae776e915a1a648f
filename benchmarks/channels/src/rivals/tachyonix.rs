//! tachyonix: for async tasks only, bounded only, with one consumer.

use crate::channel::{Capacity, Ends, Message, Opened, TaskChannel};
use crate::shapes::select::TaskSelect;
use tachyonix::{Receiver, Sender};

pub struct Tachyonix;

impl<T: Message> TaskChannel<T> for Tachyonix {
    const NAME: &'static str = "tachyonix";
    const SPECIALISED: bool = true;
    type Tx = Sender<T>;
    type Rx = Receiver<T>;

    fn open(capacity: Capacity, ends: Ends) -> Opened<Self::Tx, Self::Rx> {
        match capacity {
            Capacity::Bounded(size) if size > 0 && ends.receivers == 1 => {
                let (tx, rx) = tachyonix::channel(size);
                Some((vec![tx; ends.senders], vec![rx]))
            }
            _ => None,
        }
    }

    async fn send(tx: &mut Self::Tx, value: T) -> bool {
        tx.send(value).await.is_ok()
    }

    async fn recv(rx: &mut Self::Rx) -> Option<T> {
        rx.recv().await.ok()
    }

    fn try_recv(rx: &mut Self::Rx) -> Option<T> {
        rx.try_recv().ok()
    }
}

impl TaskSelect for Tachyonix {}
