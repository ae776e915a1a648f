//! A controller that others join, and workers that join it: processes of a cluster.
//!
//! ```
//! use marline::{Client, Controller, Program, Worker};
//!
//! let controller = Controller::listen("127.0.0.1:0")?;                      // in one process …
//! let program = Program::new().task("square", |x: i64| x * x);
//! let _worker = Worker::of(program).threads().join(controller.address())?;  // … in others …
//! let client = Client::connect(controller.address())?;                      // … and in a third
//! assert_eq!(client.task("square").submit::<i64>((9_i64,))?.wait()?, 81);
//! # Ok::<(), marline::Error>(())
//! ```

use crate::client::Client;
use crate::executor::check_executor_entry;
use crate::program::Program;
use marline_runtime::core::controller::{Config, Counters, WorkerStatus};
use marline_runtime::core::error::Error;
use marline_runtime::core::lease::LeaseTerms;
use marline_runtime::core::resources::Resources;
use marline_runtime::{
    ExecutorOptions, Load, Setting, StderrForwarding, StoreOptions, WorkerOptions,
};
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

/// A controller: places work, watches sessions, owns names. Ends when it is dropped.
pub struct Controller {
    inner: marline_runtime::Controller,
}

impl Controller {
    /// Listens at `127.0.0.1:PORT` (port 0: any that is free) or `unix:/path`.
    pub fn listen(at: &str) -> Result<Controller, Error> {
        Controller::builder().listen(at)
    }

    /// A controller that does not listen yet.
    pub fn builder() -> ControllerBuilder {
        ControllerBuilder { token: None, config: Config::default() }
    }

    /// Where it listens.
    pub fn address(&self) -> &str {
        self.inner.address()
    }

    /// A client in this process.
    pub fn client(&self) -> Client {
        Client::new(self.inner.client())
    }

    /// The workers, and what is free there.
    pub fn workers(&self) -> Vec<WorkerStatus> {
        self.inner.workers()
    }

    /// What it has to remember.
    pub fn load(&self) -> Load {
        self.inner.load()
    }

    /// What happened so far.
    pub fn counters(&self) -> Counters {
        self.inner.counters()
    }
}

/// A controller that does not listen yet.
pub struct ControllerBuilder {
    token: Option<Arc<str>>,
    config: Config,
}

impl ControllerBuilder {
    /// Everybody is asked for this. Without it, a controller listens only on this machine.
    pub fn token(mut self, token: &str) -> Self {
        self.token = Some(token.into());
        self
    }

    /// A process that is silent for this long is lost (30 s by default). A silence of at most four fifths of it is
    /// survived.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.config.terms = LeaseTerms::of(lease);
        self
    }

    /// How it behaves in all else.
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// Listens at `IP:PORT` (port 0: any that is free) or `unix:/path`.
    pub fn listen(self, at: &str) -> Result<Controller, Error> {
        let inner = marline_runtime::Controller::start(at, self.token, self.config)?;
        Ok(Controller { inner })
    }
}

/// A worker of a controller elsewhere. Ends when it is dropped.
///
/// Its executors are processes: the worker's own program, started again with the same arguments. There the main
/// thread comes to [`join`](WorkerBuilder::join) or [`run`](WorkerBuilder::run) as well, and becomes an executor
/// instead of another worker. So a worker's program does little else before:
///
/// ```no_run
/// use marline::{Program, Worker};
///
/// fn main() -> Result<(), marline::Error> {
///     let program = Program::new().task("square", |x: i64| x * x);
///     Worker::of(program).run("127.0.0.1:7000")
/// }
/// ```
///
/// A program that does more, or joins from another thread, calls [`executor_main`](crate::executor_main) first. In a
/// test binary, `main` is the test harness: see [`executor_test`](WorkerBuilder::executor_test), or use
/// [`threads`](WorkerBuilder::threads).
pub struct Worker {
    inner: marline_runtime::Worker,
}

/// A worker that has not joined yet.
pub struct WorkerBuilder {
    options: WorkerOptions,
    grace: Duration,
    store_limit: Option<Setting<u64>>,
    spill_folder: Option<Setting<String>>,
    durable_folder: Option<Setting<String>>,
}

/// How long a worker that was asked to leave lets its work run on, unless said otherwise.
const GRACE: Duration = Duration::from_secs(30);

impl Worker {
    /// A worker that runs this program, offers as many CPUs as there are, and listens for calls on
    /// this machine.
    pub fn of(program: Program) -> WorkerBuilder {
        let cpus = available_parallelism().map_or(1, |cpus| cpus.get() as u32);
        WorkerBuilder {
            options: WorkerOptions {
                controller: String::new(),
                token: None,
                listen: Some("127.0.0.1:0".into()),
                resources: Resources::cpus(cpus),
                preemptible: false,
                program: Arc::new(program),
                executors: ExecutorOptions::Processes {
                    commands: false,
                    memory: None,
                    pass_on: StderrForwarding::All,
                    forks: None,
                    arguments: None,
                },
                store: None,
                config: Default::default(),
            },
            grace: GRACE,
            store_limit: None,
            spill_folder: None,
            durable_folder: None,
        }
    }
}

impl WorkerBuilder {
    /// What it offers.
    pub fn resources(mut self, resources: Resources) -> Self {
        self.options.resources = resources;
        self
    }

    /// Where it listens for calls: `host:port` or `unix:/path`.
    pub fn listen(mut self, at: &str) -> Self {
        self.options.listen = Some(at.into());
        self
    }

    /// The cluster's token.
    pub fn token(mut self, token: &str) -> Self {
        self.options.token = Some(token.into());
        self
    }

