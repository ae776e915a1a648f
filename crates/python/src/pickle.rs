//! Python values as payloads. Plain pickle where it can, cloudpickle where it cannot: for what is defined in
//! `__main__`, lambdas, closures.

use crate::buffer::{self, Buffers, SharedBytes};
use crate::failure::to_python;
use crate::plain;
use bytes::Bytes;
use marline_runtime::core::controller::Config;
use marline_runtime::core::error::Error;
use marline_runtime::core::id::{ObjectId, Referent, Session};
use marline_runtime::core::payload::{BlobRef, Encoding, MAX_INLINE_BYTES, Payload, Value};
use marline_runtime::{Client, ObjectStoreHandle};
use memchr::memmem;
use pyo3::exceptions::{PyException, PyTypeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyList, PyString};
use std::cell::{Cell, RefCell};
use std::sync::Mutex;

/// The protocol of all that is pickled.
const PROTOCOL: u8 = 5;

thread_local! {
    /// The references that were met while something is pickled on this thread.
    static MET: RefCell<Option<Met>> = const { RefCell::new(None) };
    /// Whether that is what a task or call gives back.
    static IS_RESULT_OF_TASK: Cell<bool> = const { Cell::new(false) };
}

/// References in something that is pickled: what each names, and it itself. User code that is asked how to pickle
/// something may have made it for that, and nobody else may have it: it is kept until others hold what it names.
#[derive(Default)]
pub struct Met {
    things: Vec<Referent>,
    references: Vec<Py<PyAny>>,
}

/// Something pickled.
pub struct Encoded {
    pub value: Value,
    /// At which worker its data is, if it is in a store.
    pub at: Option<Session>,
    /// To be kept until it was said what it names.
    pub met: Met,
}

/// Whether the result of a task is pickled. The executor may end after the task: the result names no call whose answer
/// only this process waits for.
pub fn is_result_of_task() -> bool {
    IS_RESULT_OF_TASK.get()
}

/// Pickles what a task gives back.
pub fn encode_result_of_task(
    value: &Bound<'_, PyAny>,
    name: &str,
    room: impl Fn(usize) -> Option<Room>,
) -> PyResult<Encoded> {
    let outer = IS_RESULT_OF_TASK.replace(true);
    let encoded = encode(value, name, room);
    IS_RESULT_OF_TASK.set(outer);
    encoded
}

/// Where a large value goes, as the data of an object.
pub struct Room {
    pub place: Place,
    pub object: ObjectId,
}

pub enum Place {
    /// The store of this node.
    Here(ObjectStoreHandle),
    /// That of a worker on another machine.
    Elsewhere(Client),
}

/// A value is written to this many stores, one after the other, before its writer hears that they are gone.
const MAX_STORES: u32 = 5;

impl Room {
    /// Whether the worker is gone whose store it is.
    fn is_over(&self) -> bool {
        match &self.place {
            Place::Here(objects) => objects.is_over(),
            Place::Elsewhere(_) => false,
        }
    }

    /// Puts these parts there. Signals are handled while that takes its time.
    fn write(&self, py: Python<'_>, parts: &[&[u8]]) -> Result<Option<Session>, Unwritten> {
        let mut raised = None;
        let written = py.detach(|| {
            let go_on = || {
                raised = Python::attach(|py| py.check_signals()).err();
                raised.is_none()
            };
            match &self.place {
                Place::Here(objects) => objects.write(self.object, parts, go_on),
                Place::Elsewhere(client) => client.upload(self.object, parts, go_on).map(Some),
            }
        });
        match raised {
            Some(raised) => Err(Unwritten::Raised(raised)),
            None => written.map_err(Unwritten::Failed),
        }
    }
}

/// Why a value was not written.
enum Unwritten {
    /// A signal handler raised.
    Raised(PyErr),
    /// The store said so.
    Failed(Error),
}

