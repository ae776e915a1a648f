//! This process's membership in a cluster: its own, embedded one, or one elsewhere.

use crate::answer::Answer;
use crate::failure::to_python;
use crate::fork::generation;
use crate::options::{ActorOptions, Amounts, TaskOptions};
use crate::pickle;
use crate::reference::{Held, ObjectRef};
use crate::wait::wait_for;
use marline_runtime::core::error::{Error, ErrorKind};
use marline_runtime::core::id::{ActorId, ObjectId, Thing};
use marline_runtime::core::payload::{Payload, Value};
use marline_runtime::core::spec::{self, ActorSpec, Budget, Target, TaskSpec};
use marline_runtime::core::worker;
use marline_runtime::{
    Client, Controller, ExecutorOptions, ForkServer, Invocation, Program, Reply, WorkerOptions,
    new_actor_id, new_task_id, record,
};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};

/// The scheme of the names of Python functions and classes.
pub const SCHEME: &str = "python";
/// The longest part of a name that says which function it is, in bytes.
const MAX_LABEL_BYTES: usize = 200;
/// So many executors are started ahead, at most.
const MAX_PRESTARTED: usize = 64;

/// What a process has of a cluster.
pub struct Inner {
    /// Nothing once it is left alone.
    client: Option<Client>,
    /// Which process it belongs to.
    generation: u64,
    /// How many handles there are.
    pub held: AtomicUsize,
    /// The cluster, if it lives in this process.
    embedded: Mutex<Option<Controller>>,
}

impl Inner {
    /// What speaks to the cluster, in the process that joined it.
    pub fn client(&self) -> Result<&Client, Error> {
        let here = self.client.as_ref().filter(|_| self.generation == generation());
        here.ok_or_else(|| {
            Error::invalid(
                "this belongs to the process that was forked: call marline.init() in this one, and \
                 make it anew",
            )
        })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.generation != generation() {
            std::mem::forget(self.client.take());
            if let Ok(embedded) = self.embedded.get_mut() {
                std::mem::forget(embedded.take());
            }
        }
    }
}

/// See the [module](self).
#[pyclass(frozen, module = "marline._native")]
pub struct Session {
    inner: Arc<Inner>,
}

impl Session {
    fn new(client: Client, embedded: Option<Controller>) -> Session {
        let inner = Inner {
            client: Some(client),
            generation: generation(),
            held: AtomicUsize::new(0),
            embedded: Mutex::new(embedded),
        };
        Session { inner: Arc::new(inner) }
    }
}

/// The session that `marline` uses in this process now.
pub fn current(py: Python<'_>) -> PyResult<Arc<Inner>> {
    let session = py.import("marline._session")?.call_method0("current")?;
    let session = session.cast::<Session>().map_err(|_| PyRuntimeError::new_err("no session"))?;
    Ok(session.get().inner.clone())
}

/// The session of this process, if it has one.
pub fn joined(py: Python<'_>) -> PyResult<Option<Arc<Inner>>> {
    let session = py.import("marline._session")?.getattr("_session")?;
    Ok(session.cast::<Session>().ok().map(|session| session.get().inner.clone()))
}

/// What a worker that only has executors of another runtime provides of its own.
struct Nothing;

impl Program for Nothing {
    fn provides(&self) -> Vec<String> {
        Vec::new()
    }

    fn run(&self, invocation: &Invocation) -> Result<Reply, Error> {
        Err(Error::not_found(format!("no function {:?} here", &*invocation.name)))
    }

    fn construct(
        &self,
        invocation: &Invocation,
    ) -> Result<Arc<dyn marline_runtime::Instance>, Error> {
        Err(Error::not_found(format!("no class {:?} here", &*invocation.name)))
    }
}

#[pymethods]
impl Session {
    /// Starts a cluster in this process; its executors are forks of a server that runs `command`.
    #[staticmethod]
    fn embed(
        py: Python<'_>,
        address: &str,
        amounts: Amounts,
        command: Vec<String>,
        setup: String,
    ) -> PyResult<Session> {
        let resources = amounts.resources(py)?;
        let ready = (resources.cpu.as_f64().ceil() as usize).clamp(1, MAX_PRESTARTED);
        let start = || {
            let mut controller = Controller::start(address, None, Default::default())?;
            let (program, args) = command.split_first().expect("a program is named");
            controller.host_worker(WorkerOptions {
                controller: String::new(),
                token: None,
                listen: None,
                resources,
                preemptible: false,
                program: Arc::new(Nothing),
                executors: ExecutorOptions::Processes {
                    commands: false,
                    memory: None,
                    pass_on: true,
                    forks: Some(ForkServer {
                        runtime: SCHEME.into(),
                        program: program.into(),
                        args: args.to_vec(),
                        setup,
                    }),
                },
                config: worker::Config {
                    prestarted: Some((SCHEME.into(), ready)),
                    max_idle_executors: ready.max(8),
                    ..worker::Config::default()
                },
            })?;
            Ok::<_, Error>(controller)
        };
        let controller = py.detach(start).map_err(|error| to_python(py, &error))?;
        let client = controller.client();
        Ok(Session::new(client, Some(controller)))
    }

