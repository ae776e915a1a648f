//! A node: the machines of one process, under one lock, and what happens between them run to
//! completion.
//!
//! Whoever brings an event (a user's call, an executor's end, a timer) takes the lock, hands the event
//! to its machine, and does what the machines say until they say nothing more. Messages between
//! machines of this process are queued in `todo` and handled in order before the lock is released.
//!
//! What must happen outside the lock (waking those who wait for a result) is collected and done after
//! it is released. Commands to executors are sent under the lock, so that their order is the order
//! in which they were decided; sending never blocks.

mod bring;
mod control;
mod controller;
mod links;
mod output;
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
use crate::process_identity::ProcessIdentity;
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
use shells::{ClientShell, Copies, WorkerShell};
use std::collections::{BTreeMap, VecDeque};
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
    /// What executors of this node's workers print.
    logs: Arc<Logs>,
    /// What executors said while somebody else had the lock: whoever has it hears it before it is
    /// released, or right after.
    executor_events: Mutex<Vec<(usize, worker::Event)>>,
    alarm: Alarm,
    me: Weak<Node>,
}

/// How often one thread hears executors after it did what it came for.
const MAX_ROUNDS: usize = 16;

/// What a node hosts.
#[derive(Default)]
pub(crate) struct NodeState {
    controller: Option<Controller>,
    /// Which cluster that controller has.
    cluster: ClusterId,
    workers: Vec<WorkerShell>,
    clients: Vec<Option<ClientShell>>,
    /// What each worker offers, by its seat, and the controller that is elsewhere.
    offers: Map<usize, Resources>,
    upstream: Option<String>,
    /// Where each session of this process sits.
    shells: Map<Session, Shell>,
    /// Who asks to join at the moment, and the session that was opened for it.
    joining: Option<Shell>,
    opened: Option<Session>,
    /// Which process each session elsewhere is, where that is known.
    processes: BTreeMap<Session, ProcessIdentity>,
    /// Links to other processes.
    links: BTreeMap<LinkId, LinkEnd>,
    /// What direct calls of this process's clients carry.
    token: Token,
    /// Who waits for ends of tasks of this node's controller.
    waits: TaskWaits,
    /// Who waits for this node's controller to have wound up.
    ending: Vec<oneshot::Sender<()>>,
    todo: VecDeque<Todo>,
    /// Done when the lock is released.
    outside: Vec<DeferredAction>,
    /// What the alarm is set to.
    alarm_at: Option<Time>,
    closed: bool,
}

/// A place at a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shell {
    Worker(usize),
    Client(usize),
    /// In another process, at the end of a link of this node's controller.
    RemoteWorker,
    RemoteClient,
}

/// What is to be handled before the lock is released.
enum Todo {
    Controller(controller_machine::Event),
    Worker(usize, worker::Event),
    Client(usize, client::Event),
}

/// What is done when the lock is released.
enum DeferredAction {
    Ended(Callback<Outcome>, Outcome),
    Actor(oneshot::Sender<Result<ActorId, Error>>, Result<ActorId, Error>),
    Born(Vec<Callback<Result<(), Error>>>, Result<(), Error>),
    Found(oneshot::Sender<Result<FoundActor, Error>>, Result<FoundActor, Error>),
    Object(Callback<Result<Value, Error>>, Result<Value, Error>),
    Located(oneshot::Sender<Copies>, Copies),
    /// Something came of a stream.
    Ring(Vec<Ring>),
    /// An executor's thread is to be started.
    Start(thread::ThreadStart),
    /// A user is to be warned.
    Warn(Warn, String),
    /// A worker has left, a controller has wound up, or a client's words are done.
    Left(oneshot::Sender<()>),
    /// Enough of what somebody waits for has ended.
    Wake(Arc<Notify>),
    /// Frames were put into an outbox.
    Flush {
        outbox: Outbox,
        /// Whether the peer has little on its way already: then this thread writes, so that nobody else
        /// has to wake up for it. Otherwise it is quicker to collect some.
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
        // Whoever waited may have given up: then nobody is told.
        match self {
            DeferredAction::Ended(tell, outcome) => tell(outcome),
            DeferredAction::Actor(waiter, actor) => drop(waiter.send(actor)),
            DeferredAction::Born(tells, outcome) => {
                tells.into_iter().for_each(|tell| tell(outcome.clone()));
            }
            DeferredAction::Found(waiter, actor) => drop(waiter.send(actor)),
            DeferredAction::Object(tell, value) => tell(value),
            DeferredAction::Located(waiter, copies) => drop(waiter.send(copies)),
            DeferredAction::Ring(rings) => rings.into_iter().for_each(|ring| ring()),
            DeferredAction::Start(start) => start.start(),
            DeferredAction::Warn(warn, words) => warn(&words),
            DeferredAction::Left(waiter) => drop(waiter.send(())),
            DeferredAction::Wake(waiter) => waiter.notify_one(),
            DeferredAction::Flush { outbox, at_once } => outbox.flush(at_once || is_io_thread()),
            DeferredAction::Call { me, host, address, token } => {
                dial::connect_to_host(node.clone(), me, host, address, token);
            }
        }
    }
}

