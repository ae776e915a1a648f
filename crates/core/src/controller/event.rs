//! What happens to a controller.

use crate::error::Error;
use crate::id::{Session, SessionId};
use crate::lease::Pong;
use crate::message::{FromClient, FromWorker};
use crate::resources::Resources;
use crate::schedule::WorkerCapabilities;
use std::sync::Arc;

/// What a process joins as.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Role {
    /// It submits work.
    Client,
    /// It runs work.
    Worker(WorkerInfo),
}

/// What a worker says of itself when it joins.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct WorkerInfo {
    /// Where it listens for calls; nothing if calls go through the controller.
    pub address: Option<Arc<str>>,
    /// The machine it runs on.
    pub hostname: String,
    /// Its process there.
    pub pid: u32,
    /// The version of its program.
    pub version: String,
    /// What it offers.
    pub resources: Resources,
    /// What it can run.
    pub provides: Arc<WorkerCapabilities>,
    /// Where processes of its machine reach its store, if it has one.
    pub store: Option<Arc<str>>,
    /// Whether it can save data where it outlives the worker.
    pub durable: bool,
}

impl WorkerInfo {
    /// Says what is wrong with it; to be asked before the worker is let in.
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

/// The most functions and classes that one worker provides.
pub const MAX_PROVIDED: usize = 100_000;

/// What happened, as seen by the controller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A process asked to join. Its earlier session, if it has one, is over: whoever asks to join has
    /// stopped whatever it did before.
    JoinRequested {
        /// The process.
        id: SessionId,
        /// How often it has asked, this time included. An earlier request that arrives late is ignored:
        /// the process has gone on since.
        request: u64,
        /// Whether it lives in the controller's own process: then it cannot be lost alone, and has no
        /// lease to run out.
        local: bool,
        /// What as.
        role: Role,
    },
    /// A session was closed by its own process.
    SessionClosed {
        /// Which.
        session: Session,
    },
    /// There is proof that a session's process is dead.
    ProcessDied {
        /// Whose.
        session: Session,
        /// How it died, in words.
        how: String,
    },
    /// A session answered a ping.
    PongReceived {
        /// Whose answer.
        session: Session,
        /// The answer.
        pong: Pong,
    },
    /// A client said something.
    ClientMessageReceived {
        /// Who.
        session: Session,
        /// What.
        message: FromClient,
    },
    /// A worker said something.
    WorkerMessageReceived {
        /// Who.
        session: Session,
        /// What.
        message: FromWorker,
    },
    /// The time has come that [`next_wake`](super::Controller::next_wake) named, or later.
    TimePassed,
}
