//! The long-running parts of a cluster as a process runs them: a [`Controller`] that listens, and a
//! [`Worker`] that joins a controller elsewhere.
//!
//! The state machines are in `node.rs`, the connections in `net.rs`.

use crate::client::Client;
use crate::executor::lifeline::{self, Lifeline};
use crate::executor::process::{ForkServerHandle, ForkServerOptions, LaunchContext};
use crate::executor::{Executors, Program, StderrForwarding, command};
use crate::net::credentials::{Credentials, Token};
use crate::net::dial;
use crate::net::frame_connection::MAX_TOKEN_BYTES;
use crate::net::server::{BoundListener, Server};
use crate::node::{Membership, Node, Shell};
use crate::object_store::{ObjectStore, StoreOptions};
use crate::process_identity::this_process;
use crate::runtime_log::{self, CONTROLLER, WORKER};
use crate::signal::{on_user_signal, run_until_left};
use crate::upstream::{Upstream, UpstreamToken};
use marline_core::controller::{self, Role, WorkerInfo};
use marline_core::error::Error;
use marline_core::id::SessionId;
use marline_core::resources::Resources;
use marline_core::schedule::WorkerCapabilities;
use marline_core::worker;
use marline_wire::join::ProcessIdentity;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tracing::info;

/// How long a process tries to join a controller before joining fails.
pub const JOIN_PATIENCE: Duration = Duration::from_secs(10);

/// How long a process that ends waits for its killed executors to die.
const END_PATIENCE: Duration = Duration::from_secs(5);
/// How often that wait checks for executors that still live.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// An address that stands for any other machine. The kernel says with which of its own addresses
/// this machine would reach it. Nothing is sent there.
const ELSEWHERE: &str = "192.0.2.1:9";

/// An address at which a node listens. Dropping it also removes the socket's file.
struct Listening {
    _server: Server,
    _file: Option<SocketFile>,
}

/// The file of a socket. Dropping this value removes it.
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Listens at `host:port` or `unix:/path`. Returns the address as [`Reserved::new`] does.
fn serve(
    node: &Arc<Node>,
    at: &str,
    secret: &Credentials,
    towards: &str,
) -> Result<(Listening, String), Error> {
    let (reserved, address) = Reserved::new(at, secret, towards)?;
    Ok((reserved.listen(node, secret)?, address))
}

/// An address that this process has bound, and at which no peer can connect yet.
struct Reserved {
    bound: BoundListener,
    file: Option<SocketFile>,
}

impl Reserved {
    /// Binds `host:port` or `unix:/path`. Returns the address for others to use: with the port that
    /// the kernel chose for port 0, and for "every address" with the one that this machine has
    /// `towards` others.
    fn new(at: &str, secret: &Credentials, towards: &str) -> Result<(Reserved, String), Error> {
        let token = secret.token();
        if let Some(token) = token.as_deref()
            && !(1..=MAX_TOKEN_BYTES).contains(&token.len())
        {
            return Err(Error::invalid(format!(
                "the token has {} bytes; expected 1 to {MAX_TOKEN_BYTES} (MAX_TOKEN_BYTES)",
                token.len()
            )));
        }
        if let Some(path) = at.strip_prefix("unix:") {
            let path = Path::new(path.trim_start_matches("//"));
            take_away_if_dead(path);
            let bound = BoundListener::unix(path)?;
            let file = Some(SocketFile(path.into()));
            // Only this user can connect, whatever the modes of the folder and the umask are.
            let private = std::fs::set_permissions(path, PermissionsExt::from_mode(0o600));
            private.map_err(|error| {
                Error::denied(format!("{} cannot be made private: {error}", path.display()))
            })?;
            return Ok((Reserved { bound, file }, format!("unix:{}", path.display())));
        }
        let address: SocketAddr = at.parse().map_err(|_| {
            Error::invalid(format!(
                "{at:?} is no address to listen on: expected IP:PORT or unix:/path"
            ))
        })?;
        if !address.ip().is_loopback() && token.is_none() {
            return Err(Error::denied(format!(
                "{address} can be reached from other machines: give a token, or listen on 127.0.0.1"
            )));
        }
        let (bound, address) = BoundListener::tcp(address)?;
        Ok((Reserved { bound, file: None }, reachable(address, towards).to_string()))
    }

    /// Starts to accept connections.
    fn listen(self, node: &Arc<Node>, secret: &Credentials) -> Result<Listening, Error> {
        let Reserved { bound, file } = self;
        Ok(Listening { _server: bound.listen(node, secret.clone())?, _file: file })
    }
}

