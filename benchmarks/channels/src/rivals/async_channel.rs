//! async-channel. It has no rendezvous (it panics). Its `force_send` pushes out the
//! oldest value, so it is the rival of our conflated and drop-oldest kinds.

use crate::channel::{Capacity, Ends, Message, Opened, TaskChannel, ThreadChannel};
use crate::shapes::newest::{Kind, TaskNewest, ThreadNewest};
use crate::shapes::select::TaskSelect;
use async_channel::{Receiver, Sender};

pub struct AsyncChannel;

fn open<T>(capacity: Capacity, ends: Ends) -> Opened<Sender<T>, Receiver<T>> {
    let (tx, rx) = match capacity {
        Capacity::Bounded(0) => return None,
        Capacity::Bounded(size) => async_channel::bounded(size),
        Capacity::Unbounded => async_channel::unbounded(),
    };
    Some((vec![tx; ends.senders], vec![rx; ends.receivers]))
}

impl<T: Message> TaskChannel<T> for AsyncChannel {
    const NAME: &'static str = "async-channel";
    type Tx = Sender<T>;
    type Rx = Receiver<T>;

    fn open(capacity: Capacity, ends: Ends) -> Opened<Self::Tx, Self::Rx> {
        open(capacity, ends)
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

impl<T: Message> ThreadChannel<T> for AsyncChannel {
    const NAME: &'static str = "async-channel";
    type Tx = Sender<T>;
    type Rx = Receiver<T>;

    fn open(capacity: Capacity, ends: Ends) -> Opened<Self::Tx, Self::Rx> {
        open(capacity, ends)
    }

    fn send(tx: &mut Self::Tx, value: T) -> bool {
        tx.send_blocking(value).is_ok()
    }

    fn recv(rx: &mut Self::Rx) -> Option<T> {
        rx.recv_blocking().ok()
    }

    fn try_recv(rx: &mut Self::Rx) -> Option<T> {
        rx.try_recv().ok()
    }
}

impl TaskSelect for AsyncChannel {}

fn open_newest(kind: Kind) -> Option<(Sender<u64>, Vec<Receiver<u64>>)> {
    let size = match kind {
        Kind::Conflated => 1,
        Kind::DropOldest => Kind::CAPACITY,
        Kind::Broadcast | Kind::Watch => return None,
    };
    let (tx, rx) = async_channel::bounded(size);
    Some((tx, vec![rx; kind.receivers()]))
}

impl TaskNewest for AsyncChannel {
    const NAME: &'static str = "async-channel";
    type Tx = Sender<u64>;
    type Rx = Receiver<u64>;

    fn open(kind: Kind) -> Option<(Self::Tx, Vec<Self::Rx>)> {
        open_newest(kind)
    }

    fn send(tx: &mut Self::Tx, value: u64) {
        tx.force_send(value).expect("the receiver lives");
    }

    async fn recv(rx: &mut Self::Rx) -> Option<u64> {
        rx.recv().await.ok()
    }
}

impl ThreadNewest for AsyncChannel {
    const NAME: &'static str = "async-channel";
    type Tx = Sender<u64>;
    type Rx = Receiver<u64>;

    fn open(kind: Kind) -> Option<(Self::Tx, Vec<Self::Rx>)> {
        open_newest(kind)
    }

    fn send(tx: &mut Self::Tx, value: u64) {
        tx.force_send(value).expect("the receiver lives");
    }

    fn recv(rx: &mut Self::Rx) -> Option<u64> {
        rx.recv_blocking().ok()
    }
}
