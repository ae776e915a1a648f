//! This process's membership in a cluster: its own, embedded one, or one elsewhere.

use crate::actor::Actor;
use crate::answer::Awaited;
use crate::arguments::Arguments;
use crate::around::Around;
use crate::failure::to_python;
use crate::fork::generation;
use crate::function::{Function, SCHEME};
use crate::options::{ActorOptions, Amounts};
use crate::output::Output;
use crate::pickle::{self, Encoded, Place, Room, Things};
use crate::reference::ObjectRef;
use crate::unread::Unread;
use crate::wait::{deadline, interruptible, look_near, wait_for};
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
    ObjectStoreHandle, Setting, StderrForwarding, StoreOptions, WorkerOptions, executor_source,
    new_actor_id, new_object_id, record,
};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};
use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

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
    /// In an executor: the task or actor that it said it works for.
    works_for: Mutex<Option<OutputSource>>,
    /// Whether it called an actor elsewhere: what that prints may come later than its answers.
    pub called: AtomicBool,
    /// The cluster, if it lives in this process.
    embedded: Mutex<Option<Controller>>,
    /// In a driver: what is printed of failures that nobody reads, if anything is.
    pub unread: OnceLock<Arc<Unread>>,
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

impl Inner {
    /// The store of this node, if this process can use one.
    pub fn objects(&self) -> Option<ObjectStoreHandle> {
        self.client().ok().and_then(Client::objects)
    }

    /// Where a value of so many bytes goes as the data of an object, if it does not travel with messages.
    pub fn room(&self, object: ObjectId, bytes: usize) -> Option<Room> {
        let far = || {
            let client = self.client().ok().filter(|client| client.must_upload(bytes))?;
            Some(Place::Elsewhere(client.clone()))
        };
        let place = self.objects().map(Place::Here).or_else(far)?;
        Some(Room { place, object })
    }

    /// What speaks to the cluster, for new work: in an executor, that is a part of what runs there.
    pub fn client_for_work(&self) -> Result<&Client, Error> {
        let client = self.client()?;
        let source = executor_source();
        if source.is_some() {
            let mut said = self.works_for.lock().expect("nothing panics under it");
            if let Some(source) = source
                && said.replace(source) != Some(source)
            {
                client.set_parent(source)?;
            }
        }
        Ok(client)
    }
}

