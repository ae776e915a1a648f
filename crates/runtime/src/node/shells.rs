//! The shells of workers and clients: they carry out the effects of these state machines. Messages
//! go to machines of this process or to links, commands to executors, and results to the callers
//! that wait for them.

use super::links::LinkId;
use super::output::OutputSender;
use super::{DeferredAction, Node, NodeState, Shell, Todo};
use crate::client::Callback;
use crate::executor::urgent_message::UrgentMessage;
use crate::executor::{ExecutorHandle, Executors, process, thread};
use crate::object_store::{ObjectStore, ObjectStoreHandle};
use crate::runtime_log::{self, CLIENT, EXECUTOR, Machine, WORKER};
use crate::stream::Feed;
use crate::terminal::escaped_lines;
use marline_channel::{oneshot, watch};
use marline_core::Error;
use marline_core::client::{self, Client};
use marline_core::controller::{self, Role, WorkerInfo};
use marline_core::error::Ran;
use marline_core::id::{ActorId, ClusterId, ObjectId, TaskId};
use marline_core::map::Map;
use marline_core::message::{CopyLocation, FoundActor};
use marline_core::object_store;
use marline_core::payload::{Outcome, Value};
use marline_core::time::Time;
use marline_core::worker::{self, ExecutorId, Worker};
use marline_wire::executor::ExecutorCommand;
use marline_wire::frame::Frame;
use marline_wire::message::Message;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use tracing::{info, warn};

/// A worker of this process.
pub(super) struct WorkerShell {
    pub machine: Worker,
    executors: Executors,
    handles: Map<ExecutorId, ExecutorHandle>,
    /// The node's object store, if the worker has one.
    pub object_store: Option<ObjectStore>,
    /// The id of each executor's process in the object store.
    processes: Map<ExecutorId, object_store::ProcessId>,
    /// Whether it has drained: it leaves and does not join again.
    pub drained: bool,
    /// The callers that wait until it has left.
    pub leaving: Vec<oneshot::Sender<()>>,
    /// Shows notes to the operator.
    pub note: Warn,
}

/// The workers that have the data of an object, or why no worker has it.
pub(super) type Copies = Result<Vec<CopyLocation>, Error>;

/// How many sessions of this process's clients have ended without the client leaving. User code
/// that ran meanwhile may have lost references and handles.
pub(crate) static SESSIONS_LOST: AtomicU64 = AtomicU64::new(0);
/// `SESSIONS_LOST` as it was when a client of this process last joined.
pub(crate) static SESSIONS_LOST_AT_JOIN: AtomicU64 = AtomicU64::new(0);

/// A client of this process, and the callers that wait for its answers.
pub(crate) struct ClientShell {
    pub machine: Client,
    pub tasks: Map<TaskId, Callback<Outcome>>,
    pub streams: Map<TaskId, Feed>,
    pub objects: Map<ObjectId, Vec<Callback<Result<Value, Error>>>>,
    pub locating: Map<ObjectId, Vec<oneshot::Sender<Copies>>>,
    pub creating: Map<ActorId, oneshot::Sender<Result<ActorId, Error>>>,
    pub actor_ready_waiters: Map<ActorId, Vec<Callback<Result<(), Error>>>>,
    pub finding: Map<u64, oneshot::Sender<Result<FoundActor, Error>>>,
    pub syncing: Map<u64, oneshot::Sender<()>>,
    /// Counts how often the controller granted room for more tasks.
    pub room: watch::Sender<u64>,
    /// How many of its sessions have ended.
    pub ended: Arc<AtomicU64>,
    pub next_request: u64,
    /// Shows warnings to the user.
    pub warn: Warn,
    /// Where the output of its work goes, in this session and in later ones.
    pub output_sender: Option<OutputSender>,
    /// Whether it has left: it does not join again.
    pub left: bool,
}

/// Data in the object store that an event is about.
enum EventObjects {
    Nothing,
    /// Data that an executor wrote for an answer.
    Results(Vec<ObjectId>),
    /// The process of a dead executor, whose data the store may free.
    OfExecutor(object_store::ProcessId),
}

/// A function that shows warnings or notes.
pub(crate) type Warn = Arc<dyn Fn(&str) + Send + Sync>;

