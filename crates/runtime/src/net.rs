//! The network: tonic servers and dialers that carry links between nodes. Nothing here looks into a
//! message of a link: received frames go to the node, and the frames that the node sends leave in
//! batches.
//!
//! Start with `server.rs` (the accepting side), `dial.rs` (the connecting side) and `handshake.rs`
//! (authentication). `frame_connection.rs` and `outbox.rs` carry the frames of links; `transfer.rs`
//! and `upload.rs` carry the data of large values.

pub(crate) mod address;
mod control;
pub(crate) mod credentials;
pub(crate) mod dial;
pub(crate) mod frame_connection;
mod grpc_connection;
pub(crate) mod handshake;
pub(crate) mod outbox;
mod peer_identity;
mod reader;
mod reserve;
pub(crate) mod server;
pub(crate) mod services;
pub(crate) mod status;
mod status_translator;
pub(crate) mod ticket;
pub(crate) mod transfer;
mod unauthenticated;
pub(crate) mod upload;

pub(crate) use marline_wire::MAX_MESSAGE_BYTES;

use crate::per_process::PerProcess;
use std::cell::Cell;

use std::time::Duration;
use tokio::runtime::Runtime;

/// How many bytes may be under way on one gRPC stream before the receiver has read them.
pub(crate) const STREAM_WINDOW_BYTES: u32 = 4 << 20;
/// How many bytes may be under way on one gRPC connection before the receiver has read them.
pub(crate) const CONNECTION_WINDOW_BYTES: u32 = 8 << 20;
/// How long a connection may be silent before this process asks the peer for a sign of life. If no
/// answer comes within the same time again, the connection is broken.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(10);

thread_local! {
    static IS_IO: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether the current thread is one of the I/O threads.
pub(crate) fn is_io_thread() -> bool {
    IS_IO.get()
}

/// Marks the current thread as an I/O thread from now on.
pub(crate) fn mark_io_thread() {
    IS_IO.set(true);
}

/// Returns the runtime of the threads that do all input and output of this process. It has one
/// thread unless `MARLINE_IO_THREADS` sets another number (1 to 64): one thread needs fewer
/// wake-ups.
pub(crate) fn io() -> &'static Runtime {
    static IO: PerProcess<Runtime> = PerProcess::new();
    IO.get_or_init(|| {
        let threads = std::env::var("MARLINE_IO_THREADS").ok().and_then(|text| text.parse().ok());
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(threads.unwrap_or(1).clamp(1, 64))
            .thread_name("marline-io")
            .on_thread_start(|| IS_IO.set(true))
            .enable_all()
            .build()
            .expect("the operating system can start an I/O thread")
    })
}
