//! The processes of a cluster: a controller, and workers that join it.
//!
//! ```
//! use marline::{Client, Controller, Program, Worker};
//!
//! let controller = Controller::listen("127.0.0.1:0")?;                      // in one process
//! let program = Program::new().task("square", |x: i64| x * x);
//! let _worker = Worker::of(program).threads().join(controller.address())?;  // in others
//! let client = Client::connect(controller.address())?;                      // and in a third
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

/// A controller: it places work, watches sessions, and owns names. It ends when it is dropped.
pub struct Controller {
    inner: marline_runtime::Controller,
}

impl Controller {
    /// Starts a controller that listens at `127.0.0.1:PORT` (port 0: any free port) or
    /// `unix:/path`.
    pub fn listen(at: &str) -> Result<Controller, Error> {
        Controller::builder().listen(at)
    }

    /// Returns a builder, for a controller with other options.
    pub fn builder() -> ControllerBuilder {
        ControllerBuilder { token: None, config: Config::default() }
    }

    /// Returns the address that the controller listens on.
    pub fn address(&self) -> &str {
        self.inner.address()
    }

    /// Returns a client of the controller, in this process.
    pub fn client(&self) -> Client {
        Client::new(self.inner.client())
    }

    /// Returns the workers, and what each has free.
    pub fn workers(&self) -> Vec<WorkerStatus> {
        self.inner.workers()
    }

    /// Returns how many tasks and objects the controller remembers.
    pub fn load(&self) -> Load {
        self.inner.load()
    }

    /// Returns how many tasks were submitted, finished, failed, and so on.
    pub fn counters(&self) -> Counters {
        self.inner.counters()
    }
}

/// The options of a controller that does not listen yet. Made by [`Controller::builder`].
pub struct ControllerBuilder {
    token: Option<Arc<str>>,
    config: Config,
}

impl ControllerBuilder {
    /// Sets the token that every process must know to connect. Without a token, a controller can
    /// listen on this machine only.
    pub fn token(mut self, token: &str) -> Self {
        self.token = Some(token.into());
        self
    }

    /// Sets how long a process may be silent before it is lost. The default is 30 s. A process
    /// survives a silence of at most four fifths of it.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.config.terms = LeaseTerms::of(lease);
        self
    }

    /// Sets all other options, including the lease.
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// Starts the controller, listening at `IP:PORT` (port 0: any free port) or `unix:/path`.
    pub fn listen(self, at: &str) -> Result<Controller, Error> {
        let inner = marline_runtime::Controller::start(at, self.token, self.config)?;
        Ok(Controller { inner })
    }
}

/// A worker of a controller in another process. It ends when it is dropped.
///
/// Its executors are processes: the worker's own program, started again with the same arguments. In
/// such a process the main thread reaches [`join`](WorkerBuilder::join) or
/// [`run`](WorkerBuilder::run) too, and becomes an executor there instead of another worker. So the
/// program of a worker should do little before that call:
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
/// A program that does more, or joins from another thread, calls
/// [`executor_main`](crate::executor_main) first. In a test binary, `main` is the test harness: see
/// [`executor_test`](WorkerBuilder::executor_test), or use [`threads`](WorkerBuilder::threads).
pub struct Worker {
    inner: marline_runtime::Worker,
}

/// The options of a worker that has not joined yet. Made by [`Worker::of`].
pub struct WorkerBuilder {
    options: WorkerOptions,
    grace: Duration,
    store_limit: Option<Setting<u64>>,
    spill_folder: Option<Setting<String>>,
    durable_folder: Option<Setting<String>>,
}

/// How long work may run on after its worker was asked to leave, by default.
const GRACE: Duration = Duration::from_secs(30);

impl Worker {
    /// Returns a worker that runs this program, offers all CPUs that this process may use, and
    /// listens for calls on this machine only.
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
    /// Sets the resources that the worker offers.
    pub fn resources(mut self, resources: Resources) -> Self {
        self.options.resources = resources;
        self
    }

    /// Sets the address to listen on for calls: `host:port` or `unix:/path`.
    pub fn listen(mut self, at: &str) -> Self {
        self.options.listen = Some(at.into());
        self
    }

    /// Sets the token of the cluster.
    pub fn token(mut self, token: &str) -> Self {
        self.options.token = Some(token.into());
        self
    }

