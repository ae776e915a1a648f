//! Python values as payloads, and back.
//!
//! A value is pickled by `pickle`. If that fails, or the result names `__main__`, it is pickled
//! again by cloudpickle (`marline/_serialize/pickling.py`), which also takes lambdas and closures. Data above
//! [`MAX_INLINE_BYTES`] goes into an object store instead of the message.

use crate::buffer::{self, Buffers, SharedBytes};
use crate::failure::to_python;
use crate::plain_data;
use crate::session::SessionState;
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
use std::sync::{Arc, Mutex};

/// The pickle protocol. 5 is the first with buffers beside the data.
const PROTOCOL: u8 = 5;

thread_local! {
    /// The references found so far by the pickling that runs on this thread; `None` if none runs.
    static FOUND_REFERENCES: RefCell<Option<FoundReferences>> = const { RefCell::new(None) };
    /// Whether the value that this thread pickles is the result of a task.
    static IS_RESULT_OF_TASK: Cell<bool> = const { Cell::new(false) };
}

/// The references inside a pickled value, and their referents. The `__reduce__` of user code may
/// have made a reference just for the pickle. So the references are kept alive until the work or
/// object that contains them holds their referents.
#[derive(Default)]
pub struct FoundReferences {
    referents: Vec<Referent>,
    references: Vec<Py<PyAny>>,
    /// The sessions that the references belong to. Usually one.
    sessions: Vec<Arc<SessionState>>,
}

impl FoundReferences {
    /// Fails if a reference belongs to another session than the one that `name` is sent through.
    pub fn check_session(&self, session: &Arc<SessionState>, name: &str) -> PyResult<()> {
        match self.sessions.iter().all(|found| Arc::ptr_eq(found, session)) {
            true => Ok(()),
            false => Err(Python::attach(|py| other_session(py, name))),
        }
    }
}

/// Returns the error for a reference or handle in `name` that belongs to another session.
pub fn other_session(py: Python<'_>, name: &str) -> PyErr {
    let words = format!(
        "{name}: a reference or actor handle belongs to another session, which is another context or has \
         ended: pass the value instead (marline.get(reference))"
    );
    to_python(py, &Error::invalid(words))
}

/// A pickled value.
pub struct Encoded {
    pub value: Value,
    /// The session of the worker whose object store has the data, if it is not inline.
    pub at: Option<Session>,
    /// The references in the value. Keep them until the controller was told the referents.
    pub found: FoundReferences,
}

/// Returns whether the value that this thread pickles is the result of a task. The executor may end
/// after the task, so such a result must not name a call whose answer comes to this process only.
pub fn is_result_of_task() -> bool {
    IS_RESULT_OF_TASK.get()
}

/// Pickles the result of a task.
pub fn encode_result_of_task(
    value: &Bound<'_, PyAny>,
    name: &str,
    destination: impl Fn(usize) -> Option<Destination>,
) -> PyResult<Encoded> {
    let outer = IS_RESULT_OF_TASK.replace(true);
    let encoded = encode(value, name, destination);
    IS_RESULT_OF_TASK.set(outer);
    encoded
}

/// Where the data of a large value is written, and the id of the object that it becomes.
pub struct Destination {
    pub store: DestinationStore,
    pub object: ObjectId,
}

pub enum DestinationStore {
    /// The object store of this node.
    Local(ObjectStoreHandle),
    /// The object store of a worker on another machine, to which this client uploads.
    Remote(Client),
}

/// How many object stores a write tries, one after the other, before it fails because their workers
/// are gone.
const MAX_STORES: u32 = 5;

impl Destination {
    /// Returns whether the worker with the local store is gone.
    fn is_over(&self) -> bool {
        match &self.store {
            DestinationStore::Local(objects) => objects.is_over(),
            DestinationStore::Remote(_) => false,
        }
    }

