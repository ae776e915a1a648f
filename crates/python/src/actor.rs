//! Handles to actors, and calling their methods.

use crate::answer::Answer;
use crate::arguments::Arguments;
use crate::failure::to_python;
use crate::function::{Function, results};
use crate::generator::ObjectRefGenerator;
use crate::options::{Returns, lasting, seconds};
use crate::pickle;
use crate::reference::{HoldGuard, Needed, ObjectRef};
use crate::session::{Session, SessionState, session_of_load};
use crate::submit_context::{SubmitContext, within};
use marline_runtime::core::error::Error;
use marline_runtime::core::id::{ActorId, Referent};
use marline_runtime::core::payload::Value;
use marline_runtime::core::spec::{self, Budget, Target, TaskSpec};
use marline_runtime::new_task_id;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// The result of `__reduce__`: the function that loads a handle, and its arguments.
type Reduced<'py> = (Bound<'py, PyAny>, (Bound<'py, PyBytes>, bool));

/// A handle to an actor.
#[pyclass(frozen, module = "marline._native")]
pub struct Actor {
    held: HoldGuard,
    id: ActorId,
    /// Whether the actor takes and returns plain data only.
    is_plain: bool,
    options: Arc<spec::TaskOptions>,
    /// The name of its class, for lines about unread failures.
    class: OnceLock<Arc<str>>,
    /// How the constructor ended, if this process created the actor and prints unread failures.
    birth: Option<Arc<Answer>>,
}

impl Actor {
    /// Makes a handle whose hold the client counts already.
    pub fn new(session: &Arc<SessionState>, id: ActorId, is_plain: bool) -> Actor {
        let options =
            spec::TaskOptions { max_retries: Budget::Unlimited, ..spec::TaskOptions::default() };
        let held = HoldGuard::new(session, Referent::Actor(id));
        let (options, class) = (Arc::new(options), OnceLock::new());
        Actor { held, id, is_plain, options, class, birth: None }
    }

    /// Makes the handle of an actor that this process has just created. If the constructor fails
    /// and no call is made, the driver prints the failure.
    pub fn created(session: &Arc<SessionState>, id: ActorId, class: &Function) -> Actor {
        let mut actor = Actor::new(session, id, class.is_plain());
        if let (Some(unread), Ok(client)) = (session.unread.get(), session.client()) {
            let birth = Arc::<Answer>::default();
            let completion = birth.completion_for(Some(unread.actor(&class.name)));
            let launched = client.await_actor_ready(
                id,
                Box::new(move |launched| completion(launched.map(|()| Vec::new()))),
            );
            // An error means that the session has ended. Then every call fails with that.
            actor.birth = launched.is_ok().then_some(birth);
        }
        actor
    }

    /// Stops this process from printing a failure of the constructor: the error reaches a call, or
    /// a process that got a handle, or the actor was ended on purpose.
    fn leave_birth_to_others(&self) {
        if let Some(birth) = &self.birth {
            birth.mark_read();
        }
    }
}

/// Returns the values of references that are arguments, or the first error among them.
fn values_of(needed: &[Needed]) -> Result<Vec<Value>, Error> {
    let value = |(answer, index): &Needed| match answer.get() {
        Some(outcome) => outcome.clone().map(|values| values[*index].clone()),
        None => Err(Error::not_ready("a value has not come")),
    };
    needed.iter().map(value).collect()
}

/// Lets a waiting call go once all values that it needs have come.
fn supply(session: &Arc<SessionState>, call: &Arc<TaskSpec>, needed: Vec<Needed>) {
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
    /// Returns the actor's id.
    #[getter]
    fn id(&self) -> String {
        self.id.to_string()
    }

    /// Returns the session that the handle belongs to.
    #[getter]
    fn session(&self) -> Session {
        Session { inner: self.held.session.clone() }
    }

    /// Sets the name of the actor's class, which is shown to people. Only the first call counts.
    fn set_class_name(&self, class_: &str) {
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
        let submit_context = SubmitContext::here(py, &self.held.session)?;
        let session = &self.held.session;
        let Arguments { payload, needs, holds, _references, _found, _stored } = match self.is_plain
        {
            false => {
                let collected = returns.collected(returns.durable);
                Arguments::of(args, kwargs, &submit_context, None, collected, session)?
            }
            true => Arguments::plain(args, kwargs, session)?,
        };
        let needed: Vec<Needed> =
            _references.iter().map(|reference| reference.get().needed()).collect();
        let ready = needed.iter().all(|needed| needed.0.get().is_some());
        // Time in the actor's queue counts against the caller's deadline, too.
        let left = submit_context.time_left()?;
        let method: Arc<str> = method.into();
        let class = self.class.get_or_init(|| "actor".into());
        let origin = session.unread.get().map(|unread| unread.call(class, &method));
        let spec = Arc::new(TaskSpec {
            id: new_task_id(),
            target: Target::Method { actor: self.id, method },
            args: payload,
            needs,
            referents: holds,
            returns: returns.results,
            stream_window: returns.stream,
            options: lasting(
                within(&within(&self.options, seconds(timeout)), left),
                returns.durable,
            ),
        });
        let answer = Arc::<Answer>::default();
        let client = session.client().map_err(|error| to_python(py, &error))?;
        if !client.is_local() {
            session.called.store(true, Ordering::Relaxed);
            if client.must_sync_before(&spec) {
                py.detach(|| client.sync()).map_err(|error| to_python(py, &error))?;
            }
        }
        // If an argument has failed, the call is sent without values: `supply` below then fails it.
        let values = if ready { values_of(&needed).ok() } else { None };
        let waits = values.is_none();
        let completion = answer.call_completion(session, origin);
        let called = match spec.stream_window {
            None => {
                client.call_with_callback(spec.clone(), values, left, completion).map(|()| None)
            }
            Some(_) => client.call_stream(spec.clone(), values, left, completion).map(Some),
        };
        let stream = called.map_err(|error| to_python(py, &error))?;
        self.leave_birth_to_others();
        if waits {
            supply(session, &spec, needed);
        }
        submit_context.record_submission(session, spec.id, &answer);
        if let Some(stream) = stream {
            return Ok(Bound::new(py, ObjectRefGenerator::new(session, stream, answer))?.into_any());
        }
        results(py, &spec, |id| ObjectRef::of_call(session, id, answer.clone()))
    }

    /// Returns the same handle: handles are immutable.
    fn __copy__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __deepcopy__<'py>(slf: Bound<'py, Self>, _memo: &Bound<'py, PyAny>) -> Bound<'py, Self> {
        slf
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Reduced<'py>> {
        let Actor { id, is_plain, .. } = *slf.get();
        slf.get().leave_birth_to_others();
        pickle::record_reference(Referent::Actor(id), slf.as_any(), &slf.get().held.session)?;
        let bytes = PyBytes::new(slf.py(), &id.as_u128().to_be_bytes());
        Ok((slf.get_type().getattr("_load")?, (bytes, is_plain)))
    }

    /// Makes the handle that another process has pickled.
    #[staticmethod]
    fn _load(py: Python<'_>, id: [u8; 16], is_plain: bool) -> PyResult<Actor> {
        let id = ActorId::from_u128(u128::from_be_bytes(id));
        let session = session_of_load(py)?;
        let client = session.client().map_err(|error| to_python(py, &error))?;
        client.hold(Referent::Actor(id));
        Ok(Actor::new(&session, id, is_plain))
    }

    /// Deletes the actor; with `restart`, kills only its current instance: the actor restarts if it
    /// may.
    #[pyo3(signature = (*, restart))]
    fn end(&self, py: Python<'_>, restart: bool) -> PyResult<()> {
        self.leave_birth_to_others();
        let end = || {
            let client = self.held.session.client()?;
            match restart {
                true => client.kill_actor(self.id)?,
                false => client.delete_actor(self.id)?,
            }
            client.sync() // Later calls go straight to the worker, and must not overtake this.
        };
        py.detach(end).map_err(|error| to_python(py, &error))
    }
}
