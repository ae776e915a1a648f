//! The process of a worker: its machine, its link to the controller, and a link for every caller.

use crate::net::{ConnectionId, Frame};
use crate::object_store::Store;
use crate::process::{Input, LinkEnd, Message, ProcessId, ProcessShell};
use crate::world::World;
use marline_core::controller::{Role as Joins, WorkerInfo};
use marline_core::id::{Session, SessionId};
use marline_core::link::LinkEffect;
use marline_core::random::Random;
use marline_core::resources::{Amount, Resources};
use marline_core::schedule::WorkerCapabilities;
use marline_core::time::Time;
use marline_core::worker::{Config, Effect, Event, Worker};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The link of a worker or a client to the controller, and its session.
#[derive(Debug, Default)]
pub struct Upstream {
    pub request: u64,
    asked_at: Time,
    pub session: Option<Session>,
    pub end: Option<LinkEnd>,
}

#[derive(Debug)]
pub struct WorkerShell {
    pub machine: Worker,
    pub id: SessionId,
    pub info: WorkerInfo,
    pub upstream: Upstream,
    pub callers: BTreeMap<Session, LinkEnd>,
    carries: BTreeMap<ConnectionId, (Session, ProcessId)>,
    pub drained: bool,
    pub store: Store,
}

impl WorkerShell {
    pub fn new(id: ProcessId, faults: bool, random: &mut Random) -> WorkerShell {
        // While there are faults, some workers provide less. Later workers provide everything.
        let names: &[&str] = match random.below(4) {
            0 if faults => &["add"],
            1 if faults => &["mul", "actor:Counter"],
            _ => &["add", "mul", "actor:Counter"],
        };
        let provides = WorkerCapabilities {
            names: names.iter().map(|name| Arc::from(*name)).collect(),
            preemptible: faults && random.one_in(5),
            ..WorkerCapabilities::default()
        };
        // Workers that start after the faults have room for everything.
        let resources = match faults {
            true => Resources::cpus(1 + random.below(3) as u32)
                .with_gpus(Amount::ONE)
                .with_memory(1_000 * random.below(3))
                .with_custom("disk", Amount::ONE),
            false => Resources::cpus(8)
                .with_gpus(Amount::whole(4))
                .with_memory(10_000)
                .with_custom("disk", Amount::whole(9)),
        };
        let direct = !random.one_in(5);
        // Work that needs saved data waits for a worker that can read it, so later workers can.
        let durable = !random.one_in(4) || !faults;
        let config = Config {
            cancel_grace: Duration::from_secs(1),
            max_blocked_executors: [1_000, 1][random.below(2) as usize],
            max_parked_messages: [10_000, 2][random.below(2) as usize],
            max_idle_executors: [8, 0][random.below(2) as usize],
            ..Config::default()
        };
        WorkerShell {
            machine: Worker::new(config),
            id: SessionId::from_u128(id.0 as u128),
            info: WorkerInfo {
                address: direct.then(|| format!("{}", id.0).into()),
                hostname: format!("host-{}", id.0),
                pid: id.0 as u32,
                version: "simulated".into(),
                resources,
                provides: Arc::new(provides),
                store: Some("store".into()),
                durable,
            },
            upstream: Upstream::default(),
            callers: BTreeMap::new(),
            carries: BTreeMap::new(),
            drained: false,
            store: Store::default(),
        }
    }
}

impl World {
    pub fn worker_shell(&mut self, id: ProcessId) -> &mut WorkerShell {
        match &mut self.processes[id.0].role {
            ProcessShell::Worker(shell) => shell,
            ProcessShell::Controller(_) | ProcessShell::Client(_) => panic!("{id:?} is no worker"),
        }
    }

    /// Returns the link of a worker or a client to the controller.
    fn upstream(&mut self, id: ProcessId) -> &mut Upstream {
        match &mut self.processes[id.0].role {
            ProcessShell::Worker(shell) => &mut shell.upstream,
            ProcessShell::Client(shell) => &mut shell.upstream,
            ProcessShell::Controller(_) => panic!("a controller has no controller"),
        }
    }

