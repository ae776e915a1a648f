//! The network: tonic servers and dialers that carry links between nodes. Nothing here looks into a
//! message: frames go to the node, and what the node says goes out in batches.

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
mod status_translator;
pub(crate) mod ticket;
pub(crate) mod transfer;
mod unauthenticated;
pub(crate) mod upload;

use crate::per_process::PerProcess;
use std::cell::Cell;

use std::time::Duration;
use tokio::runtime::Runtime;

/// The largest gRPC message: a payload at its limit, and what surrounds it.
pub(crate) const MAX_MESSAGE_BYTES: usize = 80 << 20;
/// How much may be under way on one stream, and on one connection, before the receiver has read it.
pub(crate) const STREAM_WINDOW_BYTES: u32 = 4 << 20;
pub(crate) const CONNECTION_WINDOW_BYTES: u32 = 8 << 20;
/// A connection on which nothing was heard for this long is asked for a sign of life, and is broken if
/// none comes within as long again.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(10);

thread_local! {
    static IS_IO: Cell<bool> = const { Cell::new(false) };
}

/// Whether this is one of the threads that do input and output.
pub(crate) fn is_io_thread() -> bool {
    IS_IO.get()
}

/// This is one of them from now on.
pub(crate) fn mark_io_thread() {
    IS_IO.set(true);
}

/// The threads that do all input and output of this process: one unless `MARLINE_IO_THREADS` says more,
/// since one does it with fewer wake-ups.
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
            .expect("a thread for input and output can be started")
    })
}
