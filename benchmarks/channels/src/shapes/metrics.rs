//! What the metrics cost: the same channel with its counters and without them. A
//! program cannot have two builds of one crate, so the second contestant runs in
//! another build of this benchmark (`--without-metrics PATH`).

use super::stream::{tasks, threads};
use crate::channel::{Capacity, Ends};
use crate::contestant::{Contestant, Program, Shape};
use crate::context::TaskRuntime;
use crate::rivals::Marline;
use crate::verdict::WITHOUT_METRICS;

pub fn shapes() -> Vec<Shape> {
    let mut shapes = Vec::new();
    for capacity in [Capacity::Bounded(0), Capacity::Bounded(128)] {
        let name = format!("metrics in and out, stream 1→1/{}/u64", capacity.name());
        shapes.push(Shape::new(
            format!("threads/{name}"),
            pair(|| threads::<u64, Marline>(capacity, Ends::SINGLE)),
        ));
        shapes.extend(TaskRuntime::ALL.map(|context| {
            Shape::new(
                format!("{}/{name}", context.name()),
                pair(|| tasks::<u64, Marline>(context, capacity, Ends::SINGLE)),
            )
        }));
    }
    shapes
}

fn pair(marline: impl Fn() -> Option<Contestant>) -> Vec<Contestant> {
    let without = marline().map(|contestant| Contestant {
        name: WITHOUT_METRICS,
        program: Program::WithoutMetrics,
        ..contestant
    });
    marline().into_iter().chain(without).collect()
}