    /// Joins a cluster elsewhere.
    #[staticmethod]
    fn join(py: Python<'_>, address: &str, token: Option<&str>) -> PyResult<Session> {
        let client = py.detach(|| Client::connect(address, token.map(Arc::from)));
        let client = client.map_err(|error| to_python(py, &error))?;
        Ok(Session::new(client, None))
    }

    /// Where the cluster is that runs on this machine for this user, and its token; with an address, only
    /// if it is that one.
    #[staticmethod]
    fn here(py: Python<'_>, address: Option<&str>) -> PyResult<Option<(String, String)>> {
        let here = || {
            let cluster = match address {
                None => Some(record::only()?),
                Some(address) => {
                    record::look()?.running.into_iter().find(|one| one.address == address)
                }
            };
            let cluster = cluster.map(|one| Ok((one.nearest().to_owned(), one.token()?)));
            cluster.transpose()
        };
        here().map_err(|error: Error| to_python(py, &error))
    }

    /// Ends an actor for good, by its id.
    fn delete_actor(&self, py: Python<'_>, id: &str) -> PyResult<()> {
        let delete = || self.inner.client()?.delete_actor(id.parse()?);
        delete().map_err(|error: Error| to_python(py, &error))
    }

    /// Ends the session, and the cluster if it lives in this process.
    fn shutdown(&self, py: Python<'_>) {
        if self.inner.client().is_err() {
            return; // It is another process's.
        }
        let embedded = self.inner.embedded.lock().expect("nothing panics under it").take();
        py.detach(|| {
            if let Ok(client) = self.inner.client() {
                client.leave();
            }
            drop(embedded);
        });
    }

    /// Puts a value.
    fn put(&self, value: &Bound<'_, PyAny>) -> PyResult<ObjectRef> {
        let py = value.py();
        let value = pickle::encode(value)?;
        let put = self.inner.client().and_then(|client| client.put(value.clone()));
        let id = put.map_err(|error| to_python(py, &error))?;
        Ok(ObjectRef::put(&self.inner, id, value))
    }

    /// Puts code as it was pickled.
    fn put_code(&self, py: Python<'_>, code: &Bound<'_, PyBytes>) -> PyResult<ObjectRef> {
        let value = Value::from(Payload::raw(code.as_bytes().to_vec()));
        let put = self.inner.client().and_then(|client| client.put(value.clone()));
        let id = put.map_err(|error| to_python(py, &error))?;
        Ok(ObjectRef::put(&self.inner, id, value))
    }

    /// The values of references, when all have come.
    #[staticmethod]
    fn get<'py>(
        py: Python<'py>,
        references: Vec<Bound<'py, ObjectRef>>,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyList>> {
        let answers: Vec<&Arc<Answer>> =
            references.iter().map(|reference| reference.get().answer()).collect();
        if !wait_for(py, &answers, answers.len(), timeout)? {
            let done = answers.iter().filter(|answer| answer.get().is_some()).count();
            let message =
                format!("{done} of {} came in time; the others may still come", answers.len());
            return Err(to_python(py, &Error::timeout(message)));
        }
        let values = PyList::empty(py);
        for (reference, answer) in references.iter().zip(&answers) {
            let outcome = answer.get().expect("it has come");
            values.append(reference.get().value(py, outcome)?)?;
        }
        Ok(values)
    }

    /// Waits until so many have come, or the time is over. Says which have.
    #[staticmethod]
    fn wait(
        py: Python<'_>,
        references: Vec<Bound<'_, ObjectRef>>,
        count: usize,
        timeout: Option<f64>,
    ) -> PyResult<Vec<bool>> {
        let answers: Vec<&Arc<Answer>> =
            references.iter().map(|reference| reference.get().answer()).collect();
        wait_for(py, &answers, count, timeout)?;
        Ok(answers.iter().map(|answer| answer.get().is_some()).collect())
    }

    /// Asks a task to stop.
    #[staticmethod]
    fn cancel(reference: &Bound<'_, ObjectRef>, force: bool) {
        if let Ok(client) = reference.get().held.session.client() {
            client.cancel(reference.get().id.origin, force);
        }
    }

    /// Creates an actor.
    fn create_actor(
        &self,
        py: Python<'_>,
        class_: &Bound<'_, Function>,
        options: &Bound<'_, ActorOptions>,
        args: &Bound<'_, PyTuple>,
        kwargs: &Bound<'_, PyDict>,
    ) -> PyResult<Actor> {
        let (class, options) = (class_.get(), options.get());
        let Arguments { payload, needs, holds, _references } =
            arguments(args, kwargs, Some(class))?;
        let spec = ActorSpec {
            id: new_actor_id(),
            class: class.name.clone(),
            args: payload,
            needs,
            holds,
            name: options.name.clone(),
            namespace: options.namespace.clone(),
            options: options.options.clone(),
        };
        let created = py.detach(|| self.inner.client()?.create_actor(Arc::new(spec))?.wait()?);
        let id = created.map_err(|error| to_python(py, &error))?;
        Ok(Actor::new(&self.inner, id))
    }

    /// Finds an actor by its name.
    fn find_actor(&self, py: Python<'_>, namespace: &str, name: &str) -> PyResult<Actor> {
        let found = py.detach(|| self.inner.client()?.find_actor(namespace, name)?.wait()?);
        let id = found.map_err(|error| to_python(py, &error))?;
        Ok(Actor::new(&self.inner, id))
    }
}

