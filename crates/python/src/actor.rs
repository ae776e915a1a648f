//! Handles to actors, and calling their methods.

use crate::answer::Answer;
use crate::arguments::Arguments;
use crate::around::{Around, within};
use crate::failure::to_python;
use crate::function::{Function, results};
use crate::generator::ObjectRefGenerator;
use crate::options::{Returns, lasting, seconds};
use crate::pickle;
use crate::reference::{Held, Needed, ObjectRef};
use crate::session::{Inner, current};
use marline_runtime::core::error::Error;
use marline_runtime::core::id::{ActorId, Referent};
use marline_runtime::core::payload::Value;
use marline_runtime::core::spec::{self, Budget, Target, TaskSpec};
use marline_runtime::new_task_id;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// How a handle is pickled: what makes it again, and from what.
type Reduced<'py> = (Bound<'py, PyAny>, (Bound<'py, PyBytes>, bool));

/// A handle to an actor.
#[pyclass(frozen, module = "marline._native")]
pub struct Actor {
    held: Held,
    id: ActorId,
    /// It understands plain data only.
    is_plain: bool,
    options: Arc<spec::TaskOptions>,
    /// What people call its class.
    class: OnceLock<Arc<str>>,
    /// How its constructor ends, if this process created it and prints what nobody reads.
    birth: Option<Arc<Answer>>,
}

impl Actor {
    /// A handle that is counted already.
    pub fn new(session: &Arc<Inner>, id: ActorId, is_plain: bool) -> Actor {
        let options =
            spec::TaskOptions { max_retries: Budget::Unlimited, ..spec::TaskOptions::default() };
        let held = Held::new(session, Referent::Actor(id));
        let (options, class) = (Arc::new(options), OnceLock::new());
        Actor { held, id, is_plain, options, class, birth: None }
    }

    /// One that was created just now. If its constructor fails, and nobody calls it, the driver prints that.
    pub fn created(session: &Arc<Inner>, id: ActorId, class: &Function) -> Actor {
        let mut actor = Actor::new(session, id, class.is_plain());
        if let (Some(unread), Ok(client)) = (session.unread.get(), session.client()) {
            let birth = Arc::<Answer>::default();
            let tell = birth.tell_of(Some(unread.actor(&class.name)));
            let launched = client.await_actor_ready(
                id,
                Box::new(move |launched| tell(launched.map(|()| Vec::new()))),
            );
            // Otherwise the session is over, and every call says so.
            actor.birth = launched.is_ok().then_some(birth);
        }
        actor
    }

    /// Somebody else hears of it if its constructor fails: who calls it, or has a handle to it, or ended it.
    fn leave_birth_to_others(&self) {
        if let Some(birth) = &self.birth {
            birth.mark_read();
        }
    }
}

/// The values that came.
fn values_of(needed: &[Needed]) -> Result<Vec<Value>, Error> {
    let value = |(answer, index): &Needed| match answer.get() {
        Some(outcome) => outcome.clone().map(|values| values[*index].clone()),
        None => Err(Error::not_ready("a value has not come")),
    };
    needed.iter().map(value).collect()
}

/// Has a call go when all that it needs has come.
fn supply(session: &Arc<Inner>, call: &Arc<TaskSpec>, needed: Vec<Needed>) {
    let left = Arc::new(AtomicUsize::new(needed.len()));
    let answers: Vec<Arc<Answer>> = needed.iter().map(|(answer, _)| answer.clone()).collect();
    let needed = Arc::new(needed);
    for answer in answers {
        let (left, needed, session) = (left.clone(), needed.clone(), session.clone());
        let call = call.clone();
        answer.then(Box::new(move || {
            if left.fetch_sub(1, Ordering::AcqRel) == 1
                && let Ok(client) = session.client()
            {
                client.supply(&call, values_of(&needed));
            }
        }));
    }
}

#[pymethods]
impl Actor {
    /// The actor's id.
    #[getter]
    fn id(&self) -> String {
        self.id.to_string()
    }

    /// Says what people call its class.
    fn is_a(&self, class_: &str) {
        self.class.get_or_init(|| class_.into());
    }

    /// Calls a method.
    #[pyo3(signature = (method, args, kwargs, returns, timeout=None))]
    fn call<'py>(
        &self,
        py: Python<'py>,
        method: &str,
        args: &Bound<'py, PyTuple>,
        kwargs: &Bound<'py, PyDict>,
        returns: Returns,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let around = Around::here(py)?;
        let session = &self.held.session;
        let Arguments { payload, needs, holds, _references, _met, _stored } = match self.is_plain {
            false => Arguments::of(args, kwargs, &around, None, returns.2, session)?,
            true => Arguments::plain(args, kwargs, session)?,
        };
        let needed: Vec<Needed> = _references.iter().map(|one| one.get().needed()).collect();
        let ready = needed.iter().all(|needed| needed.0.get().is_some());
        // Also the time in which it waits for its turn is its caller's.
        let left = around.time_left()?;
        let method: Arc<str> = method.into();
        let class = self.class.get_or_init(|| "actor".into());
        let origin = session.unread.get().map(|unread| unread.call(class, &method));
        let spec = Arc::new(TaskSpec {
            id: new_task_id(),
            target: Target::Method { actor: self.id, method },
            args: payload,
            needs,
            referents: holds,
            returns: returns.0,
            stream_window: returns.1,
            options: lasting(within(&within(&self.options, seconds(timeout)), left), returns.3),
        });
        let answer = Arc::<Answer>::default();
        let client = session.client().map_err(|error| to_python(py, &error))?;
        if !client.is_local() {
            session.called.store(true, Ordering::Relaxed);
            if client.must_sync_before(&spec) {
                py.detach(|| client.sync()).map_err(|error| to_python(py, &error))?;
            }
        }
        // What it needs may have failed: then so does the call, as if it had waited for it.
        let values = if ready { values_of(&needed).ok() } else { None };
        let waits = values.is_none();
        let tell = answer.tell_call(session, origin);
        let called = match spec.stream_window {
            None => client.call_with_callback(spec.clone(), values, left, tell).map(|()| None),
            Some(_) => client.call_stream(spec.clone(), values, left, tell).map(Some),
        };
        let stream = called.map_err(|error| to_python(py, &error))?;
        self.leave_birth_to_others();
        if waits {
            supply(session, &spec, needed);
        }
        around.submitted(session, spec.id, &answer);
        if let Some(stream) = stream {
            return Ok(Bound::new(py, ObjectRefGenerator::new(session, stream, answer))?.into_any());
        }
        results(py, &spec, |id| ObjectRef::of_call(session, id, answer.clone()))
    }

    /// Nothing of it changes: a copy is the same one.
    fn __copy__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __deepcopy__<'py>(slf: Bound<'py, Self>, _memo: &Bound<'py, PyAny>) -> Bound<'py, Self> {
        slf
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Reduced<'py>> {
        let Actor { id, is_plain, .. } = *slf.get();
        slf.get().leave_birth_to_others();
        pickle::met(Referent::Actor(id), slf.as_any())?;
        let bytes = PyBytes::new(slf.py(), &id.as_u128().to_be_bytes());
        Ok((slf.get_type().getattr("_load")?, (bytes, is_plain)))
    }

    /// Makes one that arrived in this process.
    #[staticmethod]
    fn _load(py: Python<'_>, id: [u8; 16], is_plain: bool) -> PyResult<Actor> {
        let id = ActorId::from_u128(u128::from_be_bytes(id));
        let session = current(py)?;
        let client = session.client().map_err(|error| to_python(py, &error))?;
        client.hold(Referent::Actor(id));
        Ok(Actor::new(&session, id, is_plain))
    }

    /// Ends the actor for good, or its process only: then it is restarted, if it may be.
    #[pyo3(signature = (*, restart))]
    fn end(&self, py: Python<'_>, restart: bool) -> PyResult<()> {
        self.leave_birth_to_others();
        let end = || {
            let client = self.held.session.client()?;
            match restart {
                true => client.kill_actor(self.id)?,
                false => client.delete_actor(self.id)?,
            }
            client.sync() // Calls that are made next go elsewhere, and must not overtake it.
        };
        py.detach(end).map_err(|error| to_python(py, &error))
    }
}
