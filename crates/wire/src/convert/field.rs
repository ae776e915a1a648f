//! Shared helpers for the fields of messages: errors, durations, and fields that are optional or
//! repeated.
//!
//! An error names a field as the `.proto` files do, `Message.field`, so that the author of another
//! client or worker can find it there.

use marline_core::Error;
use std::time::Duration;

/// Decodes a field that must be present.
pub(crate) fn required<W, T>(field: Option<W>, name: &str) -> Result<T, Error>
where
    T: TryFrom<W, Error = Error>,
{
    let wire = present(field, name)?;
    T::try_from(wire).map_err(|error| within(name, error))
}

/// Decodes a field, if it is present.
pub(crate) fn optional<W, T>(field: Option<W>, name: &str) -> Result<Option<T>, Error>
where
    T: TryFrom<W, Error = Error>,
{
    field.map(|wire| T::try_from(wire).map_err(|error| within(name, error))).transpose()
}

/// Decodes a field, or returns the default of its type.
pub(crate) fn or_default<W, T>(field: Option<W>, name: &str) -> Result<T, Error>
where
    T: TryFrom<W, Error = Error> + Default,
{
    Ok(optional(field, name)?.unwrap_or_default())
}

/// Decodes every part of a repeated field.
pub(crate) fn each<W, T>(fields: Vec<W>, name: &str) -> Result<Vec<T>, Error>
where
    T: TryFrom<W, Error = Error>,
{
    fields.into_iter().map(|wire| T::try_from(wire).map_err(|error| within(name, error))).collect()
}

/// Encodes every part of a list.
pub(crate) fn all<T, W: From<T>>(parts: Vec<T>) -> Vec<W> {
    parts.into_iter().map(W::from).collect()
}

/// Returns a field that must be present, undecoded. A later version may send a kind that this
/// version does not know, so "missing" may mean "unknown".
pub(crate) fn present<W>(field: Option<W>, name: &str) -> Result<W, Error> {
    field.ok_or_else(|| Error::invalid(format!("{name} is missing, or of an unknown kind")))
}

/// Adds the name of the field to an error.
pub(crate) fn within(name: &str, error: Error) -> Error {
    Error::invalid(format!("{name}: {}", error.message()))
}

/// Returns the error for a number that is no value of its enum.
pub(crate) fn unknown(name: &str, number: i32) -> Error {
    match number {
        0 => Error::invalid(format!("{name} is missing")),
        number => Error::invalid(format!("{name} has the unknown value {number}")),
    }
}

/// Returns a wait in milliseconds, rounded up so that no wait becomes zero.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// Returns a measured duration in nanoseconds.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_round_up_to_milliseconds_and_durations_never_overflow() {
        assert_eq!(millis(Duration::ZERO), 0);
        assert_eq!(millis(Duration::from_nanos(1)), 1);
        assert_eq!(millis(Duration::from_millis(100)), 100);
        assert_eq!(millis(Duration::MAX), u64::MAX);
        assert_eq!(nanos(Duration::MAX), u64::MAX);
    }
}