/// Takes away what workers of this user left that were killed.
#[pyfunction]
pub fn sweep() {
    record::sweep();
}

/// A function or a class: its name, its code, and how it runs.
#[pyclass(frozen, module = "marline._native")]
pub struct Function {
    name: Arc<str>,
    code_id: ObjectId,
    /// Its code lives as long as this.
    _code: Py<ObjectRef>,
    options: Arc<spec::TaskOptions>,
    returns: u32,
}

#[pymethods]
impl Function {
    #[new]
    fn new(
        label: &str,
        key: &str,
        code: Bound<'_, ObjectRef>,
        options: &Bound<'_, TaskOptions>,
        returns: u32,
    ) -> Function {
        let mut end = label.len().min(MAX_LABEL_BYTES);
        while !label.is_char_boundary(end) {
            end -= 1;
        }
        let name = format!("{SCHEME}:{}#{key}", &label[..end]).into();
        let (code_id, options) = (code.get().id, options.get().options.clone());
        Function { name, code_id, _code: code.unbind(), options, returns }
    }

    /// Submits a task that calls it.
    fn submit<'py>(
        &self,
        py: Python<'py>,
        session: &Bound<'py, Session>,
        args: &Bound<'py, PyTuple>,
        kwargs: &Bound<'py, PyDict>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let Arguments { payload, needs, holds, _references } = arguments(args, kwargs, Some(self))?;
        let spec = Arc::new(TaskSpec {
            id: new_task_id(),
            target: Target::Function(self.name.clone()),
            args: payload,
            needs,
            holds,
            returns: self.returns,
            options: self.options.clone(),
        });
        let session = &session.get().inner;
        let client = session.client().map_err(|error| to_python(py, &error))?;
        let answer = Arc::<Answer>::default();
        let submitted = match client.try_submit_telling(spec.clone(), || answer.tell()) {
            Err(error) if error.kind() == ErrorKind::Exhausted => {
                py.detach(|| client.submit_telling(spec.clone(), || answer.tell()))
            }
            submitted => submitted,
        };
        submitted.map_err(|error| to_python(py, &error))?;
        results(py, &spec, |id| ObjectRef::result(session, id, answer.clone()))
    }
}

/// The references to what a task gives: one, or a list of several.
fn results<'py>(
    py: Python<'py>,
    spec: &TaskSpec,
    reference: impl Fn(ObjectId) -> ObjectRef,
) -> PyResult<Bound<'py, PyAny>> {
    let reference = |id| Bound::new(py, reference(id));
    match spec.returns {
        0 => Ok(py.None().into_bound(py)),
        1 => Ok(reference(ObjectId::of(spec.id, 0))?.into_any()),
        _ => {
            let all = spec.results().map(reference).collect::<PyResult<Vec<_>>>()?;
            Ok(PyList::new(py, all)?.into_any())
        }
    }
}

/// A handle to an actor.
#[pyclass(frozen, module = "marline._native")]
pub struct Actor {
    held: Held,
    id: ActorId,
    options: Arc<spec::TaskOptions>,
}

impl Actor {
    fn new(session: &Arc<Inner>, id: ActorId) -> Actor {
        let options =
            spec::TaskOptions { max_retries: Budget::Unlimited, ..spec::TaskOptions::default() };
        let held = Held::new(session, Thing::Actor(id));
        Actor { held, id, options: Arc::new(options) }
    }
}

#[pymethods]
impl Actor {
    /// The actor's id.
    #[getter]
    fn id(&self) -> String {
        self.id.to_string()
    }

