//! The border between the generated protocol types and the words of `marline-core`.
//!
//! What is ours always encodes: [`From`] consumes it, and payloads move over without a copy. What
//! comes from elsewhere decodes by [`TryFrom`], which never panics: an id of the wrong length, a part
//! that is missing, a number nobody agreed on is `Invalid`, in words that lead from the message to the
//! field (`put: Put.object: ObjectId.origin has 3 bytes; …`). Whether a decoded request makes sense is
//! not asked here; `validate` of `marline-core` says.
//!
//! One file per family of types: [`field`] has what all of them share, then [`ids`], [`payload`],
//! [`error`], [`resources`], [`spec`], [`message`], what is said outside of messages in [`frame`] and
//! [`join`], what executors are told in [`executor`], and the unary operations in [`control`].

pub(crate) mod control;
mod error;
mod executor;
mod field;
mod frame;
mod ids;
mod join;
mod message;
mod payload;
mod resources;
mod spec;

#[cfg(test)]
pub(crate) mod sample;
#[cfg(test)]
mod tests;

pub(crate) use error::{from_status, to_status};
pub(crate) use executor::{encode_call, encode_run};
pub(crate) use frame::{decode, decode_attach, encode};
pub(crate) use join::{decode_join, decode_joined, encode_join, encode_joined};
pub(crate) use message::{decode as decode_message, encode as encode_message};
