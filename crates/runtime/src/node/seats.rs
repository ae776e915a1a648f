//! The shells of workers and clients: what they say goes to the machines of this process, to executors,
//! or to whoever waits.

use super::links::Which;
use super::output::Onlooker;
use super::{Node, Outside, Seat, State, Todo};
use crate::client::Tell;
use crate::executor::ask::Ask;
use crate::executor::run::Command;
use crate::executor::{Executors, Handle, process, thread};
use crate::store::{Objects, Store};
use crate::stream::Feed;
use crate::terminal::escaped_lines;
use crate::wire::frame::Frame;
use crate::wire::message::Message;
use marline_channel::{oneshot, watch};
use marline_core::Error;
use marline_core::client::{self, Client};
use marline_core::controller::{self, Role, WorkerInfo};
use marline_core::error::Ran;
use marline_core::id::{ActorId, ClusterId, ObjectId, TaskId};
use marline_core::map::Map;
use marline_core::message::{CopyAt, FoundActor};
use marline_core::payload::{Outcome, Value};
use marline_core::store;
use marline_core::time::Time;
use marline_core::worker::{self, ExecutorId, Worker};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// A worker of this process.
pub(super) struct WorkerSeat {
    pub machine: Worker,
    executors: Executors,
    handles: Map<ExecutorId, Handle>,
    /// Large values, if it has room for them.
    pub store: Option<Store>,
    /// Which process each executor is for the store.
    processes: Map<ExecutorId, store::Process>,
    /// It has drained: it leaves, and does not come back.
    pub drained: bool,
    /// Who waits for it to have left.
    pub leaving: Vec<oneshot::Sender<()>>,
    /// What is done with what whoever started it should know.
    pub note: Warn,
}

/// Who has the data of an object, or why nobody has.
pub(super) type Copies = Result<Vec<CopyAt>, Error>;

/// How many sessions of clients of this process have ended, other than by leaving. User code that ran meanwhile may have
/// lost what it held.
pub(crate) static SESSIONS_LOST: AtomicU64 = AtomicU64::new(0);
/// `SESSIONS_LOST` as it was when a client of this process last joined.
pub(crate) static SESSIONS_LOST_BEFORE: AtomicU64 = AtomicU64::new(0);

/// A client of this process, and who waits for what.
pub(crate) struct ClientSeat {
    pub machine: Client,
    pub tasks: Map<TaskId, Tell<Outcome>>,
    pub streams: Map<TaskId, Feed>,
    pub objects: Map<ObjectId, Vec<Tell<Result<Value, Error>>>>,
    pub locating: Map<ObjectId, Vec<oneshot::Sender<Copies>>>,
    pub creating: Map<ActorId, oneshot::Sender<Result<ActorId, Error>>>,
    pub births: Map<ActorId, Vec<Tell<Result<(), Error>>>>,
    pub finding: Map<u64, oneshot::Sender<Result<FoundActor, Error>>>,
    pub syncing: Map<u64, oneshot::Sender<()>>,
    /// Counts how often there was room for more.
    pub room: watch::Sender<u64>,
    /// How many of its sessions have ended.
    pub ended: Arc<AtomicU64>,
    pub next_request: u64,
    /// What is done with warnings.
    pub warn: Warn,
    /// Who looks at what its work prints, in this session and in those that follow.
    pub onlooker: Option<Onlooker>,
    /// It has left: it does not join again.
    pub left: bool,
}

/// Data in the store that an event is about.
enum Made {
    Nothing,
    /// It was made for an answer.
    For(Vec<ObjectId>),
    /// Its maker is dead.
    By(store::Process),
}

/// What is done with warnings.
pub(crate) type Warn = Arc<dyn Fn(&str) + Send + Sync>;

/// What is done unless said otherwise.
fn on_standard_error() -> Warn {
    Arc::new(|words| eprintln!("marline: {}", escaped_lines(words)))
}

impl State {
    /// If the cluster is this node's: the stores that it has here. The cluster ends with the node.
    pub(super) fn stores_of_the_cluster(&self) -> Vec<Store> {
        let ours = self.controller.is_some();
        self.workers.iter().filter(|_| ours).filter_map(|seat| seat.store.clone()).collect()
    }

    pub(super) fn join_worker(
        &mut self,
        node: &Weak<Node>,
        now: Time,
        executors: Executors,
        store: Option<Store>,
        info: WorkerInfo,
        config: worker::Config,
    ) -> Seat {
        let seat = self.seat_worker(node, executors, store, config);
        self.joining = Some(seat);
        self.note_offer(self.workers.len() - 1, &info);
        self.open(now, Role::Worker(info));
        seat
    }

