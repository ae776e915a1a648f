//! Links to other processes: between which machines each carries messages, and on which connection.
//!
//! The rules of a link (numbers, acknowledgements, resuming) are in [`marline_core::link`]; the
//! sockets are in `net`.

use super::DeferredAction;
use super::output::OutputInFlight;
use super::{NodeState, Shell, Todo};
use crate::net::outbox::{Outbox, SendPriority};
use crate::runtime_log::NET;
use marline_core::client;
use marline_core::controller;
use marline_core::error::Error;
use marline_core::id::Session;
use marline_core::link::{Incarnation, Link, LinkEffect, Packet};
use marline_core::message::{AttemptId, FromClient, FromWorker, ToClient, ToHost};
use marline_core::worker;
use marline_wire::frame::{Direction, Frame};
use marline_wire::message::Message;
use std::fmt;
use tracing::debug;

/// This process's end of a link.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum LinkId {
    /// From this process's controller to a session elsewhere.
    Session(Session),
    /// From a worker or a client of this process to the controller elsewhere.
    Upstream(Session),
    /// From a client of this process to a worker elsewhere: the client's session, then the
    /// worker's.
    Host(Session, Session),
    /// From a worker of this process to a client elsewhere: the worker's session, then the
    /// client's.
    Caller(Session, Session),
}

impl fmt::Display for LinkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkId::Session(session) => write!(f, "to session {session}"),
            LinkId::Upstream(session) => write!(f, "of session {session} to its controller"),
            LinkId::Host(me, host) => write!(f, "of client {me} to worker {host}"),
            LinkId::Caller(host, me) => write!(f, "of worker {host} to client {me}"),
        }
    }
}

/// A link with at most this many unacknowledged messages is in conversation, and each frame is
/// written at once. With more it is in full flow, and frames are collected.
const FEW: usize = 8;

/// A link, and its current connection.
pub(crate) struct LinkEnd {
    link: Link<Message>,
    connection: Option<(u64, Outbox)>,
    output: OutputInFlight,
}

impl LinkEnd {
    pub fn new(incarnation: u64) -> LinkEnd {
        let link = Link::new(Incarnation(incarnation));
        LinkEnd { link, connection: None, output: OutputInFlight::default() }
    }

    /// Puts a frame into the outbox. Returns the action that flushes it, if it needs one.
    fn transmit(&self, frame: Frame, priority: SendPriority) -> Option<DeferredAction> {
        let (_, outbox) = self.connection.as_ref()?;
        let at_once = self.link.unacknowledged() <= FEW;
        let flush = || DeferredAction::Flush { outbox: outbox.clone(), at_once };
        outbox.push(frame, priority).then(flush)
    }
}

impl NodeState {
    /// Returns the direction in which messages that arrive on this link travel.
    pub(crate) fn direction(&self, which: LinkId) -> Direction {
        match which {
            LinkId::Session(session) => match self.shells.get(&session) {
                Some(Shell::RemoteClient) => Direction::ClientToController,
                _ => Direction::WorkerToController,
            },
            LinkId::Upstream(session) => match self.shells.get(&session) {
                Some(Shell::Client(_)) => Direction::ControllerToClient,
                _ => Direction::ControllerToWorker,
            },
            LinkId::Host(..) => Direction::HostToCaller,
            LinkId::Caller(..) => Direction::CallerToHost,
        }
    }

    /// Attaches a new connection to a link. Returns `false` if there is no such link, or if a later
    /// connection came before this one.
    pub(crate) fn link_connected(&mut self, which: LinkId, number: u64, outbox: Outbox) -> bool {
        let Some(end) = self.links.get_mut(&which) else { return false };
        let mut out = Vec::new();
        if !end.link.connected(number, &mut out) {
            return false;
        }
        if let Some((_, before)) = end.connection.replace((number, outbox)) {
            before.close();
        }
        debug!(target: NET, link = %which, connection = number, "a link is connected");
        self.link_outputs(which, out);
        true
    }

    pub(crate) fn has_link(&self, which: LinkId) -> bool {
        self.links.contains_key(&which)
    }

    pub(crate) fn is_cut_off(&self, session: Session) -> bool {
        self.links.get(&LinkId::Session(session)).is_some_and(|end| end.connection.is_none())
    }

    pub(crate) fn link_disconnected(&mut self, which: LinkId, number: u64) {
        if let Some(end) = self.links.get_mut(&which)
            && end.connection.as_ref().is_some_and(|(current, _)| *current == number)
        {
            debug!(target: NET, link = %which, connection = number, "a link's connection ended");
            end.connection = None;
            end.link.disconnected(number);
        }
    }

