//! The wire: the only crate that sees the generated protocol types, and the library that encodes
//! them. It converts between them and the types of [`marline_core`].
//!
//! - [`frame`]: the [`Frame`](frame::Frame)s of links, which carry [`Message`](message::Message)s.
//! - [`join`]: the request of a process to join, and its answer.
//! - [`executor`]: the commands of a worker to an executor process, and its reports.
//! - [`convert`]: everything else, with errors and the unary operations.
//! - [`length_prefix`]: messages on a plain socket.
//! - [`wall_clock`]: times as milliseconds since 1970, as the unary operations use them.
//!
//! The crate has no sockets and knows no gRPC. `marline-runtime` has the services.

pub mod convert;
pub mod executor;
pub mod frame;
pub mod join;
pub mod length_prefix;
pub mod message;
pub mod wall_clock;

/// The generated types of the public protocol.
#[allow(missing_docs, clippy::all)]
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/marline.v1.rs"));
}

/// The generated types of the protocol between a worker and its executors.
#[allow(missing_docs, clippy::all)]
mod executor_v1 {
    include!(concat!(env!("OUT_DIR"), "/executor/marline.executor.v1.rs"));
}

/// The encoded descriptors of the public protocol, for gRPC reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/marline.bin"));

/// The largest message, in bytes: a payload at its limit, and the fields around it.
pub const MAX_MESSAGE_BYTES: usize = 80 << 20;