/// The default: prints to standard error.
fn on_standard_error() -> Warn {
    Arc::new(|words| eprintln!("marline: {}", escaped_lines(words)))
}

impl NodeState {
    /// Returns the object stores of this node if its controller is here too. Then the cluster ends
    /// with the node.
    pub(super) fn stores_of_the_cluster(&self) -> Vec<ObjectStore> {
        let ours = self.controller.is_some();
        self.workers
            .iter()
            .filter(|_| ours)
            .filter_map(|shell| shell.object_store.clone())
            .collect()
    }

    pub(super) fn join_worker(
        &mut self,
        node: &Weak<Node>,
        now: Time,
        executors: Executors,
        store: Option<ObjectStore>,
        info: WorkerInfo,
        config: worker::Config,
    ) -> Shell {
        let shell = self.add_worker_shell(node, executors, store, config);
        self.joining = Some(shell);
        self.note_offer(self.workers.len() - 1, &info);
        self.open(now, Role::Worker(info));
        shell
    }

    pub(super) fn join_client(&mut self, now: Time) -> usize {
        let index = self.add_client_shell(Client::new());
        self.joining = Some(Shell::Client(index));
        self.open(now, Role::Client);
        index
    }

    pub(super) fn add_worker_shell(
        &mut self,
        node: &Weak<Node>,
        executors: Executors,
        store: Option<ObjectStore>,
        config: worker::Config,
    ) -> Shell {
        if let Some(store) = &store {
            store.set_node(node.clone(), self.workers.len());
        }
        self.workers.push(WorkerShell {
            machine: Worker::new(config),
            executors,
            handles: Map::default(),
            object_store: store,
            processes: Map::default(),
            drained: false,
            leaving: Vec::new(),
            note: on_standard_error(),
        });
        Shell::Worker(self.workers.len() - 1)
    }

    pub(super) fn add_client_shell(&mut self, machine: Client) -> usize {
        let (room, _) = watch::watch(0);
        let shell = ClientShell {
            machine,
            tasks: Map::default(),
            streams: Map::default(),
            objects: Map::default(),
            locating: Map::default(),
            creating: Map::default(),
            actor_ready_waiters: Map::default(),
            finding: Map::default(),
            syncing: Map::default(),
            room,
            ended: Arc::default(),
            next_request: 0,
            warn: on_standard_error(),
            output_sender: None,
            left: false,
        };
        let index = self.clients.iter().position(Option::is_none).unwrap_or_else(|| {
            self.clients.push(None);
            self.clients.len() - 1
        });
        self.clients[index] = Some(shell);
        index
    }

    /// Joins the controller of this process.
    fn open(&mut self, now: Time, role: Role) {
        let id = crate::new_session_id();
        let event = controller::Event::JoinRequested { id, request: 1, local: true, role };
        self.controller_event(now, event);
    }

    /// Closes a client's session. The client does not join again.
    pub(super) fn leave_client(&mut self, index: usize) {
        let Some(shell) = &mut self.clients[index] else { return };
        shell.left = true;
        let Some(session) = shell.machine.session() else {
            shell.output_sender = None;
            return;
        };
        if self.controller.is_some() {
            self.todo.push_back(Todo::Controller(controller::Event::SessionClosed { session }));
        } else {
            self.todo.push_back(Todo::Client(index, client::Event::Fenced { session }));
        }
    }

    /// Returns whether a client of this process has left.
    pub(super) fn has_left(&self, index: usize) -> bool {
        self.clients[index].as_ref().is_none_or(|shell| shell.left)
    }

    /// Removes a client to which no handle exists.
    pub(super) fn remove_client_shell(&mut self, index: usize) {
        self.clients[index] = None;
    }

    pub(super) fn close(&mut self) {
        self.closed = true;
        // Tells the processes that joined this node's controller, so that they need not wait until
        // their leases end.
        let joined = self.links.keys().filter_map(|which| match which {
            LinkId::Session(session) => Some(*session),
            LinkId::Upstream(_) | LinkId::Host(..) | LinkId::Caller(..) => None,
        });
        for session in joined.collect::<Vec<_>>() {
            self.drop_link(LinkId::Session(session), session);
        }
        for index in 0..self.clients.len() {
            self.leave_client(index);
        }
        for worker in &mut self.workers {
            for (_, handle) in worker.handles.drain() {
                handle.end();
            }
            worker.leaving.clear();
        }
        self.ending.clear();
    }

