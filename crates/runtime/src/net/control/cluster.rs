//! Workers and the cluster as a whole: list and drain workers, sum up resources, report health.

use super::{ControlService, cut, page};
use crate::node::Health;
use marline_core::Error;
use marline_core::controller::WorkerStatus;
use marline_core::recent_events::{EventSummary, Subject};
use marline_core::resources::Resources;
use marline_wire::convert::control::{encode_counters, encode_worker, id, prefix, worker_state};
use marline_wire::join::PROTOCOL;
use marline_wire::v1;
use std::collections::BTreeMap;
use std::time::Duration;

impl ControlService {
    pub(super) fn list_workers(
        &self,
        request: v1::ListWorkersRequest,
    ) -> Result<v1::ListWorkersReply, Error> {
        let limit = page(request.limit)?;
        let prefix = prefix(&request.id_prefix, "ListWorkersRequest.id_prefix")?;
        let mut listed = self.node()?.with_controller(|controller| controller.list_workers())?;
        listed.retain(|worker| prefix.begins(worker.session.id.as_u128()));
        let (listed, more) = cut(listed, limit);
        let workers = listed.into_iter().map(|worker| encode_worker(worker, self.wall)).collect();
        Ok(v1::ListWorkersReply { workers, more })
    }

    pub(super) fn drain_worker(
        &self,
        request: v1::DrainWorkerRequest,
    ) -> Result<v1::DrainWorkerReply, Error> {
        let id = id(&request.worker_id, "DrainWorkerRequest.worker_id")?;
        let grace = Duration::from_millis(request.grace_ms);
        let drain = EventSummary::of("DrainWorker", Subject::Process(id));
        self.node()?.with_controller_mut(drain, |controller, now, effects| {
            controller.drain(now, id, grace, effects)
        })?;
        Ok(v1::DrainWorkerReply {})
    }

    pub(super) fn cluster_resources(
        &self,
        _: v1::ClusterResourcesRequest,
    ) -> Result<v1::ClusterResourcesReply, Error> {
        let node = self.node()?;
        let (reply, workers) = node.with_controller(|controller| {
            let (kept_objects, kept_bytes) = controller.object_count_and_bytes();
            let waiting = controller.waiting().into_iter();
            let waiting =
                waiting.map(|(reason, count)| v1::Waiting { reason, count: count as u64 });
            let reply = v1::ClusterResourcesReply {
                pending_tasks: controller.pending_tasks() as u64,
                counters: Some(encode_counters(controller.counters())),
                kept_objects: kept_objects as u64,
                kept_bytes: kept_bytes as u64,
                sessions: controller.session_count() as u64,
                controller_epoch: controller.config().epoch.0,
                waiting: waiting.collect(),
                unable: controller.unable(),
                ..v1::ClusterResourcesReply::default()
            };
            (reply, controller.list_workers())
        })?;
        let sum = |amount: fn(&WorkerStatus) -> &Resources| {
            let none = Resources::default();
            workers.iter().map(amount).fold(none, |sum, amount| sum.plus(amount))
        };
        let mut states: BTreeMap<i32, u32> = BTreeMap::new();
        for worker in &workers {
            *states.entry(worker_state(worker.state).into()).or_default() += 1;
        }
        let states = states.into_iter().map(|(state, count)| v1::WorkerCount { state, count });
        Ok(v1::ClusterResourcesReply {
            total: Some(sum(|worker| &worker.info.resources).into()),
            free: Some(sum(|worker| &worker.free).into()),
            workers: states.collect(),
            version: env!("CARGO_PKG_VERSION").into(),
            protocol: PROTOCOL.into(),
            uptime_ms: node.uptime().as_millis() as u64,
            cluster_id: node.cluster_id().to_string(),
            ..reply
        })
    }

    pub(super) fn worker_health(
        &self,
        _: v1::WorkerHealthRequest,
    ) -> Result<v1::WorkerHealthReply, Error> {
        let node = self.node()?;
        let workers = node.health()?.into_iter().map(encode_health).collect();
        Ok(v1::WorkerHealthReply { workers, uptime_ms: node.uptime().as_millis() as u64 })
    }
}

fn encode_health(health: Health) -> v1::HostedWorker {
    v1::HostedWorker {
        worker_id: health.session.map(|session| session.id.to_string()).unwrap_or_default(),
        tasks: health.tasks as u64,
        actors: health.actors as u64,
        total: Some(health.total.into()),
        free: Some(health.free.into()),
        draining: health.draining,
    }
}
