//! Errors of Marline as Python exceptions, and exceptions of user code as errors of Marline.
//! `marline/_errors.py` maps kinds of errors to classes; `marline/_failure.py` describes
//! exceptions.

use bytes::Bytes;
use marline_runtime::core::error::{Error, Failure};
use marline_runtime::core::id::Referent;
use marline_runtime::core::payload::{Encoding, Payload};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Returns the Python exception that stands for an error.
pub fn to_python(py: Python<'_>, error: &Error) -> PyErr {
    make(py, error).map_or_else(|problem| problem, PyErr::from_value)
}

fn make<'py>(py: Python<'py>, error: &Error) -> PyResult<Bound<'py, PyAny>> {
    let cause = error.cause().map(|cause| make(py, cause)).transpose()?;
    let failure = error.failure();
    let payload = failure.and_then(|failure| failure.payload.as_ref());
    let pickled = payload.filter(|payload| payload.encoding == Encoding::Pickle5);
    py.import("marline._errors")?.call_method1(
        "make",
        (
            format!("{:?}", error.kind()),
            error.may_have_run(),
            error.message(),
            failure.map(|failure| failure.class.as_str()),
            failure.map(|failure| failure.traceback.as_str()),
            pickled.map(|payload| (PyBytes::new(py, &payload.inline), payload.code_version)),
            cause,
            matches!(error.what_is_gone(), Some(Referent::Object(_))),
            error.is_out_of_memory(),
        ),
    )
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
    let described = py.import("marline._failure")?.call_method1("describe", (value,))?;
    let (class, message, traceback, pickled): (String, String, String, Option<(Vec<u8>, u32)>) =
        described.extract()?;
    let payload = pickled.map(|(pickled, code_version)| Payload {
        encoding: Encoding::Pickle5,
        code_version,
        inline: Bytes::from(pickled),
        ..Payload::default()
    });
    let bases = py.import("marline._failure")?.call_method1("bases", (value,))?.extract()?;
    Ok(Error::failed(message, Failure { class, traceback, payload, bases }))
}