    pub(super) fn worker_event(
        &mut self,
        node: &Weak<Node>,
        now: Time,
        index: usize,
        event: worker::Event,
    ) {
        let shell = &mut self.workers[index];
        if let worker::Event::ExecutorDied { executor, .. }
        | worker::Event::ExecutorRefused { executor, .. } = &event
        {
            shell.handles.remove(executor);
        }
        if shell.has_rejoined(&event) {
            return;
        }
        let machine = Machine::Worker(shell.machine.session());
        runtime_log::event(machine, || event.summary());
        let data = shell.objects_of_event(&event);
        let mut effects = Vec::new();
        shell.machine.handle(now, event, &mut effects);
        for effect in effects {
            self.worker_effect(node, index, effect);
        }
        self.workers[index].end_ownership(data);
        self.workers[index].renew_lifeline();
    }

    fn worker_effect(&mut self, node: &Weak<Node>, index: usize, effect: worker::Effect) {
        let shell = &mut self.workers[index];
        match effect {
            worker::Effect::Pong(pong) => {
                if let Some(session) = shell.machine.session() {
                    self.link_urgent(LinkId::Upstream(session), Frame::Pong(pong));
                }
            }
            worker::Effect::ToController(message) => {
                let Some(session) = shell.machine.session() else { return };
                if self.controller.is_some() {
                    let event = controller::Event::WorkerMessageReceived { session, message };
                    self.todo.push_back(Todo::Controller(event));
                } else {
                    self.link_send(LinkId::Upstream(session), Message::FromWorker(message));
                }
            }
            worker::Effect::ToCaller { to, message } => {
                let Some(host) = shell.machine.session() else { return };
                if let Some(Shell::Client(client)) = self.shells.get(&to) {
                    let event = client::Event::HostMessageReceived { host, message };
                    self.todo.push_back(Todo::Client(*client, event));
                } else {
                    self.link_send(LinkId::Caller(host, to), Message::FromHost(message));
                }
            }
            worker::Effect::FenceCaller(session) => {
                if let Some(host) = shell.machine.session() {
                    self.drop_link(LinkId::Caller(host, session), session);
                }
            }
            worker::Effect::Spawn { executor, runtime } => {
                if !self.closed {
                    let (event, start) = shell.spawn(node, index, executor, &runtime);
                    self.outside.extend(start.map(DeferredAction::Start));
                    self.todo.extend(event.map(|event| Todo::Worker(index, event)));
                }
            }
            worker::Effect::Run { executor, spec, attempt, values, grant } => {
                let gpus = grant.gpus;
                shell.command(executor, ExecutorCommand::RunTask { spec, attempt, values, gpus });
            }
            worker::Effect::Construct { executor, spec, epoch, values, grant, checkpoints } => {
                let gpus = grant.gpus;
                let command =
                    ExecutorCommand::ConstructActor { spec, epoch, values, gpus, checkpoints };
                shell.command(executor, command);
            }
            worker::Effect::Call { executor, spec, attempt, values } => {
                shell.command(executor, ExecutorCommand::CallMethod { spec, attempt, values });
            }
            worker::Effect::Interrupt { executor, task, alone } => {
                if let Some(handle) = shell.handles.get(&executor) {
                    handle.ask(if alone {
                        UrgentMessage::CancelAlone(task)
                    } else {
                        UrgentMessage::Cancel(task)
                    });
                }
            }
            worker::Effect::ReportConsumed { executor, task, count } => {
                if let Some(handle) = shell.handles.get(&executor) {
                    handle.ask(UrgentMessage::ItemsTaken { task, count });
                }
            }
            worker::Effect::RefuseBlock { executor, task, limit } => {
                if let Some(handle) = shell.handles.get(&executor) {
                    handle.ask(UrgentMessage::DenyWait { task, limit });
                }
            }
            worker::Effect::Kill { executor } => {
                if let Some(handle) = shell.handles.remove(&executor)
                    && handle.end()
                {
                    let words = "the executor was ended by its worker";
                    let error = Error::unavailable(Ran::Maybe, words);
                    let event = worker::Event::ExecutorDied { executor, error };
                    self.todo.push_back(Todo::Worker(index, event));
                }
            }
            worker::Effect::Retain { object } => {
                if let Some(store) = &shell.object_store {
                    store.retain(object);
                }
            }
            worker::Effect::Forget { object } => {
                if let Some(store) = &shell.object_store {
                    store.evict(object);
                }
            }
            worker::Effect::Located { object, copies } => {
                if let Some(store) = &shell.object_store {
                    store.located(object, copies);
                }
            }
            worker::Effect::Pull { object, from } => {
                if let Some(store) = &shell.object_store {
                    store.pull(object, from);
                }
            }
            worker::Effect::Erase { object } => {
                if let Some(store) = &shell.object_store {
                    store.erase(object);
                }
            }
            worker::Effect::Stopped(session) => {
                info!(target: WORKER, worker = %session, "the worker's session is over");
                if let Some(store) = &shell.object_store {
                    store.set_session(None);
                }
                self.session_stopped(session);
                self.tell_if_left(index);
            }
            worker::Effect::Drained => {
                info!(target: WORKER, "the worker has finished its work");
                shell.drained = true;
                self.tell_if_left(index);
            }
        }
    }

