//! A node: the state machines of one process under one lock, and the shells that carry out what the
//! machines decide.
//!
//! A thread that brings an event (a user's call, an executor's report, a timer) does all of this:
//!
//! 1. It takes the lock and hands the event to its machine.
//! 2. It carries out the effects that the machine returns, and handles the events that these cause,
//!    until none is left. Messages between machines of this process are queued in `todo` and
//!    handled in order.
//! 3. It releases the lock, and then carries out the [`DeferredAction`]s: what must happen outside
//!    the lock, such as waking the threads that wait for a result.
//!
//! Commands to executors are sent under the lock, so they arrive in the order in which they were
//! decided. Sending them never blocks.
//!
//! Where to look next: `shells.rs` (workers and clients), `controller.rs`, `links.rs` (other
//! processes), `remote.rs` (joining), `timer.rs`, `event_dump.rs` (what led to a panic).

mod control;
mod controller;
mod event_dump;
mod links;
mod output;
mod pull;
mod remote;
mod shells;
mod timer;
mod waits;

pub(crate) use control::Health;
pub(crate) use links::LinkId;
pub use output::OutputReceiver;
pub(crate) use output::OutputSender;
pub(crate) use remote::{AttachOutcome, JoinDecision, Membership};
pub(crate) use shells::{SESSIONS_LOST, SESSIONS_LOST_AT_JOIN, Warn};

use crate::client::Callback;
use crate::clock::Clock;
use crate::executor::log::Logs;
use crate::executor::{Executors, thread};
use crate::net::credentials::{ClusterIdentity, Token};
use crate::net::dial;
use crate::net::is_io_thread;
use crate::net::outbox::Outbox;
use crate::object_store::{ObjectStore, ObjectStoreHandle};
use crate::stream::Ring;
use links::LinkEnd;
use marline_channel::oneshot;
use marline_core::Error;
use marline_core::client;
use marline_core::controller::{self as controller_machine, Controller};
use marline_core::id::{ActorId, ClusterId, ControllerEpoch, Session};
use marline_core::map::Map;
use marline_core::message::FoundActor;
use marline_core::payload::{Outcome, Value};
use marline_core::resources::Resources;
use marline_core::time::Time;
use marline_core::worker;
use marline_wire::join::ProcessIdentity;
use shells::{ClientShell, Copies, WorkerShell};
use std::collections::{BTreeMap, VecDeque};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use timer::Alarm;
use tokio::sync::Notify;
use waits::TaskWaits;

/// See the [module](self).
pub(crate) struct Node {
    state: Mutex<NodeState>,
    clock: Clock,
    began: Time,
    /// The output of the executors of this node's workers.
    logs: Arc<Logs>,
    /// Reports of executors that arrived while another thread had the lock. That thread handles
    /// them before it releases the lock, or right after.
    executor_events: Mutex<Vec<(usize, worker::Event)>>,
    alarm: Alarm,
    me: Weak<Node>,
}

/// How many batches of executor reports one thread handles after its own event. Then the timer's
/// thread continues, so that busy executors do not hold up the thread for long.
const MAX_ROUNDS: usize = 16;

/// The machines of a node, and what their shells need.
#[derive(Default)]
pub(crate) struct NodeState {
    controller: Option<Controller>,
    /// The cluster of that controller.
    cluster: ClusterId,
    workers: Vec<WorkerShell>,
    clients: Vec<Option<ClientShell>>,
    /// The resources that each worker offers, by the worker's index.
    offers: Map<usize, Resources>,
    /// The address of the controller elsewhere, if this process has joined one.
    upstream: Option<String>,
    /// The shell of each session that this process hosts or has a link to.
    shells: Map<Session, Shell>,
    /// The shell that is joining at the moment.
    joining: Option<Shell>,
    /// The session that the controller opened for a process elsewhere that is joining.
    opened: Option<Session>,
    /// The process of each session elsewhere, where that is known.
    processes: BTreeMap<Session, ProcessIdentity>,
    /// The links to other processes.
    links: BTreeMap<LinkId, LinkEnd>,
    /// The token that direct calls of this process's clients carry.
    token: Token,
    /// The callers that wait for tasks of this node's controller to end.
    waits: TaskWaits,
    /// The callers that wait until this node's controller has shut down.
    ending: Vec<oneshot::Sender<()>>,
    /// The events to handle before the lock is released, in order.
    todo: VecDeque<Todo>,
    /// The actions to carry out after the lock is released.
    outside: Vec<DeferredAction>,
    /// The time to which the alarm is set.
    alarm_at: Option<Time>,
    closed: bool,
}

