//! The events that a controller handles.

use crate::error::Error;
use crate::id::{Session, SessionId};
use crate::lease::Pong;
use crate::message::{FromClient, FromWorker};
use crate::recent_events::{EventSummary, Subject};
use crate::resources::Resources;
use crate::schedule::WorkerCapabilities;
use std::sync::Arc;

/// The role in which a process joins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Role {
    /// The process submits work.
    Client,
    /// The process runs work.
    Worker(WorkerInfo),
}

/// A worker's description of itself when it joins.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct WorkerInfo {
    /// The address at which the worker listens for calls. `None`: calls go through the controller.
    pub address: Option<Arc<str>>,
    /// The machine that the worker runs on.
    pub hostname: String,
    /// The worker's process id on that machine.
    pub pid: u32,
    /// The version of the worker's program.
    pub version: String,
    /// The resources that the worker offers.
    pub resources: Resources,
    /// The functions and classes that the worker can run.
    pub provides: Arc<WorkerCapabilities>,
    /// Where processes on the same machine reach the worker's store, if it has one.
    pub store: Option<Arc<str>>,
    /// Whether the worker can save data to a place that outlives the worker.
    pub durable: bool,
}

impl WorkerInfo {
    /// Checks the description. The shell calls this before it passes on the join request.
    pub fn validate(&self) -> Result<(), Error> {
        self.resources.validate()?;
        if self.provides.names.len() > MAX_PROVIDED {
            return Err(Error::too_large(format!(
                "a worker provides {} names, the limit is {MAX_PROVIDED} (MAX_PROVIDED)",
                self.provides.names.len()
            )));
        }
        Ok(())
    }
}

/// The most functions and classes that one worker may provide.
pub const MAX_PROVIDED: usize = 100_000;

/// An event, as the controller sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A process asked to join. Its earlier session, if it has one, is over: a process that asks to
    /// join has stopped everything that it did in its earlier session.
    JoinRequested {
        /// The process.
        id: SessionId,
        /// The number of join requests that the process has made, this one included. The controller
        /// ignores an earlier request that arrives late: the process has gone on since.
        request: u64,
        /// Whether the session lives in the controller's own process. Then it cannot be lost alone,
        /// and has no lease that could run out.
        local: bool,
        /// The role in which the process joins.
        role: Role,
    },
    /// A process closed its session.
    SessionClosed {
        /// The session.
        session: Session,
    },
    /// There is proof that the process of a session is dead.
    ProcessDied {
        /// The session.
        session: Session,
        /// How the process died, in words.
        how: String,
    },
    /// A session answered a ping.
    PongReceived {
        /// The session.
        session: Session,
        /// The answer.
        pong: Pong,
    },
    /// A message from a client arrived.
    ClientMessageReceived {
        /// The client's session.
        session: Session,
        /// The message.
        message: FromClient,
    },
    /// A message from a worker arrived.
    WorkerMessageReceived {
        /// The worker's session.
        session: Session,
        /// The message.
        message: FromWorker,
    },
    /// The time that [`next_wake`](super::Controller::next_wake) named has come.
    TimePassed,
}

impl Event {
    /// Returns the name of the event, or of the message that it brings, and the ids that it is
    /// about.
    pub fn summary(&self) -> EventSummary {
        match self {
            Event::JoinRequested { id, .. } => {
                EventSummary::of("JoinRequested", Subject::Process(*id))
            }
            Event::SessionClosed { session } => {
                EventSummary::of("SessionClosed", Subject::Session(*session))
            }
            Event::ProcessDied { session, .. } => {
                EventSummary::of("ProcessDied", Subject::Session(*session))
            }
            Event::PongReceived { session, .. } => {
                EventSummary::of("PongReceived", Subject::Session(*session))
            }
            Event::ClientMessageReceived { session, message } => message.summary().from(*session),
            Event::WorkerMessageReceived { session, message } => message.summary().from(*session),
            Event::TimePassed => EventSummary::of("TimePassed", Subject::Nothing),
        }
    }
}