    fn tell_if_left(&mut self, index: usize) {
        let shell = &mut self.workers[index];
        if shell.has_left() {
            self.outside.extend(shell.leaving.drain(..).map(DeferredAction::SendDone));
        }
    }

    pub(super) fn client_event(&mut self, now: Time, index: usize, event: client::Event) {
        let Some(shell) = &mut self.clients[index] else { return };
        runtime_log::event(Machine::Client(shell.machine.session()), || event.summary());
        let mut effects = Vec::new();
        shell.machine.handle(now, event, &mut effects);
        self.client_effects(index, effects);
    }

    /// Carries out effects of a client's machine. For callers that asked the machine something.
    pub(crate) fn client_effects(&mut self, index: usize, effects: Vec<client::Effect>) {
        for effect in effects {
            self.client_effect(index, effect);
        }
    }

    fn client_effect(&mut self, index: usize, effect: client::Effect) {
        let shell = self.clients[index].as_mut().expect("its machine returned an effect");
        match effect {
            client::Effect::Pong(pong) => {
                if let Some(session) = shell.machine.session() {
                    self.link_urgent(LinkId::Upstream(session), Frame::Pong(pong));
                }
            }
            client::Effect::ToController(message) => {
                let Some(session) = shell.machine.session() else { return };
                if self.controller.is_some() {
                    let event = controller::Event::ClientMessageReceived { session, message };
                    self.todo.push_back(Todo::Controller(event));
                } else {
                    self.link_send(LinkId::Upstream(session), Message::FromClient(message));
                }
            }
            client::Effect::ToHost { host, address, message } => {
                let Some(me) = shell.machine.session() else { return };
                if let Some(Shell::Worker(worker)) = self.shells.get(&host) {
                    let event = worker::Event::CallerMessageReceived { session: me, message };
                    self.todo.push_back(Todo::Worker(*worker, event));
                } else {
                    self.call_host(me, host, address, message);
                }
            }
            client::Effect::CloseHost { host } => {
                // A machine whose session is over has forgotten the host. Its links go with the
                // session.
                if let Some(me) = shell.machine.session() {
                    self.close_host(me, host, Vec::new());
                }
            }
            client::Effect::CreditGranted => {
                shell.room.send_if_modified(|times| {
                    *times += 1;
                    true
                });
            }
            client::Effect::Yielded { task, index: _, value } => {
                if let Some(feed) = shell.streams.get(&task) {
                    let rings = feed.item(value);
                    if !rings.is_empty() {
                        self.outside.push(DeferredAction::Ring(rings));
                    }
                }
            }
            client::Effect::Ended { task, outcome } => {
                if let Some(feed) = shell.streams.remove(&task) {
                    self.outside.push(DeferredAction::Ring(feed.end(&outcome)));
                }
                if let Some(waiter) = shell.tasks.remove(&task) {
                    self.outside.push(DeferredAction::Ended(waiter, outcome));
                }
            }
            client::Effect::ObjectReady { object, value } => {
                for waiter in shell.objects.remove(&object).unwrap_or_default() {
                    self.outside.push(DeferredAction::Object(waiter, value.clone()));
                }
            }
            client::Effect::Located { object, copies } => {
                for waiter in shell.locating.remove(&object).unwrap_or_default() {
                    self.outside.push(DeferredAction::Located(waiter, copies.clone()));
                }
            }
            client::Effect::ActorCreated { requested, actor } => {
                if let Some(waiter) = shell.creating.remove(&requested) {
                    self.outside.push(DeferredAction::Actor(waiter, actor));
                }
            }
            client::Effect::FirstInstanceReady { actor, outcome } => {
                if let Some(tells) = shell.actor_ready_waiters.remove(&actor) {
                    self.outside.push(DeferredAction::CallBackReady(tells, outcome));
                }
            }
            client::Effect::ActorFound { request, actor } => {
                if let Some(waiter) = shell.finding.remove(&request) {
                    self.outside.push(DeferredAction::Found(waiter, actor));
                }
            }
            client::Effect::Synced { request } => {
                self.outside.extend(shell.syncing.remove(&request).map(DeferredAction::SendDone));
            }
            client::Effect::Warn(words) => {
                self.outside.push(DeferredAction::Warn(shell.warn.clone(), words));
            }
            client::Effect::Show(shown) => {
                if let Some(output_sender) = &mut shell.output_sender {
                    output_sender.show(shown);
                }
            }
            client::Effect::Stopped(session) => {
                info!(target: CLIENT, client = %session, "the client's session is over");
                shell.syncing.clear();
                shell.locating.clear();
                shell.actor_ready_waiters.clear();
                shell.ended.fetch_add(1, Ordering::Relaxed);
                if shell.left {
                    shell.output_sender = None; // No more output will come.
                } else {
                    SESSIONS_LOST.fetch_add(1, Ordering::Relaxed);
                }
                self.session_stopped(session);
            }
        }
    }

