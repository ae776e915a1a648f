//! Workers and the cluster as a whole, as answers show them.

use crate::v1;
use crate::wall_clock::WallClock;
use marline_core::controller::{Counters, WorkerState, WorkerStatus};
use marline_core::error::Error;
use std::sync::Arc;

/// Encodes the state of a worker.
pub fn worker_state(state: WorkerState) -> v1::WorkerState {
    match state {
        WorkerState::Joining => v1::WorkerState::Joining,
        WorkerState::Healthy => v1::WorkerState::Healthy,
        WorkerState::Suspect => v1::WorkerState::Suspect,
        WorkerState::Draining => v1::WorkerState::Draining,
    }
}

/// Encodes the status of a worker.
pub fn encode_worker(status: WorkerStatus, wall: WallClock) -> v1::WorkerStatus {
    let info = status.info;
    v1::WorkerStatus {
        worker_id: status.session.id.to_string(),
        epoch: status.session.epoch.0,
        state: worker_state(status.state).into(),
        address: info.address.map(|address| address.to_string()).unwrap_or_default(),
        hostname: info.hostname,
        pid: info.pid,
        version: info.version,
        total: Some(info.resources.into()),
        free: Some(status.free.into()),
        tasks: status.tasks as u64,
        actors: status.actors as u64,
        joined_at: wall.unix_millis(status.joined),
        preemptible: info.provides.preemptible,
        store: info.store.map(|store| store.to_string()).unwrap_or_default(),
        unable: status.unable.into_iter().map(encode_unable).collect(),
        python_minor: info.provides.code_version,
    }
}

fn encode_unable((runtime, why): (Arc<str>, Error)) -> v1::UnableRuntime {
    v1::UnableRuntime { runtime: runtime.to_string(), reason: why.message().to_owned() }
}

/// Encodes the counters of a cluster.
pub fn encode_counters(counters: Counters) -> v1::Counters {
    let Counters { submitted, finished, failed, cancelled, lost, refused, fenced, stale } =
        counters;
    v1::Counters { submitted, finished, failed, cancelled, lost, refused, fenced, stale }
}
