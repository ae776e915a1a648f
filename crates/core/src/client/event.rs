//! What happens to a client.

use crate::id::Session;
use crate::lease::{LeaseTerms, Ping};
use crate::message::{AttemptId, FromHost, ToClient};
use crate::time::Time;

/// What happened, as seen by a client.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // Of fields only: each variant's sentence names its own.
pub enum Event {
    /// The controller opened a session, which was asked for at `asked_at`.
    Joined { session: Session, terms: LeaseTerms, asked_at: Time },
    /// The controller asks whether this client lives.
    PingReceived { session: Session, ping: Ping },
    /// The controller said that this session is over, or is another controller now.
    Fenced { session: Session },
    /// The controller said something on this session's link.
    ControllerSaid { session: Session, message: ToClient },
    /// A worker said something on the direct link.
    HostMessageReceived { host: Session, message: FromHost },
    /// The direct link to a worker was closed for good; these calls were never put on any connection.
    HostClosed { host: Session, unsent: Vec<AttemptId> },
    /// The time has come that [`next_wake`](super::Client::next_wake) named, or later.
    TimePassed,
}
