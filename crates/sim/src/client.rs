//! The process of a client: its machine, its link to the controller, a link to every worker that it
//! calls, and its user.

use crate::net::{ConnectionId, Frame};
use crate::process::{Input, LinkEnd, Message, ProcessId, ProcessShell};
use crate::user::User;
use crate::worker::Upstream;
use crate::world::World;
use marline_core::client::{Client, Effect, Event};
use marline_core::id::{Session, SessionId};
use marline_core::link::LinkEffect;
use marline_core::message::{AttemptId, ToHost};
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Debug)]
pub struct ClientShell {
    pub machine: Client,
    pub id: SessionId,
    pub upstream: Upstream,
    pub hosts: BTreeMap<Session, Host>,
    pub user: User,
    /// Whether this is the [fuzz client](crate::fuzz_client), which has no user and sends random
    /// messages.
    pub is_fuzz_client: bool,
}

#[derive(Debug)]
pub struct Host {
    end: LinkEnd,
    process: ProcessId,
}

impl ClientShell {
    pub fn new(id: ProcessId) -> ClientShell {
        ClientShell {
            machine: Client::new(),
            id: SessionId::from_u128(id.0 as u128),
            upstream: Upstream::default(),
            hosts: BTreeMap::new(),
            user: User::default(),
            is_fuzz_client: false,
        }
    }
}

impl World {
    pub fn client_shell(&mut self, id: ProcessId) -> &mut ClientShell {
        match &mut self.processes[id.0].role {
            ProcessShell::Client(shell) => shell,
            ProcessShell::Controller(_) | ProcessShell::Worker(_) => panic!("{id:?} is no client"),
        }
    }

    pub fn client_input(&mut self, id: ProcessId, input: Input) {
        match input {
            Input::Frame { connection, frame, .. } => self.client_frame(id, connection, frame),
            Input::Broken { connection } => {
                if !self.upstream_broken(id, connection) {
                    self.host_broken(id, connection);
                }
            }
            Input::Wake => self.client_event(id, Event::TimePassed),
            Input::Connect { host: None } => self.connect_upstream(id),
            Input::Connect { host: Some(host) } => self.connect_host(id, host),
            Input::Join { request } => self.join(id, request),
            Input::UserActs if self.client_shell(id).is_fuzz_client => self.make_mischief(id),
            Input::UserActs => self.user_acts(id),
            Input::Take { task } => self.take(id, task),
            Input::Executor(_) | Input::Died { .. } | Input::Drain => {
                panic!("not for a client: {input:?}")
            }
        }
    }

    fn client_frame(&mut self, id: ProcessId, connection: ConnectionId, frame: Frame) {
        match frame {
            Frame::Opened { request, session, terms } => {
                if let Some(asked_at) = self.opened(id, request, session) {
                    self.client_event(id, Event::Joined { session, terms, asked_at });
                    self.connect_upstream(id);
                }
            }
            Frame::Ping { session, ping } => {
                self.client_event(id, Event::PingReceived { session, ping })
            }
            Frame::Fence { session } => self.fenced(id, session),
            Frame::NotMe { host } => self.drop_host(id, host, Vec::new()),
            Frame::Packet(packet) => {
                let upstream =
                    self.client_shell(id).upstream.end.as_ref().and_then(|end| end.connection);
                if upstream == Some(connection) {
                    return self.upstream_packet(id, connection, packet);
                }
                let Some(host) = self.host_on(id, connection) else { return };
                let end = &mut self.client_shell(id).hosts.get_mut(&host).expect("it is there").end;
                let mut out = Vec::new();
                end.link.received(connection.0, packet, &mut out);
                end.link.check_invariants();
                self.host_outputs(id, host, out);
                let mut out = Vec::new();
                if let Some(host) = self.client_shell(id).hosts.get_mut(&host) {
                    host.end.link.acknowledge(&mut out);
                }
                self.host_outputs(id, host, out);
            }
            Frame::Open { .. }
            | Frame::Attach { .. }
            | Frame::Pong { .. }
            | Frame::Close { .. } => {
                panic!("not for a client: {frame:?}")
            }
        }
    }

    fn host_on(&mut self, id: ProcessId, connection: ConnectionId) -> Option<Session> {
        let hosts = &self.client_shell(id).hosts;
        hosts
            .iter()
            .find(|(_, host)| host.end.connection == Some(connection))
            .map(|(host, _)| *host)
    }

    fn host_broken(&mut self, id: ProcessId, connection: ConnectionId) {
        let Some(session) = self.host_on(id, connection) else { return };
        let host = self.client_shell(id).hosts.get_mut(&session).expect("it is there");
        host.end.connection = None;
        host.end.link.disconnected(connection.0);
        self.soon(id, Duration::from_millis(500), Input::Connect { host: Some(session) });
    }

