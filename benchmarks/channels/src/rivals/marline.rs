//! Marline: one channel for tasks and threads. So both adapters of a kind open the
//! same ends, and differ only in `.await` and `.wait()`.

mod newest;
mod oneshot;
mod queue;
mod select;
mod shared;

pub struct Marline;
pub use select::MarlineInTokioSelect;
pub use shared::{MarlineBroadcast, MarlineWatch};
