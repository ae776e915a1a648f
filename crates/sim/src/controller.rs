//! The process of the controller: its machine, and a link for every session.

use crate::net::{ConnectionId, Frame};
use crate::process::{Input, LinkEnd, Message, ProcessId, ProcessShell};
use crate::world::World;
use marline_core::controller::{Config, Controller, Effect, Event};
use marline_core::id::{ControllerEpoch, Session};
use marline_core::lease::LeaseTerms;
use marline_core::link::{LinkEffect, Packet};
use marline_core::random::Random;
use std::collections::BTreeMap;
use std::time::Duration;

/// The lease of every session.
pub const LEASE: Duration = Duration::from_secs(30);

/// How long workers may still run their work when the controller shuts down.
const GRACE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct ControllerShell {
    pub machine: Controller,
    /// The number of this controller process: links use it as their incarnation.
    pub incarnation: u64,
    terms: LeaseTerms,
    pub links: BTreeMap<Session, LinkEnd>,
    /// Each connection, with the session whose link it carries and the process at its other end.
    carries: BTreeMap<ConnectionId, (Session, ProcessId)>,
    /// The process that asks to join, and the number of its request, while the machine decides.
    asking: Option<(ProcessId, u64)>,
}

impl ControllerShell {
    pub fn new(incarnation: u64, random: &mut Random) -> ControllerShell {
        let max_pending_tasks = [60, 8, 1_000][random.below(3) as usize];
        let submit_window = [16, 1, 64][random.below(3) as usize];
        let terms = LeaseTerms::of(LEASE);
        let config = Config {
            terms,
            max_pending_tasks,
            submit_window,
            submit_window_bytes: [64 << 20, 1, 200][random.below(3) as usize],
            max_session_bytes: if random.one_in(8) { 100 } else { 512 << 20 },
            result_ttl: Duration::from_secs(20),
            max_result_bytes: [1 << 30, 20_000][random.below(2) as usize],
            history: [5_000, 5_000, 3][random.below(3) as usize],
            epoch: ControllerEpoch(incarnation + 1),
            seed: incarnation,
            ..Config::default()
        };
        ControllerShell {
            machine: Controller::new(config),
            incarnation,
            terms,
            links: BTreeMap::new(),
            carries: BTreeMap::new(),
            asking: None,
        }
    }
}

impl World {
    pub fn controller_shell(&mut self, id: ProcessId) -> &mut ControllerShell {
        match &mut self.processes[id.0].role {
            ProcessShell::Controller(shell) => shell,
            ProcessShell::Worker(_) | ProcessShell::Client(_) => panic!("{id:?} is no controller"),
        }
    }

    pub fn controller_input(&mut self, id: ProcessId, input: Input) {
        match input {
            Input::Frame { connection, from, frame } => {
                self.controller_frame(id, connection, from, frame)
            }
            Input::Broken { connection } => {
                let shell = self.controller_shell(id);
                if let Some((session, _)) = shell.carries.remove(&connection)
                    && let Some(end) = shell.links.get_mut(&session)
                    && end.connection == Some(connection)
                {
                    end.connection = None;
                    end.link.disconnected(connection.0);
                }
            }
            Input::Wake => self.controller_event(id, Event::TimePassed),
            Input::Died { session } => {
                let how = "killed by signal 9".into();
                self.controller_event(id, Event::ProcessDied { session, how });
            }
            Input::Connect { .. }
            | Input::Join { .. }
            | Input::Executor(_)
            | Input::UserActs
            | Input::Take { .. } => {
                panic!("not for a controller: {input:?}")
            }
            Input::Drain => {
                let now = self.processes[id.0].clock.read(self.now);
                let machine = &mut self.controller_shell(id).machine;
                let mut effects = Vec::new();
                machine.shut_down(now, GRACE, &mut effects);
                machine.check_invariants();
                for effect in effects {
                    self.controller_effect(id, effect);
                }
            }
        }
    }

    fn controller_frame(
        &mut self,
        id: ProcessId,
        connection: ConnectionId,
        from: ProcessId,
        frame: Frame,
    ) {
        match frame {
            Frame::Open { id: session, request, role } => {
                self.controller_shell(id).asking = Some((from, request));
                self.controller_event(
                    id,
                    Event::JoinRequested { id: session, request, local: false, role },
                );
                self.controller_shell(id).asking = None;
            }
            Frame::Attach { session, .. } => {
                let shell = self.controller_shell(id);
                let Some(end) = shell.links.get_mut(&session) else {
                    return self.transmit(connection, id, from, Frame::Fence { session });
                };
                let mut out = Vec::new();
                if !end.link.connected(connection.0, &mut out) {
                    return self.break_connection(connection);
                }
                end.connection = Some(connection);
                shell.carries.insert(connection, (session, from));
                self.controller_outputs(id, session, out);
            }
            Frame::Packet(packet) => {
                let shell = self.controller_shell(id);
                let Some((session, _)) = shell.carries.get(&connection).copied() else { return };
                let Some(end) = shell.links.get_mut(&session) else {
                    return self.stale_packet(id, session, packet);
                };
                let mut out = Vec::new();
                end.link.received(connection.0, packet, &mut out);
                end.link.check_invariants();
                self.controller_outputs(id, session, out);
                let mut out = Vec::new();
                if let Some(end) = self.controller_shell(id).links.get_mut(&session) {
                    end.link.acknowledge(&mut out);
                }
                self.controller_outputs(id, session, out);
            }
            Frame::Pong { session, pong } => {
                self.controller_event(id, Event::PongReceived { session, pong });
            }
            Frame::Close { session } => self.controller_event(id, Event::SessionClosed { session }),
            Frame::Opened { .. }
            | Frame::Ping { .. }
            | Frame::Fence { .. }
            | Frame::NotMe { .. } => {
                panic!("not for a controller: {frame:?}")
            }
        }
    }