    /// It may be taken away at any time: work that must not be is not placed here.
    pub fn preemptible(mut self) -> Self {
        self.options.preemptible = true;
        self
    }

    /// Its executors are threads of its own process: cheapest, but user code that crashes takes the
    /// worker along, and what does not stop when it is asked to runs on.
    pub fn threads(mut self) -> Self {
        self.options.executors = ExecutorOptions::Threads;
        self
    }

    /// Its executors begin at the test of this name (with its modules), which calls
    /// [`executor_main`](crate::executor_main) and does nothing else. For tests that need executors which are
    /// processes: they run that test, and no other.
    ///
    /// ```
    /// # use marline::{Controller, Error, Program, Worker};
    /// fn program() -> Program {
    ///     Program::new().task("pid", std::process::id)
    /// }
    ///
    /// #[test]
    /// fn executor() {
    ///     marline::executor_main(program());
    /// }
    ///
    /// #[test]
    /// fn a_task_runs_in_a_process_of_its_own() {
    ///     let controller = Controller::listen("127.0.0.1:0").unwrap();
    ///     let worker = Worker::of(program()).executor_test("executor");
    ///     let _worker = worker.join(controller.address()).unwrap();
    ///     let pid: u32 = controller.client().task("pid").submit(()).unwrap().wait().unwrap();
    ///     assert_ne!(pid, std::process::id());
    /// }
    /// ```
    #[allow(clippy::test_attr_in_doctest)] // The example is a file of tests, and compiles.
    pub fn executor_test(mut self, name: &str) -> Self {
        if let ExecutorOptions::Processes { arguments, .. } = &mut self.options.executors {
            let only = [name, "--exact", "--nocapture", "--test-threads=1"];
            *arguments = Some(only.map(String::from).into());
        }
        self
    }

    /// The most memory one executor may take, in bytes of address space. One that takes more ends, and
    /// what it ran with it.
    pub fn executor_memory(mut self, bytes: u64) -> Self {
        if let ExecutorOptions::Processes { memory, .. } = &mut self.options.executors {
            *memory = Some(bytes);
        }
        self
    }

    /// The most memory that large values may take here, in bytes: 30 % of what there is, unless this or
    /// `MARLINE_STORE_MEMORY` says otherwise.
    pub fn object_store_memory(mut self, bytes: u64) -> Self {
        self.store_limit = Some(Setting { name: "object_store_memory", value: bytes });
        self
    }

    /// The folder for large values that have no room there, which must be there; empty: nothing goes to the disk. It
    /// is the usual one for temporary files, unless this or `MARLINE_SPILL_DIR` says otherwise.
    pub fn spill_folder(mut self, folder: &str) -> Self {
        self.spill_folder = Some(Setting { name: "spill_folder", value: folder.into() });
        self
    }

    /// The folder for values that are to outlive their node, on a disk that all nodes see: the same for all. Without
    /// this, and `MARLINE_DURABLE_DIR`, nothing can be durable.
    pub fn durable_folder(mut self, folder: &str) -> Self {
        self.durable_folder = Some(Setting { name: "durable_folder", value: folder.into() });
        self
    }

    /// Clients may run commands here.
    pub fn commands(mut self) -> Self {
        if let ExecutorOptions::Processes { commands, .. } = &mut self.options.executors {
            *commands = true;
        }
        self
    }

    /// What user code prints goes to its log only, not to this process's standard error.
    pub fn quiet(mut self) -> Self {
        if let ExecutorOptions::Processes { pass_on, .. } = &mut self.options.executors {
            *pass_on = StderrForwarding::Nothing;
        }
        self
    }

    /// How long a task that was cancelled may take to stop by itself (5 s, unless said otherwise).
    pub fn cancel_grace(mut self, grace: Duration) -> Self {
        self.options.config.cancel_grace = grace;
        self
    }

    /// How long its work may run on when it is asked to leave (30 s, unless said otherwise).
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Joins the controller at this address. When the session is lost, it stops what runs, says so on
    /// standard error, and joins again.
    pub fn join(mut self, controller: &str) -> Result<Worker, Error> {
        self.options.controller = controller.into();
        Ok(Worker { inner: marline_runtime::Worker::join(self.prepared()?)? })
    }

    /// Joins the cluster that `marline up` (or `marline controller`) runs on this machine for this user.
    /// When that has ended, the worker stops what runs, says so on standard error, and joins the next one
    /// that is started here.
    pub fn join_local(self) -> Result<Worker, Error> {
        Ok(Worker { inner: marline_runtime::Worker::join_here(self.prepared()?, None)? })
    }

    /// What it is to be, if that makes sense. Its executors come here too, and go no further.
    fn prepared(self) -> Result<WorkerOptions, Error> {
        if let ExecutorOptions::Processes { arguments, .. } = &self.options.executors {
            marline_runtime::serve_if_executor(&self.options.program);
            if arguments.is_none() {
                check_executor_entry()?;
            }
        }
        self.options.resources.validate()?;
        let store =
            Some(StoreOptions::new(self.store_limit, self.spill_folder, self.durable_folder)?);
        Ok(WorkerOptions { store, ..self.options })
    }

    /// Joins the cluster that runs on this machine for this user, and works as [`run`](Self::run) says.
    pub fn run_local(self) -> Result<(), Error> {
        let grace = self.grace;
        self.join_local()?.inner.run(grace)
    }

    /// Joins the controller at this address and works until it is drained, or this process is asked to
    /// end (SIGTERM, SIGINT): then it finishes what it has, moves what is left after its grace, and
    /// leaves. A second signal ends it at once.
    pub fn run(self, controller: &str) -> Result<(), Error> {
        let grace = self.grace;
        self.join(controller)?.inner.run(grace)
    }
}
