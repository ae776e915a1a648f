//! How a process joins: what it asks, and what it is told.

use crate::process_identity::ProcessIdentity;
use marline_core::Error;
use marline_core::controller::Role;
use marline_core::id::{ClusterId, ControllerEpoch, Session, SessionId};
use marline_core::lease::LeaseTerms;

/// The version of the protocol that is spoken here; another is refused as `Incompatible`.
pub(crate) const PROTOCOL: &str = "1";

/// Says so if another version of the protocol is spoken.
pub(crate) fn check_protocol(protocol: &str) -> Result<(), Error> {
    if protocol == PROTOCOL {
        return Ok(());
    }
    Err(Error::incompatible(format!(
        "this controller speaks protocol {PROTOCOL}, not {protocol:?}: use the same major version"
    )))
}

/// A process asks to join.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Join {
    /// The process's own id, made once.
    pub id: SessionId,
    /// How often it has asked, this time included.
    pub request: u64,
    /// The version of the protocol it speaks; decoding does not judge it.
    pub protocol: String,
    /// What as.
    pub role: Role,
    /// Which process it is, if it says.
    pub process: Option<ProcessIdentity>,
}

impl Join {
    /// A request of this process.
    pub(crate) fn new(id: SessionId, request: u64, role: Role) -> Join {
        Join { id, request, protocol: PROTOCOL.to_owned(), role, process: ProcessIdentity::this() }
    }
}

/// It has joined.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Joined {
    /// Its session.
    pub session: Session,
    /// How long its lease is.
    pub terms: LeaseTerms,
    /// Which cluster it joined.
    pub cluster: ClusterId,
    /// Which start of that cluster's controller.
    pub controller_epoch: ControllerEpoch,
    /// The controller's process, if it says.
    pub process: Option<ProcessIdentity>,
}