impl Node {
    /// A node that hosts nothing yet.
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

    fn lock(&self) -> MutexGuard<'_, NodeState> {
        self.state.lock().expect("no user code runs under a node's lock")
    }

    /// Does something with the state, and everything that follows from it.
    pub(crate) fn with_state<R>(&self, what: impl FnOnce(&mut NodeState, Time) -> R) -> R {
        let now = self.clock.now();
        let mut state = self.lock();
        let result = what(&mut state, now);
        self.run_and_unlock(state, now);
        self.deliver_late_events();
        result
    }

    /// Does what follows, releases the lock, and does what is left.
    fn run_and_unlock(&self, mut state: MutexGuard<'_, NodeState>, now: Time) {
        self.run_to_completion(&mut state, now);
        let said = std::mem::take(&mut *self.said());
        let heard = said.into_iter().map(|(worker, event)| Todo::Worker(worker, event));
        state.todo.extend(heard);
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

    fn said(&self) -> MutexGuard<'_, Vec<(usize, worker::Event)>> {
        self.executor_events.lock().expect("nothing panics under it")
    }

    /// Hears what was said while the lock was taken and not heard by who had it. If somebody has it now,
    /// that one looks again when it has released it: it was put there before. Executors that are quick
    /// keep nobody for long: after some rounds the timer's thread goes on.
    fn deliver_late_events(&self) {
        for _ in 0..MAX_ROUNDS {
            if self.said().is_empty() {
                return;
            }
            let Ok(state) = self.state.try_lock() else { return };
            self.run_and_unlock(state, self.clock.now());
        }
        if !self.said().is_empty() {
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

    /// Starts a controller here, of a cluster of its own.
    pub fn host_controller(&self, config: controller_machine::Config) {
        self.with_state(|state, _| {
            let config = controller_machine::Config { epoch: this_start(), ..config };
            state.controller = Some(Controller::new(config));
            state.cluster = crate::new_cluster_id();
        });
    }

    /// Which start of which cluster the controller of this node is.
    pub fn incarnation(&self) -> ClusterIdentity {
        self.with_state(|state, _| {
            let controller = state.controller.as_ref().expect("this node has a controller");
            ClusterIdentity { cluster: state.cluster, epoch: controller.config().epoch }
        })
    }

    /// Starts a worker here; says where it sits.
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

    /// Starts a client here; says which.
    pub fn host_client(&self) -> usize {
        self.with_state(|state, now| state.join_client(now))
    }

    /// The store of this node, if a worker of this process has one.
    pub fn objects(&self) -> Option<ObjectStoreHandle> {
        self.store().map(ObjectStoreHandle::here)
    }

    pub fn store(&self) -> Option<ObjectStore> {
        self.with_state(|state, _| {
            state.workers.iter().find_map(|shell| shell.object_store.clone())
        })
    }

    /// What direct calls of this process's clients carry, from now on.
    pub fn set_token(&self, token: Token) {
        self.with_state(|state, _| state.token = token);
    }

    /// The controller that is elsewhere, and the token that its clients in this process have.
    pub fn upstream(&self) -> Option<(String, Token)> {
        self.with_state(|state, _| Some((state.upstream.clone()?, state.token.clone())))
    }

    /// What direct calls of this process's clients carry.
    pub fn token(&self) -> Token {
        self.with_state(|state, _| state.token.clone())
    }

    /// Ends a client's session; its handle lives on.
    pub fn end_client(&self, index: usize) {
        self.with_state(|state, _| state.leave_client(index));
    }

    /// Ends a client's session.
    pub fn leave_client(&self, index: usize) {
        self.with_state(|state, _| state.leave_client(index));
        self.with_state(|state, _| state.remove_client_shell(index));
    }

    /// An executor said something. It does not wait for the lock: if somebody has it, that one hears.
    pub(crate) fn deliver_executor_event(&self, worker: usize, event: worker::Event) {
        self.said().push((worker, event));
        self.deliver_late_events();
    }

    /// Ends everything here: executors stop when they are idle, whoever waits is told.
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
    /// When something is due.
    fn next_wake(&self) -> Option<Time> {
        let controller = self.controller.as_ref().and_then(Controller::next_wake);
        let workers = self.workers.iter().filter_map(|shell| shell.machine.next_wake());
        let clients = self.clients.iter().flatten().filter_map(|shell| shell.machine.next_wake());
        workers.chain(clients).chain(controller).min()
    }

    /// Has every machine look at the clock.
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

/// Which start of a controller this is: milliseconds since 2020, which no earlier start has reached, as
/// long as the wall clock of its machine does not go back across a restart.
fn this_start() -> ControllerEpoch {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    ControllerEpoch(since_1970.saturating_sub(UNTIL_2020).as_millis() as u64 + 1)
}

const UNTIL_2020: Duration = Duration::from_secs(1_577_836_800);
