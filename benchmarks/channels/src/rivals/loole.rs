//! loole: the interface of flume, over a simpler mutex and queue. It has no select of
//! its own.

use crate::channel::{Capacity, Ends, Message, Opened, TaskChannel, ThreadChannel};
use crate::shapes::select::TaskSelect;
use loole::{Receiver, Sender};

pub struct Loole;

fn open<T>(capacity: Capacity, ends: Ends) -> Opened<Sender<T>, Receiver<T>> {
    let (tx, rx) = match capacity {
        Capacity::Bounded(size) => loole::bounded(size),
        Capacity::Unbounded => loole::unbounded(),
    };
    Some((vec![tx; ends.senders], vec![rx; ends.receivers]))
}

impl<T: Message> TaskChannel<T> for Loole {
    const NAME: &'static str = "loole";
    type Tx = Sender<T>;
    type Rx = Receiver<T>;

    fn open(capacity: Capacity, ends: Ends) -> Opened<Self::Tx, Self::Rx> {
        open(capacity, ends)
    }

    async fn send(tx: &mut Self::Tx, value: T) -> bool {
        tx.send_async(value).await.is_ok()
    }

    async fn recv(rx: &mut Self::Rx) -> Option<T> {
        rx.recv_async().await.ok()
    }

    fn try_recv(rx: &mut Self::Rx) -> Option<T> {
        rx.try_recv().ok()
    }
}

impl<T: Message> ThreadChannel<T> for Loole {
    const NAME: &'static str = "loole";
    type Tx = Sender<T>;
    type Rx = Receiver<T>;

    fn open(capacity: Capacity, ends: Ends) -> Opened<Self::Tx, Self::Rx> {
        open(capacity, ends)
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

impl TaskSelect for Loole {}