impl Session {
    /// Saves the data of a value that this process has put into a store.
    fn make_durable(&self, py: Python<'_>, value: &mut Value) -> PyResult<()> {
        let Some(objects) = self.inner.objects() else {
            let words = "what is sent to a worker on another machine is not durable: put it in a task, or run a worker here";
            return Err(to_python(py, &Error::unsupported(words)));
        };
        py.detach(|| objects.make_durable(&mut value.payload)).map_err(|error| {
            value.payload.stored_object().inspect(|object| objects.discard(*object));
            to_python(py, &error)
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

fn answers<'a>(references: &'a [Bound<'_, ObjectRef>]) -> Vec<Awaited<'a>> {
    references.iter().map(|reference| Awaited::Answer(reference.get().answer())).collect()
}

/// What is said of values that did not come in time: how many there are, and which is the first.
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
         (`marline tasks` says what a task waits for)"
    ))
}

/// See the [module](self).
#[pyclass(frozen, module = "marline._native")]
pub struct Session {
    pub inner: Arc<Inner>,
}

impl Session {
    fn new(client: Client, embedded: Option<Controller>) -> Session {
        let inner = Inner {
            client: Some(client),
            generation: generation(),
            held: AtomicUsize::new(0),
            works_for: Mutex::default(),
            called: AtomicBool::new(false),
            embedded: Mutex::new(embedded),
            unread: OnceLock::new(),
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
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let module =
        MODULE.get_or_try_init(py, || Ok::<_, PyErr>(py.import("marline._session")?.unbind()))?;
    let session = module.bind(py).getattr("_session")?;
    Ok(session.cast::<Session>().ok().map(|session| session.get().inner.clone()))
}

#[pymethods]
impl Session {
    /// How many sessions this process has had before this one: what was put in those is gone.
    #[getter]
    fn number(&self) -> u64 {
        self.inner.client().map_or(0, Client::ended_sessions)
    }

    /// Starts a cluster in this process; its executors are forks of a server that runs `command`. Of its store it is
    /// said how much memory it may take, and the folder for the rest.
    #[staticmethod]
    fn embed(
        py: Python<'_>,
        address: &str,
        amounts: Amounts,
        command: Vec<String>,
        setup: String,
        shows_output: bool,
        store: (Option<u64>, Option<String>),
    ) -> PyResult<Session> {
        let resources = amounts.resources(py)?;
        // Executors are forks of the Python that runs this.
        let version = ForkVersion::Language(pickle::minor_version(py));
        let (limit, folder) = store;
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

    /// Joins the cluster at an address; without one, whichever runs on this machine for this user, also after
    /// it was restarted. Without a token it is that of the cluster's record, if there is one.
    #[staticmethod]
    fn join(py: Python<'_>, address: Option<&str>, token: Option<&str>) -> PyResult<Session> {
        let (address, token) = (address.map(str::to_owned), token.map(Arc::from));
        let client = interruptible(py, move || match address {
            Some(address) => Client::connect(&address, token),
            None => Client::connect_here(token),
        })?;
        let client = client.map_err(|error| to_python(py, &error))?;
        let session = Session::new(client, None);
        // In an executor, it is part of what runs there from the beginning.
        session.inner.client_for_work().map_err(|error| to_python(py, &error))?;
        Ok(session)
    }

    /// Where the cluster is that runs on this machine for this user, and its token; with an address, only
    /// if it is that one.
    #[staticmethod]
    fn here(py: Python<'_>, address: Option<&str>) -> PyResult<Option<(String, String)>> {
        let here = || {
            let cluster = match address {
                None => Some(record::only_cluster()?),
                Some(address) => record::list_clusters()?.at(address),
            };
            let cluster = cluster.map(|one| Ok((one.nearest().to_owned(), one.token()?)));
            cluster.transpose()
        };
        here().map_err(|error: Error| to_python(py, &error))
    }

    /// What work prints that is submitted from now on.
    fn output(&self, py: Python<'_>) -> PyResult<Output> {
        let output = self.inner.client().and_then(Client::output);
        output.map(Output::new).map_err(|error| to_python(py, &error))
    }

    /// From now on, failures that nobody reads are printed.
    fn report_unread(&self) {
        self.inner.unread.get_or_init(Unread::new);
    }

    /// The session is about to end: prints the failures that nobody has read; those of references that are still there
    /// as well, if that is said.
    fn close_unread(&self, py: Python<'_>, with_held: bool) {
        if let Some(unread) = self.inner.unread.get() {
            unread.close(py, with_held);
        }
    }

    /// Whether what was printed may come later than what was got since.
    fn may_lag(&self) -> bool {
        self.inner.called.load(Ordering::Relaxed)
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
    #[pyo3(signature = (value, durable=false))]
    fn put(&self, value: &Bound<'_, PyAny>, durable: bool) -> PyResult<ObjectRef> {
        let py = value.py();
        let client = self.inner.client().map_err(|error| to_python(py, &error))?;
        let id = new_object_id();
        let room = |bytes| self.inner.room(id, bytes);
        let Encoded { mut value, at, met } = pickle::encode(value, "the value", room)?;
        if durable && value.payload.stored.is_some() {
            self.make_durable(py, &mut value)?;
        }
        let put = client.put_as(id, value.clone(), at);
        drop(met);
        put.map_err(|error| to_python(py, &error))?;
        Ok(ObjectRef::put(&self.inner, id, value))
    }

    /// Puts bytes as they are. Code may have the environment beside it that it is to be read in; the packages
    /// which that names live as long as the code, and so does what the code has references to.
    #[pyo3(signature = (data, code_version=0, environment=None, packages=Vec::new(), things=None))]
    fn put_raw(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyBytes>,
        code_version: u32,
        environment: Option<&Bound<'_, PyBytes>>,
        packages: Vec<Bound<'_, ObjectRef>>,
        things: Option<&Bound<'_, Things>>,
    ) -> PyResult<ObjectRef> {
        pickle::check_size(py, "the code, with what it uses", data.as_bytes().len())?;
        let bytes = |data: &Bound<'_, PyBytes>| Bytes::copy_from_slice(data.as_bytes());
        let buffers = environment.map(bytes).into_iter().collect();
        let payload = Payload { buffers, code_version, ..Payload::raw(bytes(data)) };
        let packages = packages.iter().map(|package| Referent::Object(package.get().id));
        let named = things.into_iter().flat_map(|things| things.get().all().iter().copied());
        let contains = packages.chain(named).collect();
        let value = Value { payload, referents: contains };
        let id = new_object_id();
        let put = self.inner.client().and_then(|client| client.put_as(id, value.clone(), None));
        things.inspect(|things| things.get().settled());
        put.map_err(|error| to_python(py, &error))?;
        Ok(ObjectRef::put(&self.inner, id, value))
    }

    /// The values of references, when all have come.
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
                // One error is raised for all of them.
                references.iter().for_each(|one| one.get().answer().mark_read());
            }
            values.append(value?)?;
        }
        Ok(values)
    }

    /// Waits until so many have come, or the time is over; with their data at this node, if that is said. Says which
    /// have.
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
            look_near(py, &awaited, count);
        }
        wait_for(py, &awaited, count, timeout)?;
        Ok(awaited.iter().map(Awaited::has_come).collect())
    }

    /// Asks a task to stop, and what it has submitted unless it is to stop alone.
    #[staticmethod]
    fn cancel(reference: &Bound<'_, ObjectRef>, force: bool, alone: bool) {
        reference.get().leave_to_others();
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
        let around = Around::here(py)?;
        let Arguments { payload, needs, holds, _references, _met, _stored } =
            class.arguments(args, kwargs, &around, &self.inner)?;
        let spec = ActorSpec {
            id: new_actor_id(),
            class: class.name.clone(),
            args: payload,
            needs,
            holds,
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

    /// Finds an actor by its name; one that understands plain data only, if that is said.
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

/// Takes away what workers of this user left that were killed.
#[pyfunction]
pub fn sweep() {
    record::sweep();
}