    /// Asks to join, and asks again until an answer arrives.
    pub fn join(&mut self, id: ProcessId, request: u64) {
        let now = self.processes[id.0].clock.read(self.now);
        let upstream = self.upstream(id);
        if upstream.session.is_some() || upstream.request >= request {
            return;
        }
        (upstream.request, upstream.asked_at) = (request, now);
        let (session, role) = match &self.processes[id.0].role {
            ProcessShell::Worker(shell) if shell.drained => return,
            ProcessShell::Worker(shell) => (shell.id, Joins::Worker(shell.info.clone())),
            ProcessShell::Client(shell) => (shell.id, Joins::Client),
            ProcessShell::Controller(_) => panic!("a controller has no controller"),
        };
        let frame = Frame::Open { id: session, request, role };
        self.transmit(ConnectionId::NONE, id, self.controller, frame);
        self.soon(id, Duration::from_secs(4), Input::Join { request: request + 1 });
    }

    /// Handles the answer to a request to join. Returns when the process had asked, for the event
    /// to its machine; nothing if the answer is to an old request.
    pub fn opened(&mut self, id: ProcessId, request: u64, session: Session) -> Option<Time> {
        let upstream = self.upstream(id);
        if upstream.request != request || upstream.session.is_some() {
            return None;
        }
        upstream.session = Some(session);
        upstream.end = Some(LinkEnd::new(session.epoch.0));
        Some(upstream.asked_at)
    }

    /// Connects (again) to the controller.
    pub fn connect_upstream(&mut self, id: ProcessId) {
        let controller = self.controller;
        let upstream = self.upstream(id);
        let (Some(session), Some(end)) = (upstream.session, &mut upstream.end) else { return };
        if end.connection.is_some() {
            return;
        }
        let connection = self.connect(id, controller);
        let end = self.upstream(id).end.as_mut().expect("it is there");
        end.connection = Some(connection);
        let mut out = Vec::new();
        assert!(end.link.connected(connection.0, &mut out), "connections are numbered upwards");
        self.transmit(connection, id, controller, Frame::Attach { session, host: None });
        self.upstream_outputs(id, out);
    }

    /// Sends a message to the controller on the session's link.
    pub fn send_upstream(&mut self, id: ProcessId, message: Message) {
        let mut out = Vec::new();
        if let Some(end) = &mut self.upstream(id).end {
            end.link.send(message, 100, &mut out);
        }
        self.upstream_outputs(id, out);
    }

    pub fn transmit_upstream(&mut self, id: ProcessId, frame: Frame) {
        let controller = self.controller;
        if let Some(connection) = self.upstream(id).end.as_ref().and_then(|end| end.connection) {
            self.transmit(connection, id, controller, frame);
        }
    }

    fn upstream_outputs(&mut self, id: ProcessId, out: Vec<LinkEffect<Message>>) {
        for output in out {
            match output {
                LinkEffect::Transmit(packet) => self.transmit_upstream(id, Frame::Packet(packet)),
                LinkEffect::Deliver(message) => self.upstream_said(id, message),
                LinkEffect::Lost { .. } | LinkEffect::Break(_) => {
                    // Another controller answers: the session is over.
                    let session = self.upstream(id).session.expect("it has a link");
                    self.fenced(id, session);
                }
            }
        }
    }

    fn upstream_said(&mut self, id: ProcessId, message: Message) {
        let Some(session) = self.upstream(id).session else { return };
        match message {
            Message::ToWorker(message) => {
                self.worker_event(id, Event::ControllerMessageReceived { session, message });
            }
            Message::ToClient(message) => {
                let event =
                    marline_core::client::Event::ControllerMessageReceived { session, message };
                self.client_event(id, event);
            }
            Message::FromClient(_)
            | Message::FromWorker(_)
            | Message::ToHost(_)
            | Message::FromHost(_) => {
                panic!("the controller does not say {message:?}")
            }
        }
    }

    pub fn upstream_packet(
        &mut self,
        id: ProcessId,
        connection: ConnectionId,
        packet: marline_core::link::Packet<Message>,
    ) {
        let mut out = Vec::new();
        let Some(end) = &mut self.upstream(id).end else { return };
        end.link.received(connection.0, packet, &mut out);
        end.link.check_invariants();
        self.upstream_outputs(id, out);
        let mut out = Vec::new();
        if let Some(end) = &mut self.upstream(id).end {
            end.link.acknowledge(&mut out);
        }
        self.upstream_outputs(id, out);
    }