/// A reference is being pickled. It may only be as part of something that Marline sends.
pub fn met(thing: Referent, reference: &Bound<'_, PyAny>) -> PyResult<()> {
    MET.with_borrow_mut(|met| match met {
        Some(met) => {
            met.things.push(thing);
            met.references.push(reference.clone().unbind());
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
pub struct Things {
    things: Vec<Referent>,
    /// The references themselves, until others hold what they name.
    references: Mutex<Vec<Py<PyAny>>>,
}

impl Things {
    pub fn all(&self) -> &[Referent] {
        &self.things
    }

    /// Others hold what they name.
    pub fn settled(&self) {
        let references =
            std::mem::take(&mut *self.references.lock().expect("nothing panics under it"));
        drop(references);
    }
}

#[pymethods]
impl Things {
    fn __len__(&self) -> usize {
        self.things.len()
    }
}

/// Pickles something in Python; says what references it has in it.
#[pyfunction]
pub fn noting<'py>(dumps: &Bound<'py, PyAny>) -> PyResult<(Bound<'py, PyAny>, Things)> {
    let outer = MET.replace(Some(Met::default()));
    let dumped = dumps.call0();
    let Met { things, references } = MET.replace(outer).unwrap_or_default();
    Ok((dumped?, Things { things, references: Mutex::new(references) }))
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

/// Pickles a value. What cannot be pickled is named as a part of `name`. If it is large and there is room for that many
/// bytes, its data goes there.
pub fn encode(
    value: &Bound<'_, PyAny>,
    name: &str,
    room: impl Fn(usize) -> Option<Room>,
) -> PyResult<Encoded> {
    let py = value.py();
    if let Ok(bytes) = value.cast_exact::<PyBytes>()
        && bytes.as_bytes().len() > MAX_INLINE_BYTES
    {
        // As it is: there is no more to be said about it.
        let raw = Payload::raw(Bytes::new());
        let (value, at) = place(py, name, room, raw, bytes, &Buffers::default())?;
        return Ok(Encoded { value, at, met: Met::default() });
    }
    // User code that is asked how to pickle something may put something else meanwhile.
    let outer = (MET.replace(Some(Met::default())), buffer::replace_met(Buffers::default()));
    let pickled = pickle(value, name);
    let (met, buffers) = (MET.replace(outer.0), buffer::replace_met(outer.1));
    let (pickled, code_version) = pickled?;
    let payload = Payload { encoding: Encoding::Pickle5, code_version, ..Payload::default() };
    let (mut value, at) = place(py, name, room, payload, &pickled, &buffers)?;
    let mut met = met.unwrap_or_default();
    value.referents = std::mem::take(&mut met.things);
    Ok(Encoded { value, at, met })
}

/// Has data and buffers go along with a message, or into the node's store.
fn place(
    py: Python<'_>,
    name: &str,
    room: impl Fn(usize) -> Option<Room>,
    payload: Payload,
    data: &Bound<'_, PyBytes>,
    buffers: &Buffers,
) -> PyResult<(Value, Option<Session>)> {
    let data = data.as_bytes();
    let bytes = data.len() + buffers.len_bytes();
    let mut tries = 1;
    while bytes > MAX_INLINE_BYTES
        && let Some(room) = room(bytes)
    {
        let parts: Vec<&[u8]> = std::iter::once(data).chain(buffers.parts()).collect();
        let at = match room.write(py, &parts) {
            Ok(at) => at,
            Err(Unwritten::Raised(raised)) => return Err(raised),
            // The worker whose store it was has gone, and another may be there.
            Err(Unwritten::Failed(_)) if room.is_over() && tries < MAX_STORES => {
                tries += 1;
                continue;
            }
            Err(Unwritten::Failed(error)) => return Err(to_python(py, &error)),
        };
        let stored =
            Some(Box::new(BlobRef { object: room.object, bytes: bytes as u64, durable: false }));
        return Ok((Payload { stored, ..payload }.into(), at));
    }
    check_size(py, name, bytes)?;
    let (inline, buffers) = (Bytes::copy_from_slice(data), buffers.copied());
    Ok((Payload { inline, buffers, ..payload }.into(), None))
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
    static OPTIONS: PyOnceLock<Py<PyDict>> = PyOnceLock::new();
    let options = OPTIONS.get_or_try_init(py, || {
        let options = PyDict::new(py);
        options
            .set_item("buffer_callback", py.import("marline._native")?.getattr("met_buffer")?)?;
        Ok::<_, PyErr>(options.unbind())
    })?;
    let dumps = function(py, &DUMPS, "pickle", "dumps")?;
    match dumps.call((value, PROTOCOL), Some(options.bind(py))) {
        Ok(pickled) => {
            let pickled = pickled.cast_into::<PyBytes>()?;
            // What is pickled by its name in `__main__` has another `__main__` where it is read.
            if memmem::find(pickled.as_bytes(), b"__main__").is_none() {
                return Ok((pickled, 0));
            }
        }
        // Ctrl-C while user code was asked how to pickle something.
        Err(error) if !error.is_instance_of::<PyException>(py) => return Err(error),
        // The fallback can pickle more, or says what cannot be pickled.
        Err(_) => {}
    }
    // Dropped when it is not borrowed: that may run user code.
    drop(MET.replace(Some(Met::default())));
    drop(buffer::replace_met(Buffers::default()));
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
    static BUFFERS: PyOnceLock<Py<PyString>> = PyOnceLock::new();
    let bytes = || PyBytes::new(py, &payload.inline);
    match payload.encoding {
        Encoding::Pickle5 if payload.len() <= MAX_INLINE_BYTES && payload.buffers.is_empty() => {
            function(py, &LOADS, "pickle", "loads")?.call1((bytes(),))
        }
        Encoding::Pickle5 => {
            let buffers = payload.buffers.iter().map(|buffer| SharedBytes(buffer.clone()));
            let named = PyDict::new(py);
            let name = BUFFERS.get_or_init(py, || PyString::intern(py, "buffers").unbind());
            named.set_item(name, PyList::new(py, buffers.collect::<Vec<_>>())?)?;
            let data = SharedBytes(payload.inline.clone());
            function(py, &LOADS, "pickle", "loads")?.call((data,), Some(&named))
        }
        Encoding::Raw => Ok(bytes().into_any()),
        Encoding::MessagePack => plain::load(py, &payload.inline),
    }
}

/// Which Python this is.
pub(crate) fn minor_version(py: Python<'_>) -> u32 {
    static MINOR: PyOnceLock<u32> = PyOnceLock::new();
    *MINOR.get_or_init(py, || u32::from(py.version_info().minor))
}
