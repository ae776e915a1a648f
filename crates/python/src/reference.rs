//! References to objects: results of tasks and calls, and values that were put.

use crate::answer::{Answer, Awaited};
use crate::failure::to_python;
use crate::pickle;
use crate::session::{Session, SessionState, loading_from, session_of_load};
use crate::wait::{open, wait_for};
use marline_runtime::core::error::Error;
use marline_runtime::core::id::{ObjectId, Referent, TaskId};
use marline_runtime::core::payload::{BlobRef, Encoding, Outcome, Payload, Value};
use marline_runtime::{Callback, new_object_id};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The result of `__reduce__`: the function that loads a reference, and its arguments.
type Reduced<'py> = (Bound<'py, PyAny>, (Bound<'py, PyBytes>, u32));

/// A value that a call needs: the answer that it comes with, and its index there.
pub type Needed = (Arc<Answer>, usize);

/// A hold of this process on a referent. Dropping it releases one count; the hold ends with the
/// last.
pub struct HoldGuard {
    pub session: Arc<SessionState>,
    pub referent: Referent,
}

impl HoldGuard {
    /// Makes a guard for a hold that the client counts already.
    pub fn new(session: &Arc<SessionState>, referent: Referent) -> HoldGuard {
        session.hold_count.fetch_add(1, Ordering::Relaxed);
        HoldGuard { session: session.clone(), referent }
    }
}

impl Drop for HoldGuard {
    fn drop(&mut self) {
        self.session.hold_count.fetch_sub(1, Ordering::Relaxed);
        if let Ok(client) = self.session.client() {
            client.release(self.referent);
        }
    }
}

/// A reference to an object: the result of a task or call, or a value that was put.
///
/// Pass it to tasks and calls, or read its value with `marline.get()` or `await`.
#[pyclass(frozen, weakref, module = "marline")]
pub struct ObjectRef {
    pub session: Arc<SessionState>,
    pub id: ObjectId,
    /// The index of its value in the answer.
    index: u32,
    /// The answer that its value comes with. Requested when it is first needed.
    answer: OnceLock<Arc<Answer>>,
    kind: Kind,
}

/// Which processes know the value.
enum Kind {
    /// The controller knows the object.
    Shared,
    /// Like `Shared`, for a value that this process has put into an object store. Its answer is
    /// made only when it is needed, and takes no memory before.
    Put(PutAs),
    /// The result of a call, which travels from the actor to this process only. When other
    /// processes need it, it is put, or announced if it has not come. This is the hold on the
    /// object that they know it by.
    Private(OnceLock<Box<HoldGuard>>),
}

/// A value in an object store, without its id.
struct PutAs {
    encoding: Encoding,
    code_version: u32,
    bytes: u64,
}

impl PutAs {
    /// Returns `None` if the value has more: if it is inline, contains references, or is durable.
    fn of(value: &Value) -> Option<PutAs> {
        let Payload { encoding, code_version, stored, .. } = &value.payload;
        let stored = stored.as_ref().filter(|blob| value.referents.is_empty() && !blob.durable)?;
        Some(PutAs { encoding: *encoding, code_version: *code_version, bytes: stored.bytes })
    }

    fn value(&self, object: ObjectId) -> Value {
        let stored = Some(Box::new(BlobRef { object, bytes: self.bytes, durable: false }));
        let (encoding, code_version) = (self.encoding, self.code_version);
        Payload { encoding, code_version, stored, ..Payload::default() }.into()
    }
}

impl Drop for ObjectRef {
    fn drop(&mut self) {
        self.session.hold_count.fetch_sub(1, Ordering::Relaxed);
        // The controller does not know a private result: there is no hold to release.
        if !matches!(self.kind, Kind::Private(_))
            && let Ok(client) = self.session.client()
        {
            client.release(Referent::Object(self.id));
        }
    }
}

impl ObjectRef {
    /// Makes the reference to a result of a task that this process submitted.
    pub fn result(session: &Arc<SessionState>, id: ObjectId, answer: Arc<Answer>) -> ObjectRef {
        ObjectRef::new(session, id, id.index, OnceLock::from(answer), Kind::Shared)
    }

    /// Makes the reference to a result of a call that this process made.
    pub fn of_call(session: &Arc<SessionState>, id: ObjectId, answer: Arc<Answer>) -> ObjectRef {
        let kind = Kind::Private(OnceLock::new());
        ObjectRef::new(session, id, id.index, OnceLock::from(answer), kind)
    }

    /// Returns the id of the object that other processes know the value by. Publishes a private
    /// result.
    pub fn public_id(&self, py: Python<'_>) -> PyResult<ObjectId> {
        let Kind::Private(public) = &self.kind else { return Ok(self.id) };
        if public.get().is_none() {
            let id = self.publish().map_err(|error| to_python(py, &error))?;
            // If another thread was faster, this hold is released at once.
            let held = HoldGuard::new(&self.session, Referent::Object(id));
            let _ = public.set(Box::new(held));
        }
        match public.get().map(|held| held.referent) {
            Some(Referent::Object(id)) => Ok(id),
            _ => Ok(self.id),
        }
    }

    /// Makes a private result an object of the cluster: puts the value, or announces it if it has
    /// not come.
    fn publish(&self) -> Result<ObjectId, Error> {
        let session = &self.session;
        let client = session.client()?;
        let (answer, index) = self.needed();
        if let Some(Ok(values)) = answer.get() {
            let value = values[index].clone();
            if let Some(id) = value.payload.stored_object() {
                // A value in an object store is an object already.
                client.hold(Referent::Object(id));
                return Ok(id);
            }
            let id = new_object_id();
            client.put_as(id, value, None)?;
            return Ok(id);
        }
        // Under its own id: if its data is in an object store, the controller knows it by that id.
        let id = self.id;
        client.announce_as(id)?;
        let (came, session) = (answer.clone(), session.clone());
        answer.then(Box::new(move || {
            if let Ok(client) = session.client() {
                let outcome = came.get().expect("it has come").clone();
                client.resolve(id, outcome.map(|values| values[index].clone()));
            }
        }));
        Ok(id)
    }

    /// Waits until the value has come, if it comes to this process only.
    fn settle(&self, py: Python<'_>) -> PyResult<()> {
        if let Kind::Private(_) = self.kind {
            wait_for(py, &[Awaited::Answer(self.answer())], 1, None)?;
        }
        Ok(())
    }

    /// Makes the reference to an item of a stream that this process reads.
    pub fn item(
        session: &Arc<SessionState>,
        id: ObjectId,
        value: Result<Value, Error>,
    ) -> ObjectRef {
        let answer = Answer::settled(value.map(|value| vec![value]));
        ObjectRef::new(session, id, 0, OnceLock::from(answer), Kind::Shared)
    }

    /// Makes the reference to a value that this process has put.
    pub fn put(session: &Arc<SessionState>, id: ObjectId, value: Value) -> ObjectRef {
        if let Some(put) = PutAs::of(&value) {
            return ObjectRef::new(session, id, 0, OnceLock::new(), Kind::Put(put));
        }
        ObjectRef::item(session, id, Ok(value))
    }

    fn new(
        session: &Arc<SessionState>,
        id: ObjectId,
        index: u32,
        answer: OnceLock<Arc<Answer>>,
        kind: Kind,
    ) -> ObjectRef {
        session.hold_count.fetch_add(1, Ordering::Relaxed);
        ObjectRef { session: session.clone(), id, index, answer, kind }
    }

    /// Returns the answer that the value comes with, and its index there.
    pub fn needed(&self) -> Needed {
        let answer = self.answer().clone();
        (answer, self.index())
    }

    /// Returns what to wait for, so that the value has come and its blob is at this node.
    pub fn data(&self) -> Awaited<'_> {
        let answer = self.answer();
        Awaited::Data(answer, self.index(), &self.session)
    }

    /// Returns the index of its value in the answer.
    fn index(&self) -> usize {
        self.index as usize
    }

    /// Returns the answer that the value comes with; requests it from the controller at the first
    /// call.
    pub fn answer(&self) -> &Arc<Answer> {
        self.answer.get_or_init(|| {
            if let Kind::Put(put) = &self.kind {
                return Answer::settled(Ok(vec![put.value(self.id)]));
            }
            let answer = Arc::<Answer>::default();
            let tell = answer.completion();
            let tell = Box::new(move |value: Result<Value, Error>| {
                tell(value.map(|value| vec![value]));
            });
            let client = self.session.client();
            match client.and_then(|client| client.get_with_callback(self.id, tell)) {
                Ok(()) => answer,
                Err(error) => Answer::settled(Err(error)),
            }
        })
    }

    /// Returns the value as a Python object, or the exception that stands for the error. Loads
    /// large data, until `deadline`.
    pub fn value<'py>(
        &self,
        py: Python<'py>,
        outcome: &Outcome,
        deadline: Option<Instant>,
    ) -> PyResult<Bound<'py, PyAny>> {
        match outcome {
            Ok(values) => {
                let payload = &values[self.index()].payload;
                loading_from(&self.session, || match payload.stored.is_some() {
                    true => pickle::decode(py, &open(py, &self.session, payload, deadline)?),
                    false => pickle::decode(py, payload),
                })
            }
            Err(error) => {
                self.answer().mark_read();
                Err(to_python(py, error))
            }
        }
    }

    /// Marks an error as read: other work gets it from now on and has to read it, or the user has
    /// cancelled the work.
    pub fn hand_over_error(&self) {
        if let Some(answer) = self.answer.get() {
            answer.mark_read();
        }
    }

    /// Returns the value, if it has come and its data is in memory at this node. Waits [`AT_ONCE`]
    /// at most.
    pub fn value_if_local<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let answer = self.answer();
        match (answer.get(), answer.large(self.index())) {
            (None, _) => Ok(None),
            (Some(outcome), None) => self.value(py, outcome, None).map(Some),
            (Some(_), Some(payload)) => {
                let client = self.session.client();
                let client = client.map_err(|error| to_python(py, &error))?;
                match py.detach(|| client.open_at_once(payload, AT_ONCE)) {
                    Some(Ok(payload)) => {
                        loading_from(&self.session, || pickle::decode(py, &payload)).map(Some)
                    }
                    // The caller waits next, and gets the value from another node or the error.
                    Some(Err(_)) | None => Ok(None),
                }
            }
        }
    }

    /// Loads the data of a large value that has come. Calls `tell` when the data is here.
    pub fn open_telling(
        &self,
        py: Python<'_>,
        tell: Callback<Result<Payload, Error>>,
    ) -> PyResult<()> {
        let answer = self.answer();
        let client = self.session.client().map_err(|error| to_python(py, &error))?;
        if let Some(payload) = answer.large(self.index()) {
            client.load_with_callback(payload, tell);
        }
        Ok(())
    }
}