/// Listens on a socket beside the worker's lifeline, through which processes of this machine reach
/// the worker's object store. If that fails, the values of those processes travel with messages.
fn serve_store(
    node: &Arc<Node>,
    executors: &Executors,
    secret: &Credentials,
) -> Option<(Listening, Arc<str>)> {
    let launch = launch_of(executors)?;
    let path = lifeline::store_path(Path::new(launch.lifeline.path()));
    let path = path.to_str()?;
    let (listening, _) = serve(node, &format!("unix:{path}"), secret, ELSEWHERE).ok()?;
    Some((listening, path.into()))
}

/// Removes the socket at `path` if no process listens on it: a process that was killed left it.
fn take_away_if_dead(path: &Path) {
    let is_socket = path.symlink_metadata().is_ok_and(|file| file.file_type().is_socket());
    let refused =
        || UnixStream::connect(path).is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused);
    if is_socket && refused() {
        let _ = std::fs::remove_file(path);
    }
}

/// Returns an address that others can use, also for a bound address that means every address of
/// this machine.
fn reachable(bound: SocketAddr, towards: &str) -> SocketAddr {
    if !bound.ip().is_unspecified() {
        return bound;
    }
    let own = |any: &str| {
        let socket = UdpSocket::bind(any)?;
        socket.connect(towards)?;
        socket.local_addr()
    };
    match own("0.0.0.0:0").or_else(|_| own("[::]:0")) {
        Ok(own) => SocketAddr::new(own.ip(), bound.port()),
        Err(_) => bound,
    }
}

/// Waits until the executors that were told to end have ended. Then removes the lifeline and closes
/// the fork server.
fn wait_for_executors(launch: &LaunchContext) {
    let end = Instant::now() + END_PATIENCE;
    while launch.alive.load(Ordering::Acquire) > 0 {
        if Instant::now() > end {
            return; // The file is locked as long as they live. The next sweep after that removes it.
        }
        std::thread::sleep(LOOK_EVERY);
    }
    launch.lifeline.remove();
    if let Some(forks) = &launch.forks {
        forks.close();
    }
}

/// A controller that processes elsewhere join.
pub struct Controller {
    node: Arc<Node>,
    /// The bound address, until the controller listens at it.
    reserved: Option<Reserved>,
    servers: Vec<Listening>,
    address: String,
    secret: Credentials,
    /// For each worker in this process, the settings and parts that its executors share.
    launches: Vec<Arc<LaunchContext>>,
}

impl Controller {
    /// Starts a controller that listens at `host:port` (port 0: any free port) or `unix:/path`.
    pub fn start(at: &str, token: Token, config: controller::Config) -> Result<Controller, Error> {
        let mut controller = Controller::bind(at, token, config)?;
        controller.listen()?;
        Ok(controller)
    }

    /// Like [`start`](Controller::start), but no process can connect before
    /// [`listen`](Controller::listen). The address is known already, so the caller can publish it
    /// first.
    pub fn bind(at: &str, token: Token, config: controller::Config) -> Result<Controller, Error> {
        runtime_log::start_from_environment()?;
        let node = Node::new();
        node.host_controller(config);
        let secret = Credentials::of(token.clone(), node.incarnation());
        let (reserved, address) = Reserved::new(at, &secret, ELSEWHERE)?;
        node.set_token(token);
        let (reserved, servers, launches) = (Some(reserved), Vec::new(), Vec::new());
        Ok(Controller { node, reserved, servers, address, secret, launches })
    }

    /// Starts to accept connections. Later calls change nothing.
    pub fn listen(&mut self) -> Result<(), Error> {
        if let Some(reserved) = self.reserved.take() {
            self.servers.push(reserved.listen(&self.node, &self.secret)?);
            info!(target: CONTROLLER, address = self.address, "the controller listens");
        }
        Ok(())
    }

    /// Also listens at another address. Returns that address.
    pub fn also_listen(&mut self, at: &str) -> Result<String, Error> {
        let (server, address) = serve(&self.node, at, &self.secret, ELSEWHERE)?;
        self.servers.push(server);
        Ok(address)
    }

    /// Starts a worker in this process. Of the options, `controller`, `token` and `listen` are
    /// ignored: the worker joins this controller and has its address.
    pub fn host_worker(&mut self, options: WorkerOptions) -> Result<(), Error> {
        options.resources.validate()?;
        let (info, executors, _) =
            options.prepare(&self.node, Some(self.address.as_str().into()))?;
        let store =
            options.store.as_ref().map(|store| ObjectStore::new(store, self.secret.clone()));
        self.launches.extend(launch_of(&executors));
        let listening =
            store.as_ref().and_then(|_| serve_store(&self.node, &executors, &self.secret));
        let (server, path) = listening.unzip();
        self.servers.extend(server);
        let durable = store.as_ref().is_some_and(ObjectStore::saves);
        let info = WorkerInfo { store: path, durable, ..info };
        self.node.host_worker(executors, store, info, options.behaviour());
        Ok(())
    }

