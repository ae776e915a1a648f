//! Joining: the request to the controller, and its answer.

use marline_core::Error;
use marline_core::controller::Role;
use marline_core::id::{ClusterId, ControllerEpoch, Session, SessionId};
use marline_core::lease::LeaseTerms;

/// The protocol version of this process. A request with another version fails with `Incompatible`.
pub const PROTOCOL: &str = "1";

/// Fails if the peer speaks another version of the protocol.
pub fn check_protocol(protocol: &str) -> Result<(), Error> {
    if protocol == PROTOCOL {
        return Ok(());
    }
    Err(Error::incompatible(format!(
        "this controller speaks protocol {PROTOCOL}, not {protocol:?}: use the same major version"
    )))
}

/// A process, as the kernel of its machine identifies it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProcessIdentity {
    /// The boot id of the kernel, and the process namespace.
    pub kernel: String,
    /// The process id.
    pub pid: u32,
    /// When the process started, in clock ticks of the kernel.
    pub started: u64,
    /// The path of the lifeline that the process shares with its executors, if they are processes.
    pub lifeline: Option<String>,
}

/// The request of a process to join.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Join {
    /// The process's own id, made once.
    pub id: SessionId,
    /// The number of this request: 1 for the process's first.
    pub request: u64,
    /// The protocol version of the process. Decoding does not check it.
    pub protocol: String,
    /// The role in which the process joins.
    pub role: Role,
    /// The identity of the process, if the request has it.
    pub process: Option<ProcessIdentity>,
}

impl Join {
    /// Returns a request in this version of the protocol.
    pub fn new(id: SessionId, request: u64, role: Role, process: Option<ProcessIdentity>) -> Join {
        Join { id, request, protocol: PROTOCOL.to_owned(), role, process }
    }
}

/// The answer to a [`Join`] that was accepted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Joined {
    /// The session of the process.
    pub session: Session,
    /// The terms of its lease.
    pub terms: LeaseTerms,
    /// The cluster that the process joined.
    pub cluster: ClusterId,
    /// The start of the cluster's controller.
    pub controller_epoch: ControllerEpoch,
    /// The identity of the controller's process, if the answer has it.
    pub process: Option<ProcessIdentity>,
}
