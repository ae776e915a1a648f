//! Errors of Marline as Python exceptions, and exceptions of user code as errors of Marline.
//! `marline/_api/errors.py` maps kinds of errors to classes;
//! `marline/_serialize/failures.py` describes exceptions.

use bytes::Bytes;
use marline_runtime::core::error::{Error, ErrorKind, Failure};
use marline_runtime::core::id::Referent;
use marline_runtime::core::payload::{Encoding, Payload};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// The parts of an error, from which Python makes the exception that stands for the error.
#[pyclass(frozen, get_all, module = "marline._native")]
pub struct ErrorParts {
    /// The name of the kind: see [`kind_name`].
    kind: &'static str,
    may_have_run: bool,
    message: String,
    /// The class of the exception that user code raised, if it did.
    class_name: Option<String>,
    /// The traceback of that exception.
    remote_traceback: Option<String>,
    /// The pickle of that exception, and the minor version of Python that can read it; 0 is any.
    pickled: Option<(Py<PyBytes>, u32)>,
    cause: Option<Py<PyAny>>,
    /// Whether the error is about a value that is gone.
    is_value_gone: bool,
    is_out_of_memory: bool,
}

/// Returns the name of a kind of errors in Python. `marline/_api/errors.py` has the class of each.
pub fn kind_name(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Full => "full",
        ErrorKind::Empty => "empty",
        ErrorKind::Timeout => "timeout",
        ErrorKind::Cancelled => "cancelled",
        ErrorKind::Closed => "closed",
        ErrorKind::NotReady => "not_ready",
        ErrorKind::NotFound => "not_found",
        ErrorKind::AlreadyExists => "already_exists",
        ErrorKind::Unavailable => "unavailable",
        ErrorKind::Gone => "gone",
        ErrorKind::Fenced => "fenced",
        ErrorKind::Failed => "failed",
        ErrorKind::TooLarge => "too_large",
        ErrorKind::Exhausted => "exhausted",
        ErrorKind::Unsupported => "unsupported",
        ErrorKind::Invalid => "invalid",
        ErrorKind::Incompatible => "incompatible",
        ErrorKind::Denied => "denied",
        ErrorKind::Interrupted => "interrupted",
        ErrorKind::Internal => "internal",
    }
}

/// Returns the Python exception that stands for an error.
pub fn to_python(py: Python<'_>, error: &Error) -> PyErr {
    make(py, error).map_or_else(|problem| problem, PyErr::from_value)
}

fn make<'py>(py: Python<'py>, error: &Error) -> PyResult<Bound<'py, PyAny>> {
    let cause = error.cause().map(|cause| make(py, cause)).transpose()?;
    let failure = error.failure();
    let payload = failure.and_then(|failure| failure.payload.as_ref());
    let pickled = payload.filter(|payload| payload.encoding == Encoding::Pickle5);
    let parts = ErrorParts {
        kind: kind_name(error.kind()),
        may_have_run: error.may_have_run(),
        message: error.message().to_owned(),
        class_name: failure.map(|failure| failure.class.clone()),
        remote_traceback: failure.map(|failure| failure.traceback.clone()),
        pickled: pickled
            .map(|payload| (PyBytes::new(py, &payload.inline).unbind(), payload.code_version)),
        cause: cause.map(Bound::unbind),
        is_value_gone: matches!(error.what_is_gone(), Some(Referent::Object(_))),
        is_out_of_memory: error.is_out_of_memory(),
    };
    py.import("marline._api.errors")?.call_method1("make", (parts,))
}

/// Returns the error that other processes see when user code raises `exception`.
pub fn of_user_code(py: Python<'_>, exception: PyErr) -> Error {
    describe(py, &exception).unwrap_or_else(|problem| {
        let class = exception.get_type(py).to_string();
        let message = format!("user code failed, and its error could not be described: {problem}");
        Error::failed(message, Failure { class, ..Failure::default() })
    })
}

fn describe(py: Python<'_>, exception: &PyErr) -> PyResult<Error> {
    let value = exception.value(py);
    value.setattr("__traceback__", exception.traceback(py))?;
    let described = py.import("marline._serialize.failures")?.call_method1("describe", (value,))?;
    let (class, message, traceback, pickled): (String, String, String, Option<(Vec<u8>, u32)>) =
        described.extract()?;
    let payload = pickled.map(|(pickled, code_version)| Payload {
        encoding: Encoding::Pickle5,
        code_version,
        inline: Bytes::from(pickled),
        ..Payload::default()
    });
    let bases =
        py.import("marline._serialize.failures")?.call_method1("bases", (value,))?.extract()?;
    Ok(Error::failed(message, Failure { class, traceback, payload, bases }))
}