/// How long an event loop is blocked at most, while the object store of another process is asked
/// for a blob.
const AT_ONCE: Duration = Duration::from_micros(200);

#[pymethods]
impl ObjectRef {
    /// Returns the object's id as text, as logs and the command line show it.
    fn hex(&self) -> String {
        self.id.to_string()
    }

    /// Returns the id of the task or call that makes the value.
    fn task_id(&self) -> String {
        self.id.origin.to_string()
    }

    /// Returns whether the value, or its error, has come.
    fn done(&self) -> bool {
        self.answer().get().is_some()
    }

    fn __repr__(&self) -> String {
        format!("ObjectRef({})", self.id)
    }

    fn __hash__(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.id.hash(&mut hasher);
        hasher.finish()
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<ObjectRef>().is_ok_and(|other| other.get().id == self.id)
    }

    fn __await__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let awaited =
            slf.py().import("marline._concurrent.aio")?.call_method1("wait_for", (slf,))?;
        awaited.call_method0("__await__")
    }

    /// Returns a `concurrent.futures.Future` for the value.
    fn future<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("marline._concurrent.aio")?.call_method1("future_of", (slf,))
    }

    /// Returns the value, which must have come.
    fn _value<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let outcome = self.answer().get().ok_or_else(|| {
            to_python(py, &Error::not_ready(format!("the value of {} has not come", self.id)))
        })?;
        self.value(py, outcome, None)
    }

    /// Returns the value in a tuple, if it has come and its data is in memory at this node. Does
    /// not wait.
    fn _value_if_local<'py>(&self, py: Python<'py>) -> PyResult<Option<(Bound<'py, PyAny>,)>> {
        Ok(self.value_if_local(py)?.map(|value| (value,)))
    }

    /// Returns the same reference: references are immutable.
    fn __copy__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __deepcopy__<'py>(slf: Bound<'py, Self>, _memo: &Bound<'py, PyAny>) -> Bound<'py, Self> {
        slf
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Reduced<'py>> {
        // Not in an actor: the actor lives on, and the call may wait for this very actor.
        if pickle::is_result_of_task() {
            slf.get().settle(slf.py())?;
        }
        let id = slf.get().public_id(slf.py())?;
        slf.get().hand_over_error();
        pickle::record_reference(Referent::Object(id), slf.as_any(), &slf.get().session)?;
        let load = slf.get_type().getattr("_load")?;
        let origin = PyBytes::new(slf.py(), &id.origin.as_u128().to_be_bytes());
        Ok((load, (origin, id.index)))
    }

    /// Makes the reference that another process has pickled. Without a session, it belongs to the
    /// session of the value that this thread unpickles.
    #[staticmethod]
    #[pyo3(signature = (origin, index, session=None))]
    fn _load(
        py: Python<'_>,
        origin: [u8; 16],
        index: u32,
        session: Option<&Bound<'_, Session>>,
    ) -> PyResult<ObjectRef> {
        let id = ObjectId::of(TaskId::from_u128(u128::from_be_bytes(origin)), index);
        let session = match session {
            Some(session) => session.get().inner.clone(),
            None => session_of_load(py)?,
        };
        let client = session.client().map_err(|error| to_python(py, &error))?;
        client.hold(Referent::Object(id));
        Ok(ObjectRef::new(&session, id, 0, OnceLock::new(), Kind::Shared))
    }
}
