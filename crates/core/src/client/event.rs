//! The events of a client.

use crate::id::Session;
use crate::lease::{LeaseTerms, Ping};
use crate::message::{AttemptId, FromHost, ToClient};
use crate::recent_events::{EventSummary, Subject};
use crate::time::Time;

/// An event, from the client's point of view.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // Of fields only: each variant's sentence names its own.
pub enum Event {
    /// The controller opened a session, which the client requested at `asked_at`.
    Joined { session: Session, terms: LeaseTerms, asked_at: Time },
    /// The controller pings this client.
    PingReceived { session: Session, ping: Ping },
    /// The controller says that this session is over, or is another controller now.
    Fenced { session: Session },
    /// A message from the controller arrived on this session's link.
    ControllerMessageReceived { session: Session, message: ToClient },
    /// A message from a worker arrived on the direct link.
    HostMessageReceived { host: Session, message: FromHost },
    /// The direct link to a worker was closed for good. The calls in `unsent` were never put on a
    /// connection.
    HostClosed { host: Session, unsent: Vec<AttemptId> },
    /// The time that [`next_wake`](super::Client::next_wake) returned has come.
    TimePassed,
}

impl Event {
    /// Returns the name of the event, or of the message that it brings, and the ids that it is
    /// about.
    pub fn summary(&self) -> EventSummary {
        match self {
            Event::Joined { session, .. } => EventSummary::of("Joined", Subject::Session(*session)),
            Event::PingReceived { session, .. } => {
                EventSummary::of("PingReceived", Subject::Session(*session))
            }
            Event::Fenced { session } => EventSummary::of("Fenced", Subject::Session(*session)),
            Event::ControllerMessageReceived { session, message } => {
                message.summary().from(*session)
            }
            Event::HostMessageReceived { host, message } => message.summary().from(*host),
            Event::HostClosed { host, .. } => {
                EventSummary::of("HostClosed", Subject::Session(*host))
            }
            Event::TimePassed => EventSummary::of("TimePassed", Subject::Nothing),
        }
    }
}
