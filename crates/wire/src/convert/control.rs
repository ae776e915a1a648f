//! The unary operations: requests as types of `marline-core`, answers for people. Ids are UUIDs as
//! text, values are `TASK#INDEX`, times are milliseconds since 1970.

mod actor;
mod cluster;
mod task;

pub use actor::{add_worker_view, decode_actor, encode_actor, encode_actor_here};
pub use cluster::{encode_counters, encode_worker, worker_state};
pub use task::{decode_call, decode_filter, decode_task, encode_task, encode_task_here};

use super::field::within;
use crate::join::check_protocol;
use crate::v1;
use marline_core::error::{Error, Ran};
use marline_core::id::{IdPrefix, ObjectId, Session, SessionEpoch};
use marline_core::payload::Payload;
use std::str::FromStr;

/// A decoded request, and the session that made it. `None`: the cluster itself owns the work.
#[derive(Clone, PartialEq, Debug)]
pub struct SessionRequest<T> {
    /// The session that made the request.
    pub session: Option<Session>,
    /// The work that it asks for.
    pub spec: T,
}

/// Parses an id that must be present.
pub fn id<T: FromStr<Err = Error>>(text: &str, field: &str) -> Result<T, Error> {
    if text.is_empty() {
        return Err(Error::invalid(format!("{field} is missing")));
    }
    text.parse().map_err(|error| within(field, error))
}

/// Parses the prefix of an id. An empty prefix fits every id.
pub fn prefix(text: &str, field: &str) -> Result<IdPrefix, Error> {
    text.parse().map_err(|error| within(field, error))
}

/// Parses an id. Returns a new one if the field is empty.
pub fn id_or_new<T: FromStr<Err = Error>>(
    text: &str,
    field: &str,
    new: impl FnOnce() -> T,
) -> Result<T, Error> {
    if text.is_empty() { Ok(new()) } else { id(text, field) }
}

/// Decodes a session that must be present.
pub fn session(name: Option<v1::SessionName>, field: &str) -> Result<Session, Error> {
    optional_session(name, field)?.ok_or_else(|| Error::invalid(format!("{field} is missing")))
}

fn optional_session(name: Option<v1::SessionName>, field: &str) -> Result<Option<Session>, Error> {
    let Some(name) = name else { return Ok(None) };
    let id = id(&name.id, &format!("{field}: SessionName.id"))?;
    Ok(Some(Session { id, epoch: SessionEpoch(name.epoch) }))
}

/// Encodes a session.
pub fn session_name(session: Session) -> v1::SessionName {
    v1::SessionName { id: session.id.to_string(), epoch: session.epoch.0 }
}

/// Fails if the caller speaks another version of the protocol. An empty version means this one.
pub fn check_version(protocol: &str) -> Result<(), Error> {
    if protocol.is_empty() { Ok(()) } else { check_protocol(protocol) }
}

/// The namespace of a name without a namespace.
const DEFAULT_NAMESPACE: &str = "default";

/// Returns the namespace that a request names, or the default one.
pub fn namespace(namespace: &str) -> &str {
    if namespace.is_empty() { DEFAULT_NAMESPACE } else { namespace }
}

fn objects(texts: &[String], field: &str) -> Result<Vec<ObjectId>, Error> {
    texts.iter().map(|text| id(text, field)).collect()
}

/// Decodes the arguments. An absent field means an empty list.
fn args(wire: Option<v1::Payload>, field: &str) -> Result<Payload, Error> {
    let Some(wire) = wire else { return Ok(Payload::message_pack(&[0x90][..])) };
    Payload::try_from(wire).map_err(|error| within(field, error))
}

/// The most bytes of an error's text in a list.
const MAX_LISTED_BYTES: usize = 1 << 10;

/// Encodes an error for a list: only its kind and its text, cut to [`MAX_LISTED_BYTES`].
fn brief(error: &Error) -> v1::Error {
    let words = error.message();
    let end =
        (0..=words.len().min(MAX_LISTED_BYTES)).rev().find(|end| words.is_char_boundary(*end));
    let ran = if error.may_have_run() { Ran::Maybe } else { Ran::No };
    Error::new(error.kind(), &words[..end.unwrap_or(0)]).ran(ran).into()
}

/// How much of an error an answer has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Detail {
    /// The whole error.
    Whole,
    /// The part that fits into a list.
    Brief,
}

fn error(error: Option<Error>, detail: Detail) -> Option<v1::Error> {
    error.map(|error| match detail {
        Detail::Whole => error.into(),
        Detail::Brief => brief(&error),
    })
}

#[cfg(test)]
mod tests;
