//! The request of a process to join, and the answer: between the types of [`crate::join`] and the
//! generated types.

use super::field::{millis, present, required, within};
use super::ids::{cluster_id, cluster_id_bytes, session_id, session_id_bytes};
use crate::join::{Join, Joined, ProcessIdentity};
use crate::v1::{self, join_request};
use marline_core::Error;
use marline_core::controller::{Role, WorkerInfo};
use marline_core::id::ControllerEpoch;
use marline_core::lease::LeaseTerms;
use marline_core::schedule::WorkerCapabilities;
use std::sync::Arc;
use std::time::Duration;

impl From<ProcessIdentity> for v1::Process {
    fn from(process: ProcessIdentity) -> v1::Process {
        v1::Process {
            kernel: process.kernel,
            pid: process.pid,
            started: process.started,
            lifeline: process.lifeline.unwrap_or_default(),
        }
    }
}

impl From<v1::Process> for ProcessIdentity {
    fn from(wire: v1::Process) -> ProcessIdentity {
        let lifeline = (!wire.lifeline.is_empty()).then_some(wire.lifeline);
        ProcessIdentity { kernel: wire.kernel, pid: wire.pid, started: wire.started, lifeline }
    }
}

/// Encodes a request.
pub fn encode_join(join: Join) -> v1::JoinRequest {
    let (role, version) = match join.role {
        Role::Client => {
            let version = env!("CARGO_PKG_VERSION").to_owned();
            (join_request::Role::Client(v1::ClientRole {}), version)
        }
        Role::Worker(info) => encode_worker(info),
    };
    v1::JoinRequest {
        session_id: session_id_bytes(join.id),
        request: join.request,
        protocol: join.protocol,
        version,
        role: Some(role),
        process: join.process.map(v1::Process::from),
    }
}

fn encode_worker(info: WorkerInfo) -> (join_request::Role, String) {
    let provides = Arc::unwrap_or_clone(info.provides);
    let worker = v1::WorkerRole {
        address: info.address.map(|address| address.to_string()).unwrap_or_default(),
        hostname: info.hostname,
        pid: info.pid,
        resources: Some(info.resources.into()),
        provides: provides.names.iter().map(|name| name.to_string()).collect(),
        preemptible: provides.preemptible,
        store: info.store.map(|store| store.to_string()).unwrap_or_default(),
        durable: info.durable,
        python_minor: provides.code_version,
    };
    (join_request::Role::Worker(worker), info.version)
}

/// Decodes a request. The caller checks its protocol version.
pub fn decode_join(wire: v1::JoinRequest) -> Result<Join, Error> {
    let role = match present(wire.role, "JoinRequest.role")? {
        join_request::Role::Client(v1::ClientRole {}) => Role::Client,
        join_request::Role::Worker(worker) => {
            let info = decode_worker(worker, wire.version);
            Role::Worker(info.map_err(|error| within("JoinRequest.worker", error))?)
        }
    };
    Ok(Join {
        id: session_id(&wire.session_id, "JoinRequest.session_id")?,
        request: wire.request,
        protocol: wire.protocol,
        role,
        process: wire.process.map(ProcessIdentity::from),
    })
}

fn decode_worker(wire: v1::WorkerRole, version: String) -> Result<WorkerInfo, Error> {
    let names = wire.provides.into_iter().map(Arc::from).collect();
    Ok(WorkerInfo {
        address: (!wire.address.is_empty()).then(|| wire.address.into()),
        hostname: wire.hostname,
        pid: wire.pid,
        version,
        resources: required(wire.resources, "WorkerRole.resources")?,
        provides: Arc::new(WorkerCapabilities {
            names,
            preemptible: wire.preemptible,
            code_version: wire.python_minor,
            ..WorkerCapabilities::default()
        }),
        store: (!wire.store.is_empty()).then(|| wire.store.into()),
        durable: wire.durable,
    })
}

/// Encodes an answer. The lease is rounded down, so that the process that holds it never assumes a
/// longer lease than the controller does.
pub fn encode_joined(joined: Joined) -> v1::JoinReply {
    v1::JoinReply {
        session: Some(joined.session.into()),
        ping_interval_ms: millis(joined.terms.ping_interval),
        lease_ms: u64::try_from(joined.terms.lease.as_millis()).unwrap_or(u64::MAX),
        cluster_id: cluster_id_bytes(joined.cluster),
        controller_epoch: joined.controller_epoch.0,
        process: joined.process.map(v1::Process::from),
    }
}

