//! A session: a process's membership in a cluster, which is embedded in this process or runs
//! elsewhere. A process may have several.
//!
//! `marline/_session/sessions.py` owns the session that module functions use, and starts it on first
//! use.

use crate::actor::Actor;
use crate::answer::Awaited;
use crate::arguments::Arguments;
use crate::failure::to_python;
use crate::fork::generation;
use crate::function::{Function, SCHEME};
use crate::options::{ActorOptions, Amounts};
use crate::output::Output;
use crate::pickle::{self, ContainedReferences, Destination, DestinationStore, Encoded};
use crate::reference::ObjectRef;
use crate::submit_context::{SubmitContext, enable_submit_context};
use crate::unread_failures::UnreadFailures;
use crate::wait::{check_local_copies, deadline, interruptible, wait_for};
use bytes::Bytes;
use marline_runtime::core::error::Error;
use marline_runtime::core::id::{ObjectId, Referent};
use marline_runtime::core::message::CancelMode;
use marline_runtime::core::output::OutputSource;
use marline_runtime::core::payload::{Payload, Value};
use marline_runtime::core::spec::ActorSpec;
use marline_runtime::core::worker;
use marline_runtime::{
    Client, Controller, ExecutorOptions, ForkServerOptions, ForkVersion, NoProgram,
    ObjectStoreHandle, Setting, StderrForwarding, StoreOptions, WorkerOptions, cluster_record,
    executor_source, new_actor_id, new_object_id,
};
use pyo3::exceptions::PyRuntimeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};
use std::borrow::Cow;
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// The most executors that an embedded worker starts before there is work for them.
const MAX_PRESTARTED: usize = 64;

/// The state of a session, which references and handles share.
pub struct SessionState {
    /// Always there, except while it is dropped in a fork, which must not run the client's `Drop`.
    client: Option<Client>,
    /// The [`generation`] of the process that owns it.
    generation: u64,
    /// How many references and handles of this session exist.
    pub hold_count: AtomicUsize,
    /// In an executor: the task or actor that the client has declared last as the parent of its
    /// work.
    works_for: Mutex<Option<OutputSource>>,
    /// Whether this process has called an actor in another process. Its output may come later than
    /// its answers.
    pub called: AtomicBool,
    /// The controller, if the cluster is embedded in this process.
    embedded: Mutex<Option<Controller>>,
    /// In a driver: the unread failures, if they are printed.
    pub unread: OnceLock<Arc<UnreadFailures>>,
    /// In a driver: the namespace of its work, if it has set one.
    pub namespace: OnceLock<String>,
}

impl SessionState {
    /// Returns the client. Fails in a fork of the process that joined.
    pub fn client(&self) -> Result<&Client, Error> {
        let here = self.client.as_ref().filter(|_| self.generation == generation());
        here.ok_or_else(|| {
            Error::invalid(
                "this belongs to the process that was forked: call marline.init() in this process, and \
                 create it again here",
            )
        })
    }
}

impl SessionState {
    /// Returns the object store of this node, if this process can use one.
    pub fn objects(&self) -> Option<ObjectStoreHandle> {
        self.client().ok().and_then(Client::objects)
    }

    /// Returns where a value of this size is written, as the data of `object`. Returns `None` if it
    /// travels in messages.
    pub fn destination(&self, object: ObjectId, bytes: usize) -> Option<Destination> {
        let far = || {
            let client = self.client().ok().filter(|client| client.must_upload(bytes))?;
            Some(DestinationStore::Remote(client.clone()))
        };
        let store = self.objects().map(DestinationStore::Local).or_else(far)?;
        Some(Destination { store, object })
    }

    /// Returns the client, for submitting work. In an executor, it first declares that new work is
    /// a part of the task or actor that runs there.
    pub fn client_for_work(&self) -> Result<&Client, Error> {
        let client = self.client()?;
        let source = executor_source();
        if source.is_some() {
            let mut declared = self.works_for.lock().expect("nothing panics under it");
            if let Some(source) = source
                && declared.replace(source) != Some(source)
            {
                client.set_parent(source)?;
            }
        }
        Ok(client)
    }
}

