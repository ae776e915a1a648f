//! The wire: the only place that sees the generated protocol types. `convert.rs` turns them into
//! the words of `marline-core` and back; everything else speaks those, in [`Frame`](frame::Frame)s
//! that carry [`Message`](message::Message)s, and in a [`Join`](join::Join) that is answered.

// The services speak only a part of it so far.
#[allow(dead_code, unused_imports)]
pub(crate) mod convert;
#[allow(dead_code)]
pub(crate) mod frame;
#[allow(dead_code)]
pub(crate) mod join;
#[allow(dead_code)]
pub(crate) mod message;

/// The generated types.
#[allow(missing_docs, clippy::all)]
pub(crate) mod v1 {
    tonic::include_proto!("marline.v1");
}