    pub fn upstream_broken(&mut self, id: ProcessId, connection: ConnectionId) -> bool {
        let Some(end) = &mut self.upstream(id).end else { return false };
        if end.connection != Some(connection) {
            return false;
        }
        end.connection = None;
        end.link.disconnected(connection.0);
        self.soon(id, Duration::from_millis(500), Input::Connect { host: None });
        true
    }

    /// Tells the machine that the controller considers a session over.
    pub fn fenced(&mut self, id: ProcessId, session: Session) {
        match &self.processes[id.0].role {
            ProcessShell::Worker(_) => self.worker_event(id, Event::Fenced { session }),
            ProcessShell::Client(_) => {
                self.client_event(id, marline_core::client::Event::Fenced { session })
            }
            ProcessShell::Controller(_) => panic!("a controller is never fenced"),
        }
    }

    /// Drops the link of a session that is over, and joins again.
    pub fn leave_upstream(&mut self, id: ProcessId) {
        let upstream = self.upstream(id);
        upstream.session = None;
        let end = upstream.end.take();
        let request = upstream.request + 1;
        if let Some(connection) = end.and_then(|end| end.connection) {
            self.break_connection(connection);
        }
        self.soon(id, Duration::from_secs(1), Input::Join { request });
    }

    pub fn worker_input(&mut self, id: ProcessId, input: Input) {
        match input {
            Input::Frame { connection, from, frame } => {
                self.worker_frame(id, connection, from, frame)
            }
            Input::Broken { connection } => {
                if self.upstream_broken(id, connection) {
                    return;
                }
                let shell = self.worker_shell(id);
                if let Some((session, _)) = shell.carries.remove(&connection)
                    && let Some(end) = shell.callers.get_mut(&session)
                    && end.connection == Some(connection)
                {
                    end.connection = None;
                    end.link.disconnected(connection.0);
                }
            }
            Input::Wake => self.worker_event(id, Event::TimePassed),
            Input::Connect { .. } => self.connect_upstream(id),
            Input::Join { request } => self.join(id, request),
            Input::Executor(event) => self.worker_event(id, event),
            Input::Drain => {
                self.worker_event(id, Event::DrainRequested { grace: Duration::from_secs(5) })
            }
            Input::UserActs | Input::Take { .. } | Input::Died { .. } => {
                panic!("not for a worker: {input:?}")
            }
        }
    }

    fn worker_frame(
        &mut self,
        id: ProcessId,
        connection: ConnectionId,
        from: ProcessId,
        frame: Frame,
    ) {
        match frame {
            Frame::Opened { request, session, terms } => {
                if let Some(asked_at) = self.opened(id, request, session) {
                    self.worker_event(id, Event::Joined { session, terms, asked_at });
                    self.connect_upstream(id);
                }
            }
            Frame::Ping { session, ping } => {
                self.worker_event(id, Event::PingReceived { session, ping })
            }
            Frame::Fence { session } => self.fenced(id, session),
            Frame::Attach { session, host } => {
                let host = host.expect("callers say whom they call");
                let shell = self.worker_shell(id);
                let Some(mine) = shell.upstream.session.filter(|mine| *mine == host) else {
                    return self.transmit(connection, id, from, Frame::NotMe { host });
                };
                let end =
                    shell.callers.entry(session).or_insert_with(|| LinkEnd::new(mine.epoch.0));
                let mut out = Vec::new();
                if !end.link.connected(connection.0, &mut out) {
                    return self.break_connection(connection);
                }
                end.connection = Some(connection);
                shell.carries.insert(connection, (session, from));
                self.caller_outputs(id, session, out);
            }
            Frame::Packet(packet) => {
                let upstream =
                    self.worker_shell(id).upstream.end.as_ref().and_then(|end| end.connection);
                if upstream == Some(connection) {
                    return self.upstream_packet(id, connection, packet);
                }
                let shell = self.worker_shell(id);
                let Some((session, _)) = shell.carries.get(&connection).copied() else { return };
                let Some(end) = shell.callers.get_mut(&session) else { return };
                let mut out = Vec::new();
                end.link.received(connection.0, packet, &mut out);
                end.link.check_invariants();
                self.caller_outputs(id, session, out);
                let mut out = Vec::new();
                if let Some(end) = self.worker_shell(id).callers.get_mut(&session) {
                    end.link.acknowledge(&mut out);
                }
                self.caller_outputs(id, session, out);
            }
            Frame::Open { .. } | Frame::Pong { .. } | Frame::Close { .. } | Frame::NotMe { .. } => {
                panic!("not for a worker: {frame:?}")
            }
        }
    }