/// The lock of a node's state. If a panic ends it, it writes the machines' last events (see
/// `event_dump.rs`).
struct StateGuard<'a> {
    state: MutexGuard<'a, NodeState>,
    /// Whether the thread was panicking when it took the lock. Then the panic began elsewhere.
    panicking_before: bool,
}

impl<'a> StateGuard<'a> {
    fn new(state: MutexGuard<'a, NodeState>) -> StateGuard<'a> {
        StateGuard { state, panicking_before: std::thread::panicking() }
    }
}

impl Deref for StateGuard<'_> {
    type Target = NodeState;
    fn deref(&self) -> &NodeState {
        &self.state
    }
}

impl DerefMut for StateGuard<'_> {
    fn deref_mut(&mut self) -> &mut NodeState {
        &mut self.state
    }
}

/// The shell of a session: where its machine is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shell {
    Worker(usize),
    Client(usize),
    /// A worker in another process, at the end of a link of this node's controller.
    RemoteWorker,
    /// A client in another process, at the end of a link of this node's controller.
    RemoteClient,
}

impl Shell {
    /// Returns the role of the session, as the log shows it.
    fn role(self) -> &'static str {
        match self {
            Shell::Worker(_) | Shell::RemoteWorker => "worker",
            Shell::Client(_) | Shell::RemoteClient => "client",
        }
    }
}

/// An event to handle before the lock is released.
enum Todo {
    Controller(controller_machine::Event),
    Worker(usize, worker::Event),
    Client(usize, client::Event),
}

/// An action to carry out after the lock is released.
enum DeferredAction {
    Ended(Callback<Outcome>, Outcome),
    Actor(oneshot::Sender<Result<ActorId, Error>>, Result<ActorId, Error>),
    CallBackReady(Vec<Callback<Result<(), Error>>>, Result<(), Error>),
    Found(oneshot::Sender<Result<FoundActor, Error>>, Result<FoundActor, Error>),
    Object(Callback<Result<Value, Error>>, Result<Value, Error>),
    Located(oneshot::Sender<Copies>, Copies),
    /// Items of a stream, or its end, have arrived.
    Ring(Vec<Ring>),
    /// Start an executor's thread.
    Start(thread::ThreadStart),
    /// Warn the user.
    Warn(Warn, String),
    /// A worker has left, a controller has shut down, or the controller has handled all messages of
    /// a client.
    SendDone(oneshot::Sender<()>),
    /// Enough of the tasks that a caller waits for have ended.
    Wake(Arc<Notify>),
    /// Send the frames in an outbox.
    Flush {
        outbox: Outbox,
        /// Whether this thread writes the frames itself, which saves waking another thread. It does
        /// if little is on its way to the peer. Otherwise it is faster to collect several frames.
        at_once: bool,
    },
    /// Connect a client's link to a worker elsewhere.
    Call {
        me: Session,
        host: Session,
        address: Arc<str>,
        token: Token,
    },
}

impl DeferredAction {
    fn carry_out(self, node: &Weak<Node>) {
        // A send fails if the receiver was dropped: its caller has given up.
        match self {
            DeferredAction::Ended(tell, outcome) => tell(outcome),
            DeferredAction::Actor(waiter, actor) => drop(waiter.send(actor)),
            DeferredAction::CallBackReady(tells, outcome) => {
                tells.into_iter().for_each(|tell| tell(outcome.clone()));
            }
            DeferredAction::Found(waiter, actor) => drop(waiter.send(actor)),
            DeferredAction::Object(tell, value) => tell(value),
            DeferredAction::Located(waiter, copies) => drop(waiter.send(copies)),
            DeferredAction::Ring(rings) => rings.into_iter().for_each(|ring| ring()),
            DeferredAction::Start(start) => start.start(),
            DeferredAction::Warn(warn, words) => warn(&words),
            DeferredAction::SendDone(waiter) => drop(waiter.send(())),
            DeferredAction::Wake(waiter) => waiter.notify_one(),
            DeferredAction::Flush { outbox, at_once } => outbox.flush(at_once || is_io_thread()),
            DeferredAction::Call { me, host, address, token } => {
                dial::connect_to_host(node.clone(), me, host, address, token);
            }
        }
    }
}

