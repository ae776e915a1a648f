//! The wire: the only module that sees the generated protocol types. `convert.rs` converts between
//! them and the types of `marline-core`. All other modules use
//!
//! - [`Frame`](frame::Frame)s that carry [`Message`](message::Message)s,
//! - a [`Join`](join::Join) request and its answer,
//! - the requests and answers of the unary operations, with times as milliseconds since 1970
//!   ([`wall_clock`]).

pub(crate) mod convert;
pub(crate) mod frame;
pub(crate) mod join;
pub(crate) mod message;
pub(crate) mod wall_clock;

/// The generated types.
#[allow(missing_docs, clippy::all)]
pub(crate) mod v1 {
    tonic::include_proto!("marline.v1");
}

/// The encoded descriptors of the protocol, for gRPC reflection.
pub(crate) const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/marline.bin"));
