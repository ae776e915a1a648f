//! Frames.

use super::field::{optional, present, required, within};
use super::message;
use crate::frame::{Direction, Frame};
use crate::message::Message;
use crate::v1::{self, frame::Kind};
use marline_core::Error;
use marline_core::lease::{Ping, Pong};
use marline_core::link::{Incarnation, Packet};

/// Encodes a frame. Payloads move without a copy.
pub fn encode(frame: Frame) -> v1::Frame {
    let kind = match frame {
        Frame::Attach { session, connection, host } => Kind::Attach(v1::Attach {
            session: Some(session.into()),
            connection,
            host: host.map(v1::Session::from),
        }),
        Frame::Packet(packet) => encode_packet(packet),
        Frame::Ping(Ping { number, last_pong: heard }) => Kind::Ping(v1::Ping { number, heard }),
        Frame::Pong(Pong { number }) => Kind::Pong(v1::Pong { number }),
        Frame::Over { session, error } => Kind::Over(v1::Over {
            session: Some(session.into()),
            error: error.map(v1::Error::from),
        }),
    };
    v1::Frame { kind: Some(kind) }
}

fn encode_packet(packet: Packet<Message>) -> Kind {
    match packet {
        Packet::Hello { from, knows, seen } => {
            Kind::Hello(v1::Hello { from: from.0, knows: knows.map(|knows| knows.0), seen })
        }
        Packet::Data { sequence, seen, message } => Kind::Data(v1::Data {
            sequence,
            seen,
            message: Some(Box::new(message::encode(message))),
        }),
        Packet::Seen(seen) => Kind::Seen(v1::Seen { seen }),
    }
}

/// Decodes a frame that was sent in this direction. A message of another direction is `Invalid`,
/// and so is a malformed frame.
pub fn decode(frame: v1::Frame, direction: Direction) -> Result<Frame, Error> {
    match present(frame.kind, "Frame.kind")? {
        Kind::Attach(wire) => attach(wire),
        Kind::Hello(wire) => Ok(Frame::Packet(Packet::Hello {
            from: Incarnation(wire.from),
            knows: wire.knows.map(Incarnation),
            seen: wire.seen,
        })),
        Kind::Data(wire) => data(wire, direction),
        Kind::Seen(wire) => Ok(Frame::Packet(Packet::Seen(wire.seen))),
        Kind::Ping(v1::Ping { number, heard }) => {
            Ok(Frame::Ping(Ping { number, last_pong: heard }))
        }
        Kind::Pong(v1::Pong { number }) => Ok(Frame::Pong(Pong { number })),
        Kind::Over(wire) => Ok(Frame::Over {
            session: required(wire.session, "Over.session")?,
            error: optional(wire.error, "Over.error")?,
        }),
    }
}

/// Decodes the first frame of a connection, which names the session. Any frame but `Attach` is
/// `Invalid`.
pub fn decode_attach(frame: v1::Frame) -> Result<Frame, Error> {
    match present(frame.kind, "Frame.kind")? {
        Kind::Attach(wire) => attach(wire),
        Kind::Hello(_)
        | Kind::Data(_)
        | Kind::Seen(_)
        | Kind::Ping(_)
        | Kind::Pong(_)
        | Kind::Over(_) => Err(Error::invalid("the first frame of a connection must be attach")),
    }
}

fn attach(wire: v1::Attach) -> Result<Frame, Error> {
    Ok(Frame::Attach {
        session: required(wire.session, "Attach.session")?,
        connection: wire.connection,
        host: optional(wire.host, "Attach.host")?,
    })
}

fn data(wire: v1::Data, direction: Direction) -> Result<Frame, Error> {
    let message = present(wire.message, "Data.message")?;
    let message =
        message::decode(*message, direction).map_err(|error| within("Data.message", error))?;
    Ok(Frame::Packet(Packet::Data { sequence: wire.sequence, seen: wire.seen, message }))
}