    pub(super) fn join_client(&mut self, now: Time) -> usize {
        let index = self.seat_client(Client::new());
        self.joining = Some(Seat::Client(index));
        self.open(now, Role::Client);
        index
    }

    pub(super) fn seat_worker(
        &mut self,
        node: &Weak<Node>,
        executors: Executors,
        store: Option<Store>,
        config: worker::Config,
    ) -> Seat {
        if let Some(store) = &store {
            store.belongs_to(node.clone(), self.workers.len());
        }
        self.workers.push(WorkerSeat {
            machine: Worker::new(config),
            executors,
            handles: Map::default(),
            store,
            processes: Map::default(),
            drained: false,
            leaving: Vec::new(),
            note: on_standard_error(),
        });
        Seat::Worker(self.workers.len() - 1)
    }

    pub(super) fn seat_client(&mut self, machine: Client) -> usize {
        let (room, _) = watch::watch(0);
        let seat = ClientSeat {
            machine,
            tasks: Map::default(),
            streams: Map::default(),
            objects: Map::default(),
            locating: Map::default(),
            creating: Map::default(),
            births: Map::default(),
            finding: Map::default(),
            syncing: Map::default(),
            room,
            ended: Arc::default(),
            next_request: 0,
            warn: on_standard_error(),
            onlooker: None,
            left: false,
        };
        let index = self.clients.iter().position(Option::is_none).unwrap_or_else(|| {
            self.clients.push(None);
            self.clients.len() - 1
        });
        self.clients[index] = Some(seat);
        index
    }

    /// Joins the controller of this process.
    fn open(&mut self, now: Time, role: Role) {
        let id = crate::new_session_id();
        let event = controller::Event::SessionOpened { id, request: 1, local: true, role };
        self.controller_event(now, event);
    }

    /// A client closes its session, and has no other.
    pub(super) fn leave_client(&mut self, index: usize) {
        let Some(seat) = &mut self.clients[index] else { return };
        seat.left = true;
        let Some(session) = seat.machine.session() else {
            seat.onlooker = None;
            return;
        };
        if self.controller.is_some() {
            self.todo.push_back(Todo::Controller(controller::Event::SessionClosed { session }));
        } else {
            self.todo.push_back(Todo::Client(index, client::Event::Fenced { session }));
        }
    }

    /// Whether a client of this process has left.
    pub(super) fn has_left(&self, index: usize) -> bool {
        self.clients[index].as_ref().is_none_or(|seat| seat.left)
    }

    /// Nobody has a handle to a client any more.
    pub(super) fn unseat_client(&mut self, index: usize) {
        self.clients[index] = None;
    }

