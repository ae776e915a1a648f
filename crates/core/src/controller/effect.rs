//! The actions that a controller asks of its shell.

use crate::id::{Session, TaskId};
use crate::lease::Ping;
use crate::message::{ToClient, ToWorker};

/// An action for the shell. The shell carries effects out in the order in which they were pushed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// A session is open: answer its process, and create its link.
    OpenSession(Session),
    /// A session is over: drop its link with the messages that wait on it. The controller fences
    /// every later message from the session.
    EndSession {
        /// The session.
        session: Session,
        /// Why it is over.
        cause: SessionEndCause,
    },
    /// A process sent a message for a session that is over: tell the process.
    Fence(Session),
    /// Ping a session, ahead of every other message.
    Ping {
        /// The session.
        to: Session,
        /// The ping.
        ping: Ping,
    },
    /// Send a message to a client.
    ToClient {
        /// The client's session.
        to: Session,
        /// The message.
        message: ToClient,
    },
    /// Send a message to a worker.
    ToWorker {
        /// The worker's session.
        to: Session,
        /// The message.
        message: ToWorker,
    },
    /// A task ended that is [awaited](super::Controller::await_task): wake the callers that wait
    /// for it.
    WakeTaskWaiters(TaskId),
    /// The controller has [shut down](super::Controller::shut_down): its process may exit.
    AllowExit,
}

/// Why a session is over.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SessionEndCause {
    /// The process closed its session.
    Closed,
    /// The process died, in this way.
    Died(String),
    /// The session was silent for as long as its lease.
    LeaseOver,
    /// The process joined again.
    Replaced,
}

impl std::fmt::Display for SessionEndCause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SessionEndCause::Closed => f.write_str("it left"),
            SessionEndCause::Died(how) => write!(f, "its process died: {how}"),
            SessionEndCause::LeaseOver => {
                f.write_str("its lease ran out: it was silent for too long")
            }
            SessionEndCause::Replaced => f.write_str(
                "its lease ran out: its process was cut off for too long, and joined again",
            ),
        }
    }
}
