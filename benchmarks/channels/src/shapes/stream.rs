//! Streams: every sender sends its share as fast as the channel allows, and every
//! receiver receives until the channel is closed. Every run compares the number of
//! messages that arrived with the number that the channel accepted.

use super::present;
use crate::channel::{Capacity, Ends, Message, TaskChannel, ThreadChannel};
use crate::contestant::{Contestant, Outcome, Shape};
use crate::context::{Finish, TaskRuntime, run_tasks, run_threads};
use crate::rivals;
use std::hint::black_box;
use std::thread::available_parallelism;

const CAPACITIES: [Capacity; 4] =
    [Capacity::Bounded(0), Capacity::Bounded(1), Capacity::Bounded(128), Capacity::Unbounded];

/// The most bytes in an unbounded queue: a sender that never waits may get that far
/// ahead.
const QUEUE_BYTES: u64 = 8 << 20;

/// How many threads per core the shape has that shows that no channel collapses.
const OVERSUBSCRIBED: usize = 8;

pub fn shapes() -> Vec<Shape> {
    let mut shapes = Vec::new();
    for (senders, receivers) in [(1, 1), (4, 1), (4, 4)] {
        let ends = Ends { senders, receivers };
        let topology = format!("{senders}→{receivers}");
        shapes.extend(CAPACITIES.map(|capacity| on_threads::<u64>(&topology, ends, capacity)));
        for tasks in TaskRuntime::ALL {
            shapes.extend(
                CAPACITIES.map(|capacity| on_tasks::<u64>(tasks, &topology, ends, capacity)),
            );
        }
    }
    for capacity in CAPACITIES {
        shapes.push(on_threads::<[u64; 32]>("1→1", Ends::SINGLE, capacity));
        for tasks in TaskRuntime::ALL {
            shapes.push(on_tasks::<[u64; 32]>(tasks, "1→1", Ends::SINGLE, capacity));
        }
    }
    let half = available_parallelism().map_or(2, usize::from) * OVERSUBSCRIBED / 2;
    let ends = Ends { senders: half, receivers: half };
    let topology = format!("{OVERSUBSCRIBED} threads per core");
    for capacity in [0, 1, 128].map(Capacity::Bounded) {
        shapes.push(on_threads::<u64>(&topology, ends, capacity));
    }
    shapes
}

fn named<T: Message>(
    context: &str,
    topology: &str,
    capacity: Capacity,
    contestants: Vec<Contestant>,
) -> Shape {
    let capacity_name = capacity.name();
    let name = format!("{context}/stream {topology}/{capacity_name}/{}", T::NAME);
    let mut shape = Shape::new(name, contestants);
    if capacity == Capacity::Unbounded {
        shape.chunk = QUEUE_BYTES / T::BYTES as u64;
    }
    shape
}

fn on_threads<T: Message>(topology: &str, ends: Ends, capacity: Capacity) -> Shape {
    let contestants = present([
        threads::<T, rivals::Marline>(capacity, ends),
        threads::<T, rivals::Kanal>(capacity, ends),
        threads::<T, rivals::CrossfireSpsc>(capacity, ends),
        threads::<T, rivals::CrossfireMpsc>(capacity, ends),
        threads::<T, rivals::CrossfireMpmc>(capacity, ends),
        threads::<T, rivals::CrossfireSpscList>(capacity, ends),
        threads::<T, rivals::CrossfireMpscList>(capacity, ends),
        threads::<T, rivals::CrossfireMpmcList>(capacity, ends),
        threads::<T, rivals::Crossbeam>(capacity, ends),
        threads::<T, rivals::Std>(capacity, ends),
        threads::<T, rivals::StdUnbounded>(capacity, ends),
        threads::<T, rivals::Flume>(capacity, ends),
        threads::<T, rivals::Loole>(capacity, ends),
        threads::<T, rivals::AsyncChannel>(capacity, ends),
        threads::<T, rivals::Tokio>(capacity, ends),
        threads::<T, rivals::TokioUnbounded>(capacity, ends),
    ]);
    named::<T>("threads", topology, capacity, contestants)
}

fn on_tasks<T: Message>(context: TaskRuntime, topology: &str, ends: Ends, capacity: Capacity) -> Shape {
    let contestants = present([
        tasks::<T, rivals::Marline>(context, capacity, ends),
        tasks::<T, rivals::Kanal>(context, capacity, ends),
        tasks::<T, rivals::CrossfireSpsc>(context, capacity, ends),
        tasks::<T, rivals::CrossfireMpsc>(context, capacity, ends),
        tasks::<T, rivals::CrossfireMpmc>(context, capacity, ends),
        tasks::<T, rivals::CrossfireSpscList>(context, capacity, ends),
        tasks::<T, rivals::CrossfireMpscList>(context, capacity, ends),
        tasks::<T, rivals::CrossfireMpmcList>(context, capacity, ends),
        tasks::<T, rivals::Flume>(context, capacity, ends),
        tasks::<T, rivals::Loole>(context, capacity, ends),
        tasks::<T, rivals::AsyncChannel>(context, capacity, ends),
        tasks::<T, rivals::Tokio>(context, capacity, ends),
        tasks::<T, rivals::TokioUnbounded>(context, capacity, ends),
        tasks::<T, rivals::Tachyonix>(context, capacity, ends),
    ]);
    named::<T>(context.name(), topology, capacity, contestants)
}

pub fn threads<T: Message, C: ThreadChannel<T>>(
    capacity: Capacity,
    ends: Ends,
) -> Option<Contestant> {
    C::open(capacity, ends)?;
    let run = move |messages: u64| {
        let (txs, rxs) = C::open(capacity, ends).expect("it opened before");
        let share = messages.div_ceil(ends.senders as u64);
        let send =
            |mut tx| move || (0..share).map(|index| C::send(&mut tx, T::new(index)) as u64).sum();
        let receive = |mut rx| {
            move || {
                let mut count = 0;
                while let Some(value) = C::recv(&mut rx) {
                    black_box(&value);
                    count += 1;
                }
                count
            }
        };
        let senders = txs.into_iter().map(send).collect();
        let receivers = rxs.into_iter().map(receive).collect();
        outcome(run_threads(senders, receivers))
    };
    Some(Contestant::new(C::NAME, run).specialised(C::SPECIALISED))
}

pub fn tasks<T: Message, C: TaskChannel<T>>(
    context: TaskRuntime,
    capacity: Capacity,
    ends: Ends,
) -> Option<Contestant> {
    C::open(capacity, ends)?;
    let run = move |messages: u64| {
        let (txs, rxs) = C::open(capacity, ends).expect("it opened before");
        let share = messages.div_ceil(ends.senders as u64);
        let send = |mut tx| async move {
            let mut count = 0;
            for index in 0..share {
                count += C::send(&mut tx, T::new(index)).await as u64;
            }
            count
        };
        let receive = |mut rx| async move {
            let mut count = 0;
            while let Some(value) = C::recv(&mut rx).await {
                black_box(&value);
                count += 1;
            }
            count
        };
        let senders = txs.into_iter().map(send).collect();
        let receivers = rxs.into_iter().map(receive).collect();
        outcome(run_tasks(context, senders, receivers))
    };
    Some(Contestant::new(C::NAME, run).specialised(C::SPECIALISED))
}

fn outcome(finish: Finish) -> Outcome {
    Outcome {
        messages: finish.sent,
        elapsed: finish.elapsed,
        lost: finish.sent.saturating_sub(finish.received),
        doubled: finish.received.saturating_sub(finish.sent),
    }
}