    fn caller_outputs(&mut self, id: ProcessId, session: Session, out: Vec<LinkEffect<Message>>) {
        for output in out {
            match output {
                LinkEffect::Transmit(packet) => {
                    let shell = self.worker_shell(id);
                    let connection = shell.callers.get(&session).and_then(|end| end.connection);
                    if let Some(connection) = connection
                        && let Some((_, to)) = shell.carries.get(&connection).copied()
                    {
                        self.transmit(connection, id, to, Frame::Packet(packet));
                    }
                }
                LinkEffect::Deliver(Message::ToHost(message)) => {
                    self.worker_event(id, Event::CallerMessageReceived { session, message });
                }
                LinkEffect::Deliver(message) => panic!("a caller does not say {message:?}"),
                LinkEffect::Lost { .. } => panic!("a session has one incarnation"),
                // A caller that was fenced here and does not know it yet continues its old
                // numbering.
                LinkEffect::Break(_) => {
                    let connection = self
                        .worker_shell(id)
                        .callers
                        .remove(&session)
                        .and_then(|end| end.connection);
                    if let Some(connection) = connection {
                        self.break_connection(connection);
                    }
                }
            }
        }
    }

    pub fn worker_event(&mut self, id: ProcessId, event: Event) {
        let now = self.processes[id.0].clock.read(self.now);
        let is_checked = self.is_checked();
        let shell = self.worker_shell(id);
        let mut effects = Vec::new();
        shell.machine.handle(now, event.clone(), &mut effects);
        if is_checked {
            shell.machine.check_invariants();
        }
        let lease = shell.machine.lease_ends_at();
        self.share_lease(id, lease);
        for effect in effects {
            self.worker_effect(id, effect);
        }
        self.store_after(id, &event);
    }

    fn worker_effect(&mut self, id: ProcessId, effect: Effect) {
        match effect {
            Effect::Pong(pong) => {
                if let Some(session) = self.worker_shell(id).upstream.session {
                    self.transmit_upstream(id, Frame::Pong { session, pong });
                }
            }
            Effect::ToController(message) => self.send_upstream(id, Message::FromWorker(message)),
            Effect::ToCaller { to, message } => {
                let mut out = Vec::new();
                if let Some(end) = self.worker_shell(id).callers.get_mut(&to) {
                    end.link.send(Message::FromHost(message), 100, &mut out);
                }
                self.caller_outputs(id, to, out);
            }
            Effect::FenceCaller(session) => {
                if let Some(end) = self.worker_shell(id).callers.remove(&session)
                    && let Some(connection) = end.connection
                {
                    self.break_connection(connection);
                }
            }
            Effect::Spawn { executor, .. } => self.spawn(id, executor),
            Effect::Run { executor, spec, attempt, values, .. } => {
                self.read_values(id, &values);
                self.exec_run(id, executor, spec, attempt)
            }
            Effect::Construct { executor, spec, epoch, checkpoints, .. } => {
                self.exec_construct(id, executor, spec, epoch, checkpoints.first())
            }
            Effect::Call { executor, spec, attempt, values } => {
                self.read_values(id, &values);
                self.exec_call(id, executor, spec, attempt)
            }
            Effect::Interrupt { executor, task, alone: _ } => {
                self.exec_interrupt(id, executor, task)
            }
            Effect::ReportConsumed { executor, task, count } => {
                self.exec_took(id, executor, task, count)
            }
            Effect::RefuseBlock { executor, task: _, limit: _ } => self.exec_go_on(id, executor),
            Effect::Kill { executor } => self.exec_kill(id, executor),
            Effect::Retain { .. }
            | Effect::Forget { .. }
            | Effect::Located { .. }
            | Effect::Pull { .. }
            | Effect::Erase { .. } => {
                self.store_effect(id, effect);
            }
            Effect::Stopped(_) => {
                // All its work is gone, and so are the links of its callers.
                let shell = self.worker_shell(id);
                let connections: Vec<ConnectionId> =
                    std::mem::take(&mut shell.carries).into_keys().collect();
                shell.callers.clear();
                shell.store = Store::default();
                for connection in connections {
                    self.break_connection(connection);
                }
                self.leave_upstream(id);
            }
            Effect::Drained => self.worker_shell(id).drained = true,
        }
    }
}
