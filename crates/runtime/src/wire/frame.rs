//! What travels on a connection, one after another: who attaches, the packets of its link, and the
//! pings that keep its lease, which wait behind nothing.

use super::message::Message;
use super::{convert, v1};
use marline_core::Error;
use marline_core::id::Session;
use marline_core::lease::{Ping, Pong};
use marline_core::link::Packet;
use std::fmt;

/// What an encoded frame takes that carries no message, roughly.
const BYTES_WITHOUT_DATA: usize = 64;

/// One thing that is said on a connection.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Frame {
    /// The first from whoever made the connection.
    Attach {
        /// Who made it.
        session: Session,
        /// Which connection of this link it is: higher than any before it.
        connection: u64,
        /// Whose session is called, if it is a worker's.
        host: Option<Session>,
    },
    /// What the link's protocol says.
    Packet(Packet<Message>),
    /// Are you there?
    Ping(Ping),
    /// The answer.
    Pong(Pong),
    /// The session that was attached, or that was called, is over.
    Over {
        /// Which.
        session: Session,
        /// Why, if that is known.
        error: Option<Error>,
    },
}

impl Frame {
    /// About how many bytes it takes encoded.
    pub(crate) fn size(&self) -> usize {
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

    /// As it travels.
    pub(crate) fn into_wire(self) -> v1::Frame {
        convert::encode(self)
    }

    /// What came; says what is wrong with it.
    pub(crate) fn from_wire(frame: v1::Frame, direction: Direction) -> Result<Frame, Error> {
        convert::decode(frame, direction)
    }

    /// What came first on a connection, before it is known who speaks: only [`Frame::Attach`] will do.
    pub(crate) fn attach(frame: v1::Frame) -> Result<Frame, Error> {
        convert::decode_attach(frame)
    }
}

/// Who speaks to whom on a link, as a receiver must know it: some messages look the
/// same whoever they go to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    ClientToController,
    ControllerToClient,
    WorkerToController,
    ControllerToWorker,
    CallerToHost,
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
