//! References to values: results that may not have come yet, values that were put.

use crate::answer::{Answer, Awaited};
use crate::failure::to_python;
use crate::pickle;
use crate::session::{Inner, current};
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

/// How a reference is pickled: what makes it again, and from what.
type Reduced<'py> = (Bound<'py, PyAny>, (Bound<'py, PyBytes>, u32));

/// A value that is needed: where it comes, and which of the values that is.
pub type Needed = (Arc<Answer>, usize);

/// A handle to a thing that this process holds; the last one lets go.
pub struct Held {
    pub session: Arc<Inner>,
    pub thing: Referent,
}

impl Held {
    /// A handle that is counted already.
    pub fn new(session: &Arc<Inner>, thing: Referent) -> Held {
        session.held.fetch_add(1, Ordering::Relaxed);
        Held { session: session.clone(), thing }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.session.held.fetch_sub(1, Ordering::Relaxed);
        if let Ok(client) = self.session.client() {
            client.release(self.thing);
        }
    }
}

/// A reference to a value: the result of a task, or what was put. Pass it to tasks, or get its value.
#[pyclass(frozen, weakref, module = "marline")]
pub struct ObjectRef {
    pub session: Arc<Inner>,
    pub id: ObjectId,
    /// Which of the answer's values it is.
    index: u32,
    /// Where its value comes; asked for when it is first needed.
    answer: OnceLock<Arc<Answer>>,
    kind: Kind,
}

/// Who knows of a value.
enum Kind {
    /// The cluster does.
    Shared,
    /// The same, and this process put it into a store: its answer is made when it is asked for, and takes no memory
    /// before.
    Put(PutAs),
    /// The result of a call goes from the actor to this process, and nobody else has it; once others are
    /// to have it, it is put, or announced if it has not come, and they know it by this.
    Private(OnceLock<Box<Held>>),
}

/// All that is to be known of a value in a store, besides its name.
struct PutAs {
    encoding: Encoding,
    code_version: u32,
    bytes: u64,
}

impl PutAs {
    /// Nothing, if there is more to it.
    fn of(value: &Value) -> Option<PutAs> {
        let Payload { encoding, code_version, stored, .. } = &value.payload;
        let stored = stored.as_ref().filter(|one| value.referents.is_empty() && !one.durable)?;
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
        self.session.held.fetch_sub(1, Ordering::Relaxed);
        // What comes to this process alone, nobody holds for it.
        if !matches!(self.kind, Kind::Private(_))
            && let Ok(client) = self.session.client()
        {
            client.release(Referent::Object(self.id));
        }
    }
}

impl ObjectRef {
    /// A result of a task that this process submitted.
    pub fn result(session: &Arc<Inner>, id: ObjectId, answer: Arc<Answer>) -> ObjectRef {
        ObjectRef::new(session, id, id.index, OnceLock::from(answer), Kind::Shared)
    }

    /// A result of a call that this process made.
    pub fn of_call(session: &Arc<Inner>, id: ObjectId, answer: Arc<Answer>) -> ObjectRef {
        let kind = Kind::Private(OnceLock::new());
        ObjectRef::new(session, id, id.index, OnceLock::from(answer), kind)
    }

    /// The object that others know its value by.
    pub fn public_id(&self, py: Python<'_>) -> PyResult<ObjectId> {
        let Kind::Private(public) = &self.kind else { return Ok(self.id) };
        if public.get().is_none() {
            let id = self.publish().map_err(|error| to_python(py, &error))?;
            // If another thread was quicker, this one is let go again.
            let held = Held::new(&self.session, Referent::Object(id));
            let _ = public.set(Box::new(held));
        }
        match public.get().map(|held| held.thing) {
            Some(Referent::Object(id)) => Ok(id),
            _ => Ok(self.id),
        }
    }

    /// Has others know its value, or that it comes.
    fn publish(&self) -> Result<ObjectId, Error> {
        let session = &self.session;
        let client = session.client()?;
        let (answer, index) = self.needed();
        if let Some(Ok(values)) = answer.get() {
            let value = values[index].clone();
            if let Some(id) = value.payload.stored_object() {
                client.hold(Referent::Object(id)); // It is an object already.
                return Ok(id);
            }
            let id = new_object_id();
            client.put_as(id, value, None)?;
            return Ok(id);
        }
        // As what it is: if its data is in a store, the controller knows it by that name.
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

    /// Waits until its value has come, if it comes to this process alone.
    fn settle(&self, py: Python<'_>) -> PyResult<()> {
        if let Kind::Private(_) = self.kind {
            wait_for(py, &[Awaited::Answer(self.answer())], 1, None)?;
        }
        Ok(())
    }

    /// An item of a stream of this process's.
    pub fn item(session: &Arc<Inner>, id: ObjectId, value: Result<Value, Error>) -> ObjectRef {
        let answer = Answer::known(value.map(|value| vec![value]));
        ObjectRef::new(session, id, 0, OnceLock::from(answer), Kind::Shared)
    }

    /// A value that this process put.
    pub fn put(session: &Arc<Inner>, id: ObjectId, value: Value) -> ObjectRef {
        if let Some(put) = PutAs::of(&value) {
            return ObjectRef::new(session, id, 0, OnceLock::new(), Kind::Put(put));
        }
        ObjectRef::item(session, id, Ok(value))
    }

    fn new(
        session: &Arc<Inner>,
        id: ObjectId,
        index: u32,
        answer: OnceLock<Arc<Answer>>,
        kind: Kind,
    ) -> ObjectRef {
        session.held.fetch_add(1, Ordering::Relaxed);
        ObjectRef { session: session.clone(), id, index, answer, kind }
    }

    /// Where its value comes.
    pub fn needed(&self) -> Needed {
        let answer = self.answer().clone();
        (answer, self.index())
    }

    /// Its value, and its data at this node.
    pub fn data(&self) -> Awaited<'_> {
        let answer = self.answer();
        Awaited::Data(answer, self.index(), &self.session)
    }

    /// Which of the values of its answer it is.
    fn index(&self) -> usize {
        self.index as usize
    }

    /// Its value, or what stands in its place until it comes.
    pub fn answer(&self) -> &Arc<Answer> {
        self.answer.get_or_init(|| {
            if let Kind::Put(put) = &self.kind {
                return Answer::known(Ok(vec![put.value(self.id)]));
            }
            let answer = Arc::<Answer>::default();
            let tell = answer.tell();
            let tell = Box::new(move |value: Result<Value, Error>| {
                tell(value.map(|value| vec![value]));
            });
            let client = self.session.client();
            match client.and_then(|client| client.get_with_callback(self.id, tell)) {
                Ok(()) => answer,
                Err(error) => Answer::known(Err(error)),
            }
        })
    }

    /// What it has come to, as a Python value or exception.
    pub fn value<'py>(
        &self,
        py: Python<'py>,
        outcome: &Outcome,
        deadline: Option<Instant>,
    ) -> PyResult<Bound<'py, PyAny>> {
        match outcome {
            Ok(values) => {
                let payload = &values[self.index()].payload;
                match payload.stored.is_some() {
                    true => pickle::decode(py, &open(py, &self.session, payload, deadline)?),
                    false => pickle::decode(py, payload),
                }
            }
            Err(error) => {
                self.answer().mark_read();
                Err(to_python(py, error))
            }
        }
    }

    /// Others have its value, or its error, from now on: that is theirs to read. So is the error of work that nobody
    /// wants any more.
    pub fn leave_to_others(&self) {
        if let Some(answer) = self.answer.get() {
            answer.mark_read();
        }
    }

    /// The same, if it has come and its data is at hand. Who asks for it is not kept for long.
    pub fn value_at_once<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let answer = self.answer();
        match (answer.get(), answer.large(self.index())) {
            (None, _) => Ok(None),
            (Some(outcome), None) => self.value(py, outcome, None).map(Some),
            (Some(_), Some(payload)) => {
                let client = self.session.client();
                let client = client.map_err(|error| to_python(py, &error))?;
                match py.detach(|| client.open_at_once(payload, AT_ONCE)) {
                    Some(Ok(payload)) => pickle::decode(py, &payload).map(Some),
                    // Whoever waits for it is told why, or has it from elsewhere.
                    Some(Err(_)) | None => Ok(None),
                }
            }
        }
    }

    /// Has the data of its value, which has come and is large, brought; tells when it is here.
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