    /// Handles a frame that arrived on a link's connection. Fails if the peer broke a rule.
    pub(crate) fn link_received(
        &mut self,
        which: LinkId,
        number: u64,
        frame: Frame,
    ) -> Result<(), Error> {
        match frame {
            Frame::Packet(packet) => self.link_packet(which, number, packet),
            Frame::Ping(ping) => {
                if let LinkId::Upstream(session) = which {
                    match self.shells.get(&session) {
                        Some(Shell::Worker(index)) => {
                            let event = worker::Event::PingReceived { session, ping };
                            self.todo.push_back(Todo::Worker(*index, event));
                        }
                        Some(Shell::Client(index)) => {
                            let event = client::Event::PingReceived { session, ping };
                            self.todo.push_back(Todo::Client(*index, event));
                        }
                        Some(Shell::RemoteClient | Shell::RemoteWorker) | None => {}
                    }
                }
                Ok(())
            }
            Frame::Pong(pong) => {
                if let LinkId::Session(session) = which {
                    let event = controller::Event::PongReceived { session, pong };
                    self.todo.push_back(Todo::Controller(event));
                }
                Ok(())
            }
            Frame::Over { session, .. } => {
                self.link_is_over(which, session);
                Ok(())
            }
            Frame::Attach { .. } => Err(Error::invalid("a connection is attached once")),
        }
    }

    fn link_packet(
        &mut self,
        which: LinkId,
        number: u64,
        packet: Packet<Message>,
    ) -> Result<(), Error> {
        let Some(end) = self.links.get_mut(&which) else { return Ok(()) };
        let mut out = Vec::new();
        end.link.received(number, packet, &mut out);
        if let Some(LinkEffect::Break(rule)) = out.last() {
            return Err(Error::invalid(format!("the link's rules were broken: {rule}")));
        }
        let left_to_say = end.output.dropped_notice(&end.link);
        self.link_outputs(which, out);
        if let Some(message) = left_to_say {
            self.link_send(which, message);
        }
        Ok(())
    }

    /// Acknowledges the messages that were received, after a batch was handled.
    pub(crate) fn link_acknowledge(&mut self, which: LinkId) {
        if let Some(end) = self.links.get_mut(&which) {
            let mut out = Vec::new();
            end.link.acknowledge(&mut out);
            self.link_outputs(which, out);
        }
    }

    /// Sends a message on a link, now or when it is connected. Drops output if too much of it is on
    /// its way.
    pub(super) fn link_send(&mut self, which: LinkId, mut message: Message) {
        if let Some(end) = self.links.get_mut(&which) {
            let bytes = message.encoded_len_hint();
            if !end.output.admits(&mut message, bytes, &end.link) {
                return;
            }
            let mut out = Vec::new();
            end.link.send(message, bytes, &mut out);
            self.link_outputs(which, out);
        }
    }

    /// Sends a frame ahead of everything else, if there is a connection.
    pub(super) fn link_urgent(&mut self, which: LinkId, frame: Frame) {
        if let Some(end) = self.links.get(&which) {
            self.outside.extend(end.transmit(frame, SendPriority::Urgent));
        }
    }

    fn link_outputs(&mut self, which: LinkId, out: Vec<LinkEffect<Message>>) {
        for output in out {
            match output {
                LinkEffect::Transmit(packet) => {
                    if let Some(end) = self.links.get(&which) {
                        let priority = priority(&packet);
                        self.outside.extend(end.transmit(Frame::Packet(packet), priority));
                    }
                }
                LinkEffect::Deliver(message) => self.link_delivered(which, message),
                LinkEffect::Lost { unsent, .. } => self.peer_replaced(which, unsent),
                LinkEffect::Break(_) => {} // `link_packet` handles it.
            }
        }
    }

