//! `tokio::sync`: mpsc, oneshot, broadcast and watch. On threads the adapters use its
//! `blocking_*` calls.

mod mpsc;
mod newest;
mod oneshot;

pub struct Tokio;
pub use mpsc::TokioUnbounded;
pub use newest::{TokioBroadcast, TokioWatch};
