//! Conversion between the generated protocol types and the types of `marline-core`.
//!
//! Encoding never fails: [`From`] consumes a value, and payloads move without a copy. Decoding uses
//! [`TryFrom`] and never panics. An id of the wrong length, a missing part or an unknown number is
//! `Invalid`, and the error names the path from the message to the field (`put: Put.object:
//! ObjectId.origin has 3 bytes; …`). Decoding does not check whether a request makes sense: the
//! `validate` functions of `marline-core` do.
//!
//! There is one file for each family of types:
//!
//! - `field`: what all of them share,
//! - `ids`, `payload`, `error`, `resources`, `spec`, `message`: the parts of messages,
//!   and the messages,
//! - `frame` and `join`: what travels outside of messages,
//! - `control`: the unary operations.

pub mod control;
mod error;
pub(crate) mod field;
mod frame;
pub(crate) mod ids;
mod join;
pub(crate) mod message;
mod payload;
mod resources;
mod spec;

#[cfg(test)]
pub(crate) mod sample;
#[cfg(test)]
mod tests;

pub use error::{decode_error, encode_brief_error, encode_error};
pub use frame::{decode, decode_attach, encode};
pub use join::{decode_join, decode_joined, encode_join, encode_joined};