    fn link_delivered(&mut self, which: LinkId, message: Message) {
        let todo = match (which, message) {
            (LinkId::Session(session), Message::FromClient(message)) => {
                Todo::Controller(controller::Event::ClientMessageReceived { session, message })
            }
            (LinkId::Session(session), Message::FromWorker(message)) => {
                Todo::Controller(controller::Event::WorkerMessageReceived { session, message })
            }
            (LinkId::Upstream(session), Message::ToClient(message)) => {
                match self.shells.get(&session) {
                    Some(Shell::Client(index)) => Todo::Client(
                        *index,
                        client::Event::ControllerMessageReceived { session, message },
                    ),
                    _ => return,
                }
            }
            (LinkId::Upstream(session), Message::ToWorker(message)) => {
                match self.shells.get(&session) {
                    Some(Shell::Worker(index)) => Todo::Worker(
                        *index,
                        worker::Event::ControllerMessageReceived { session, message },
                    ),
                    _ => return,
                }
            }
            (LinkId::Host(me, host), Message::FromHost(message)) => match self.shells.get(&me) {
                Some(Shell::Client(index)) => {
                    Todo::Client(*index, client::Event::HostMessageReceived { host, message })
                }
                _ => return,
            },
            (LinkId::Caller(me, session), Message::ToHost(message)) => match self.shells.get(&me) {
                Some(Shell::Worker(index)) => {
                    Todo::Worker(*index, worker::Event::CallerMessageReceived { session, message })
                }
                _ => return,
            },
            // Decoding lets only messages of the link's direction through.
            (_, message) => panic!("{message:?} travels in another direction"),
        };
        self.todo.push_back(todo);
    }

    /// Handles the peer's message that a session is over: this process's own session, or that of
    /// the worker that it called.
    fn link_is_over(&mut self, which: LinkId, session: Session) {
        match which {
            LinkId::Upstream(mine) if mine == session => self.fence(session),
            LinkId::Host(me, host) if host == session => self.close_host(me, host, Vec::new()),
            LinkId::Session(theirs) if theirs == session => {
                self.todo.push_back(Todo::Controller(controller::Event::SessionClosed { session }));
            }
            LinkId::Host(..) | LinkId::Upstream(_) | LinkId::Session(_) | LinkId::Caller(..) => {}
        }
    }

    /// Queues an event that a session of this process is over.
    pub(super) fn fence(&mut self, session: Session) {
        match self.shells.get(&session) {
            Some(Shell::Worker(index)) => {
                self.todo.push_back(Todo::Worker(*index, worker::Event::Fenced { session }));
            }
            Some(Shell::Client(index)) => {
                self.todo.push_back(Todo::Client(*index, client::Event::Fenced { session }));
            }
            Some(Shell::RemoteClient | Shell::RemoteWorker) | None => {}
        }
    }

    fn peer_replaced(&mut self, which: LinkId, unsent: Vec<Message>) {
        match which {
            LinkId::Upstream(session) => self.fence(session),
            LinkId::Host(me, host) => self.close_host(me, host, unsent),
            LinkId::Session(_) | LinkId::Caller(..) => {}
        }
    }

    /// Ends a client's link to a worker for good. Tells the client which of its calls were never
    /// sent.
    pub(super) fn close_host(&mut self, me: Session, host: Session, mut unsent: Vec<Message>) {
        if let Some(end) = self.links.remove(&LinkId::Host(me, host)) {
            if let Some((_, outbox)) = end.connection {
                outbox.close();
            }
            unsent.extend(end.link.into_lost().0);
        }
        let unsent = unsent.into_iter().filter_map(tried).collect();
        if let Some(Shell::Client(index)) = self.shells.get(&me) {
            self.todo.push_back(Todo::Client(*index, client::Event::HostClosed { host, unsent }));
        }
    }

    /// Ends a link, and tells the peer that the session is over.
    pub(super) fn drop_link(&mut self, which: LinkId, over: Session) {
        if let Some(end) = self.links.remove(&which) {
            let over = Frame::Over { session: over, error: None };
            self.outside.extend(end.transmit(over, SendPriority::Now));
            if let Some((_, outbox)) = end.connection {
                outbox.close();
            }
        }
    }
}

/// Returns how soon a packet must leave. A packet that no process waits for leaves together with
/// one that a process waits for.
fn priority(packet: &Packet<Message>) -> SendPriority {
    let lazy = match packet {
        Packet::Data { message: Message::FromWorker(message), .. } => matches!(
            message,
            FromWorker::Started { .. }
                | FromWorker::CallsEnded(_)
                | FromWorker::Dropped { .. }
                | FromWorker::Printed { .. }
        ),
        Packet::Data { message: Message::FromClient(message), .. } => {
            matches!(message, FromClient::Release { .. } | FromClient::Accept { .. })
        }
        Packet::Data { message: Message::ToClient(message), .. } => {
            matches!(message, ToClient::Printed(_))
        }
        Packet::Data { .. } | Packet::Hello { .. } | Packet::Seen(_) => false,
    };
    if lazy { SendPriority::Lazy } else { SendPriority::Now }
}

/// Returns the attempt of the call that a message makes.
fn tried(message: Message) -> Option<AttemptId> {
    match message {
        Message::ToHost(ToHost::Call { spec, attempt, .. }) => {
            Some(AttemptId { task: spec.id, attempt })
        }
        _ => None,
    }
}