/// Decodes an answer.
pub fn decode_joined(wire: v1::JoinReply) -> Result<Joined, Error> {
    let terms = LeaseTerms {
        lease: some_time(wire.lease_ms, "JoinReply.lease_ms")?,
        ping_interval: some_time(wire.ping_interval_ms, "JoinReply.ping_interval_ms")?,
    };
    Ok(Joined {
        session: required(wire.session, "JoinReply.session")?,
        terms,
        cluster: cluster_id(&wire.cluster_id, "JoinReply.cluster_id")?,
        controller_epoch: ControllerEpoch(wire.controller_epoch),
        process: wire.process.map(ProcessIdentity::from),
    })
}

fn some_time(milliseconds: u64, field: &str) -> Result<Duration, Error> {
    match milliseconds {
        0 => Err(Error::invalid(format!("{field} is missing or 0"))),
        milliseconds => Ok(Duration::from_millis(milliseconds)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::sample;
    use prost::Message;

    #[test]
    fn join_requests_round_trip() {
        for role in [Role::Client, sample::worker_role(), Role::Worker(WorkerInfo::default())] {
            let join = Join::new(sample::session().id, 7, role, Some(sample::process()));
            let bytes = encode_join(join.clone()).encode_to_vec();
            let wire = v1::JoinRequest::decode(&bytes[..]).unwrap();
            assert_eq!(wire.protocol, "1");
            assert_eq!(decode_join(wire).unwrap(), join);
        }
    }

    #[test]
    fn join_replies_round_trip() {
        for terms in [LeaseTerms::default(), LeaseTerms::FOREVER] {
            let joined = sample::joined(terms);
            let bytes = encode_joined(joined.clone()).encode_to_vec();
            assert_eq!(decode_joined(v1::JoinReply::decode(&bytes[..]).unwrap()).unwrap(), joined);
        }
    }

    #[test]
    fn a_lease_is_never_decoded_as_longer_than_it_was_granted() {
        let lease = Duration::from_micros(1_999);
        let wire = encode_joined(sample::joined(LeaseTerms { lease, ..LeaseTerms::default() }));
        assert_eq!(decode_joined(wire).unwrap().terms.lease, Duration::from_millis(1));
    }

    #[test]
    fn malformed_join_requests_are_rejected_by_name() {
        let wire = || encode_join(Join::new(sample::session().id, 1, sample::worker_role(), None));
        let worker = |change: fn(&mut v1::WorkerRole)| match wire().role {
            Some(join_request::Role::Worker(mut worker)) => {
                change(&mut worker);
                v1::JoinRequest { role: Some(join_request::Role::Worker(worker)), ..wire() }
            }
            role => panic!("{role:?} is not a worker's role"),
        };
        for (wire, field) in [
            (v1::JoinRequest::default(), "JoinRequest.role is missing"),
            (
                v1::JoinRequest { session_id: Default::default(), ..wire() },
                "JoinRequest.session_id has 0 bytes; an id has 16",
            ),
            (
                worker(|worker| worker.resources = None),
                "JoinRequest.worker: WorkerRole.resources is missing",
            ),
            (
                worker(|worker| worker.resources.as_mut().unwrap().gpu = -1),
                "JoinRequest.worker: WorkerRole.resources: Resources.gpu is -1",
            ),
        ] {
            let words = decode_join(wire).unwrap_err().message().to_owned();
            assert!(words.starts_with(field), "{words}");
        }
    }

    #[test]
    fn malformed_join_replies_are_rejected_by_name() {
        let wire = || encode_joined(sample::joined(LeaseTerms::default()));
        for (wire, field) in [
            (v1::JoinReply { session: None, ..wire() }, "JoinReply.session is missing"),
            (v1::JoinReply { lease_ms: 0, ..wire() }, "JoinReply.lease_ms is missing"),
            (
                v1::JoinReply { ping_interval_ms: 0, ..wire() },
                "JoinReply.ping_interval_ms is missing",
            ),
            (
                v1::JoinReply { cluster_id: vec![1; 17].into(), ..wire() },
                "JoinReply.cluster_id has 17",
            ),
        ] {
            let words = decode_joined(wire).unwrap_err().message().to_owned();
            assert!(words.starts_with(field), "{words}");
        }
    }
}
