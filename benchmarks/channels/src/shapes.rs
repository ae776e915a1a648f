//! All questions of the benchmark, in the order of the report: one file for each
//! family. Each file lists its contestants, because not every crate can answer every
//! question.

pub mod batch;
mod floor;
mod metrics;
pub mod newest;
pub mod oneshot;
mod ping;
pub mod select;
pub mod stream;

use crate::contestant::{Contestant, Shape};

pub use floor::FLOOR;

pub fn all() -> Vec<Shape> {
    let mut shapes = ping::shapes();
    shapes.extend(stream::shapes());
    shapes.extend(oneshot::shapes());
    shapes.extend(select::shapes());
    shapes.extend(newest::shapes());
    shapes.extend(batch::shapes());
    shapes.extend(metrics::shapes());
    shapes.extend(floor::shapes());
    shapes.extend(crate::c_abi::shapes());
    shapes
}

/// Returns the contestants that can take part, in the same order.
fn present<const N: usize>(contestants: [Option<Contestant>; N]) -> Vec<Contestant> {
    contestants.into_iter().flatten().collect()
}