    /// Calls a method.
    fn call<'py>(
        &self,
        py: Python<'py>,
        method: &str,
        args: &Bound<'py, PyTuple>,
        kwargs: &Bound<'py, PyDict>,
        returns: u32,
    ) -> PyResult<Bound<'py, PyAny>> {
        let Arguments { payload, needs, holds, _references } = arguments(args, kwargs, None)?;
        let mut values = Vec::new();
        for reference in &_references {
            values.push(reference.get().come(py)?.clone());
        }
        let spec = Arc::new(TaskSpec {
            id: new_task_id(),
            target: Target::Method { actor: self.id, method: method.into() },
            args: payload,
            needs,
            holds,
            returns,
            options: self.options.clone(),
        });
        let answer = Arc::<Answer>::default();
        let session = &self.held.session;
        let client = session.client().map_err(|error| to_python(py, &error))?;
        if !spec.holds.is_empty() && !client.is_local() {
            // What it names is known to the controller before the actor speaks of it.
            py.detach(|| client.sync()).map_err(|error| to_python(py, &error))?;
        }
        let called = client.call_telling(spec.clone(), values, None, answer.tell_call(session));
        called.map_err(|error| to_python(py, &error))?;
        results(py, &spec, |id| ObjectRef::of_call(session, id, answer.clone()))
    }

    fn __reduce__<'py>(
        slf: &Bound<'py, Self>,
    ) -> PyResult<(Bound<'py, PyAny>, (Bound<'py, PyBytes>,))> {
        let id = slf.get().id;
        pickle::met(Thing::Actor(id))?;
        let bytes = PyBytes::new(slf.py(), &id.as_u128().to_be_bytes());
        Ok((slf.get_type().getattr("_load")?, (bytes,)))
    }

    /// Makes one that arrived in this process.
    #[staticmethod]
    fn _load(py: Python<'_>, id: [u8; 16]) -> PyResult<Actor> {
        let id = ActorId::from_u128(u128::from_be_bytes(id));
        let session = current(py)?;
        let client = session.client().map_err(|error| to_python(py, &error))?;
        client.retain(Thing::Actor(id));
        Ok(Actor::new(&session, id))
    }

    /// Ends the actor for good.
    fn delete(&self, py: Python<'_>) -> PyResult<()> {
        let delete = || {
            let client = self.held.session.client()?;
            client.delete_actor(self.id)?;
            client.sync() // Calls that are made next go elsewhere, and must not overtake it.
        };
        py.detach(delete).map_err(|error| to_python(py, &error))
    }
}

/// Arguments as they travel.
struct Arguments<'py> {
    payload: Payload,
    needs: Vec<ObjectId>,
    holds: Vec<Thing>,
    /// Kept until they are submitted, so that what they name is held.
    _references: Vec<Bound<'py, ObjectRef>>,
}

/// Encodes arguments. References among them are left out: their values go along.
fn arguments<'py>(
    args: &Bound<'py, PyTuple>,
    kwargs: &Bound<'py, PyDict>,
    code: Option<&Function>,
) -> PyResult<Arguments<'py>> {
    let py = args.py();
    let mut references = Vec::new();
    let mut replaced = Vec::new();
    for arg in args.iter() {
        replaced.push(leave_out(arg, &mut references)?);
    }
    let named = if kwargs.is_empty() {
        kwargs.clone()
    } else {
        let named = PyDict::new(py);
        for (name, arg) in kwargs.iter() {
            named.set_item(name, leave_out(arg, &mut references)?)?;
        }
        named
    };
    let all = if references.is_empty() {
        (args.clone(), named).into_pyobject(py)?
    } else {
        (PyTuple::new(py, replaced)?, named).into_pyobject(py)?
    };
    let Value { payload, contains } = pickle::encode(all.as_any())?;
    let needs = references.iter().map(|one| match code {
        Some(_) => one.get().public_id(py),
        None => Ok(one.get().id), // Of a call: the values go along.
    });
    let mut needs: Vec<ObjectId> = needs.collect::<PyResult<_>>()?;
    needs.extend(code.map(|code| code.code_id));
    Ok(Arguments { payload, needs, holds: contains, _references: references })
}

/// What stands for an argument: itself, or which of the values that go along.
fn leave_out<'py>(
    arg: Bound<'py, PyAny>,
    references: &mut Vec<Bound<'py, ObjectRef>>,
) -> PyResult<Bound<'py, PyAny>> {
    if !arg.is_exact_instance_of::<ObjectRef>() {
        return Ok(arg);
    }
    let need = arg.py().import("marline._pickle")?.call_method1("Need", (references.len(),))?;
    references.push(arg.cast_into::<ObjectRef>()?);
    Ok(need)
}
