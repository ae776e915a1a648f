//! Channels that lose nothing, for threads and async tasks.
//!
//! Seven kinds with one set of rules: [`rendezvous`], [`bounded`], [`unbounded`], [`conflated`]
//! (many senders, many receivers, each value to one), [`oneshot`](oneshot()),
//! [`broadcast`](broadcast()) and [`watch`](watch()). Each operation that may wait is one object
//! with several endings: `.await` it on any runtime, or `.wait()` on a thread, with an optional
//! deadline and cancel token. Threads and tasks can share one channel. [`Select`] waits for the
//! first of any mix of sends and receives.
//!
//! The crate promises:
//! - Dropping a pending receive or select at any moment loses no message and no wake-up.
//! - A failed send gives its value back.
//! - Parked operations are served in order, and `try_*` cannot overtake them.
//! - Every channel counts its operations ([`Snapshot`]).
//!
//! ```
//! use marline_channel::bounded;
//! let (tx, rx) = bounded(16);
//! std::thread::spawn(move || {
//!     for n in 0..100u64 {
//!         tx.send(n).wait().unwrap(); // a blocking thread …
//!     }
//! });
//! let sum: u64 = futures_executor::block_on(async {
//!     let mut sum = 0;
//!     while let Ok(n) = rx.recv().await { // … and an async task on one channel
//!         sum += n;
//!     }
//!     sum
//! });
//! assert_eq!(sum, 4950);
//! ```
//!
//! Where to look next:
//! - `queue/state.rs` decides what happens to a value.
//! - `queue/node.rs` says which party may touch a parked operation, and when.
//! - `select/mod.rs` proves that a select chooses exactly one clause.
//! - `op.rs` says how operations end.

mod error;
mod lock;
mod panics;
mod park;
mod sync;
mod timer;
mod wakers;

mod cancel;
mod metrics;
mod op;
mod queue;
mod select;

pub mod broadcast;
pub mod oneshot;
pub mod watch;

pub use broadcast::broadcast;
pub use cancel::CancelToken;
pub use error::{Error, ErrorKind, SendError};
pub use metrics::{Kind, Rate, SAMPLE_EVERY, SNAPSHOT_VERSION, Snapshot, Subscription, Totals};
pub use oneshot::oneshot;
pub use op::{Action, Op};
pub use queue::*;
pub use select::{
    Arms, Clause, Clauses, Next, Race, RecvKey, Select, Selecting, Selector, SendKey,
};
pub use watch::watch;
