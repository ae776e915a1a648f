//! The wire: the only place that sees the generated protocol types. `convert.rs` turns them into
//! the words of `marline-core` and back; everything else speaks those, in [`Frame`](frame::Frame)s
//! that carry [`Message`](message::Message)s, and in a [`Join`](join::Join) that is answered.

pub(crate) mod convert;
pub(crate) mod frame;
pub(crate) mod join;
pub(crate) mod message;

/// The generated types.
#[allow(missing_docs, clippy::all)]
pub(crate) mod v1 {
    tonic::include_proto!("marline.v1");
}
