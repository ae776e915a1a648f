//! The wire: the only place that sees the generated protocol types. `convert.rs` turns them into
//! the words of `marline-core` and back; everything else speaks those, in [`Frame`](frame::Frame)s
//! that carry [`Message`](message::Message)s, and in a [`Join`](join::Join) that is answered. Unary
//! operations are answered from what `core` says, with times as people read them ([`wall`]).

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

/// What the protocol looks like, for those who ask by reflection.
pub(crate) const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/marline.bin"));