    fn connect_host(&mut self, id: ProcessId, session: Session) {
        let Some(mine) = self.client_shell(id).upstream.session else { return };
        let Some(host) = self.client_shell(id).hosts.get(&session) else { return };
        if host.end.connection.is_some() {
            return;
        }
        let process = host.process;
        let connection = self.connect(id, process);
        let host = self.client_shell(id).hosts.get_mut(&session).expect("it is there");
        host.end.connection = Some(connection);
        let mut out = Vec::new();
        assert!(
            host.end.link.connected(connection.0, &mut out),
            "connections are numbered upwards"
        );
        self.transmit(
            connection,
            id,
            process,
            Frame::Attach { session: mine, host: Some(session) },
        );
        self.host_outputs(id, session, out);
    }

    fn host_outputs(&mut self, id: ProcessId, session: Session, out: Vec<LinkEffect<Message>>) {
        for output in out {
            match output {
                LinkEffect::Transmit(packet) => {
                    if let Some(host) = self.client_shell(id).hosts.get(&session)
                        && let Some(connection) = host.end.connection
                    {
                        let to = host.process;
                        self.transmit(connection, id, to, Frame::Packet(packet));
                    }
                }
                LinkEffect::Deliver(Message::FromHost(message)) => {
                    self.client_event(id, Event::HostMessageReceived { host: session, message });
                }
                LinkEffect::Deliver(message) => panic!("a host does not say {message:?}"),
                LinkEffect::Lost { unsent, .. } => self.drop_host(id, session, unsent),
                // The worker started over, and numbers its messages from the beginning.
                LinkEffect::Break(_) => {}
            }
        }
    }

    /// Drops the link to a host, since the process at the other end has another session than the
    /// one that was called.
    fn drop_host(&mut self, id: ProcessId, session: Session, mut unsent: Vec<Message>) {
        if let Some(host) = self.client_shell(id).hosts.remove(&session) {
            if let Some(connection) = host.end.connection {
                self.break_connection(connection);
            }
            unsent.extend(host.end.link.into_lost().0);
        }
        let unsent = unsent.into_iter().filter_map(tried).collect();
        self.client_event(id, Event::HostClosed { host: session, unsent });
    }

    pub fn client_event(&mut self, id: ProcessId, event: Event) {
        let now = self.processes[id.0].clock.read(self.now);
        let is_checked = self.is_checked();
        let shell = self.client_shell(id);
        let mut effects = Vec::new();
        shell.machine.handle(now, event, &mut effects);
        if is_checked {
            shell.machine.check_invariants();
        }
        self.client_effects(id, effects);
    }

    pub fn client_effects(&mut self, id: ProcessId, effects: Vec<Effect>) {
        for effect in effects {
            self.client_effect(id, effect);
        }
    }

    fn client_effect(&mut self, id: ProcessId, effect: Effect) {
        match effect {
            Effect::Pong(pong) => {
                if let Some(session) = self.client_shell(id).upstream.session {
                    self.transmit_upstream(id, Frame::Pong { session, pong });
                }
            }
            Effect::ToController(message) => self.send_upstream(id, Message::FromClient(message)),
            Effect::ToHost { host, address, message } => {
                let Some(mine) = self.client_shell(id).upstream.session else { return };
                let process = ProcessId(address.parse().expect("an address is a process"));
                let shell = self.client_shell(id);
                let new = !shell.hosts.contains_key(&host);
                let end = || Host { end: LinkEnd::new(mine.epoch.0), process };
                let link = &mut shell.hosts.entry(host).or_insert_with(end).end.link;
                let mut out = Vec::new();
                link.send(Message::ToHost(message), 100, &mut out);
                self.host_outputs(id, host, out);
                if new {
                    self.connect_host(id, host);
                }
            }
            Effect::CloseHost { host } => self.drop_host(id, host, Vec::new()),
            Effect::CreditGranted | Effect::Synced { .. } | Effect::Warn(_) | Effect::Show(_) => {}
            Effect::FirstInstanceReady { .. } => {} // The user does not ask for this.
            Effect::Ended { task, outcome } => self.user_ended(id, task, outcome),
            Effect::Yielded { task, index, value } => self.item_arrived(id, task, index, value),
            Effect::ObjectReady { object, value } => self.value_arrived(id, object, value),
            Effect::Located { .. } => {} // The user has no object store, and reads no data.
            Effect::ActorCreated { requested, actor } => self.user_created(id, requested, actor),
            Effect::ActorFound { actor, .. } => {
                if let Ok(actor) = actor {
                    self.client_shell(id).user.actors.push(actor.id);
                }
            }
            Effect::Stopped(_) => {
                let shell = self.client_shell(id);
                shell.hosts.clear();
                shell.user.end_session();
                self.leave_upstream(id);
            }
        }
    }
}

/// Returns the attempt of the call that a message makes, if it is a call.
fn tried(message: Message) -> Option<AttemptId> {
    match message {
        Message::ToHost(ToHost::Call { spec, attempt, .. }) => {
            Some(AttemptId { task: spec.id, attempt })
        }
        _ => None,
    }
}