    /// Runs until the process is asked to end (SIGTERM, SIGINT). Then the controller takes no new
    /// work, and every worker of the cluster finishes what it has, until `grace` is over. A second
    /// signal ends the wait at once. SIGUSR1 writes the last events of this process to a file.
    pub fn run(self, grace: Duration) -> Result<(), Error> {
        self.run_with(grace, || true, || {})
    }

    /// Like [`run`](Self::run). Calls `ready` once signals are handled, and returns if it returns
    /// `false`. Calls `asked` at the first signal.
    pub fn run_with(
        self,
        grace: Duration,
        ready: impl FnOnce() -> bool,
        asked: impl FnOnce(),
    ) -> Result<(), Error> {
        // A controller has no other way to leave than a signal: `never` is not used before `left`
        // is.
        let (never, left) = marline_channel::oneshot();
        dump_events_on_signal(&self.node)?;
        let result = run_until_left(ready, left, || {
            info!(target: CONTROLLER, ?grace, "asked to end: waits for the work that runs");
            asked();
            self.node.shut_down(grace)
        });
        drop(never);
        result
    }

    /// Returns the address at which the controller listens.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Starts a client in this process.
    pub fn client(&self) -> Client {
        Client::new(self.node.clone())
    }

    /// Returns the controller's counters of what happened so far.
    pub fn counters(&self) -> controller::Counters {
        let counters = self
            .node
            .with_state(|state, _| state.controller().map(controller::Controller::counters));
        counters.unwrap_or_default()
    }

    /// Returns how much the controller has to remember.
    pub fn load(&self) -> Load {
        self.node.with_state(|state, _| state.controller().map(Load::of)).unwrap_or_default()
    }

    /// Returns the workers, with their free resources.
    pub fn workers(&self) -> Vec<controller::WorkerStatus> {
        let workers = self
            .node
            .with_state(|state, _| state.controller().map(controller::Controller::list_workers));
        workers.unwrap_or_default()
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.node.close();
        self.launches.iter().for_each(|launch| wait_for_executors(launch));
    }
}

/// How much a controller has to remember.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Load {
    /// The sessions that are open.
    pub sessions: usize,
    /// The tasks that have not ended.
    pub pending_tasks: usize,
    /// The objects that are known.
    pub objects: usize,
    /// The bytes of their inline payloads.
    pub object_bytes: usize,
}

impl Load {
    fn of(controller: &controller::Controller) -> Load {
        let (objects, object_bytes) = controller.object_count_and_inline_bytes();
        let (sessions, pending_tasks) = (controller.session_count(), controller.pending_tasks());
        Load { sessions, pending_tasks, objects, object_bytes }
    }
}

/// The options of a worker.
pub struct WorkerOptions {
    /// The address of the controller to join.
    pub controller: String,
    /// The cluster's token.
    pub token: Token,
    /// The address at which the worker listens for direct calls: `host:port`, `unix:/path`, or
    /// `None`.
    pub listen: Option<String>,
    /// The resources that the worker offers.
    pub resources: Resources,
    /// Whether the machine may disappear at any time, such as a spot instance.
    pub preemptible: bool,
    /// The program that the executors run.
    pub program: Arc<dyn Program>,
    /// Where user code runs.
    pub executors: ExecutorOptions,
    /// The limits of the worker's object store. Without a store, values travel with messages.
    pub store: Option<StoreOptions>,
    /// The timeouts and limits of the worker's state machine.
    pub config: worker::Config,
}

/// The environment variable that limits how many executors of a worker may wait for other tasks at
/// a time.
const MAX_BLOCKED: &str = "MARLINE_MAX_BLOCKED_EXECUTORS";

/// Returns the configuration with the values that the environment overrides.
pub(crate) fn with_environment(config: worker::Config) -> worker::Config {
    let limit = std::env::var(MAX_BLOCKED).ok().and_then(|text| text.trim().parse().ok());
    let max_blocked_executors = limit.unwrap_or(config.max_blocked_executors);
    worker::Config { max_blocked_executors, ..config }
}

impl WorkerOptions {
    /// Returns the configuration, with the values that the environment overrides.
    fn behaviour(&self) -> worker::Config {
        with_environment(self.config.clone())
    }

