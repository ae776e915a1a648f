//! The unary operations, for any gRPC client. Each operation decodes its request, calls the node
//! under its lock, and encodes the answer. `marline-core` decides; this module limits what one
//! request may ask for.
//!
//! One file for each family: `session.rs`, `task.rs`, `actor.rs`, `object.rs`, `cluster.rs`,
//! `log.rs`.

mod actor;
mod cluster;
mod log;
mod object;
mod session;
mod task;

use super::status::to_status;
use crate::net::services::control_server::Control;
use crate::node::Node;
use marline_core::error::{Error, Ran};
use marline_wire::v1;
use marline_wire::wall_clock::WallClock;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tonic::{Request, Response, Status};

/// How many entries a list has if the request sets no limit.
const DEFAULT_PAGE: usize = 100;
/// The most entries that a request can ask for.
const MAX_PAGE: usize = 1_000;
/// The most tasks that one request can wait for.
const MAX_WAIT_TASKS: usize = 10_000;
/// The longest wait of one request: shorter than the time for which proxies keep a silent request
/// open.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// See the [module](self).
pub(crate) struct ControlService {
    node: Weak<Node>,
    wall: WallClock,
}

impl ControlService {
    pub fn new(node: &Arc<Node>) -> ControlService {
        ControlService { node: Arc::downgrade(node), wall: WallClock::new(node.now()) }
    }

    fn node(&self) -> Result<Arc<Node>, Error> {
        let gone = || Error::unavailable(Ran::No, "this process is shutting down");
        self.node.upgrade().ok_or_else(gone)
    }

    /// Fails unless this node hosts the controller.
    fn require_controller(&self) -> Result<(), Error> {
        self.node()?.with_controller(|_| ())
    }

    /// Allows an operation that every node answers about itself.
    fn allow_any_node(&self) -> Result<(), Error> {
        Ok(())
    }
}

/// Returns how many entries the request asks for.
fn page(limit: u32) -> Result<usize, Error> {
    match limit as usize {
        0 => Ok(DEFAULT_PAGE),
        limit if limit <= MAX_PAGE => Ok(limit),
        limit => Err(Error::too_large(format!(
            "the request asks for {limit} entries, the limit is {MAX_PAGE} (MAX_PAGE)"
        ))),
    }
}

/// Cuts a list to `limit` entries. The caller asked for one entry more: returns whether there was
/// one.
fn cut<T>(mut list: Vec<T>, limit: usize) -> (Vec<T>, bool) {
    let more = list.len() > limit;
    list.truncate(limit);
    (list, more)
}

/// Returns how long the request may wait.
fn time(milliseconds: u64) -> Result<Duration, Error> {
    let time = Duration::from_millis(milliseconds);
    if time <= MAX_WAIT {
        return Ok(time);
    }
    Err(Error::too_large(format!(
        "timeout_ms is {milliseconds}, the limit is {} (MAX_WAIT): wait in several requests",
        MAX_WAIT.as_millis()
    )))
}

type Answer<T> = Result<Response<T>, Status>;

fn answer<T>(result: Result<T, Error>) -> Answer<T> {
    result.map(Response::new).map_err(to_status)
}

/// Implements each operation by the method of the same name, after the check of where it is
/// allowed.
macro_rules! operations {
    ($($name:ident: $request:ident -> $reply:ident, $asked:ident $(, $wait:ident)?;)+) => {
        #[tonic::async_trait]
        impl Control for ControlService {
            $(
                async fn $name(&self, request: Request<v1::$request>) -> Answer<v1::$reply> {
                    self.$asked().map_err(to_status)?;
                    answer(ControlService::$name(self, request.into_inner())$(.$wait)?)
                }
            )+
        }
    };
}

operations! {
    open_session: OpenSessionRequest -> OpenSessionReply, require_controller;
    keep_alive: KeepAliveRequest -> KeepAliveReply, require_controller;
    close_session: CloseSessionRequest -> CloseSessionReply, require_controller;
    submit_task: SubmitTaskRequest -> SubmitTaskReply, require_controller;
    get_task_status: GetTaskStatusRequest -> TaskStatus, require_controller;
    get_task_result: GetTaskResultRequest -> GetTaskResultReply, require_controller, await;
    cancel_task: CancelTaskRequest -> CancelTaskReply, require_controller;
    wait_tasks: WaitTasksRequest -> WaitTasksReply, require_controller, await;
    list_tasks: ListTasksRequest -> ListTasksReply, allow_any_node;
    create_actor: CreateActorRequest -> CreateActorReply, require_controller;
    call_actor: CallActorRequest -> CallActorReply, require_controller;
    get_actor_status: GetActorStatusRequest -> ActorStatus, allow_any_node;
    list_actors: ListActorsRequest -> ListActorsReply, allow_any_node;
    delete_actor: DeleteActorRequest -> DeleteActorReply, require_controller;
    list_objects: ListObjectsRequest -> ListObjectsReply, allow_any_node;
    list_workers: ListWorkersRequest -> ListWorkersReply, require_controller;
    drain_worker: DrainWorkerRequest -> DrainWorkerReply, require_controller;
    cluster_resources: ClusterResourcesRequest -> ClusterResourcesReply, require_controller;
    worker_health: WorkerHealthRequest -> WorkerHealthReply, allow_any_node;
    read_log: ReadLogRequest -> ReadLogReply, allow_any_node, await;
}

#[cfg(test)]
mod tests;