    /// Delivers a message of a session that is over, which arrived late. The machine must ignore
    /// it.
    fn stale_packet(&mut self, id: ProcessId, session: Session, packet: Packet<Message>) {
        let Packet::Data { message, .. } = packet else { return };
        let event = match message {
            Message::FromClient(message) => Event::ClientMessageReceived { session, message },
            Message::FromWorker(message) => Event::WorkerMessageReceived { session, message },
            message => panic!("not for a controller: {message:?}"),
        };
        self.controller_event(id, event);
    }

    fn controller_outputs(
        &mut self,
        id: ProcessId,
        session: Session,
        out: Vec<LinkEffect<Message>>,
    ) {
        for output in out {
            match output {
                LinkEffect::Transmit(packet) => {
                    let shell = self.controller_shell(id);
                    let connection = shell.links.get(&session).and_then(|end| end.connection);
                    if let Some(connection) = connection
                        && let Some((_, to)) = shell.carries.get(&connection).copied()
                    {
                        self.transmit(connection, id, to, Frame::Packet(packet));
                    }
                }
                LinkEffect::Deliver(Message::FromClient(message)) => {
                    self.controller_event(id, Event::ClientMessageReceived { session, message });
                }
                LinkEffect::Deliver(Message::FromWorker(message)) => {
                    self.controller_event(id, Event::WorkerMessageReceived { session, message });
                }
                LinkEffect::Deliver(message) => panic!("not for a controller: {message:?}"),
                LinkEffect::Lost { .. } => panic!("a session has one incarnation"),
                LinkEffect::Break(rule) => panic!("the link of {session} broke: {rule}"),
            }
        }
    }

    pub fn controller_event(&mut self, id: ProcessId, event: Event) {
        let now = self.processes[id.0].clock.read(self.now);
        self.oracle_before(id, &event);
        let shell = self.controller_shell(id);
        let mut effects = Vec::new();
        shell.machine.handle(now, event.clone(), &mut effects);
        if self.is_checked() {
            self.controller_shell(id).machine.check_invariants();
        }
        self.oracle_after(id, &event, &effects);
        if self.report.steps.is_multiple_of(16) {
            self.check_copies();
        }
        for effect in effects {
            self.controller_effect(id, effect);
        }
    }

    fn controller_effect(&mut self, id: ProcessId, effect: Effect) {
        match effect {
            Effect::OpenSession(session) => {
                let shell = self.controller_shell(id);
                shell.links.insert(session, LinkEnd::new(shell.incarnation));
                let (to, request) = shell.asking.expect("only a process that asks is let in");
                let frame = Frame::Opened { request, session, terms: shell.terms };
                self.transmit(ConnectionId::NONE, id, to, frame);
            }
            Effect::EndSession { session, .. } => {
                let shell = self.controller_shell(id);
                if let Some(end) = shell.links.remove(&session)
                    && let Some(connection) = end.connection
                    && let Some((_, to)) = shell.carries.get(&connection).copied()
                {
                    self.transmit(connection, id, to, Frame::Fence { session });
                }
            }
            Effect::Fence(session) => {
                let shell = self.controller_shell(id);
                let carried = shell.carries.iter().find(|(_, (carried, _))| *carried == session);
                if let Some((connection, (_, to))) = carried.map(|(c, t)| (*c, *t)) {
                    self.transmit(connection, id, to, Frame::Fence { session });
                }
            }
            Effect::Ping { to: session, ping } => {
                let shell = self.controller_shell(id);
                if let Some(connection) = shell.links.get(&session).and_then(|end| end.connection)
                    && let Some((_, to)) = shell.carries.get(&connection).copied()
                {
                    self.transmit(connection, id, to, Frame::Ping { session, ping });
                }
            }
            Effect::ToClient { to, message } => {
                self.controller_send(id, to, Message::ToClient(message))
            }
            Effect::ToWorker { to, message } => {
                self.controller_send(id, to, Message::ToWorker(message))
            }
            Effect::WakeTaskWaiters(_) => {}
            Effect::AllowExit => self.controller_ends(id),
        }
    }

    fn controller_send(&mut self, id: ProcessId, to: Session, message: Message) {
        let shell = self.controller_shell(id);
        let Some(end) = shell.links.get_mut(&to) else { return };
        let mut out = Vec::new();
        end.link.send(message, 100, &mut out);
        self.controller_outputs(id, to, out);
    }
}