    /// Returns what the worker tells the controller about itself, how it starts executors, and the
    /// identity of its process.
    fn prepare(
        &self,
        node: &Node,
        address: Option<Arc<str>>,
    ) -> Result<(WorkerInfo, Executors, Option<ProcessIdentity>), Error> {
        let mut names = self.program.provides();
        if let ExecutorOptions::Processes { commands, forks, .. } = &self.executors {
            names.extend(commands.then(|| command::PROVIDES.into()));
            names.extend(forks.as_ref().map(|forks| format!("{}:*", forks.runtime)));
        }
        let names = names.into_iter().map(Arc::from).collect();
        let (executors, process, code_version) =
            self.executors.start(node, self.program.clone())?;
        let info = WorkerInfo {
            address,
            hostname: hostname(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").into(),
            resources: self.resources.clone(),
            provides: Arc::new(WorkerCapabilities {
                names,
                preemptible: self.preemptible,
                code_version,
                ..WorkerCapabilities::default()
            }),
            store: None,
            durable: false,
        };
        Ok((info, executors, process))
    }
}

/// Where user code runs.
#[derive(Clone, Debug)]
pub enum ExecutorOptions {
    /// On threads of the worker's process. This is the cheapest way, but user code that crashes
    /// ends the worker too, and user code that ignores a request to stop runs on.
    Threads,
    /// In processes of their own: the worker starts its own program again, see
    /// [`serve_if_executor`](crate::serve_if_executor).
    Processes {
        /// Whether clients may run commands on this worker.
        commands: bool,
        /// The most memory that an executor may take, in bytes of address space.
        memory: Option<u64>,
        /// Which output lines of the executors are forwarded to the worker's standard error.
        pass_on: StderrForwarding,
        /// The fork server from which executors of another runtime come.
        forks: Option<ForkServerOptions>,
        /// The arguments with which executors are started. `None` means the arguments of this
        /// process.
        arguments: Option<Vec<String>>,
    },
}

impl ExecutorOptions {
    /// Prepares to start executors. Returns how they are started, the identity of the worker's
    /// process, and the version of the code that they read.
    fn start(
        &self,
        node: &Node,
        program: Arc<dyn Program>,
    ) -> Result<(Executors, Option<ProcessIdentity>, u32), Error> {
        let (memory, pass_on, forks, arguments) = match self {
            ExecutorOptions::Threads => {
                return Ok((Executors::Threads(program), this_process(), 0));
            }
            ExecutorOptions::Processes { memory, pass_on, forks, arguments, .. } => {
                (*memory, *pass_on, forks.clone(), arguments.clone())
            }
        };
        allow_descriptors();
        let forks = forks.map(ForkServerHandle::new);
        let code_version = forks.as_ref().map_or(Ok(0), ForkServerHandle::check)?;
        let lifeline = Lifeline::create().map_err(|error| {
            Error::unsupported(format!(
                "a worker needs a folder of its own for running processes (XDG_RUNTIME_DIR): {error}"
            ))
        })?;
        let path = lifeline.path().to_owned();
        let process = this_process().map(|this| ProcessIdentity { lifeline: Some(path), ..this });
        let launch = LaunchContext {
            lifeline: Arc::new(lifeline),
            logs: node.logs(),
            memory,
            pass_on,
            forks,
            arguments,
            alive: Arc::default(),
            memory_watch: Default::default(),
        };
        Ok((Executors::Processes(Arc::new(launch)), process, code_version))
    }
}

/// The soft limit of open files that a worker asks for: enough for about ten thousand executors.
const MAX_DESCRIPTORS: u64 = 65_536;

/// Raises the soft limit of open files. Each executor process takes seven descriptors, and many
/// systems allow 1,024 unless a process asks for more. If the kernel allows no more, executors that
/// find no free descriptor are refused for the time being.
fn allow_descriptors() {
    let limits = getrlimit(Resource::Nofile);
    let wanted = limits.maximum.unwrap_or(MAX_DESCRIPTORS).min(MAX_DESCRIPTORS);
    if limits.current.is_some_and(|current| current < wanted) {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), ..limits });
    }
}

/// A worker whose controller is in another process.
pub struct Worker {
    node: Arc<Node>,
    shell: Shell,
    launch: Option<Arc<LaunchContext>>,
    _servers: Vec<Listening>,
}

impl Worker {
    /// Joins a controller. When the session is lost, the worker stops everything and joins again.
    /// Without a token it uses the one in the cluster's record, if the cluster runs on this machine
    /// for this user.
    pub fn join(options: WorkerOptions) -> Result<Worker, Error> {
        let upstream = Upstream::named(&options.controller, options.token.clone());
        Worker::join_upstream(upstream, options)
    }