    pub(super) fn close(&mut self) {
        self.closed = true;
        // Those who joined this node's controller are told, so that they need not wait for their lease.
        let joined = self.links.keys().filter_map(|which| match which {
            Which::Session(session) => Some(*session),
            Which::Upstream(_) | Which::Host(..) | Which::Caller(..) => None,
        });
        for session in joined.collect::<Vec<_>>() {
            self.drop_link(Which::Session(session), session);
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
        let seat = &mut self.workers[index];
        if let worker::Event::ExecutorDied { executor, .. }
        | worker::Event::ExecutorRefused { executor, .. } = &event
        {
            seat.handles.remove(executor);
        }
        if seat.is_here_again(&event) {
            return;
        }
        let made = seat.data_of(&event);
        let mut effects = Vec::new();
        seat.machine.handle(now, event, &mut effects);
        for effect in effects {
            self.worker_effect(node, index, effect);
        }
        self.workers[index].seen_to(made);
        self.workers[index].renew_lifeline();
    }

    fn worker_effect(&mut self, node: &Weak<Node>, index: usize, effect: worker::Effect) {
        let seat = &mut self.workers[index];
        match effect {
            worker::Effect::Pong(pong) => {
                if let Some(session) = seat.machine.session() {
                    self.link_urgent(Which::Upstream(session), Frame::Pong(pong));
                }
            }
            worker::Effect::ToController(message) => {
                let Some(session) = seat.machine.session() else { return };
                if self.controller.is_some() {
                    let event = controller::Event::WorkerSaid { session, message };
                    self.todo.push_back(Todo::Controller(event));
                } else {
                    self.link_send(Which::Upstream(session), Message::FromWorker(message));
                }
            }
            worker::Effect::ToCaller { to, message } => {
                let Some(host) = seat.machine.session() else { return };
                if let Some(Seat::Client(client)) = self.seats.get(&to) {
                    let event = client::Event::HostSaid { host, message };
                    self.todo.push_back(Todo::Client(*client, event));
                } else {
                    self.link_send(Which::Caller(host, to), Message::FromHost(message));
                }
            }
            worker::Effect::FenceCaller(session) => {
                if let Some(host) = seat.machine.session() {
                    self.drop_link(Which::Caller(host, session), session);
                }
            }
            worker::Effect::Spawn { executor, runtime } => {
                if !self.closed {
                    let (event, start) = seat.spawn(node, index, executor, &runtime);
                    self.outside.extend(start.map(Outside::Start));
                    self.todo.extend(event.map(|event| Todo::Worker(index, event)));
                }
            }
            worker::Effect::Run { executor, spec, attempt, values, grant } => {
                seat.command(executor, Command::Run { spec, attempt, values, grant });
            }
            worker::Effect::Construct { executor, spec, epoch, values, grant, checkpoints } => {
                let command = Command::Construct { spec, epoch, values, grant, checkpoints };
                seat.command(executor, command);
            }
            worker::Effect::Call { executor, spec, attempt, values } => {
                seat.command(executor, Command::Call { spec, attempt, values });
            }
            worker::Effect::Interrupt { executor, task, alone } => {
                if let Some(handle) = seat.handles.get(&executor) {
                    handle.ask(if alone { Ask::StopAlone(task) } else { Ask::Stop(task) });
                }
            }
            worker::Effect::Took { executor, task, count } => {
                if let Some(handle) = seat.handles.get(&executor) {
                    handle.ask(Ask::Took { task, count });
                }
            }
            worker::Effect::RefuseBlock { executor, task, limit } => {
                if let Some(handle) = seat.handles.get(&executor) {
                    handle.ask(Ask::NotWait { task, limit });
                }
            }
            worker::Effect::Kill { executor } => {
                if let Some(handle) = seat.handles.remove(&executor)
                    && handle.end()
                {
                    let words = "the executor was ended by its worker";
                    let error = Error::unavailable(Ran::Maybe, words);
                    let event = worker::Event::ExecutorDied { executor, error };
                    self.todo.push_back(Todo::Worker(index, event));
                }
            }
            worker::Effect::Keep { object } => {
                if let Some(store) = &seat.store {
                    store.keep(object);
                }
            }
            worker::Effect::Forget { object } => {
                if let Some(store) = &seat.store {
                    store.forget(object);
                }
            }
            worker::Effect::Located { object, copies } => {
                if let Some(store) = &seat.store {
                    store.located(object, copies);
                }
            }
            worker::Effect::Bring { object, from } => {
                if let Some(store) = &seat.store {
                    store.bring(object, from);
                }
            }
            worker::Effect::Erase { object } => {
                if let Some(store) = &seat.store {
                    store.erase(object);
                }
            }
            worker::Effect::Stopped(session) => {
                if let Some(store) = &seat.store {
                    store.works_under(None);
                }
                self.session_stopped(session);
                self.tell_if_left(index);
            }
            worker::Effect::Drained => {
                seat.drained = true;
                self.tell_if_left(index);
            }
        }
    }

    fn tell_if_left(&mut self, index: usize) {
        let seat = &mut self.workers[index];
        if seat.has_left() {
            self.outside.extend(seat.leaving.drain(..).map(Outside::Left));
        }
    }

    pub(super) fn client_event(&mut self, now: Time, index: usize, event: client::Event) {
        let Some(seat) = &mut self.clients[index] else { return };
        let mut effects = Vec::new();
        seat.machine.handle(now, event, &mut effects);
        self.client_effects(index, effects);
    }

    /// Does what a client's machine says; for shells that asked it something.
    pub(crate) fn client_effects(&mut self, index: usize, effects: Vec<client::Effect>) {
        for effect in effects {
            self.client_effect(index, effect);
        }
    }

    fn client_effect(&mut self, index: usize, effect: client::Effect) {
        let seat = self.clients[index].as_mut().expect("its machine spoke");
        match effect {
            client::Effect::Pong(pong) => {
                if let Some(session) = seat.machine.session() {
                    self.link_urgent(Which::Upstream(session), Frame::Pong(pong));
                }
            }
            client::Effect::ToController(message) => {
                let Some(session) = seat.machine.session() else { return };
                if self.controller.is_some() {
                    let event = controller::Event::ClientSaid { session, message };
                    self.todo.push_back(Todo::Controller(event));
                } else {
                    self.link_send(Which::Upstream(session), Message::FromClient(message));
                }
            }
            client::Effect::ToHost { host, address, message } => {
                let Some(me) = seat.machine.session() else { return };
                if let Some(Seat::Worker(worker)) = self.seats.get(&host) {
                    let event = worker::Event::CallerSaid { session: me, message };
                    self.todo.push_back(Todo::Worker(*worker, event));
                } else {
                    self.call_host(me, host, address, message);
                }
            }
            client::Effect::CloseHost { host } => {
                // A machine whose session is over has forgotten it; its links go with the session.
                if let Some(me) = seat.machine.session() {
                    self.close_host(me, host, Vec::new());
                }
            }
            client::Effect::Room => {
                seat.room.send_if_modified(|times| {
                    *times += 1;
                    true
                });
            }
            client::Effect::Yielded { task, index: _, value } => {
                if let Some(feed) = seat.streams.get(&task) {
                    let rings = feed.item(value);
                    if !rings.is_empty() {
                        self.outside.push(Outside::Ring(rings));
                    }
                }
            }
            client::Effect::Ended { task, outcome } => {
                if let Some(feed) = seat.streams.remove(&task) {
                    self.outside.push(Outside::Ring(feed.end(&outcome)));
                }
                if let Some(waiter) = seat.tasks.remove(&task) {
                    self.outside.push(Outside::Ended(waiter, outcome));
                }
            }
            client::Effect::ObjectReady { object, value } => {
                for waiter in seat.objects.remove(&object).unwrap_or_default() {
                    self.outside.push(Outside::Object(waiter, value.clone()));
                }
            }
            client::Effect::Located { object, copies } => {
                for waiter in seat.locating.remove(&object).unwrap_or_default() {
                    self.outside.push(Outside::Located(waiter, copies.clone()));
                }
            }
            client::Effect::ActorCreated { requested, actor } => {
                if let Some(waiter) = seat.creating.remove(&requested) {
                    self.outside.push(Outside::Actor(waiter, actor));
                }
            }
            client::Effect::ActorBorn { actor, outcome } => {
                if let Some(tells) = seat.births.remove(&actor) {
                    self.outside.push(Outside::Born(tells, outcome));
                }
            }
            client::Effect::ActorFound { request, actor } => {
                if let Some(waiter) = seat.finding.remove(&request) {
                    self.outside.push(Outside::Found(waiter, actor));
                }
            }
            client::Effect::Synced { request } => {
                self.outside.extend(seat.syncing.remove(&request).map(Outside::Left));
            }
            client::Effect::Warn(words) => {
                self.outside.push(Outside::Warn(seat.warn.clone(), words));
            }
            client::Effect::Show(shown) => {
                if let Some(onlooker) = &mut seat.onlooker {
                    onlooker.show(shown);
                }
            }
            client::Effect::Stopped(session) => {
                seat.syncing.clear();
                seat.locating.clear();
                seat.births.clear();
                seat.ended.fetch_add(1, Ordering::Relaxed);
                if seat.left {
                    seat.onlooker = None; // There is nothing more to see.
                } else {
                    SESSIONS_LOST.fetch_add(1, Ordering::Relaxed);
                }
                self.session_stopped(session);
            }
        }
    }

    /// The client that sits here.
    pub(crate) fn client(&mut self, index: usize) -> &mut ClientSeat {
        self.clients[index].as_mut().expect("a client sits there as long as its handle lives")
    }

    /// The controller of this process, for questions.
    pub(crate) fn controller(&self) -> Option<&controller::Controller> {
        self.controller.as_ref()
    }
}

impl WorkerSeat {
    fn command(&self, executor: ExecutorId, command: Command) {
        if let Some(handle) = self.handles.get(&executor) {
            handle.send(command);
        }
    }