    /// Marks the machine as one that may be taken away at any time. Work that must not be preempted
    /// is not placed here.
    pub fn preemptible(mut self) -> Self {
        self.options.preemptible = true;
        self
    }

    /// Makes the executors threads of the worker's own process. That is cheapest, but user code
    /// that crashes ends the worker too, and a cancelled task that ignores the request runs on.
    pub fn threads(mut self) -> Self {
        self.options.executors = ExecutorOptions::Threads;
        self
    }

    /// Makes executors run the test of this name (with its modules), and no other test. That test
    /// calls [`executor_main`](crate::executor_main) and does nothing else. For test binaries whose
    /// workers need executors that are processes.
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

    /// Sets the most memory that one executor may take, in bytes of address space. An executor that
    /// needs more ends, with the work that it runs.
    pub fn executor_memory(mut self, bytes: u64) -> Self {
        if let ExecutorOptions::Processes { memory, .. } = &mut self.options.executors {
            *memory = Some(bytes);
        }
        self
    }

    /// Sets the most memory that large values may take at this worker, in bytes. The default is
    /// `MARLINE_STORE_MEMORY`, else 30 % of all memory.
    pub fn object_store_memory(mut self, bytes: u64) -> Self {
        self.store_limit = Some(Setting { name: "object_store_memory", value: bytes });
        self
    }

    /// Sets the folder for large values that do not fit in memory. The folder must exist. An empty
    /// name keeps values off the disk. The default is `MARLINE_SPILL_DIR`, else the folder for
    /// temporary files.
    pub fn spill_folder(mut self, folder: &str) -> Self {
        self.spill_folder = Some(Setting { name: "spill_folder", value: folder.into() });
        self
    }

    /// Sets the folder for values that outlive their node: the same folder for all workers, on a
    /// disk that all nodes see. The default is `MARLINE_DURABLE_DIR`. Without either, no value can
    /// be durable.
    pub fn durable_folder(mut self, folder: &str) -> Self {
        self.durable_folder = Some(Setting { name: "durable_folder", value: folder.into() });
        self
    }

    /// Lets clients run commands on this worker.
    pub fn commands(mut self) -> Self {
        if let ExecutorOptions::Processes { commands, .. } = &mut self.options.executors {
            *commands = true;
        }
        self
    }

    /// Keeps the output of user code off this process's standard error. It still goes to the logs.
    pub fn quiet(mut self) -> Self {
        if let ExecutorOptions::Processes { pass_on, .. } = &mut self.options.executors {
            *pass_on = StderrForwarding::Nothing;
        }
        self
    }

    /// Sets how long a cancelled task may take to stop by itself. The default is 5 s.
    pub fn cancel_grace(mut self, grace: Duration) -> Self {
        self.options.config.cancel_grace = grace;
        self
    }

    /// Sets how long work may run on after the worker was asked to leave. The default is 30 s.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Joins the controller at this address. When the worker loses its session, it stops its
    /// running work, prints that on standard error, and joins again.
    pub fn join(mut self, controller: &str) -> Result<Worker, Error> {
        self.options.controller = controller.into();
        Ok(Worker { inner: marline_runtime::Worker::join(self.prepared()?)? })
    }

    /// Joins the cluster that `marline up` (or `marline controller`) runs on this machine for this
    /// user. When that cluster has ended, the worker stops its running work, prints that on
    /// standard error, and joins the next cluster that starts on this machine.
    pub fn join_local(self) -> Result<Worker, Error> {
        Ok(Worker { inner: marline_runtime::Worker::join_here(self.prepared()?, None)? })
    }

    /// Checks the options and returns them. In an executor of this worker this call does not
    /// return.
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

    /// Joins the cluster that runs on this machine for this user, as
    /// [`join_local`](Self::join_local) does, and works until it is asked to end, as
    /// [`run`](Self::run) does.
    pub fn run_local(self) -> Result<(), Error> {
        let grace = self.grace;
        self.join_local()?.inner.run(grace)
    }

    /// Joins the controller at this address, and works until the worker is drained or this process
    /// is asked to end (SIGTERM, SIGINT). Then the worker finishes its work, returns to the
    /// controller what is left after its grace, and leaves. A second signal ends it at once.
    pub fn run(self, controller: &str) -> Result<(), Error> {
        let grace = self.grace;
        self.join(controller)?.inner.run(grace)
    }
}
