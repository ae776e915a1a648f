//! What the fields of every message share: words for what is wrong with one, and durations.
//!
//! A field is named as in the `.proto` files, `Message.field`, so that whoever writes a client or a
//! worker of their own finds it there.

use marline_core::Error;
use std::time::Duration;

/// The field, which must be there.
pub(super) fn required<W, T>(field: Option<W>, name: &str) -> Result<T, Error>
where
    T: TryFrom<W, Error = Error>,
{
    let wire = present(field, name)?;
    T::try_from(wire).map_err(|error| within(name, error))
}

/// The field, if it is there.
pub(super) fn optional<W, T>(field: Option<W>, name: &str) -> Result<Option<T>, Error>
where
    T: TryFrom<W, Error = Error>,
{
    field.map(|wire| T::try_from(wire).map_err(|error| within(name, error))).transpose()
}

/// The field, or its default.
pub(super) fn or_default<W, T>(field: Option<W>, name: &str) -> Result<T, Error>
where
    T: TryFrom<W, Error = Error> + Default,
{
    Ok(optional(field, name)?.unwrap_or_default())
}

/// Every part of a repeated field.
pub(super) fn each<W, T>(fields: Vec<W>, name: &str) -> Result<Vec<T>, Error>
where
    T: TryFrom<W, Error = Error>,
{
    fields.into_iter().map(|wire| T::try_from(wire).map_err(|error| within(name, error))).collect()
}

/// Every part of a list, as it travels.
pub(super) fn all<T, W: From<T>>(parts: Vec<T>) -> Vec<W> {
    parts.into_iter().map(W::from).collect()
}

/// The field as it came, which must be there. A later version may say something that has no place in
/// ours, so "missing" may mean "unknown".
pub(super) fn present<W>(field: Option<W>, name: &str) -> Result<W, Error> {
    field.ok_or_else(|| Error::invalid(format!("{name} is missing, or of a kind unknown here")))
}

/// What is wrong, with the field it was found in.
pub(super) fn within(name: &str, error: Error) -> Error {
    Error::invalid(format!("{name}: {}", error.message()))
}

/// A number that is none of an enum's.
pub(super) fn unknown(name: &str, number: i32) -> Error {
    match number {
        0 => Error::invalid(format!("{name} is missing")),
        number => Error::invalid(format!("{name} is {number}, which means nothing here")),
    }
}

/// A wait in milliseconds, rounded up: none is cut down to nothing.
pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// Something measured, in nanoseconds.
pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_round_up_and_nothing_overflows() {
        assert_eq!(millis(Duration::ZERO), 0);
        assert_eq!(millis(Duration::from_nanos(1)), 1);
        assert_eq!(millis(Duration::from_millis(100)), 100);
        assert_eq!(millis(Duration::MAX), u64::MAX);
        assert_eq!(nanos(Duration::MAX), u64::MAX);
    }
}
