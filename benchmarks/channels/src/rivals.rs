//! The rivals and ours, one file for each crate. Each adapts its crate to the traits
//! of `channel.rs` and of the shapes, with the cheapest public call that does what
//! the shape asks. The shapes measure, and decide which crates take part.

mod async_channel;
mod crossbeam;
mod crossfire;
mod flume;
mod kanal;
mod loole;
mod marline;
mod oneshot;
mod std_mpsc;
mod tachyonix;
mod tokio;

pub use async_channel::AsyncChannel;
pub use crossbeam::Crossbeam;
pub use crossfire::{
    Crossfire, CrossfireMpmc, CrossfireMpmcList, CrossfireMpsc, CrossfireMpscList, CrossfireSpsc,
    CrossfireSpscList, prepare_crossfire,
};
pub use flume::Flume;
pub use kanal::Kanal;
pub use loole::Loole;
pub use marline::{Marline, MarlineBroadcast, MarlineInTokioSelect, MarlineWatch};
pub use oneshot::Oneshot;
pub use std_mpsc::{Std, StdUnbounded};
pub use tachyonix::Tachyonix;
pub use tokio::{Tokio, TokioBroadcast, TokioUnbounded, TokioWatch};