    /// Starts an executor. Says what is known of it at once, and what is left to be started.
    fn spawn(
        &mut self,
        node: &Weak<Node>,
        index: usize,
        executor: ExecutorId,
        runtime: &str,
    ) -> (Option<worker::Event>, Option<thread::Start>) {
        let node = node.clone();
        match &self.executors {
            Executors::Threads(program) => {
                let objects = self.store.clone().map(Objects::here);
                let (handle, start) =
                    thread::Handle::new(node, index, executor, program.clone(), objects);
                self.handles.insert(executor, Handle::Thread(handle));
                (Some(worker::Event::ExecutorReady { executor }), Some(start))
            }
            Executors::Processes(launch) => {
                let store = self.store.as_ref();
                match process::Handle::spawn(node, index, executor, runtime, launch.clone(), store)
                {
                    Ok((handle, process)) => {
                        if let Some(process) = process {
                            self.processes.insert(executor, process);
                        }
                        self.handles.insert(executor, Handle::Process(handle));
                        (None, None)
                    }
                    Err(error) => {
                        let lack = process::lack_of(&error);
                        (Some(worker::Event::ExecutorRefused { executor, lack }), None)
                    }
                }
            }
        }
    }

    /// It has joined this cluster.
    pub(super) fn works_for(&self, cluster: ClusterId) {
        if let Some(store) = &self.store {
            store.of_cluster(cluster);
        }
    }