impl Node {
    /// Creates a node that hosts no machine yet.
    pub fn new() -> Arc<Node> {
        let node = Arc::new_cyclic(|me| Node {
            state: Mutex::new(NodeState::default()),
            clock: Clock::new(),
            began: Clock::new().now(),
            logs: Arc::default(),
            executor_events: Mutex::default(),
            alarm: Alarm::default(),
            me: me.clone(),
        });
        timer::start(&node);
        node
    }

    fn lock(&self) -> StateGuard<'_> {
        StateGuard::new(self.state.lock().expect("no user code runs under a node's lock"))
    }

    /// Writes the last events of this node's machines to a file, and prints its path on standard
    /// error.
    pub(crate) fn dump_events(&self) {
        let text = self.with_state(|state, _| state.recent_events());
        let words = match event_dump::save(&text) {
            Ok(path) => format!("the last events of this process are in {}", path.display()),
            Err(error) => format!("the last events could not be written to a file: {error}"),
        };
        event_dump::print(&words);
    }

    /// Calls `what` with the state, and handles all that follows from it.
    pub(crate) fn with_state<R>(&self, what: impl FnOnce(&mut NodeState, Time) -> R) -> R {
        let now = self.clock.now();
        let mut state = self.lock();
        let result = what(&mut state, now);
        self.run_and_unlock(state, now);
        self.deliver_late_events();
        result
    }

    /// Handles the events that are left, releases the lock, and carries out the deferred actions.
    fn run_and_unlock(&self, mut state: StateGuard<'_>, now: Time) {
        self.run_to_completion(&mut state, now);
        let reports = std::mem::take(&mut *self.lock_executor_events());
        let events = reports.into_iter().map(|(worker, event)| Todo::Worker(worker, event));
        state.todo.extend(events);
        self.run_to_completion(&mut state, now);
        let outside = std::mem::take(&mut state.outside);
        if let Some(next) = state.next_wake()
            && state.alarm_at.is_none_or(|at| next < at)
        {
            state.alarm_at = Some(next);
            self.alarm.set(next);
        }
        drop(state);
        for outside in outside {
            outside.carry_out(&self.me);
        }
    }

    fn lock_executor_events(&self) -> MutexGuard<'_, Vec<(usize, worker::Event)>> {
        self.executor_events.lock().expect("nothing panics under it")
    }

    /// Handles the executor reports that arrived while another thread had the lock and that it did
    /// not handle.
    ///
    /// No report is left behind. A report is pushed before its thread tries the lock. If the lock
    /// is taken now, the thread that has it looks again after it has released it.
    ///
    /// After [`MAX_ROUNDS`] rounds the timer's thread continues, so that busy executors do not hold
    /// up this thread.
    fn deliver_late_events(&self) {
        for _ in 0..MAX_ROUNDS {
            if self.lock_executor_events().is_empty() {
                return;
            }
            let Ok(state) = self.state.try_lock() else { return };
            self.run_and_unlock(StateGuard::new(state), self.clock.now());
        }
        if !self.lock_executor_events().is_empty() {
            self.alarm.set(self.clock.now());
        }
    }

    fn run_to_completion(&self, state: &mut NodeState, now: Time) {
        while let Some(todo) = state.todo.pop_front() {
            match todo {
                Todo::Controller(event) => state.controller_event(now, event),
                Todo::Worker(index, event) => state.worker_event(&self.me, now, index, event),
                Todo::Client(index, event) => state.client_event(now, index, event),
            }
        }
    }

    /// Starts the controller of a new cluster in this node.
    pub fn host_controller(&self, config: controller_machine::Config) {
        self.with_state(|state, _| {
            let config = controller_machine::Config { epoch: this_start(), ..config };
            state.controller = Some(Controller::new(config));
            state.cluster = crate::new_cluster_id();
        });
    }

    /// Returns the cluster of this node's controller, and which start of the controller this is.
    pub fn incarnation(&self) -> ClusterIdentity {
        self.with_state(|state, _| {
            let controller = state.controller.as_ref().expect("this node has a controller");
            ClusterIdentity { cluster: state.cluster, epoch: controller.config().epoch }
        })
    }

    /// Starts a worker in this node. Returns its shell.
    pub fn host_worker(
        &self,
        executors: Executors,
        store: Option<ObjectStore>,
        offer: controller_machine::WorkerInfo,
        config: worker::Config,
    ) -> Shell {
        let me = &self.me;
        self.with_state(|state, now| state.join_worker(me, now, executors, store, offer, config))
    }

    /// Starts a client in this node. Returns its index.
    pub fn host_client(&self) -> usize {
        self.with_state(|state, now| state.join_client(now))
    }

    /// Returns a handle to the object store of this node, if a worker of this process has one.
    pub fn objects(&self) -> Option<ObjectStoreHandle> {
        self.store().map(ObjectStoreHandle::here)
    }

    pub fn store(&self) -> Option<ObjectStore> {
        self.with_state(|state, _| {
            state.workers.iter().find_map(|shell| shell.object_store.clone())
        })
    }

    /// Sets the token that direct calls of this process's clients carry from now on.
    pub fn set_token(&self, token: Token) {
        self.with_state(|state, _| state.token = token);
    }

    /// Returns the address of the controller elsewhere, and the token that clients of this process
    /// use.
    pub fn upstream(&self) -> Option<(String, Token)> {
        self.with_state(|state, _| Some((state.upstream.clone()?, state.token.clone())))
    }

    /// Returns the token that direct calls of this process's clients carry.
    pub fn token(&self) -> Token {
        self.with_state(|state, _| state.token.clone())
    }

    /// Ends a client's session, while handles to the client still exist.
    pub fn end_client(&self, index: usize) {
        self.with_state(|state, _| state.leave_client(index));
    }

    /// Ends a client's session and frees its index. Nothing refers to the client any more.
    pub fn leave_client(&self, index: usize) {
        self.with_state(|state, _| state.leave_client(index));
        self.with_state(|state, _| state.remove_client_shell(index));
    }

    /// Handles a report of an executor. Does not wait for the lock: if another thread has it, that
    /// thread handles the report.
    pub(crate) fn deliver_executor_event(&self, worker: usize, event: worker::Event) {
        self.lock_executor_events().push((worker, event));
        self.deliver_late_events();
    }

    /// Ends everything in this node: executors stop when they are idle, and callers that wait are
    /// woken.
    pub fn close(&self) {
        let stores = self.with_state(|state, _| {
            state.close();
            state.end_waits();
            state.stores_of_the_cluster()
        });
        for store in stores {
            store.cluster_ended();
        }
        self.alarm.close();
    }
}

