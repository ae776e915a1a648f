//! Python values as payloads. Plain pickle where it can, cloudpickle where it cannot: for what is defined in
//! `__main__`, lambdas, closures.

use crate::failure::to_python;
use crate::plain;
use bytes::Bytes;
use marline_runtime::core::controller::Config;
use marline_runtime::core::error::Error;
use marline_runtime::core::id::Thing;
use marline_runtime::core::payload::{Encoding, Payload, Value};
use memchr::memmem;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyBytes;
use std::cell::{Cell, RefCell};

/// The protocol of all that is pickled.
const PROTOCOL: u8 = 5;

thread_local! {
    /// What the references name that were met while something is pickled on this thread.
    static MET: RefCell<Option<Vec<Thing>>> = const { RefCell::new(None) };
    /// Whether that is what a task or call gives back.
    static IS_RESULT: Cell<bool> = const { Cell::new(false) };
}

/// Whether what is pickled outlives what made it: then it names nothing that only this process waits for, which
/// may end.
pub fn is_result() -> bool {
    IS_RESULT.get()
}

/// Pickles what a task or call gives back.
pub fn encode_result(value: &Bound<'_, PyAny>, name: &str) -> PyResult<Value> {
    let outer = IS_RESULT.replace(true);
    let encoded = encode(value, name);
    IS_RESULT.set(outer);
    encoded
}

/// A reference is being pickled. It may only be as part of something that Marline sends.
pub fn met(thing: Thing) -> PyResult<()> {
    MET.with_borrow_mut(|met| match met {
        Some(met) => {
            met.push(thing);
            Ok(())
        }
        None => Err(PyTypeError::new_err(
            "a reference can only be pickled as part of an argument, a result or a put value: \
             pass it to a task instead",
        )),
    })
}

/// What the references name that something pickled has in it.
#[pyclass(frozen, module = "marline._native")]
pub struct Things(pub Vec<Thing>);

#[pymethods]
impl Things {
    fn __len__(&self) -> usize {
        self.0.len()
    }
}

/// Pickles something in Python; says what references it has in it.
#[pyfunction]
pub fn noting<'py>(dumps: &Bound<'py, PyAny>) -> PyResult<(Bound<'py, PyAny>, Things)> {
    let outer = MET.replace(Some(Vec::new()));
    let dumped = dumps.call0();
    let met = MET.replace(outer);
    Ok((dumped?, Things(met.unwrap_or_default())))
}

/// A function of a Python module, looked up once.
pub fn function<'py>(
    py: Python<'py>,
    cell: &'static PyOnceLock<Py<PyAny>>,
    module: &str,
    name: &str,
) -> PyResult<&'py Bound<'py, PyAny>> {
    let function =
        cell.get_or_try_init(py, || Ok::<_, PyErr>(py.import(module)?.getattr(name)?.unbind()))?;
    Ok(function.bind(py))
}

/// Pickles a value. What cannot be pickled is named as a part of `name`.
pub fn encode(value: &Bound<'_, PyAny>, name: &str) -> PyResult<Value> {
    let outer = MET.replace(Some(Vec::new()));
    let pickled = pickle(value, name);
    let met = MET.replace(outer);
    let (pickled, code_version) = pickled?;
    check_size(value.py(), name, pickled.as_bytes().len())?;
    let inline = Bytes::copy_from_slice(pickled.as_bytes());
    let encoding = Encoding::Pickle5;
    let payload = Payload { encoding, code_version, inline, ..Payload::default() };
    Ok(Value { payload, contains: met.unwrap_or_default() })
}

/// Refuses what a controller would refuse, before it goes anywhere: whoever made it is told, where it was made.
pub fn check_size(py: Python<'_>, name: &str, bytes: usize) -> PyResult<()> {
    let limit = Config::default().max_payload_bytes;
    if bytes <= limit {
        return Ok(());
    }
    let words = format!(
        "{name}: {bytes} bytes pickled, the limit is {limit} ({} MiB): pass it in parts, or write a file and \
         pass its path",
        limit >> 20
    );
    Err(to_python(py, &Error::too_large(words)))
}

/// The bytes, and which minor version of Python can read them; 0: any.
fn pickle<'py>(value: &Bound<'py, PyAny>, name: &str) -> PyResult<(Bound<'py, PyBytes>, u32)> {
    static DUMPS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    static FALLBACK: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = value.py();
    if let Ok(pickled) = function(py, &DUMPS, "pickle", "dumps")?.call1((value, PROTOCOL)) {
        let pickled = pickled.cast_into::<PyBytes>()?;
        // What is pickled by its name in `__main__` has another `__main__` where it is read.
        if memmem::find(pickled.as_bytes(), b"__main__").is_none() {
            return Ok((pickled, 0));
        }
    }
    MET.with_borrow_mut(|met| met.iter_mut().for_each(Vec::clear));
    let fallback = function(py, &FALLBACK, "marline._pickle", "dumps_value")?;
    fallback.call1((value, name))?.extract()
}

/// The value of a payload.
pub fn decode<'py>(py: Python<'py>, payload: &Payload) -> PyResult<Bound<'py, PyAny>> {
    static LOADS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    if payload.code_version != 0 && payload.code_version != minor_version(py) {
        let what = (payload.code_version, "a value");
        let error = py.import("marline._pickle")?.call_method1("incompatible", what)?;
        return Err(PyErr::from_value(error));
    }
    let bytes = || PyBytes::new(py, &payload.inline);
    match payload.encoding {
        Encoding::Pickle5 => function(py, &LOADS, "pickle", "loads")?.call1((bytes(),)),
        Encoding::Raw => Ok(bytes().into_any()),
        Encoding::MessagePack => plain::load(py, &payload.inline),
    }
}

/// Which Python this is.
fn minor_version(py: Python<'_>) -> u32 {
    static MINOR: PyOnceLock<u32> = PyOnceLock::new();
    *MINOR.get_or_init(py, || u32::from(py.version_info().minor))
}
