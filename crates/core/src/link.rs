//! A link: one ordered stream of messages to one peer, over any number of connections.
//!
//! Connections break; a link does not. Each message has a sequence number and is kept until the peer
//! acknowledged it. On every new connection both sides say hello, naming what they have seen; what the
//! other has not seen is transmitted again, and what was seen already is dropped by its receiver. So
//! each message is delivered once, in order, as long as both *incarnations* live. When the peer turns
//! out to be a later incarnation, what was not acknowledged is handed back: its sender decides, and
//! says `ran: maybe` for what was transmitted.
//!
//! ```text
//!           connected: transmit Hello               Hello received: transmit what the peer lacks
//!   Down ───────────────────────────▶ Greeting ───────────────────────────────────────────────▶ Up
//!    ▲                                   │                                                     │
//!    └───────── disconnected ────────────┴─────────────────────────────────────────────────────┘
//! ```
//!
//! The order of calls: [`connected`](Link::connected) with a number that grows with each connection
//! (so that one which was held up somewhere never takes the place of a later one),
//! [`received`](Link::received) for what that connection brings, [`send`](Link::send) at any time,
//! [`acknowledge`](Link::acknowledge) when a batch was read, [`disconnected`](Link::disconnected).
//! Packets of a connection that is not the current one are ignored: they come again.

use std::collections::VecDeque;

/// Which life of a process speaks; a later one has a higher number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Incarnation(pub u64);

/// Most bytes transmitted and not yet acknowledged; more wait their turn, so that a reconnect repeats
/// a bounded amount. One message may exceed it alone.
pub const MAX_WINDOW_BYTES: usize = 16 << 20;
/// Most messages transmitted and not yet acknowledged.
pub const MAX_WINDOW_MESSAGES: usize = 1 << 16;
/// Acknowledgements ride on data; after this many messages without any, one goes by itself.
const ACKNOWLEDGE_EVERY: u64 = 64;

/// What travels on a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Packet<M> {
    /// The first on every connection, from both sides.
    Hello {
        /// Who speaks.
        from: Incarnation,
        /// Whom the speaker knows at the other end, if it heard of anybody yet.
        knows: Option<Incarnation>,
        /// The last message it has seen of that one.
        seen: u64,
    },
    /// A message.
    Data {
        /// Its number: 1, 2, …
        sequence: u64,
        /// The last message its sender has seen.
        seen: u64,
        /// The message.
        message: M,
    },
    /// Only an acknowledgement.
    Seen(u64),
}

/// What the shell is to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LinkEffect<M> {
    /// Put this on the current connection.
    Transmit(Packet<M>),
    /// Hand this to whoever listens.
    Deliver(M),
    /// The peer is another incarnation now. These never reached its predecessor for certain
    /// (`unsent`), or may have (`unacknowledged`). What was acknowledged is not in either list.
    Lost {
        /// Never put on any connection.
        unsent: Vec<M>,
        /// Transmitted at least once.
        unacknowledged: Vec<M>,
    },
    /// The peer broke the rules, named here: drop the connection.
    Break(&'static str),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Connection {
    Down,
    Greeting(u64),
    Up(u64),
}

/// One end of a link. See the [module](self).
#[derive(Debug)]
pub struct Link<M> {
    local: Incarnation,
    peer: Option<Incarnation>,
    connection: Connection,
    /// The highest number of a connection so far.
    latest: u64,
    /// Not acknowledged yet, each with its size; the first has the number `acknowledged + 1`.
    outgoing: VecDeque<(M, usize)>,
    acknowledged: u64,
    /// How many of `outgoing` are on the current connection, and their bytes.
    on_connection: usize,
    window_bytes: usize,
    /// How many of `outgoing` were ever transmitted to this peer.
    ever_transmitted: usize,
    seen: u64,
    /// The last `seen` that the peer was told.
    seen_reported: u64,
}

