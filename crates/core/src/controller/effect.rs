//! What a controller asks of its shell.

use crate::id::{Session, TaskId};
use crate::lease::Ping;
use crate::message::{ToClient, ToWorker};

/// What is to be done, in this order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// A session is open: answer its process, and make its link.
    OpenSession(Session),
    /// A session is over: drop its link, and what waits on it. Whoever speaks for it is fenced.
    EndSession {
        /// Which.
        session: Session,
        /// Why.
        cause: SessionEndCause,
    },
    /// Somebody spoke whose session is over: tell it.
    Fence(Session),
    /// Ask a session whether it lives, ahead of everything else.
    Ping {
        /// Whom.
        to: Session,
        /// The question.
        ping: Ping,
    },
    /// Send this to a client.
    ToClient {
        /// Whom.
        to: Session,
        /// What.
        message: ToClient,
    },
    /// Send this to a worker.
    ToWorker {
        /// Whom.
        to: Session,
        /// What.
        message: ToWorker,
    },
    /// A task ended that is [awaited](super::Controller::await_task): wake those who wait for it.
    WakeTaskWaiters(TaskId),
    /// The controller was to [wind up](super::Controller::wind_up), and has: its process may end.
    AllowExit,
}

/// Why a session is over.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SessionEndCause {
    /// Its process closed it.
    Closed,
    /// Its process died, and how.
    Died(String),
    /// It was not heard for as long as its lease.
    LeaseOver,
    /// Its process joined again.
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
