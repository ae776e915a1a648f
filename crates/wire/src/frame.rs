//! Frames: everything that travels on a connection of a link. The first frame attaches the
//! connection, others carry the packets of the link, and pings keep the lease. A ping does not wait
//! behind packets.

use super::message::Message;
use super::{convert, v1};
use marline_core::Error;
use marline_core::id::Session;
use marline_core::lease::{Ping, Pong};
use marline_core::link::Packet;
use std::fmt;

/// Roughly how many bytes an encoded frame without a message takes.
const BYTES_WITHOUT_DATA: usize = 64;

/// One frame of a connection.
#[derive(Clone, PartialEq, Debug)]
pub enum Frame {
    /// The first frame, from the process that made the connection.
    Attach {
        /// The session of that process.
        session: Session,
        /// The number of the connection on this link: higher than any before it.
        connection: u64,
        /// The session of the worker that is called. `None` for a link to the controller.
        host: Option<Session>,
    },
    /// A packet of the link.
    Packet(Packet<Message>),
    /// The controller's question whether the session is alive.
    Ping(Ping),
    /// The answer to a ping.
    Pong(Pong),
    /// The session that attached, or the session of the worker that was called, is over.
    Over {
        /// The session that is over.
        session: Session,
        /// Why it is over, if that is known.
        error: Option<Error>,
    },
}

impl Frame {
    /// Returns about how many bytes the encoded frame takes.
    pub fn size(&self) -> usize {
        match self {
            Frame::Packet(Packet::Data { sequence: _, seen: _, message }) => {
                message.encoded_len_hint()
            }
            Frame::Packet(Packet::Hello { .. } | Packet::Seen(_))
            | Frame::Attach { .. }
            | Frame::Ping(_)
            | Frame::Pong(_)
            | Frame::Over { .. } => BYTES_WITHOUT_DATA,
        }
    }

    /// Encodes the frame.
    pub fn into_wire(self) -> v1::Frame {
        convert::encode(self)
    }

    /// Decodes a frame. Fails with what is wrong with it.
    pub fn from_wire(frame: v1::Frame, direction: Direction) -> Result<Frame, Error> {
        convert::decode(frame, direction)
    }

    /// Decodes the first frame of a connection, before the receiver knows the peer. Only
    /// [`Frame::Attach`] is valid.
    pub fn attach(frame: v1::Frame) -> Result<Frame, Error> {
        convert::decode_attach(frame)
    }
}

/// Which role sends to which on a link. The receiver must know it, because some messages look the
/// same in several directions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// From a client to the controller.
    ClientToController,
    /// From the controller to a client.
    ControllerToClient,
    /// From a worker to the controller.
    WorkerToController,
    /// From the controller to a worker.
    ControllerToWorker,
    /// From a caller to the worker that hosts its actor.
    CallerToHost,
    /// From the worker that hosts an actor to a caller.
    HostToCaller,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Direction::ClientToController => "by a client to the controller",
            Direction::ControllerToClient => "by the controller to a client",
            Direction::WorkerToController => "by a worker to the controller",
            Direction::ControllerToWorker => "by the controller to a worker",
            Direction::CallerToHost => "by a caller to the worker that hosts its actor",
            Direction::HostToCaller => "by the worker that hosts an actor to a caller",
        })
    }
}