    /// Returns the client with this index.
    pub(crate) fn client(&mut self, index: usize) -> &mut ClientShell {
        self.clients[index].as_mut().expect("a client exists as long as a handle to it")
    }

    /// Returns the controller of this process, for queries.
    pub(crate) fn controller(&self) -> Option<&controller::Controller> {
        self.controller.as_ref()
    }
}

impl WorkerShell {
    fn command(&self, executor: ExecutorId, command: ExecutorCommand) {
        if let Some(handle) = self.handles.get(&executor) {
            handle.send(command);
        }
    }

    /// Starts an executor. Returns the event that is known at once, and the thread that must be
    /// started outside the lock.
    fn spawn(
        &mut self,
        node: &Weak<Node>,
        index: usize,
        executor: ExecutorId,
        runtime: &str,
    ) -> (Option<worker::Event>, Option<thread::ThreadStart>) {
        let node = node.clone();
        match &self.executors {
            Executors::Threads(program) => {
                let objects = self.object_store.clone().map(ObjectStoreHandle::here);
                let (handle, start) =
                    thread::ThreadHandle::new(node, index, executor, program.clone(), objects);
                self.handles.insert(executor, ExecutorHandle::Thread(handle));
                (Some(worker::Event::ExecutorReady { executor }), Some(start))
            }
            Executors::Processes(launch) => {
                let store = self.object_store.as_ref();
                match process::ProcessHandle::spawn(
                    node,
                    index,
                    executor,
                    runtime,
                    launch.clone(),
                    store,
                ) {
                    Ok((handle, process)) => {
                        if let Some(process) = process {
                            self.processes.insert(executor, process);
                        }
                        self.handles.insert(executor, ExecutorHandle::Process(handle));
                        (None, None)
                    }
                    Err(error) => {
                        warn!(target: EXECUTOR, executor = executor.0, "an executor did not start: {error}");
                        let lack = process::system_limit_of(&error);
                        (Some(worker::Event::ExecutorRefused { executor, lack }), None)
                    }
                }
            }
        }
    }