impl Session {
    /// Saves the data of a value that this process has put into the local object store, so that it
    /// outlives the node.
    fn make_durable(&self, py: Python<'_>, value: &mut Value) -> PyResult<()> {
        let Some(objects) = self.inner.objects() else {
            let words = "a value that is sent to a worker on another machine cannot be durable: put it inside a \
                         task, or run a worker on this machine";
            return Err(to_python(py, &Error::unsupported(words)));
        };
        py.detach(|| objects.make_durable(&mut value.payload)).map_err(|error| {
            value.payload.stored_object().inspect(|object| objects.discard(*object));
            to_python(py, &error)
        })
    }
}

impl Drop for SessionState {
    fn drop(&mut self) {
        if self.generation != generation() {
            std::mem::forget(self.client.take());
            if let Ok(embedded) = self.embedded.get_mut() {
                std::mem::forget(embedded.take());
            }
        }
    }
}

fn answers<'a>(references: &'a [Bound<'_, ObjectRef>]) -> Vec<Awaited<'a>> {
    references.iter().map(|reference| Awaited::Answer(reference.get().answer())).collect()
}

/// Returns the error for values that did not come in time: how many came, and the first one that
/// did not.
fn not_in_time(
    references: &[Bound<'_, ObjectRef>],
    answers: &[Awaited<'_>],
    timeout: Option<f64>,
) -> Error {
    let late: Vec<usize> = (0..answers.len()).filter(|index| !answers[*index].has_come()).collect();
    let first = late.first().map_or(String::new(), |index| references[*index].get().id.to_string());
    let (came, all) = (answers.len() - late.len(), answers.len());
    let within = timeout.unwrap_or_default();
    Error::timeout(format!(
        "{came} of {all} came within {within} s; the others may still come, {first} is the first of them \
         (`marline tasks` shows what a task waits for)"
    ))
}

/// The limits of the object store of an embedded cluster, as `init` takes them.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct StoreLimits {
    /// In bytes.
    object_store_memory: Option<u64>,
    object_spilling_directory: Option<String>,
}

/// The session, as Python sees it. See the [module](self).
#[pyclass(frozen, module = "marline._native")]
pub struct Session {
    pub inner: Arc<SessionState>,
}

impl Session {
    fn new(client: Client, embedded: Option<Controller>) -> Session {
        let inner = SessionState {
            client: Some(client),
            generation: generation(),
            hold_count: AtomicUsize::new(0),
            works_for: Mutex::default(),
            called: AtomicBool::new(false),
            embedded: Mutex::new(embedded),
            unread: OnceLock::new(),
            namespace: OnceLock::new(),
        };
        Session { inner: Arc::new(inner) }
    }
}

thread_local! {
    /// The session of the value that this thread unpickles, if it came through a session.
    static LOADS_FROM: RefCell<Option<Arc<SessionState>>> = const { RefCell::new(None) };
}

/// Calls `load`, which unpickles a value that came through a session. References inside the value
/// belong to that session.
pub fn loading_from<T>(session: &Arc<SessionState>, load: impl FnOnce() -> T) -> T {
    let outer = LOADS_FROM.replace(Some(session.clone()));
    let loaded = load();
    drop(LOADS_FROM.replace(outer));
    loaded
}

/// Returns the session that a reference belongs to which is unpickled now: that of the value around
/// it. If no value is loaded, the session that module functions use, which is started if there is
/// none.
pub fn session_of_load(py: Python<'_>) -> PyResult<Arc<SessionState>> {
    if let Some(session) = LOADS_FROM.with_borrow(Clone::clone) {
        return Ok(session);
    }
    let session = py.import("marline._session.sessions")?.call_method0("current")?;
    let session = session.getattr("native")?;
    let session = session.cast::<Session>().map_err(|_| PyRuntimeError::new_err("no session"))?;
    Ok(session.get().inner.clone())
}

/// Returns the session of this executor, if its user code has started one.
pub fn session_if_any(py: Python<'_>) -> PyResult<Option<Arc<SessionState>>> {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let module = MODULE
        .get_or_try_init(py, || Ok::<_, PyErr>(py.import("marline._session.sessions")?.unbind()))?;
    let session = module.bind(py).getattr(intern!(py, "own"))?;
    if session.is_none() {
        return Ok(None);
    }
    let session = session.getattr(intern!(py, "native"))?;
    Ok(session.cast::<Session>().ok().map(|session| session.get().inner.clone()))
}

#[pymethods]
impl Session {
    /// The number of sessions of this client that have ended. Objects that were put in them are
    /// gone.
    #[getter]
    fn number(&self) -> u64 {
        self.inner.client().map_or(0, Client::ended_sessions)
    }

    /// Starts a cluster in this process. Its executors are forks of a server process that runs
    /// `command`.
    #[staticmethod]
    fn embed(
        py: Python<'_>,
        address: &str,
        amounts: Amounts,
        command: Vec<String>,
        setup: String,
        shows_output: bool,
        store: StoreLimits,
    ) -> PyResult<Session> {
        let resources = amounts.resources(py)?;
        // The fork server runs the same Python as this process.
        let version = ForkVersion::Language(pickle::minor_version(py));
        let StoreLimits { object_store_memory: limit, object_spilling_directory: folder } = store;
        let limit = limit.map(|value| Setting { name: "object_store_memory", value });
        let folder = folder.map(|value| Setting { name: "object_spilling_directory", value });
        let store =
            StoreOptions::new(limit, folder, None).map_err(|error| to_python(py, &error))?;
        let store = store.of_one_process();
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
                program: Arc::new(NoProgram),
                executors: ExecutorOptions::Processes {
                    commands: false,
                    memory: None,
                    pass_on: if shows_output {
                        StderrForwarding::Ownerless
                    } else {
                        StderrForwarding::Nothing
                    },
                    forks: Some(ForkServerOptions {
                        runtime: SCHEME.into(),
                        program: program.into(),
                        args: args.to_vec(),
                        setup,
                        version,
                    }),
                    arguments: None,
                },
                store: Some(store),
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

    /// Joins the cluster at an address. Without an address, joins the only cluster of this user on
    /// this machine, and joins it again after a restart. Without a token, uses the one in the
    /// cluster's record, if there is a record.
    #[staticmethod]
    fn join(py: Python<'_>, address: Option<&str>, token: Option<&str>) -> PyResult<Session> {
        let (address, token) = (address.map(str::to_owned), token.map(Arc::from));
        let client = interruptible(py, move || match address {
            Some(address) => Client::connect(&address, token),
            None => Client::connect_here(token),
        })?;
        let client = client.map_err(|error| to_python(py, &error))?;
        let session = Session::new(client, None);
        // In an executor, the session is a part of the running task or actor from the beginning.
        session.inner.client_for_work().map_err(|error| to_python(py, &error))?;
        Ok(session)
    }

    /// Returns the address and the token of the cluster of this user on this machine. With an
    /// address, returns `None` if no cluster with that address runs here.
    #[staticmethod]
    fn find_local_cluster(
        py: Python<'_>,
        address: Option<&str>,
    ) -> PyResult<Option<(String, String)>> {
        let here = || {
            let cluster = match address {
                None => Some(cluster_record::only_cluster()?),
                Some(address) => cluster_record::list_clusters()?.at(address),
            };
            let cluster = cluster.map(|found| Ok((found.nearest().to_owned(), found.token()?)));
            cluster.transpose()
        };
        here().map_err(|error: Error| to_python(py, &error))
    }

    /// Returns the output of the work that is submitted from now on.
    fn output(&self, py: Python<'_>) -> PyResult<Output> {
        let output = self.inner.client().and_then(Client::output);
        output.map(Output::new).map_err(|error| to_python(py, &error))
    }

    /// Sets the namespace of the work that is submitted from now on. Only the first call counts.
    fn set_namespace(&self, namespace: String) {
        enable_submit_context();
        self.inner.namespace.get_or_init(|| namespace);
    }

    /// Returns whether a reference belongs to this session.
    fn owns(&self, reference: &Bound<'_, ObjectRef>) -> bool {
        Arc::ptr_eq(&self.inner, &reference.get().session)
    }

    /// Starts printing failures whose errors are never read.
    fn print_unread_failures(&self) {
        self.inner.unread.get_or_init(UnreadFailures::new);
    }

    /// Prints the unread failures before the session ends. With `with_held`, also failures whose
    /// references still exist.
    fn close_unread(&self, py: Python<'_>, with_held: bool) {
        if let Some(unread) = self.inner.unread.get() {
            unread.close(py, with_held);
        }
    }

    /// Returns whether output may arrive later than results that were printed before it.
    fn may_lag(&self) -> bool {
        self.inner.called.load(Ordering::Relaxed)
    }

    /// Ends the session, and the cluster if it is embedded in this process.
    fn shutdown(&self, py: Python<'_>) {
        if self.inner.client().is_err() {
            return; // In a fork: the session belongs to the parent.
        }
        let embedded = self.inner.embedded.lock().expect("nothing panics under it").take();
        py.detach(|| {
            if let Ok(client) = self.inner.client() {
                client.leave();
            }
            drop(embedded);
        });
    }

    /// Puts a value into the cluster. A large durable value is saved to the disk first.
    #[pyo3(signature = (value, durable=false))]
    fn put(&self, value: &Bound<'_, PyAny>, durable: bool) -> PyResult<ObjectRef> {
        let py = value.py();
        let client = self.inner.client().map_err(|error| to_python(py, &error))?;
        let id = new_object_id();
        let destination = |bytes| self.inner.destination(id, bytes);
        let Encoded { mut value, at, found } = pickle::encode(value, "the value", destination)?;
        found.check_session(&self.inner, "the value")?;
        if durable && value.payload.stored.is_some() {
            self.make_durable(py, &mut value)?;
        }
        let put = client.put_as(id, value.clone(), at);
        drop(found);
        put.map_err(|error| to_python(py, &error))?;
        Ok(ObjectRef::put(&self.inner, id, value))
    }

    /// Puts bytes without pickling them: packages and code. Code may come with the runtime
    /// environment in which it is loaded. The object holds the environment's packages and the
    /// referents of `references`.
    #[pyo3(signature = (data, code_version=0, environment=None, packages=Vec::new(), references=None))]
    fn put_raw(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyBytes>,
        code_version: u32,
        environment: Option<&Bound<'_, PyBytes>>,
        packages: Vec<Bound<'_, ObjectRef>>,
        references: Option<&Bound<'_, ContainedReferences>>,
    ) -> PyResult<ObjectRef> {
        pickle::check_size(py, "the code, with what it uses", data.as_bytes().len())?;
        if let Some(references) = references {
            references.get().check_session(&self.inner)?;
        }
        let bytes = |data: &Bound<'_, PyBytes>| Bytes::copy_from_slice(data.as_bytes());
        let buffers = environment.map(bytes).into_iter().collect();
        let payload = Payload { buffers, code_version, ..Payload::raw(bytes(data)) };
        let packages = packages.iter().map(|package| Referent::Object(package.get().id));
        let named =
            references.into_iter().flat_map(|references| references.get().all().iter().copied());
        let contains = packages.chain(named).collect();
        let value = Value { payload, referents: contains };
        let id = new_object_id();
        let put = self.inner.client().and_then(|client| client.put_as(id, value.clone(), None));
        references.inspect(|references| references.get().release());
        put.map_err(|error| to_python(py, &error))?;
        Ok(ObjectRef::put(&self.inner, id, value))
    }

    /// Waits for the values of references and returns them. Fails with the first error, or with a
    /// timeout.
    #[staticmethod]
    fn get<'py>(
        py: Python<'py>,
        references: Vec<Bound<'py, ObjectRef>>,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyList>> {
        let answers: Vec<Awaited<'_>> = answers(&references);
        let deadline = deadline(timeout);
        if !wait_for(py, &answers, answers.len(), timeout)? {
            return Err(to_python(py, &not_in_time(&references, &answers, timeout)));
        }
        let values = PyList::empty(py);
        for reference in &references {
            let outcome = reference.get().answer().get().expect("it has come");
            let value = reference.get().value(py, outcome, deadline);
            if value.is_err() {
                // Only this error is raised. The others count as read, too.
                references.iter().for_each(|other| other.get().answer().mark_read());
            }
            values.append(value?)?;
        }
        Ok(values)
    }

    /// Waits until `count` values have come, at most `timeout` seconds. With `fetch_local`, a large
    /// value has come when its blob is at this node. Returns for each reference whether its value
    /// has come.
    #[staticmethod]
    fn wait(
        py: Python<'_>,
        references: Vec<Bound<'_, ObjectRef>>,
        count: usize,
        timeout: Option<f64>,
        fetch_local: bool,
    ) -> PyResult<Vec<bool>> {
        let awaited: Vec<Awaited<'_>> = match fetch_local {
            true => references.iter().map(|reference| reference.get().data()).collect(),
            false => answers(&references),
        };
        if fetch_local {
            check_local_copies(py, &awaited, count);
        }
        wait_for(py, &awaited, count, timeout)?;
        Ok(awaited.iter().map(Awaited::has_come).collect())
    }

    /// Cancels a task or call; unless `alone`, also the work that it has submitted.
    #[staticmethod]
    fn cancel(reference: &Bound<'_, ObjectRef>, force: bool, alone: bool) {
        reference.get().hand_over_error();
        if let Ok(client) = reference.get().session.client() {
            client.cancel(reference.get().id.origin, CancelMode::of(force, alone));
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
        interface: &[u8],
    ) -> PyResult<Actor> {
        let (class, options) = (class_.get(), options.get());
        let submit_context = SubmitContext::here(py, &self.inner)?;
        let Arguments { payload, needs, holds, _references, _found, _stored } =
            class.arguments(args, kwargs, &submit_context, &self.inner)?;
        let spec = ActorSpec {
            id: new_actor_id(),
            class: class.name.clone(),
            args: payload,
            needs,
            referents: holds,
            name: options.name.clone(),
            namespace: options.namespace.clone(),
            options: options.options.clone(),
            interface: Bytes::copy_from_slice(interface),
        };
        let created =
            py.detach(|| self.inner.client_for_work()?.create_actor(Arc::new(spec))?.wait()?);
        let id = created.map_err(|error| to_python(py, &error))?;
        Ok(Actor::created(&self.inner, id, class))
    }

    /// Finds an actor by its name. With `is_plain`, the handle sends and expects plain data.
    /// Returns also the encoded interface of its class.
    fn find_actor(
        &self,
        py: Python<'_>,
        namespace: &str,
        name: &str,
        is_plain: bool,
    ) -> PyResult<(Actor, Cow<'static, [u8]>)> {
        let found = py.detach(|| self.inner.client()?.find_actor(namespace, name)?.wait()?);
        let found = found.map_err(|error| to_python(py, &error))?;
        Ok((Actor::new(&self.inner, found.id, is_plain), found.interface.to_vec().into()))
    }
}

/// Removes the files that killed workers of this user have left.
#[pyfunction]
pub fn sweep() {
    cluster_record::sweep();
}
