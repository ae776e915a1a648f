//! crossfire: it has a type for each number of producers and consumers, and for each
//! queue. The macro generates an adapter for each. `open` lets exactly one of them
//! take part in a shape: the most specialised that fits, as its documentation
//! advises. It has no rendezvous and silently turns capacity 0 into 1, so `open`
//! refuses capacity 0.

use crate::channel::{Capacity, Ends, Message, Opened, TaskChannel, ThreadChannel};
use crate::shapes::oneshot::{TaskOneshot, ThreadOneshot};
use crate::shapes::select::{Ledger, TaskSelect, ThreadSelect};
use crossfire::select::Select;
use crossfire::{AsyncRx, AsyncTx, MAsyncRx, MAsyncTx, MRx, MTx, Rx, Tx};
use crossfire::{mpmc, mpsc, oneshot, spsc};

/// Lets crossfire find out whether there is only one CPU, where its backoff must not
/// spin. Called once in each process.
pub fn prepare_crossfire() {
    crossfire::detect_backoff_cfg();
}

/// Calls `rival!` with the arguments for one module of crossfire.
macro_rules! module {
    ($bounded:ident, $list:ident, $module:ident, specialised $specialised:literal,
     $fits:expr, $tx:ident, $async_tx:ident, $rx:ident, $async_rx:ident, $many:expr) => {
        rival!($bounded, $specialised, $fits, $many,
            $async_tx<$module::Array<T>>, $async_rx<$module::Array<T>>, await,
            $tx<$module::Array<T>>, $rx<$module::Array<T>>,
            Capacity::Bounded(size) if size > 0,
            $module::bounded_async(size), $module::bounded_blocking(size));
        rival!($list, $specialised, $fits, $many,
            $tx<$module::List<T>>, $async_rx<$module::List<T>>, blocking,
            $tx<$module::List<T>>, $rx<$module::List<T>>,
            Capacity::Unbounded,
            $module::unbounded_async(), $module::unbounded_blocking());
    };
}

/// Completes a send. On an unbounded channel a send never waits, and is no future.
macro_rules! sent {
    (await, $sent:expr) => {
        $sent.await.is_ok()
    };
    (blocking, $sent:expr) => {
        $sent.is_ok()
    };
}

macro_rules! rival {
    ($name:ident, $specialised:literal, $fits:expr, $many:expr,
     $task_tx:ty, $task_rx:ty, $send:ident, $thread_tx:ty, $thread_rx:ty,
     $capacity:pat $(if $guard:expr)?, $task_open:expr, $thread_open:expr) => {
        pub struct $name;

        impl<T: Message> TaskChannel<T> for $name {
            const NAME: &'static str = "crossfire";
            const SPECIALISED: bool = $specialised;
            type Tx = $task_tx;
            type Rx = $task_rx;

            fn open(capacity: Capacity, ends: Ends) -> Opened<Self::Tx, Self::Rx> {
                match capacity {
                    $capacity if $fits(ends) $(&& $guard)? => Some($many($task_open, ends)),
                    _ => None,
                }
            }

            async fn send(tx: &mut Self::Tx, value: T) -> bool {
                sent!($send, tx.send(value))
            }

            async fn recv(rx: &mut Self::Rx) -> Option<T> {
                rx.recv().await.ok()
            }

            fn try_recv(rx: &mut Self::Rx) -> Option<T> {
                rx.try_recv().ok()
            }
        }

        impl<T: Message> ThreadChannel<T> for $name {
            const NAME: &'static str = "crossfire";
            const SPECIALISED: bool = $specialised;
            type Tx = $thread_tx;
            type Rx = $thread_rx;

            fn open(capacity: Capacity, ends: Ends) -> Opened<Self::Tx, Self::Rx> {
                match capacity {
                    $capacity if $fits(ends) $(&& $guard)? => Some($many($thread_open, ends)),
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
    };
}

fn one_to_one<S, R>((tx, rx): (S, R), _: Ends) -> (Vec<S>, Vec<R>) {
    (vec![tx], vec![rx])
}

fn many_to_one<S: Clone, R>((tx, rx): (S, R), ends: Ends) -> (Vec<S>, Vec<R>) {
    (vec![tx; ends.senders], vec![rx])
}

fn many_to_many<S: Clone, R: Clone>((tx, rx): (S, R), ends: Ends) -> (Vec<S>, Vec<R>) {
    (vec![tx; ends.senders], vec![rx; ends.receivers])
}

module!(
    CrossfireSpsc, CrossfireSpscList, spsc, specialised true,
    |ends: Ends| ends.senders == 1 && ends.receivers == 1,
    Tx, AsyncTx, Rx, AsyncRx, one_to_one
);
module!(
    CrossfireMpsc, CrossfireMpscList, mpsc, specialised true,
    |ends: Ends| ends.senders > 1 && ends.receivers == 1,
    MTx, MAsyncTx, Rx, AsyncRx, many_to_one
);
module!(
    CrossfireMpmc, CrossfireMpmcList, mpmc, specialised false,
    |ends: Ends| ends.receivers > 1,
    MTx, MAsyncTx, MRx, MAsyncRx, many_to_many
);

impl TaskSelect for CrossfireSpsc {}

impl ThreadSelect for CrossfireSpsc {
    fn receive(rx: &mut [Self::Rx; 4], operations: u64, ledger: &mut Ledger) {
        let mut select = Select::new();
        rx.iter().for_each(|rx| select.add(rx));
        for _ in 0..operations {
            let ready = select.select().expect("the senders live");
            let from = rx.iter().position(|rx| ready.is_from(rx));
            let from = from.expect("one of ours is ready");
            ledger.received(from, rx[from].read_select(ready).ok());
        }
    }
}

pub struct Crossfire;

impl TaskOneshot for Crossfire {
    const NAME: &'static str = "crossfire";
    type Tx = oneshot::TxOneshot<u64>;
    type Rx = oneshot::RxOneshot<u64>;

    fn open() -> (Self::Tx, Self::Rx) {
        oneshot::oneshot()
    }

    fn send(tx: Self::Tx, value: u64) {
        tx.send(value);
    }

    async fn recv(rx: Self::Rx) -> u64 {
        rx.await.expect("a value was sent")
    }
}

impl ThreadOneshot for Crossfire {
    const NAME: &'static str = "crossfire";
    type Tx = oneshot::TxOneshot<u64>;
    type Rx = oneshot::RxOneshot<u64>;

    fn open() -> (Self::Tx, Self::Rx) {
        oneshot::oneshot()
    }

    fn send(tx: Self::Tx, value: u64) {
        tx.send(value);
    }

    fn recv(rx: Self::Rx) -> u64 {
        rx.recv().expect("a value was sent")
    }
}