    /// Joins the cluster that runs on this machine for this user. `controller` and `token` of the
    /// options are ignored. When that cluster has ended, the worker joins the next one that runs
    /// here. The token comes from `token_file`, or else from the cluster's record.
    pub fn join_here(options: WorkerOptions, token_file: Option<&Path>) -> Result<Worker, Error> {
        let token =
            token_file.map_or(UpstreamToken::Recorded, |file| UpstreamToken::File(file.into()));
        Worker::join_upstream(Upstream::Here { token }, options)
    }

    fn join_upstream(upstream: Upstream, options: WorkerOptions) -> Result<Worker, Error> {
        runtime_log::start_from_environment()?;
        let found = upstream.find(None)?;
        let node = Node::new();
        let secret = Credentials::new(found.token);
        let (server, address) = match &options.listen {
            Some(at) => {
                let (server, address) = serve(&node, at, &secret, &found.address)?;
                (Some(server), Some(address.into()))
            }
            None => (None, None),
        };
        let (info, executors, process) = options.prepare(&node, address)?;
        let launch = launch_of(&executors);
        // Without an address, no other worker could pull values from this one, so it gets no store.
        let store = options.store.as_ref().filter(|_| options.listen.is_some());
        let store = store.map(|store| ObjectStore::new(store, secret.clone()));
        let listening = store.as_ref().and_then(|_| serve_store(&node, &executors, &secret));
        let (store_server, path) = listening.unzip();
        let durable = store.as_ref().is_some_and(ObjectStore::saves);
        let info = WorkerInfo { store: path, durable, ..info };
        let shell = node.add_worker_shell(executors, store, options.behaviour());
        let membership = Membership {
            shell,
            session_id: crate::new_session_id(),
            role: Role::Worker(info),
            upstream,
            secret,
            process,
        };
        let servers = server.into_iter().chain(store_server).collect();
        let worker = Worker { node, shell, launch, _servers: servers };
        dial::join(&worker.node, membership, JOIN_PATIENCE)?;
        Ok(worker)
    }

    /// Returns a function that returns the worker's session id, while it has one. The worker gets
    /// another id each time it joins.
    pub fn identity(&self) -> impl Fn() -> Option<SessionId> + Send + Sync + use<> {
        let (node, shell) = (self.node.clone(), self.shell);
        move || node.worker_session(shell).map(|session| session.id)
    }

    /// Sets the function that shows notes to the operator: that the cluster was lost, and that it
    /// is back. By default they go to standard error.
    pub fn on_note(&self, note: impl Fn(&str) + Send + Sync + 'static) {
        self.node.on_note(self.shell, Arc::new(note));
    }

    /// Runs until the controller drains the worker, or the process is asked to end (SIGTERM,
    /// SIGINT). Then the worker takes no new work, finishes what it has, gives back what is not
    /// done after `grace`, and leaves. A second signal ends the wait at once. SIGUSR1 writes the
    /// last events of this process to a file.
    pub fn run(self, grace: Duration) -> Result<(), Error> {
        self.run_with(grace, || true, || {})
    }

    /// Like [`run`](Self::run). Calls `ready` once signals are handled, and returns if it returns
    /// `false`. Calls `asked` at the first signal.
    pub fn run_with(
        self,
        grace: Duration,
        ready: impl FnOnce() -> bool,
        asked: impl FnOnce(),
    ) -> Result<(), Error> {
        let left = self.node.worker_left(self.shell);
        dump_events_on_signal(&self.node)?;
        run_until_left(ready, left, || {
            info!(target: WORKER, ?grace, "asked to end: waits for the work that runs");
            asked();
            self.node.drain(self.shell, grace)
        })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.node.close();
        self.launch.iter().for_each(|launch| wait_for_executors(launch));
    }
}

/// Writes the last events of the node to a file at each SIGUSR1, as long as the node exists.
fn dump_events_on_signal(node: &Arc<Node>) -> Result<(), Error> {
    let node = Arc::downgrade(node);
    on_user_signal(move || node.upgrade().map(|node| node.dump_events()).is_some())
}

fn launch_of(executors: &Executors) -> Option<Arc<LaunchContext>> {
    match executors {
        Executors::Threads(_) => None,
        Executors::Processes(launch) => Some(launch.clone()),
    }
}

/// Returns the host name of this machine.
pub fn hostname() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "localhost".into() } else { name.trim().into() }
}