    /// Notes that the worker has joined this cluster.
    pub(super) fn set_cluster(&self, cluster: ClusterId) {
        if let Some(store) = &self.object_store {
            store.of_cluster(cluster);
        }
    }

    /// Returns whether an event reports data as lost that the store has retained since. The report
    /// may arrive after that.
    fn has_rejoined(&self, event: &worker::Event) -> bool {
        let worker::Event::DataLost { object, .. } = event else { return false };
        self.object_store.as_ref().is_some_and(|store| store.retains(*object))
    }

    /// Returns the data in the store that an event is about. First handles what the executor sent
    /// to the store before it sent this event.
    fn objects_of_event(&mut self, event: &worker::Event) -> EventObjects {
        let Some(store) = &self.object_store else { return EventObjects::Nothing };
        match event {
            worker::Event::Joined { session, .. } => {
                store.set_session(Some(*session));
                EventObjects::Nothing
            }
            worker::Event::TaskEnded { executor, end, .. }
            | worker::Event::CallEnded { executor, end, .. } => {
                let values = end.outcome.iter().flatten();
                let objects: Vec<ObjectId> =
                    values.filter_map(|value| value.payload.stored_object()).collect();
                if objects.is_empty() {
                    return EventObjects::Nothing;
                }
                if let Some(process) = self.processes.get(executor) {
                    store.read_requests(*process);
                }
                EventObjects::Results(objects)
            }
            worker::Event::Yielded { executor, value, .. } => {
                let Some(object) = value.payload.stored_object() else {
                    return EventObjects::Nothing;
                };
                if let Some(process) = self.processes.get(executor) {
                    store.read_requests(*process);
                }
                EventObjects::Results(vec![object])
            }
            worker::Event::ExecutorDied { executor, .. }
            | worker::Event::ExecutorRefused { executor, .. } => self
                .processes
                .remove(executor)
                .map_or(EventObjects::Nothing, EventObjects::OfExecutor),
            worker::Event::PingReceived { .. }
            | worker::Event::Fenced { .. }
            | worker::Event::ControllerMessageReceived { .. }
            | worker::Event::CallerMessageReceived { .. }
            | worker::Event::ExecutorReady { .. }
            | worker::Event::InputsUnavailable { .. }
            | worker::Event::Constructed { .. }
            | worker::Event::Blocked { .. }
            | worker::Event::Resumed { .. }
            | worker::Event::ReferencesReleased { .. }
            | worker::Event::ActorExited { .. }
            | worker::Event::MemoryShort { .. }
            | worker::Event::Printed { .. }
            | worker::Event::DataMissing { .. }
            | worker::Event::DataCopied { .. }
            | worker::Event::DataPullFailed { .. }
            | worker::Event::DataLost { .. }
            | worker::Event::DrainRequested { .. }
            | worker::Event::TimePassed => EventObjects::Nothing,
        }
    }

    /// Ends the ownership of the makers of this data, after the worker has handled the event. From
    /// now on the store keeps a result only if the cluster retains it, and frees what a dead
    /// executor held.
    fn end_ownership(&self, data: EventObjects) {
        let Some(store) = &self.object_store else { return };
        match data {
            EventObjects::Nothing => {}
            EventObjects::Results(objects) => {
                objects.into_iter().for_each(|object| store.disown(object))
            }
            EventObjects::OfExecutor(process) => store.process_left(process),
        }
    }

    /// Lets executors that are processes act until the lease ends.
    fn renew_lifeline(&self) {
        if let Executors::Processes(launch) = &self.executors {
            launch.lifeline.renew(self.machine.lease_ends_at().unwrap_or(Time::ZERO));
        }
    }

    /// Returns whether it has drained and its session is over.
    pub fn has_left(&self) -> bool {
        self.drained && self.machine.session().is_none()
    }

    /// Returns whether all executors that could still act are dead.
    pub fn all_executors_dead(&self) -> bool {
        match &self.executors {
            Executors::Threads(_) => true,
            Executors::Processes(launch) => launch.alive.load(Ordering::Acquire) == 0,
        }
    }
}