/// An event loop waits so long at most for the store of another process to say that it has something.
const AT_ONCE: Duration = Duration::from_micros(200);

#[pymethods]
impl ObjectRef {
    /// The id, as it is printed elsewhere.
    fn hex(&self) -> String {
        self.id.to_string()
    }

    /// The id of the task that makes it.
    fn task_id(&self) -> String {
        self.id.origin.to_string()
    }

    /// Whether its value has come.
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
        let awaited = slf.py().import("marline._aio")?.call_method1("wait_for", (slf,))?;
        awaited.call_method0("__await__")
    }

    /// A future of `concurrent.futures` for its value.
    fn future<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("marline._aio")?.call_method1("future_of", (slf,))
    }

    /// Its value, which has come.
    fn _value<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let outcome = self.answer().get().ok_or_else(|| {
            to_python(py, &Error::not_ready(format!("the value of {} has not come", self.id)))
        })?;
        self.value(py, outcome, None)
    }

    /// Its value in a tuple, if it has come and its data is at hand: nothing is waited for.
    fn _at_once<'py>(&self, py: Python<'py>) -> PyResult<Option<(Bound<'py, PyAny>,)>> {
        Ok(self.value_at_once(py)?.map(|value| (value,)))
    }

    /// Nothing of it changes: a copy is the same one.
    fn __copy__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __deepcopy__<'py>(slf: Bound<'py, Self>, _memo: &Bound<'py, PyAny>) -> Bound<'py, Self> {
        slf
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Reduced<'py>> {
        // Not in an actor: it lives on, and the call may wait for just this actor.
        if pickle::is_result_of_task() {
            slf.get().settle(slf.py())?;
        }
        let id = slf.get().public_id(slf.py())?;
        slf.get().leave_to_others();
        pickle::met(Referent::Object(id), slf.as_any())?;
        let load = slf.get_type().getattr("_load")?;
        let origin = PyBytes::new(slf.py(), &id.origin.as_u128().to_be_bytes());
        Ok((load, (origin, id.index)))
    }

    /// Makes one that arrived in this process.
    #[staticmethod]
    fn _load(py: Python<'_>, origin: [u8; 16], index: u32) -> PyResult<ObjectRef> {
        let id = ObjectId::of(TaskId::from_u128(u128::from_be_bytes(origin)), index);
        let session = current(py)?;
        let client = session.client().map_err(|error| to_python(py, &error))?;
        client.hold(Referent::Object(id));
        Ok(ObjectRef::new(&session, id, 0, OnceLock::new(), Kind::Shared))
    }
}
