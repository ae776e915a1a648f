//! Select over four channels of capacity 128: four receives, or two receives and two
//! sends. One side selects until a given number of clauses has completed.
//!
//! The other sides send and receive until they are stopped. So every channel stays
//! open and busy to the end; a closed channel would count as ready, and the select
//! would spin. Then the channels are drained, and every value is accounted for
//! (`Ledger`).

mod ledger;
mod tasks;
mod threads;

use super::present;
use crate::channel::{Capacity, TaskChannel, ThreadChannel};
use crate::contestant::Shape;
use crate::context::TaskRuntime;
use crate::rivals;
pub use ledger::Ledger;
use tasks::tasks;
use threads::{threads_mix, threads_receive};

const CAPACITY: Capacity = Capacity::Bounded(128);

/// A select of async tasks. The default is the only select that async rivals have:
/// `tokio::select!` over their futures, which drops those that lose each time.
pub trait TaskSelect: TaskChannel<u64> {
    fn receive(
        rx: &mut [Self::Rx; 4],
        operations: u64,
        ledger: &mut Ledger,
    ) -> impl Future<Output = ()> + Send {
        async move {
            let [a, b, c, d] = rx;
            for _ in 0..operations {
                tokio::select! {
                    value = Self::recv(a) => ledger.received(0, value),
                    value = Self::recv(b) => ledger.received(1, value),
                    value = Self::recv(c) => ledger.received(2, value),
                    value = Self::recv(d) => ledger.received(3, value),
                }
            }
        }
    }

    fn mix(
        rx: &mut [Self::Rx; 2],
        tx: &mut [Self::Tx; 2],
        operations: u64,
        ledger: &mut Ledger,
    ) -> impl Future<Output = ()> + Send {
        async move {
            let ([a, b], [c, d]) = (rx, tx);
            for _ in 0..operations {
                let (third, fourth) = (ledger.next(0), ledger.next(1));
                tokio::select! {
                    value = Self::recv(a) => ledger.received(0, value),
                    value = Self::recv(b) => ledger.received(1, value),
                    accepted = Self::send(c, third) => ledger.sent(0, accepted),
                    accepted = Self::send(d, fourth) => ledger.sent(1, accepted),
                }
            }
        }
    }
}

pub trait ThreadSelect: ThreadChannel<u64> {
    fn receive(rx: &mut [Self::Rx; 4], operations: u64, ledger: &mut Ledger);
}

pub trait ThreadMixedSelect: ThreadChannel<u64> {
    fn mix(rx: &mut [Self::Rx; 2], tx: &mut [Self::Tx; 2], operations: u64, ledger: &mut Ledger);
}

pub fn shapes() -> Vec<Shape> {
    let receive = "select 4 receives/capacity 128/u64";
    let mix = "select 2 receives and 2 sends/capacity 128/u64";
    let receiving = present([
        threads_receive::<rivals::Marline>(),
        threads_receive::<rivals::CrossfireSpsc>(),
        threads_receive::<rivals::Crossbeam>(),
        threads_receive::<rivals::Flume>(),
    ]);
    let mixing = present([
        threads_mix::<rivals::Marline>(),
        threads_mix::<rivals::Crossbeam>(),
        threads_mix::<rivals::Flume>(),
    ]);
    let mut shapes = vec![
        Shape::new(format!("threads/{receive}"), receiving),
        Shape::new(format!("threads/{mix}"), mixing),
    ];
    for context in TaskRuntime::ALL {
        let name = context.name();
        let entrants = |mixed| {
            present([
                tasks::<rivals::Marline>(context, mixed),
                tasks::<rivals::MarlineInTokioSelect>(context, mixed),
                tasks::<rivals::Kanal>(context, mixed),
                tasks::<rivals::CrossfireSpsc>(context, mixed),
                tasks::<rivals::Flume>(context, mixed),
                tasks::<rivals::Loole>(context, mixed),
                tasks::<rivals::AsyncChannel>(context, mixed),
                tasks::<rivals::Tokio>(context, mixed),
                tasks::<rivals::Tachyonix>(context, mixed),
            ])
        };
        shapes.push(Shape::new(format!("{name}/{receive}"), entrants(false)));
        shapes.push(Shape::new(format!("{name}/{mix}"), entrants(true)));
    }
    shapes
}

/// Returns one end of each of `N` channels, from the ends that `open` returned.
fn ends<E, const N: usize>(ends: Vec<Vec<E>>) -> [E; N] {
    let ends: Vec<E> = ends.into_iter().flatten().collect();
    ends.try_into().ok().expect("one end per channel")
}
