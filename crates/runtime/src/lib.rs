//! Processes, threads and sockets around the decisions of [`marline_core`].
//!
//! A *node* (`node.rs`) holds the state machines of one process (any of controller, worker and
//! client) under one lock. It handles each event and all that follows from it before it releases
//! the lock. A message between two machines of one process is a function call, not a socket. So the
//! thread that submits a task to an embedded cluster also decides which executor runs it, and the
//! thread of that executor decides which callers hear of its end.
//!
//! This crate decides nothing: an `if` about a task, an actor or a session belongs in
//! `marline-core`.

#![forbid(unsafe_code)]

mod client;
mod clock;
mod cluster;
pub mod cluster_record;
pub mod control;
mod executor;
mod net;
mod node;
mod object_store;
mod per_process;
mod process;
mod process_identity;
pub mod runtime_log;
mod signal;
mod stream;
pub mod terminal;
mod upstream;

pub use client::{Callback, Client, Pending, WeakClient, wait_for_some};
pub use cluster::Cluster;
pub use executor::child::{executor_source, is_main_thread, objects, serve_as, serve_if_executor};
pub use executor::command::{CommandEnd, CommandLine, MAX_OUTPUT_BYTES};
pub use executor::process::{ForkServerOptions, ForkVersion, WaitOutcome, Waiter};
pub use executor::{
    BlockingWait, Context, Instance, Invocation, ItemProducer, LEND_AFTER, NoProgram, Program,
    Reply, ReplyCallback, StderrForwarding, context, wait_lending_cpu,
};
pub use marline_core as core;
pub use marline_core::label::label_of;
pub use node::OutputReceiver;
pub use process::{Controller, ExecutorOptions, Load, Worker, WorkerOptions, hostname};
pub use signal::on_signal;
pub use stream::{ItemStream, StreamNext};

pub use object_store::{
    DURABLE_VARIABLE, Durability, MIN_STORE_BYTES, ObjectStoreHandle, PATIENCE_VARIABLE,
    PendingRead, SPILL_VARIABLE, STORE_VARIABLE, Setting, StoreOptions, about_to_fork,
};

use marline_core::id::{ActorId, ClusterId, ObjectId, SessionId, TaskId};

/// Returns a new id for a task or a call. No other process creates the same id.
pub fn new_task_id() -> TaskId {
    TaskId::from_u128(uuid::Uuid::now_v7().as_u128())
}

/// Returns a new id for a value.
pub fn new_object_id() -> ObjectId {
    ObjectId::of(new_task_id(), 0)
}

/// Returns a new id for an actor.
pub fn new_actor_id() -> ActorId {
    ActorId::from_u128(uuid::Uuid::now_v7().as_u128())
}

fn new_cluster_id() -> ClusterId {
    ClusterId::from_u128(uuid::Uuid::now_v7().as_u128())
}

fn new_session_id() -> SessionId {
    SessionId::from_u128(uuid::Uuid::now_v7().as_u128())
}

/// Returns a random number that names an object store. No other store has it: it is the random half
/// of a new UUID.
fn new_store_number() -> u64 {
    uuid::Uuid::now_v7().as_u64_pair().1
}