    /// Whether an event says that data is lost which is kept by now: what was said before it came may be heard after.
    fn is_here_again(&self, event: &worker::Event) -> bool {
        let worker::Event::DataLost { object, .. } = event else { return false };
        self.store.as_ref().is_some_and(|store| store.keeps(*object))
    }

    /// What an event says of data in the store. What an executor has said to the store before it said this is
    /// heard first.
    fn data_of(&mut self, event: &worker::Event) -> Made {
        let Some(store) = &self.store else { return Made::Nothing };
        match event {
            worker::Event::Joined { session, .. } => {
                store.works_under(Some(*session));
                Made::Nothing
            }
            worker::Event::RunEnded { executor, end, .. }
            | worker::Event::CallFinished { executor, end, .. } => {
                let values = end.outcome.iter().flatten();
                let objects: Vec<ObjectId> =
                    values.filter_map(|value| value.payload.stored_object()).collect();
                if objects.is_empty() {
                    return Made::Nothing;
                }
                if let Some(process) = self.processes.get(executor) {
                    store.hear(*process);
                }
                Made::For(objects)
            }
            worker::Event::Yielded { executor, value, .. } => {
                let Some(object) = value.payload.stored_object() else { return Made::Nothing };
                if let Some(process) = self.processes.get(executor) {
                    store.hear(*process);
                }
                Made::For(vec![object])
            }
            worker::Event::ExecutorDied { executor, .. }
            | worker::Event::ExecutorRefused { executor, .. } => {
                self.processes.remove(executor).map_or(Made::Nothing, Made::By)
            }
            worker::Event::PingReceived { .. }
            | worker::Event::Fenced { .. }
            | worker::Event::ControllerSaid { .. }
            | worker::Event::CallerSaid { .. }
            | worker::Event::ExecutorReady { .. }
            | worker::Event::NotBegun { .. }
            | worker::Event::Constructed { .. }
            | worker::Event::Blocked { .. }
            | worker::Event::Resumed { .. }
            | worker::Event::Dropped { .. }
            | worker::Event::ActorExited { .. }
            | worker::Event::MemoryShort { .. }
            | worker::Event::Printed { .. }
            | worker::Event::DataMissing { .. }
            | worker::Event::DataCopied { .. }
            | worker::Event::DataNotBrought { .. }
            | worker::Event::DataLost { .. }
            | worker::Event::DrainAsked { .. }
            | worker::Event::TimePassed => Made::Nothing,
        }
    }

    /// The worker has decided what becomes of it.
    fn seen_to(&self, made: Made) {
        let Some(store) = &self.store else { return };
        match made {
            Made::Nothing => {}
            Made::For(objects) => objects.into_iter().for_each(|object| store.answered(object)),
            Made::By(process) => store.left(process),
        }
    }

    /// Executors that are processes may act as long as the lease says.
    fn renew_lifeline(&self) {
        if let Executors::Processes(launch) = &self.executors {
            launch.lifeline.renew(self.machine.lease_ends_at().unwrap_or(Time::ZERO));
        }
    }

    /// Whether it has drained and its session is over.
    pub fn has_left(&self) -> bool {
        self.drained && self.machine.session().is_none()
    }

    /// Whether every executor is seen to be dead that could still act.
    pub fn is_still(&self) -> bool {
        match &self.executors {
            Executors::Threads(_) => true,
            Executors::Processes(launch) => launch.alive.load(Ordering::Acquire) == 0,
        }
    }
}
