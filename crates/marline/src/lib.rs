//! Marline: tasks and actors, from one process to many machines.
//!
//! ```
//! use marline::{Cluster, Program};
//!
//! struct Counter(i64);
//! impl Counter {
//!     fn add(&mut self, n: i64) -> i64 {
//!         self.0 += n;
//!         self.0
//!     }
//! }
//!
//! let program = Program::new()
//!     .task("square", |x: i64| x * x)
//!     .actor("Counter", Counter, |counter| counter.method("add", Counter::add));
//! let cluster = Cluster::local(program)?;
//! let client = cluster.client();
//!
//! let squares: Vec<_> = (0..10_i64)
//!     .map(|x| client.task("square").submit::<i64>((x,)))
//!     .collect::<Result<_, _>>()?;
//! let sum: i64 = squares.into_iter().map(|square| square.wait()).sum::<Result<_, _>>()?;
//! assert_eq!(sum, 285);
//!
//! let counter = client.actor("Counter").create((100_i64,))?;
//! assert_eq!(counter.call::<i64>("add", (7_i64,))?.wait()?, 107);
//! # Ok::<(), marline::Error>(())
//! ```
//!
//! Functions and actors are registered by name in a [`Program`]. Programs in other languages can
//! call them, since arguments and results are plain data: anything that `serde` can encode.
//!
//! - One process: [`Cluster`]. Several: [`Controller`], [`Worker`] and [`Client`]. With `marline
//!   up`: [`Client::local`] and [`WorkerBuilder::run_local`].
//! - Work: [`Client::task`], [`Client::actor`], [`Client::command`]; their results: [`TaskHandle`].
//! - Large values: [`Client::put`], [`Client::put_bytes`], [`ObjectRef`].

#![forbid(unsafe_code)]

mod actor;
mod answer;
mod client;
mod cluster;
mod codec;
mod executor;
mod function;
mod handle;
mod process;
mod program;
mod reference;

pub use actor::{ActorBuilder, ActorHandle};
pub use bytes::Bytes;
pub use client::{Client, CommandBuilder, TaskBuilder};
pub use cluster::{Cluster, ClusterBuilder};
pub use codec::Arguments;
pub use executor::executor_main;
pub use function::{Constructor, Function, Method};
pub use handle::TaskHandle;
pub use marline_channel as channel;
pub use marline_runtime::control::{TaskState, TaskStatus};
pub use marline_runtime::core::controller::{Config, Counters, WorkerStatus};
pub use marline_runtime::core::error::{Error, ErrorKind, Failure};
pub use marline_runtime::core::id::{ActorId, ObjectId, TaskId};
pub use marline_runtime::core::resources::{Amount, Resources};
pub use marline_runtime::core::spec::{ActorOptions, Budget, Lifetime, RetryOn, TaskOptions};
pub use marline_runtime::{CommandEnd, CommandLine, Context, Load, context};
pub use process::{Controller, ControllerBuilder, Worker, WorkerBuilder};
pub use program::{Class, Program};
pub use reference::ObjectRef;

/// Runs the examples of the README as doc tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// Runs the examples of docs/objects.md as doc tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/objects.md")]
struct Objects;
