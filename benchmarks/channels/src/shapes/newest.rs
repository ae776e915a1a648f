//! Channels whose sender never waits, because newer values push out older ones:
//! conflated, drop oldest, broadcast (four receivers) and watch.
//!
//! `flat out` sends without a pause, and so measures the overwrite. `paced` lets the
//! receivers run after each burst that fits, so that every value is delivered. The
//! unit is nanoseconds per send. It includes the yield of the sender, which is the
//! same for every contestant.

use super::present;
use crate::contestant::{Contestant, Outcome, Shape};
use crate::context::{Finish, TaskRuntime, run_tasks, run_threads};
use crate::rivals;
use std::hint::black_box;
use tokio::task::yield_now;

#[derive(Clone, Copy, PartialEq)]
pub enum Kind {
    Conflated,
    DropOldest,
    Broadcast,
    Watch,
}

impl Kind {
    pub const CAPACITY: usize = 128;

    fn name(self) -> &'static str {
        match self {
            Kind::Conflated => "conflated 1→1",
            Kind::DropOldest => "drop oldest 1→1, capacity 128",
            Kind::Broadcast => "broadcast 1→4, capacity 128",
            Kind::Watch => "watch 1→4",
        }
    }

    pub fn receivers(self) -> usize {
        match self {
            Kind::Conflated | Kind::DropOldest => 1,
            Kind::Broadcast | Kind::Watch => 4,
        }
    }

    /// Returns how many values a paced sender sends between two yields.
    fn burst(self) -> u64 {
        match self {
            Kind::Conflated | Kind::Watch => 1,
            Kind::DropOldest | Kind::Broadcast => 64,
        }
    }
}

pub trait TaskNewest: 'static {
    const NAME: &'static str;
    type Tx: Send + 'static;
    type Rx: Send + 'static;
    /// Opens a channel. Returns `None` if this rival has no such kind.
    fn open(kind: Kind) -> Option<(Self::Tx, Vec<Self::Rx>)>;
    fn send(tx: &mut Self::Tx, value: u64);
    /// Returns the next value, even if older ones were lost; `None` when the channel is closed.
    fn recv(rx: &mut Self::Rx) -> impl Future<Output = Option<u64>> + Send;
}

pub trait ThreadNewest: 'static {
    const NAME: &'static str;
    type Tx: Send + 'static;
    type Rx: Send + 'static;
    fn open(kind: Kind) -> Option<(Self::Tx, Vec<Self::Rx>)>;
    fn send(tx: &mut Self::Tx, value: u64);
    fn recv(rx: &mut Self::Rx) -> Option<u64>;
}

pub fn shapes() -> Vec<Shape> {
    let mut shapes = Vec::new();
    for kind in [Kind::Conflated, Kind::DropOldest] {
        let contestants =
            present([threads::<rivals::Marline>(kind), threads::<rivals::AsyncChannel>(kind)]);
        let name = format!("threads/{}, flat out/u64", kind.name());
        shapes.push(Shape::new(name, contestants));
    }
    let kinds = [Kind::Conflated, Kind::DropOldest, Kind::Broadcast, Kind::Watch];
    for context in TaskRuntime::ALL {
        for kind in kinds {
            shapes.push(on_tasks(context, kind, kind.burst(), "paced"));
            shapes.push(on_tasks(context, kind, u64::MAX, "flat out"));
        }
    }
    shapes
}

fn on_tasks(context: TaskRuntime, kind: Kind, burst: u64, pace: &str) -> Shape {
    let contestants = present([
        tasks::<rivals::Marline>(context, kind, burst),
        tasks::<rivals::MarlineBroadcast>(context, kind, burst),
        tasks::<rivals::MarlineWatch>(context, kind, burst),
        tasks::<rivals::AsyncChannel>(context, kind, burst),
        tasks::<rivals::TokioBroadcast>(context, kind, burst),
        tasks::<rivals::TokioWatch>(context, kind, burst),
    ]);
    let name = format!("{}/{}, {pace}/u64", context.name(), kind.name());
    Shape::new(name, contestants)
}

fn tasks<C: TaskNewest>(context: TaskRuntime, kind: Kind, burst: u64) -> Option<Contestant> {
    C::open(kind)?;
    let run = move |messages: u64| {
        let (mut tx, rxs) = C::open(kind).expect("it opened before");
        let send = async move {
            // Yield first, so that the receivers wait already, as in the paced run.
            yield_now().await;
            for number in 1..=messages {
                C::send(&mut tx, number);
                if number % burst == 0 {
                    yield_now().await;
                }
            }
            messages
        };
        let receive = |mut rx| async move {
            let mut count = 0;
            while let Some(value) = C::recv(&mut rx).await {
                black_box(value);
                count += 1;
            }
            count
        };
        let receivers = rxs.into_iter().map(receive).collect();
        outcome(run_tasks(context, vec![send], receivers))
    };
    Some(Contestant::new(C::NAME, run))
}

fn threads<C: ThreadNewest>(kind: Kind) -> Option<Contestant> {
    C::open(kind)?;
    let run = move |messages: u64| {
        let (mut tx, rxs) = C::open(kind).expect("it opened before");
        let send = move || {
            (1..=messages).for_each(|number| C::send(&mut tx, number));
            messages
        };
        let receive = |mut rx| {
            move || {
                let mut count = 0;
                while let Some(value) = C::recv(&mut rx) {
                    black_box(value);
                    count += 1;
                }
                count
            }
        };
        let receivers = rxs.into_iter().map(receive).collect();
        outcome(run_threads(vec![send], receivers))
    };
    Some(Contestant::new(C::NAME, run))
}

/// Returns the outcome. Values that did not arrive were overwritten as intended, so they are no
/// loss.
fn outcome(finish: Finish) -> Outcome {
    Outcome::default().over(finish.sent, finish.elapsed)
}
