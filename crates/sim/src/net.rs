//! The network: connections that keep the order of frames and delay them. They are cut in one
//! direction or in both, and break without both ends noticing at once.

use crate::process::{Input, Message, ProcessId};
use crate::world::{SimEvent, World};
use marline_core::controller::Role;
use marline_core::id::{Session, SessionId};
use marline_core::lease::{LeaseTerms, Ping, Pong};
use marline_core::link::Packet;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The number of a connection. Numbers grow; 0 stands for requests outside any connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnectionId(pub u64);

impl ConnectionId {
    /// Requests outside any connection.
    pub const NONE: ConnectionId = ConnectionId(0);
}

/// A frame that travels between processes.
#[derive(Clone, Debug)]
pub enum Frame {
    /// A process asks to join.
    Open {
        id: SessionId,
        request: u64,
        role: Role,
    },
    /// The answer to `Open`: the process has joined.
    Opened {
        request: u64,
        session: Session,
        terms: LeaseTerms,
    },
    /// The first frame of a connection: the session whose link it carries, and the session of the
    /// host that it calls.
    Attach {
        session: Session,
        host: Option<Session>,
    },
    /// The answer to `Attach` if the other end has another session now.
    NotMe {
        host: Session,
    },
    /// A packet of the link.
    Packet(Packet<Message>),
    Ping {
        session: Session,
        ping: Ping,
    },
    Pong {
        session: Session,
        pong: Pong,
    },
    /// This session is over.
    Fence {
        session: Session,
    },
    /// The process of this session leaves.
    Close {
        session: Session,
    },
}

#[derive(Debug)]
pub struct Connection {
    pub ends: [ProcessId; 2],
    /// When the last frame in each direction arrives. No frame overtakes another.
    last: [u64; 2],
}

#[derive(Debug, Default)]
pub struct Network {
    pub connections: BTreeMap<ConnectionId, Connection>,
    next: u64,
    /// The directions that are cut now.
    pub cut: BTreeSet<(ProcessId, ProcessId)>,
    /// The frames that wait for a cut to heal.
    held: Vec<(ProcessId, ProcessId, ConnectionId, Frame)>,
    /// The longest time that a frame takes now.
    pub delay: Duration,
}

impl Network {
    pub fn new(delay: Duration) -> Network {
        Network { delay, ..Network::default() }
    }
}

impl World {
    /// Connects two processes. The first frame says what the connection is for.
    pub fn connect(&mut self, from: ProcessId, to: ProcessId) -> ConnectionId {
        self.net.next += 1;
        let id = ConnectionId(self.net.next);
        self.net.connections.insert(id, Connection { ends: [from, to], last: [0, 0] });
        id
    }

    /// Sends a frame. On a broken connection it is lost.
    pub fn transmit(
        &mut self,
        connection: ConnectionId,
        from: ProcessId,
        to: ProcessId,
        frame: Frame,
    ) {
        if connection != ConnectionId::NONE && !self.net.connections.contains_key(&connection) {
            return;
        }
        if self.net.cut.contains(&(from, to)) {
            return self.net.held.push((from, to, connection, frame));
        }
        let mut at = self.now + 20_000 + self.random.up_to(self.net.delay).as_nanos() as u64;
        if let Some(connection) = self.net.connections.get_mut(&connection) {
            let direction = usize::from(connection.ends[0] != from);
            at = at.max(connection.last[direction] + 1);
            connection.last[direction] = at;
        }
        // Requests outside a connection may arrive twice, the second time much later.
        if connection == ConnectionId::NONE && self.faults && self.random.one_in(6) {
            let later = at + self.random.up_to(Duration::from_secs(20)).as_nanos() as u64;
            let input = Input::Frame { connection, from, frame: frame.clone() };
            self.schedule(later, SimEvent::Arrive { to, input });
        }
        self.schedule(at, SimEvent::Arrive { to, input: Input::Frame { connection, from, frame } });
    }

    /// Handles a frame for a process that is dead: the connection breaks, and the sender notices
    /// that later.
    pub fn arrived_nowhere(&mut self, connection: ConnectionId) {
        self.break_connection(connection);
    }

    /// Breaks a connection. Each end notices at a time of its own.
    pub fn break_connection(&mut self, id: ConnectionId) {
        let Some(connection) = self.net.connections.remove(&id) else { return };
        for to in connection.ends {
            let at = self.now + self.random.up_to(Duration::from_millis(300)).as_nanos() as u64;
            self.schedule(at, SimEvent::Arrive { to, input: Input::Broken { connection: id } });
        }
    }

    /// Ends a cut in one direction. The frames that waited for its end arrive late.
    pub fn heal(&mut self, from: ProcessId, to: ProcessId) {
        self.net.cut.remove(&(from, to));
        let (released, held) = std::mem::take(&mut self.net.held)
            .into_iter()
            .partition(|(a, b, ..)| (*a, *b) == (from, to));
        self.net.held = held;
        let released: Vec<(ProcessId, ProcessId, ConnectionId, Frame)> = released;
        for (from, to, connection, frame) in released {
            self.transmit(connection, from, to, frame);
        }
    }

    pub fn heal_all(&mut self) {
        for (from, to) in std::mem::take(&mut self.net.cut) {
            self.heal(from, to);
        }
    }
}
