//! The unary operations: requests in words of `marline-core`, answers for people. Ids are UUIDs as
//! text, values are `TASK#INDEX`, times are milliseconds since 1970.

mod actor;
mod cluster;
mod task;

pub(crate) use actor::{add_worker_view, decode_actor, encode_actor, encode_actor_here};
pub(crate) use cluster::{encode_counters, encode_health, encode_worker, worker_state};
pub(crate) use task::{decode_call, decode_filter, decode_task, encode_task, encode_task_here};

use super::field::within;
use crate::wire::join::check_protocol;
use crate::wire::v1;
use marline_core::error::{Error, Ran};
use marline_core::id::{IdPrefix, ObjectId, Session, SessionEpoch};
use marline_core::payload::Payload;
use std::str::FromStr;

/// What is asked for, and by which session; by the cluster if there is none.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct SessionRequest<T> {
    pub session: Option<Session>,
    pub spec: T,
}

/// An id, which must be there.
pub(crate) fn id<T: FromStr<Err = Error>>(text: &str, field: &str) -> Result<T, Error> {
    if text.is_empty() {
        return Err(Error::invalid(format!("{field} is missing")));
    }
    text.parse().map_err(|error| within(field, error))
}

/// How ids begin; all do, if it is empty.
pub(crate) fn prefix(text: &str, field: &str) -> Result<IdPrefix, Error> {
    text.parse().map_err(|error| within(field, error))
}

/// An id, or a new one if there is none.
pub(crate) fn id_or_new<T: FromStr<Err = Error>>(
    text: &str,
    field: &str,
    new: impl FnOnce() -> T,
) -> Result<T, Error> {
    if text.is_empty() { Ok(new()) } else { id(text, field) }
}

/// A session, which must be there.
pub(crate) fn session(name: Option<v1::SessionName>, field: &str) -> Result<Session, Error> {
    optional_session(name, field)?.ok_or_else(|| Error::invalid(format!("{field} is missing")))
}

fn optional_session(name: Option<v1::SessionName>, field: &str) -> Result<Option<Session>, Error> {
    let Some(name) = name else { return Ok(None) };
    let id = id(&name.id, &format!("{field}: SessionName.id"))?;
    Ok(Some(Session { id, epoch: SessionEpoch(name.epoch) }))
}

pub(crate) fn session_name(session: Session) -> v1::SessionName {
    v1::SessionName { id: session.id.to_string(), epoch: session.epoch.0 }
}

/// Says so if another version of the protocol is spoken; whoever names none speaks this one.
pub(crate) fn check_version(protocol: &str) -> Result<(), Error> {
    if protocol.is_empty() { Ok(()) } else { check_protocol(protocol) }
}

/// Where a name counts that says nothing else.
const DEFAULT_NAMESPACE: &str = "default";

pub(crate) fn namespace(given: &str) -> &str {
    if given.is_empty() { DEFAULT_NAMESPACE } else { given }
}

fn objects(texts: &[String], field: &str) -> Result<Vec<ObjectId>, Error> {
    texts.iter().map(|text| id(text, field)).collect()
}

/// Arguments; none are an empty list.
fn args(wire: Option<v1::Payload>, field: &str) -> Result<Payload, Error> {
    let Some(wire) = wire else { return Ok(Payload::message_pack(&[0x90][..])) };
    Payload::try_from(wire).map_err(|error| within(field, error))
}

/// The most words of an error in a list.
const MAX_LISTED_BYTES: usize = 1 << 10;

/// An error as lists have it: what kind, and in words.
fn brief(error: &Error) -> v1::Error {
    let words = error.message();
    let end =
        (0..=words.len().min(MAX_LISTED_BYTES)).rev().find(|end| words.is_char_boundary(*end));
    let ran = if error.may_have_run() { Ran::Maybe } else { Ran::No };
    Error::new(error.kind(), &words[..end.unwrap_or(0)]).ran(ran).into()
}

/// How much is said of what failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Detail {
    /// Everything.
    Whole,
    /// What fits into a list.
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
