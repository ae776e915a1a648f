//! A link: one ordered stream of messages to one peer, over any number of connections.
//!
//! Connections break, links do not. Each message has a sequence number, and its sender keeps it
//! until the peer has acknowledged it. On every new connection both sides send a hello that names
//! the last message they have seen. Each side then transmits again what the other has not seen, and
//! a receiver drops what it has seen already. So each message is delivered once and in order, as
//! long as both ends live. Each life of an end is an [`Incarnation`] with its own number.
//!
//! If the peer turns out to be a later incarnation, the messages that were not acknowledged are
//! returned. Their sender decides what to do with them, and reports `ran: maybe` for those that
//! were transmitted.
//!
//! ```text
//!           connected: transmit Hello               Hello received: transmit what the peer lacks
//!   Down ───────────────────────────▶ Greeting ───────────────────────────────────────────────▶ Up
//!    ▲                                   │                                                     │
//!    └───────── disconnected ────────────┴─────────────────────────────────────────────────────┘
//! ```
//!
//! The order of calls:
//!
//! - [`connected`](Link::connected) for each connection, with a number that grows. A connection
//!   that was delayed thus never replaces a later one.
//! - [`received`](Link::received) for each packet of that connection.
//! - [`send`](Link::send) at any time.
//! - [`acknowledge`](Link::acknowledge) after each batch of packets.
//! - [`disconnected`](Link::disconnected) when the connection ends.
//!
//! Packets of any connection but the current one are ignored: the peer transmits them again.

use std::collections::VecDeque;

/// Tells the lives of one end of a link apart. A later life has a higher number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Incarnation(pub u64);

/// The most bytes that are transmitted and not yet acknowledged. Further messages wait, so that a
/// reconnect repeats a bounded amount. A single message may exceed the limit.
pub const MAX_WINDOW_BYTES: usize = 16 << 20;
/// The most messages that are transmitted and not yet acknowledged.
pub const MAX_WINDOW_MESSAGES: usize = 1 << 16;
/// Acknowledgements ride on data. After this many messages without data to ride on, one is sent on
/// its own.
const ACKNOWLEDGE_EVERY: u64 = 64;

/// One packet on a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Packet<M> {
    /// The first packet on every connection, from both sides.
    Hello {
        /// The incarnation of the sender.
        from: Incarnation,
        /// The incarnation of the peer that the sender last heard from, if any.
        knows: Option<Incarnation>,
        /// The last message of that incarnation that the sender has seen.
        seen: u64,
    },
    /// A message.
    Data {
        /// The number of the message: 1, 2, …
        sequence: u64,
        /// The last message of the peer that the sender has seen.
        seen: u64,
        /// The message.
        message: M,
    },
    /// An acknowledgement without data: the last message of the peer that the sender has seen.
    Seen(u64),
}

/// An action for the shell.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LinkEffect<M> {
    /// Transmit this packet on the current connection.
    Transmit(Packet<M>),
    /// Deliver this message to the state machine.
    Deliver(M),
    /// The peer is a later incarnation. These messages certainly never reached its predecessor
    /// (`unsent`), or may have (`unacknowledged`). Acknowledged messages are in neither list.
    Lost {
        /// Messages that were never put on a connection.
        unsent: Vec<M>,
        /// Messages that were transmitted at least once.
        unacknowledged: Vec<M>,
    },
    /// Drop the connection: the peer broke this rule.
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
    /// The messages that are not acknowledged, with their sizes. The first has the number
    /// `acknowledged + 1`.
    outgoing: VecDeque<(M, usize)>,
    acknowledged: u64,
    /// How many messages of `outgoing` are on the current connection. `window_bytes` are their
    /// bytes.
    on_connection: usize,
    window_bytes: usize,
    /// How many messages of `outgoing` were ever transmitted to this peer.
    ever_transmitted: usize,
    seen: u64,
    /// The last `seen` that was sent to the peer.
    seen_reported: u64,
}

