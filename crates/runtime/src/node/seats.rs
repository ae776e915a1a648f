//! The shells of workers and clients: what they say goes to the machines of this process, to executors,
//! or to whoever waits.

use super::links::Which;
use super::{Node, Outside, Seat, State, Todo};
use crate::executor::Program;
use crate::executor::thread::{Command, Handle};
use crate::wire::frame::Frame;
use crate::wire::message::Message;
use marline_channel::{oneshot, watch};
use marline_core::Error;
use marline_core::client::{self, Client};
use marline_core::controller::{self, Role, WorkerInfo};
use marline_core::error::Ran;
use marline_core::id::{ActorId, ObjectId, TaskId};
use marline_core::map::Map;
use marline_core::payload::{Outcome, Value};
use marline_core::time::Time;
use marline_core::worker::{self, ExecutorId, Worker};
use std::sync::{Arc, Weak};

/// A worker of this process.
pub(super) struct WorkerSeat {
    pub machine: Worker,
    program: Arc<dyn Program>,
    executors: Map<ExecutorId, Handle>,
}

/// A client of this process, and who waits for what.
pub(crate) struct ClientSeat {
    pub machine: Client,
    pub tasks: Map<TaskId, oneshot::Sender<Outcome>>,
    pub objects: Map<ObjectId, Vec<oneshot::Sender<Result<Value, Error>>>>,
    pub creating: Map<ActorId, oneshot::Sender<Result<ActorId, Error>>>,
    pub finding: Map<u64, oneshot::Sender<Result<ActorId, Error>>>,
    /// Counts how often there was room for more.
    pub room: watch::Sender<u64>,
    pub next_request: u64,
}

impl State {
    pub(super) fn join_worker(
        &mut self,
        now: Time,
        program: Arc<dyn Program>,
        info: WorkerInfo,
        config: worker::Config,
    ) {
        self.joining = Some(self.seat_worker(program, config));
        self.note_offer(self.workers.len() - 1, &info);
        self.open(now, Role::Worker(info));
    }

    pub(super) fn join_client(&mut self, now: Time) -> usize {
        let index = self.seat_client();
        self.joining = Some(Seat::Client(index));
        self.open(now, Role::Client);
        index
    }

    pub(super) fn seat_worker(
        &mut self,
        program: Arc<dyn Program>,
        config: worker::Config,
    ) -> Seat {
        let machine = Worker::new(config);
        self.workers.push(WorkerSeat { machine, program, executors: Map::default() });
        Seat::Worker(self.workers.len() - 1)
    }

    pub(super) fn seat_client(&mut self) -> usize {
        let (room, _) = watch::watch(0);
        let seat = ClientSeat {
            machine: Client::new(),
            tasks: Map::default(),
            objects: Map::default(),
            creating: Map::default(),
            finding: Map::default(),
            room,
            next_request: 0,
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

    /// A client closes its session.
    pub(super) fn leave_client(&mut self, index: usize) {
        let Some(session) = self.clients[index].as_ref().and_then(|seat| seat.machine.session())
        else {
            return;
        };
        if self.controller.is_some() {
            self.todo.push_back(Todo::Controller(controller::Event::SessionClosed { session }));
        } else {
            self.todo.push_back(Todo::Client(index, client::Event::Fenced { session }));
        }
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
            for (_, executor) in worker.executors.drain() {
                executor.abandon();
            }
        }
    }

    pub(super) fn worker_event(
        &mut self,
        node: &Weak<Node>,
        now: Time,
        index: usize,
        event: worker::Event,
    ) {
        let mut effects = Vec::new();
        self.workers[index].machine.handle(now, event, &mut effects);
        for effect in effects {
            self.worker_effect(node, index, effect);
        }
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
            worker::Effect::Spawn { executor, .. } => {
                if !self.closed {
                    let handle = Handle::spawn(node.clone(), index, executor, seat.program.clone());
                    seat.executors.insert(executor, handle);
                    self.todo
                        .push_back(Todo::Worker(index, worker::Event::ExecutorReady { executor }));
                }
            }
            worker::Effect::Run { executor, spec, attempt, values, .. } => {
                seat.command(executor, Command::Run { spec, attempt, values });
            }
            worker::Effect::Construct { executor, spec, epoch, values, .. } => {
                seat.command(executor, Command::Construct { spec, epoch, values });
            }
            worker::Effect::Call { executor, spec, attempt, values } => {
                seat.command(executor, Command::Call { spec, attempt, values });
            }
            worker::Effect::Interrupt { executor, task } => {
                if let Some(handle) = seat.executors.get(&executor) {
                    handle.interrupt(task);
                }
            }
            worker::Effect::RefuseBlock { executor } => {
                self.todo.push_back(Todo::Worker(index, worker::Event::Resumed { executor }));
            }
            worker::Effect::Kill { executor } => {
                if let Some(handle) = seat.executors.remove(&executor) {
                    handle.abandon();
                }
                let error = Error::unavailable(Ran::Maybe, "the executor was ended by its worker");
                self.todo.push_back(Todo::Worker(
                    index,
                    worker::Event::ExecutorDied { executor, error },
                ));
            }
            worker::Effect::Stopped(session) => self.session_stopped(session),
            worker::Effect::Drained => {}
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
            client::Effect::Ended { task, outcome } => {
                if let Some(waiter) = seat.tasks.remove(&task) {
                    self.outside.push(Outside::Ended(waiter, outcome));
                }
            }
            client::Effect::ObjectReady { object, value } => {
                for waiter in seat.objects.remove(&object).unwrap_or_default() {
                    self.outside.push(Outside::Object(waiter, value.clone()));
                }
            }
            client::Effect::ActorCreated { requested, actor } => {
                if let Some(waiter) = seat.creating.remove(&requested) {
                    self.outside.push(Outside::Actor(waiter, actor));
                }
            }
            client::Effect::ActorFound { request, actor } => {
                if let Some(waiter) = seat.finding.remove(&request) {
                    self.outside.push(Outside::Actor(waiter, actor));
                }
            }
            client::Effect::Stopped(session) => self.session_stopped(session),
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
        if let Some(handle) = self.executors.get(&executor) {
            handle.send(command);
        }
    }
}