impl<M: Clone> Link<M> {
    /// An end that has no connection yet.
    pub fn new(local: Incarnation) -> Link<M> {
        Link {
            local,
            peer: None,
            connection: Connection::Down,
            latest: 0,
            outgoing: VecDeque::new(),
            acknowledged: 0,
            on_connection: 0,
            window_bytes: 0,
            ever_transmitted: 0,
            seen: 0,
            seen_reported: 0,
        }
    }

    /// How many messages are not acknowledged yet.
    pub fn unacknowledged(&self) -> usize {
        self.outgoing.len()
    }

    /// How many messages were sent, and how many of them the peer has acknowledged.
    pub fn sent(&self) -> (u64, u64) {
        (self.acknowledged + self.outgoing.len() as u64, self.acknowledged)
    }

    /// Whether messages flow now.
    pub fn is_up(&self) -> bool {
        matches!(self.connection, Connection::Up(_))
    }

    /// Ends the link, giving back what was never put on any connection, and what may have arrived.
    pub fn into_lost(mut self) -> (Vec<M>, Vec<M>) {
        self.take_lost()
    }

    /// Sends a message of about `bytes` bytes: now, or when there is a connection and room.
    pub fn send(&mut self, message: M, bytes: usize, out: &mut Vec<LinkEffect<M>>) {
        self.outgoing.push_back((message, bytes));
        self.fill(out);
    }

    /// A connection was made. Whoever makes connections numbers them upwards and tells the other end;
    /// one that arrives after a later one is not wanted, and the answer is `false`: drop it.
    pub fn connected(&mut self, number: u64, out: &mut Vec<LinkEffect<M>>) -> bool {
        if number <= self.latest {
            return false;
        }
        self.latest = number;
        self.connection = Connection::Greeting(number);
        self.seen_reported = self.seen;
        let (from, knows, seen) = (self.local, self.peer, self.seen);
        out.push(LinkEffect::Transmit(Packet::Hello { from, knows, seen }));
        true
    }

    /// A connection ended; nothing happens unless it was the current one.
    pub fn disconnected(&mut self, number: u64) {
        if self.connection_number() == Some(number) {
            self.connection = Connection::Down;
        }
    }

    /// A connection brought a packet.
    pub fn received(&mut self, number: u64, packet: Packet<M>, out: &mut Vec<LinkEffect<M>>) {
        if self.connection_number() != Some(number) {
            return;
        }
        match packet {
            Packet::Hello { from, knows, seen } => self.greeted(number, from, knows, seen, out),
            Packet::Data { sequence, seen, message } => {
                if !self.is_up() {
                    return self.fail("data before hello", out);
                }
                self.acknowledged_up_to(seen, out);
                if !self.is_up() {
                    return; // What it acknowledged broke the rules.
                }
                if sequence == self.seen + 1 {
                    self.seen = sequence;
                    out.push(LinkEffect::Deliver(message));
                    if self.seen - self.seen_reported >= ACKNOWLEDGE_EVERY {
                        self.acknowledge(out);
                    }
                } else if crate::planted!(MessageDeliveredTwice) && sequence <= self.seen {
                    out.push(LinkEffect::Deliver(message));
                } else if sequence > self.seen {
                    self.fail("a message is missing before this one", out);
                }
            }
            Packet::Seen(seen) => {
                if !self.is_up() {
                    return self.fail("acknowledgement before hello", out);
                }
                self.acknowledged_up_to(seen, out);
            }
        }
    }

    /// Tells the peer what was seen, if it was not told yet. Call it when a batch was read and answered.
    pub fn acknowledge(&mut self, out: &mut Vec<LinkEffect<M>>) {
        if self.is_up() && self.seen_reported < self.seen {
            self.seen_reported = self.seen;
            out.push(LinkEffect::Transmit(Packet::Seen(self.seen)));
        }
    }

    fn connection_number(&self) -> Option<u64> {
        match self.connection {
            Connection::Down => None,
            Connection::Greeting(number) | Connection::Up(number) => Some(number),
        }
    }