impl<M: Clone> Link<M> {
    /// Creates an end that has no connection yet.
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

    /// Returns how many messages are not acknowledged.
    pub fn unacknowledged(&self) -> usize {
        self.outgoing.len()
    }

    /// Returns how many messages were sent, and how many of them the peer has acknowledged.
    pub fn sent(&self) -> (u64, u64) {
        (self.acknowledged + self.outgoing.len() as u64, self.acknowledged)
    }

    /// Returns whether messages flow now.
    pub fn is_up(&self) -> bool {
        matches!(self.connection, Connection::Up(_))
    }

    /// Ends the link. Returns the messages that were never put on a connection, and those that may
    /// have arrived.
    pub fn into_lost(mut self) -> (Vec<M>, Vec<M>) {
        self.take_lost()
    }

    /// Sends a message of about `bytes` bytes, at once or when there is a connection and room.
    pub fn send(&mut self, message: M, bytes: usize, out: &mut Vec<LinkEffect<M>>) {
        self.outgoing.push_back((message, bytes));
        self.fill(out);
    }

    /// Uses a new connection. The side that makes connections numbers them upwards and tells the
    /// other side. Returns `false` for a connection that arrives after a later one: the shell drops
    /// it.
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

    /// Notes that a connection ended. Only the end of the current one changes anything.
    pub fn disconnected(&mut self, number: u64) {
        if self.connection_number() == Some(number) {
            self.connection = Connection::Down;
        }
    }

    /// Handles a packet from a connection.
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
                    return; // Its acknowledgement broke the rules.
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

    /// Acknowledges the messages seen since the last acknowledgement. The shell calls this when it
    /// has read and answered a batch.
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
        // Messages that the peer has seen from another incarnation of this end do not count.
        let seen = if knows == Some(self.local) { seen } else { 0 };
        if seen < self.acknowledged || seen > self.acknowledged + self.ever_transmitted as u64 {
            return self.fail("its hello contradicts its acknowledgements", out);
        }
        self.connection = Connection::Up(number);
        (self.on_connection, self.window_bytes) = (0, 0);
        if !crate::planted!(MessageDeliveredTwice) {
            self.drop_seen(seen);
        }
        self.fill(out);
    }

    /// Handles an acknowledgement of all messages up to `seen`.
    fn acknowledged_up_to(&mut self, seen: u64, out: &mut Vec<LinkEffect<M>>) {
        if seen > self.acknowledged + self.on_connection as u64 {
            return self.fail("it acknowledges a message that was not sent", out);
        }
        if seen > self.acknowledged {
            self.drop_seen(seen);
            self.fill(out);
        }
    }

    fn drop_seen(&mut self, seen: u64) {
        while self.acknowledged < seen {
            let (_, bytes) = self.outgoing.pop_front().expect("acknowledged, thus sent");
            self.acknowledged += 1;
            self.ever_transmitted -= 1;
            if self.on_connection > 0 {
                self.on_connection -= 1;
                self.window_bytes -= bytes;
            }
        }
    }

    /// Transmits waiting messages, as far as the window allows.
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

    /// Panics if the counters of the link are inconsistent.
    pub fn check_invariants(&self) {
        assert!(
            self.on_connection <= self.ever_transmitted,
            "transmitted now, yet never transmitted"
        );
        assert!(self.ever_transmitted <= self.outgoing.len(), "transmitted more than there is");
        assert!(self.seen_reported <= self.seen, "acknowledged more than was seen");
        let bytes: usize =
            self.outgoing.iter().take(self.on_connection).map(|(_, bytes)| bytes).sum();
        assert_eq!(self.window_bytes, bytes, "bytes in the window");
        assert!(self.on_connection <= 1 || bytes <= MAX_WINDOW_BYTES, "window exceeded");
    }
}

#[cfg(test)]
mod tests;