impl NodeState {
    /// Returns when the next timer of a machine is due.
    fn next_wake(&self) -> Option<Time> {
        let controller = self.controller.as_ref().and_then(Controller::next_wake);
        let workers = self.workers.iter().filter_map(|shell| shell.machine.next_wake());
        let clients = self.clients.iter().flatten().filter_map(|shell| shell.machine.next_wake());
        workers.chain(clients).chain(controller).min()
    }

    /// Queues an event for every machine that time has passed.
    fn time_passed(&mut self) {
        if self.controller.is_some() {
            self.todo.push_back(Todo::Controller(controller_machine::Event::TimePassed));
        }
        for index in 0..self.workers.len() {
            self.todo.push_back(Todo::Worker(index, worker::Event::TimePassed));
        }
        for index in 0..self.clients.len() {
            self.todo.push_back(Todo::Client(index, client::Event::TimePassed));
        }
    }
}

/// Returns the epoch of a controller that starts now: the milliseconds since 2020. It is larger
/// than that of any earlier start, as long as the machine's wall clock does not go back across a
/// restart.
fn this_start() -> ControllerEpoch {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    ControllerEpoch(since_1970.saturating_sub(UNTIL_2020).as_millis() as u64 + 1)
}

/// From 1970 to 2020.
const UNTIL_2020: Duration = Duration::from_secs(1_577_836_800);