    fn greeted(
        &mut self,
        number: u64,
        from: Incarnation,
        knows: Option<Incarnation>,
        seen: u64,
        out: &mut Vec<LinkEffect<M>>,
    ) {
        if self.connection != Connection::Greeting(number) {
            return self.fail("a second hello", out);
        }
        match self.peer {
            Some(peer) if from < peer => return self.fail("an earlier incarnation", out),
            Some(peer) if from > peer => {
                let (unsent, unacknowledged) = self.take_lost();
                out.push(LinkEffect::Lost { unsent, unacknowledged });
                self.acknowledged = 0;
                (self.seen, self.seen_reported) = (0, 0);
            }
            Some(_) | None => {}
        }
        self.peer = Some(from);
        // What it saw of another incarnation of ours says nothing about us.
        let seen = if knows == Some(self.local) { seen } else { 0 };
        if seen < self.acknowledged || seen > self.acknowledged + self.ever_transmitted as u64 {
            return self.fail("what it has seen is not what it acknowledged", out);
        }
        self.connection = Connection::Up(number);
        (self.on_connection, self.window_bytes) = (0, 0);
        if !crate::planted!(MessageDeliveredTwice) {
            self.drop_seen(seen);
        }
        self.fill(out);
    }

    /// The peer has seen everything up to `seen`.
    fn acknowledged_up_to(&mut self, seen: u64, out: &mut Vec<LinkEffect<M>>) {
        if seen > self.acknowledged + self.on_connection as u64 {
            return self.fail("it acknowledges what was not sent", out);
        }
        if seen > self.acknowledged {
            self.drop_seen(seen);
            self.fill(out);
        }
    }

    fn drop_seen(&mut self, seen: u64) {
        while self.acknowledged < seen {
            let (_, bytes) = self.outgoing.pop_front().expect("only what was sent is acknowledged");
            self.acknowledged += 1;
            self.ever_transmitted -= 1;
            if self.on_connection > 0 {
                self.on_connection -= 1;
                self.window_bytes -= bytes;
            }
        }
    }

    /// Transmits what waits, as far as the window allows.
    fn fill(&mut self, out: &mut Vec<LinkEffect<M>>) {
        while self.is_up() && self.on_connection < MAX_WINDOW_MESSAGES {
            let Some((message, bytes)) = self.outgoing.get(self.on_connection) else { return };
            if self.on_connection > 0 && self.window_bytes + bytes > MAX_WINDOW_BYTES {
                return;
            }
            let sequence = self.acknowledged + self.on_connection as u64 + 1;
            let data = Packet::Data { sequence, seen: self.seen, message: message.clone() };
            self.seen_reported = self.seen;
            self.window_bytes += bytes;
            self.on_connection += 1;
            self.ever_transmitted = self.ever_transmitted.max(self.on_connection);
            out.push(LinkEffect::Transmit(data));
        }
    }

    fn take_lost(&mut self) -> (Vec<M>, Vec<M>) {
        let mut unacknowledged: Vec<M> =
            self.outgoing.drain(..).map(|(message, _)| message).collect();
        let unsent = unacknowledged.split_off(self.ever_transmitted);
        (self.on_connection, self.window_bytes, self.ever_transmitted) = (0, 0, 0);
        (unsent, unacknowledged)
    }

    fn fail(&mut self, rule: &'static str, out: &mut Vec<LinkEffect<M>>) {
        self.connection = Connection::Down;
        out.push(LinkEffect::Break(rule));
    }

    /// Panics if the link's own account does not add up.
    pub fn check_invariants(&self) {
        assert!(
            self.on_connection <= self.ever_transmitted,
            "transmitted now, yet never transmitted"
        );
        assert!(self.ever_transmitted <= self.outgoing.len(), "transmitted more than there was");
        assert!(self.seen_reported <= self.seen, "acknowledged what was not seen");
        let bytes: usize =
            self.outgoing.iter().take(self.on_connection).map(|(_, bytes)| bytes).sum();
        assert_eq!(self.window_bytes, bytes, "bytes in the window");
        assert!(self.on_connection <= 1 || bytes <= MAX_WINDOW_BYTES, "window exceeded");
    }
}

#[cfg(test)]
mod tests;