    /// Writes these parts. Returns the session of the worker that has them, if it is known. Handles
    /// signals meanwhile.
    fn write(&self, py: Python<'_>, parts: &[&[u8]]) -> Result<Option<Session>, Unwritten> {
        let mut raised = None;
        let written = py.detach(|| {
            let go_on = || {
                raised = Python::attach(|py| py.check_signals()).err();
                raised.is_none()
            };
            match &self.store {
                DestinationStore::Local(objects) => objects.write(self.object, parts, go_on),
                DestinationStore::Remote(client) => {
                    client.upload(self.object, parts, go_on).map(Some)
                }
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
    /// The store rejected it or could not be reached.
    Failed(Error),
}

/// Records a reference that is being pickled. Fails if this thread pickles nothing that Marline
/// sends: only then is the referent held.
pub fn record_reference(
    referent: Referent,
    reference: &Bound<'_, PyAny>,
    session: &Arc<SessionState>,
) -> PyResult<()> {
    FOUND_REFERENCES.with_borrow_mut(|found| match found {
        Some(found) => {
            if !found.sessions.last().is_some_and(|last| Arc::ptr_eq(last, session)) {
                found.sessions.push(session.clone());
            }
            found.referents.push(referent);
            found.references.push(reference.clone().unbind());
            Ok(())
        }
        None => Err(PyTypeError::new_err(
            "a reference can only be pickled as part of an argument, a result or a put value: \
             pass it to a task instead",
        )),
    })
}

/// The references inside pickled code, for Python.
#[pyclass(frozen, module = "marline._native")]
pub struct ContainedReferences {
    referents: Vec<Referent>,
    /// The references themselves, until [`release`](ContainedReferences::release).
    references: Mutex<FoundReferences>,
}

impl ContainedReferences {
    pub fn all(&self) -> &[Referent] {
        &self.referents
    }

    /// Fails if a reference belongs to another session than the one that gets the code.
    pub fn check_session(&self, session: &Arc<SessionState>) -> PyResult<()> {
        self.references.lock().expect("nothing panics under it").check_session(session, "the code")
    }

    /// Drops the references. Call it when the referents are held by the object that contains them.
    pub fn release(&self) {
        let references =
            std::mem::take(&mut *self.references.lock().expect("nothing panics under it"));
        drop(references);
    }
}

#[pymethods]
impl ContainedReferences {
    fn __len__(&self) -> usize {
        self.referents.len()
    }
}

/// Calls `dumps`, which pickles something. Returns its result and the references that it contains.
#[pyfunction]
pub fn pickle_with_references<'py>(
    dumps: &Bound<'py, PyAny>,
) -> PyResult<(Bound<'py, PyAny>, ContainedReferences)> {
    let outer = FOUND_REFERENCES.replace(Some(FoundReferences::default()));
    let dumped = dumps.call0();
    let mut found = FOUND_REFERENCES.replace(outer).unwrap_or_default();
    let referents = std::mem::take(&mut found.referents);
    Ok((dumped?, ContainedReferences { referents, references: Mutex::new(found) }))
}

/// Returns a function of a Python module, which is looked up once.
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

/// Pickles a value. An error calls the part that cannot be pickled a part of `name`. `destination`
/// gets the size of large data, and returns where to write it, if not into the message.
pub fn encode(
    value: &Bound<'_, PyAny>,
    name: &str,
    destination: impl Fn(usize) -> Option<Destination>,
) -> PyResult<Encoded> {
    let py = value.py();
    if let Ok(bytes) = value.cast_exact::<PyBytes>()
        && bytes.as_bytes().len() > MAX_INLINE_BYTES
    {
        // Bytes are sent as they are, without pickle.
        let raw = Payload::raw(Bytes::new());
        let (value, at) = store_or_inline(py, name, destination, raw, bytes, &Buffers::default())?;
        return Ok(Encoded { value, at, found: FoundReferences::default() });
    }
    // The `__reduce__` of user code may put another value meanwhile: the outer state is saved and
    // restored.
    let outer = (
        FOUND_REFERENCES.replace(Some(FoundReferences::default())),
        buffer::replace_found_buffers(Buffers::default()),
    );
    let pickled = pickle(value, name);
    let (found, buffers) =
        (FOUND_REFERENCES.replace(outer.0), buffer::replace_found_buffers(outer.1));
    let (pickled, code_version) = pickled?;
    let payload = Payload { encoding: Encoding::Pickle5, code_version, ..Payload::default() };
    let (mut value, at) = store_or_inline(py, name, destination, payload, &pickled, &buffers)?;
    let mut found = found.unwrap_or_default();
    value.referents = std::mem::take(&mut found.referents);
    Ok(Encoded { value, at, found })
}

/// Writes large data and buffers to an object store; puts small ones into the message.
fn store_or_inline(
    py: Python<'_>,
    name: &str,
    destination: impl Fn(usize) -> Option<Destination>,
    payload: Payload,
    data: &Bound<'_, PyBytes>,
    buffers: &Buffers,
) -> PyResult<(Value, Option<Session>)> {
    let data = data.as_bytes();
    let bytes = data.len() + buffers.len_bytes();
    let mut tries = 1;
    while bytes > MAX_INLINE_BYTES
        && let Some(destination) = destination(bytes)
    {
        let parts: Vec<&[u8]> = std::iter::once(data).chain(buffers.parts()).collect();
        let at = match destination.write(py, &parts) {
            Ok(at) => at,
            Err(Unwritten::Raised(raised)) => return Err(raised),
            // The worker of that store is gone. Another worker may have replaced it.
            Err(Unwritten::Failed(_)) if destination.is_over() && tries < MAX_STORES => {
                tries += 1;
                continue;
            }
            Err(Unwritten::Failed(error)) => return Err(to_python(py, &error)),
        };
        let stored = Some(Box::new(BlobRef {
            object: destination.object,
            bytes: bytes as u64,
            durable: false,
        }));
        return Ok((Payload { stored, ..payload }.into(), at));
    }
    check_size(py, name, bytes)?;
    let (inline, buffers) = (Bytes::copy_from_slice(data), buffers.copied());
    Ok((Payload { inline, buffers, ..payload }.into(), None))
}

/// Rejects what the controller would reject as too large. Checked here, so that the error is raised
/// where the value was made.
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

/// Returns the pickled bytes, and the minor version of Python that can read them; 0 is any.
fn pickle<'py>(value: &Bound<'py, PyAny>, name: &str) -> PyResult<(Bound<'py, PyBytes>, u32)> {
    static DUMPS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    static FALLBACK: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = value.py();
    static OPTIONS: PyOnceLock<Py<PyDict>> = PyOnceLock::new();
    let options = OPTIONS.get_or_try_init(py, || {
        let options = PyDict::new(py);
        options.set_item(
            "buffer_callback",
            py.import("marline._native")?.getattr("buffer_callback")?,
        )?;
        Ok::<_, PyErr>(options.unbind())
    })?;
    let dumps = function(py, &DUMPS, "pickle", "dumps")?;
    match dumps.call((value, PROTOCOL), Some(options.bind(py))) {
        Ok(pickled) => {
            let pickled = pickled.cast_into::<PyBytes>()?;
            // A name in `__main__` means something else where it is unpickled: there, `__main__` is
            // another module.
            if memmem::find(pickled.as_bytes(), b"__main__").is_none() {
                return Ok((pickled, 0));
            }
        }
        // Ctrl-C while a `__reduce__` of user code ran.
        Err(error) if !error.is_instance_of::<PyException>(py) => return Err(error),
        // The fallback can pickle more, and its error says what cannot be pickled.
        Err(_) => {}
    }
    // Taken out before it is dropped: the drop may run user code, which may borrow it again.
    drop(FOUND_REFERENCES.replace(Some(FoundReferences::default())));
    drop(buffer::replace_found_buffers(Buffers::default()));
    let fallback = function(py, &FALLBACK, "marline._serialize.pickling", "dumps_value")?;
    fallback.call1((value, name))?.extract()
}

/// Decodes a payload whose data is at hand.
pub fn decode<'py>(py: Python<'py>, payload: &Payload) -> PyResult<Bound<'py, PyAny>> {
    static LOADS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    if payload.code_version != 0 && payload.code_version != minor_version(py) {
        let what = (payload.code_version, "a value");
        let error = py.import("marline._serialize.pickling")?.call_method1("incompatible", what)?;
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
        Encoding::MessagePack => plain_data::load(py, &payload.inline),
    }
}

/// Returns the minor version of this Python.
pub(crate) fn minor_version(py: Python<'_>) -> u32 {
    static MINOR: PyOnceLock<u32> = PyOnceLock::new();
    *MINOR.get_or_init(py, || u32::from(py.version_info().minor))
}
