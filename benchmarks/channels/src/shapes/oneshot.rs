//! One value through a new channel. `ready`: one side opens the channel, sends and
//! receives, which is the price of the channel itself. `pending`: the receive waits
//! first, so the time includes a wake-up. Only crates with a oneshot take part.

use super::present;
use crate::contestant::{Contestant, Outcome, Shape};
use crate::context::TaskRuntime;
use crate::rivals;
use std::hint::black_box;
use std::time::Instant;

pub trait TaskOneshot: 'static {
    const NAME: &'static str;
    type Tx: Send;
    type Rx: Send;
    fn open() -> (Self::Tx, Self::Rx);
    fn send(tx: Self::Tx, value: u64);
    fn recv(rx: Self::Rx) -> impl Future<Output = u64> + Send;
}

pub trait ThreadOneshot: 'static {
    const NAME: &'static str;
    type Tx;
    type Rx;
    fn open() -> (Self::Tx, Self::Rx);
    fn send(tx: Self::Tx, value: u64);
    fn recv(rx: Self::Rx) -> u64;
}

pub fn shapes() -> Vec<Shape> {
    let on_threads = present([
        threads::<rivals::Marline>(),
        threads::<rivals::Oneshot>(),
        threads::<rivals::Crossfire>(),
        threads::<rivals::Tokio>(),
    ]);
    let context = TaskRuntime::CurrentThread;
    let ready = present([
        ready::<rivals::Marline>(context),
        ready::<rivals::Oneshot>(context),
        ready::<rivals::Crossfire>(context),
        ready::<rivals::Tokio>(context),
    ]);
    let pending = present([
        pending::<rivals::Marline>(context),
        pending::<rivals::Oneshot>(context),
        pending::<rivals::Crossfire>(context),
        pending::<rivals::Tokio>(context),
    ]);
    vec![
        Shape::new("threads/oneshot/ready/u64".into(), on_threads),
        Shape::new("current-thread/oneshot/ready/u64".into(), ready),
        Shape::new("current-thread/oneshot/pending/u64".into(), pending),
    ]
}

fn threads<C: ThreadOneshot>() -> Option<Contestant> {
    let run = |messages: u64| {
        let start = Instant::now();
        for value in 0..messages {
            let (tx, rx) = C::open();
            C::send(tx, black_box(value));
            black_box(C::recv(rx));
        }
        outcome(messages, start)
    };
    Some(Contestant::new(C::NAME, run))
}

fn ready<C: TaskOneshot>(context: TaskRuntime) -> Option<Contestant> {
    let run = move |messages: u64| {
        context.block_on(async move {
            let start = Instant::now();
            for value in 0..messages {
                let (tx, rx) = C::open();
                C::send(tx, black_box(value));
                black_box(C::recv(rx).await);
            }
            outcome(messages, start)
        })
    };
    Some(Contestant::new(C::NAME, run))
}

fn pending<C: TaskOneshot>(context: TaskRuntime) -> Option<Contestant> {
    let run = move |messages: u64| {
        context.block_on(async move {
            let start = Instant::now();
            for value in 0..messages {
                let (tx, rx) = C::open();
                let send = async { C::send(tx, value) };
                // `biased` polls the receive first, so it has to wait.
                black_box(tokio::join!(biased; C::recv(rx), send));
            }
            outcome(messages, start)
        })
    };
    Some(Contestant::new(C::NAME, run))
}

fn outcome(messages: u64, start: Instant) -> Outcome {
    Outcome::default().over(messages, start.elapsed())
}
