//! The caller's side of the control service: the single-request operations behind `marline status`
//! and its siblings. Each is one gRPC call.
//!
//! A program that submits much work uses a [`Client`](crate::Client) instead, which has a link.

use crate::executor::command::CommandLine;
use crate::net::address::ConnectError;
use crate::net::credentials::ClusterIdentity;
use crate::net::frame_connection::Socket;
use crate::net::handshake::ConnectionKind;
use crate::net::services::control_client::ControlClient;
use crate::net::status::from_status;
use crate::net::{MAX_MESSAGE_BYTES, dial, io, ticket};
use marline_core::error::{Error, Ran};
use marline_core::id::{ActorId, SessionId, TaskId};
use marline_core::spec::TaskOptions;
use marline_wire::convert::control::add_worker_view;
use marline_wire::v1;
use std::sync::Arc;
use std::time::Duration;

pub use crate::net::address::check_address;
pub use marline_wire::v1::{
    ActorState, ActorStatus, ClusterResourcesReply as ClusterStatus, DeathCause,
    ErrorKind as WireErrorKind, ListObjectsReply, LogChunk, ObjectHere, ObjectStatus,
    Resources as WireResources, StoreStatus, TaskState, TaskStatus, UnableRuntime, WorkerState,
    WorkerStatus,
};

/// How long one request may take, unless it waits on purpose ([`Control::read_log`]).
const PATIENCE: Duration = Duration::from_secs(10);

/// A handle for requests to one node. Each request blocks its thread. Cheap to clone.
#[derive(Clone)]
pub struct Control {
    client: ControlClient<dial::GrpcChannel>,
    address: String,
}

/// Creates tickets: short-lived tokens for gRPC clients that are not Marline's own, such as
/// grpcurl.
#[derive(Clone)]
pub struct Tickets {
    token: Option<Arc<str>>,
    incarnation: ClusterIdentity,
}

impl Tickets {
    /// How long a ticket is valid.
    pub const LIFE: Duration = ticket::TICKET_LIFE;

    /// Connects to the cluster at this address, and returns what is needed to create its tickets.
    /// The listener at the address must first prove that it knows the token.
    pub fn at(address: &str, token: Option<Arc<str>>) -> Result<Tickets, Error> {
        check_address(address)?;
        let (sender, mut receiver) = marline_channel::oneshot();
        let (to, key) = (address.to_owned(), token.clone());
        io().spawn(async move { sender.send(Socket::dial(&to, ConnectionKind::Grpc, &key).await) });
        match receiver.recv().wait() {
            Ok(Ok((_, incarnation))) => Ok(Tickets { token, incarnation }),
            Ok(Err(error)) => Err(ConnectError::of_dialling(address, &error).error),
            Err(_) => Err(Error::internal("the thread that dials has ended")),
        }
    }

    /// Returns whether the cluster asks for tickets, which it does if it has a token.
    pub fn are_needed(&self) -> bool {
        self.token.is_some()
    }

    /// Returns a new ticket, which is valid from now on.
    pub fn ticket(&self) -> String {
        ticket::make(&self.token, self.incarnation, ticket::now())
    }
}

/// The task or the actor whose log is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogOf {
    /// The log of a task.
    Task(TaskId),
    /// The log of an actor, which includes the output of its calls.
    Actor(ActorId),
}

/// A part of a log.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct LogPart {
    /// The printed text.
    pub chunks: Vec<LogChunk>,
    /// Where this part begins in the log, in bytes. It is larger than the requested offset if the
    /// text there has been dropped since.
    pub offset: u64,
    /// The offset of the next request.
    pub next_offset: u64,
    /// The attempt of the task or the epoch of the actor that this log belongs to, or 0 if nothing
    /// was printed.
    pub number: u64,
}

impl Control {
    /// Creates a handle for requests to the node at this address. The first request connects.
    pub fn at(address: &str, token: Option<Arc<str>>) -> Result<Control, Error> {
        let _guard = io().enter();
        let client = ControlClient::new(dial::grpc_channel(address, token)?)
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES);
        Ok(Control { client, address: address.into() })
    }

    /// Returns the address of the node.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Sends a request and blocks this thread until the answer arrives. Fails with `Timeout` after
    /// `patience`.
    fn request<R: Send + 'static>(
        &self,
        patience: Duration,
        answer: impl Future<Output = Result<tonic::Response<R>, tonic::Status>> + Send + 'static,
    ) -> Result<R, Error> {
        let (sender, mut receiver) = marline_channel::oneshot();
        io().spawn(async move { sender.send(tokio::time::timeout(patience, answer).await) });
        let address = &self.address;
        match receiver.recv().wait() {
            Ok(Ok(answer)) => answer.map(tonic::Response::into_inner).map_err(|status| {
                let error = ConnectError::of_transport(address, &status);
                error.map_or_else(|| from_status(status), |error| error.error)
            }),
            Ok(Err(_)) | Err(_) => {
                let words = format!("{address} did not answer within {patience:?}");
                Err(Error::timeout(words).ran(Ran::Maybe))
            }
        }
    }

    /// Returns the status of the whole cluster.
    pub fn cluster(&self) -> Result<ClusterStatus, Error> {
        let mut client = self.client.clone();
        self.request(PATIENCE, async move {
            client.cluster_resources(v1::ClusterResourcesRequest {}).await
        })
    }

    /// Returns the latest tasks, and whether there are more than `limit`.
    pub fn tasks(
        &self,
        limit: u32,
        states: &[TaskState],
    ) -> Result<(Vec<TaskStatus>, bool), Error> {
        let states = states.iter().map(|state| (*state).into()).collect();
        let request = v1::ListTasksRequest { limit, states, ..Default::default() };
        self.list_tasks(request)
    }

    /// Returns the latest tasks whose ids begin with `prefix`, and whether there are more than
    /// `limit`.
    pub fn tasks_beginning(
        &self,
        prefix: &str,
        limit: u32,
    ) -> Result<(Vec<TaskStatus>, bool), Error> {
        let id_prefix = prefix.into();
        self.list_tasks(v1::ListTasksRequest { limit, id_prefix, ..Default::default() })
    }

    fn list_tasks(&self, request: v1::ListTasksRequest) -> Result<(Vec<TaskStatus>, bool), Error> {
        let mut client = self.client.clone();
        let reply = self.request(PATIENCE, async move { client.list_tasks(request).await })?;
        Ok((reply.tasks, reply.more))
    }

    /// Returns the status of a task.
    pub fn task(&self, task: TaskId) -> Result<TaskStatus, Error> {
        let request = v1::GetTaskStatusRequest { task_id: task.to_string() };
        let mut client = self.client.clone();
        self.request(PATIENCE, async move { client.get_task_status(request).await })
    }

    /// Cancels a task. With `force`, its executor is killed at once. Returns whether the task had
    /// not ended.
    pub fn cancel(&self, task: TaskId, force: bool) -> Result<bool, Error> {
        let request = v1::CancelTaskRequest { task_id: task.to_string(), force };
        let mut client = self.client.clone();
        let reply = self.request(PATIENCE, async move { client.cancel_task(request).await })?;
        Ok(reply.had_not_ended)
    }

    /// Submits a command that belongs to no session: the controller holds its result for a while.
    pub fn submit_command(
        &self,
        line: &CommandLine,
        options: TaskOptions,
    ) -> Result<TaskId, Error> {
        let request = v1::SubmitTaskRequest {
            function: line.function(),
            args: Some(line.encode()?.into()),
            options: Some(options.into()),
            ..v1::SubmitTaskRequest::default()
        };
        let mut client = self.client.clone();
        let reply = self.request(PATIENCE, async move { client.submit_task(request).await })?;
        reply.task_id.parse()
    }

    /// Returns the latest actors, and whether there are more than `limit`.
    pub fn actors(&self, limit: u32) -> Result<(Vec<ActorStatus>, bool), Error> {
        self.actors_beginning("", limit)
    }

    /// Returns the latest actors whose ids begin with `prefix`, and whether there are more than
    /// `limit`.
    pub fn actors_beginning(
        &self,
        prefix: &str,
        limit: u32,
    ) -> Result<(Vec<ActorStatus>, bool), Error> {
        let request = v1::ListActorsRequest { limit, id_prefix: prefix.into() };
        let mut client = self.client.clone();
        let reply = self.request(PATIENCE, async move { client.list_actors(request).await })?;
        Ok((reply.actors, reply.more))
    }

    /// Returns the status of an actor.
    pub fn actor(&self, actor: ActorId) -> Result<ActorStatus, Error> {
        let actor_id = actor.to_string();
        let request = v1::GetActorStatusRequest { actor_id, ..Default::default() };
        let mut client = self.client.clone();
        self.request(PATIENCE, async move { client.get_actor_status(request).await })
    }

    /// Returns the status of the live actor that has this name in this namespace.
    pub fn actor_named(&self, namespace: &str, name: &str) -> Result<ActorStatus, Error> {
        let (namespace, name) = (namespace.into(), name.into());
        let request = v1::GetActorStatusRequest { actor_id: String::new(), namespace, name };
        let mut client = self.client.clone();
        self.request(PATIENCE, async move { client.get_actor_status(request).await })
    }

    /// Adds to `actor` what only its worker knows: the calls that clients sent directly to that
    /// worker. Returns `false` if the worker does not answer, or hosts another epoch of the actor.
    pub fn ask_worker_of(&self, actor: &mut ActorStatus, token: Option<Arc<str>>) -> bool {
        if actor.worker_address.is_empty() || actor.worker_address == self.address {
            return true; // No direct calls are possible, or this node has answered for the worker.
        }
        let Ok(id) = actor.actor_id.parse() else { return false };
        let worker = Control::at(&actor.worker_address, token);
        let here = worker.and_then(|worker| worker.actor(id));
        here.is_ok_and(|here| {
            add_worker_view(actor, &here);
            here.epoch == actor.epoch
        })
    }

    /// Deletes an actor. Fails with `NotFound` if the actor has ended.
    pub fn delete_actor(&self, actor: ActorId) -> Result<(), Error> {
        let request = v1::DeleteActorRequest { actor_id: actor.to_string() };
        let mut client = self.client.clone();
        self.request(PATIENCE, async move { client.delete_actor(request).await }).map(drop)
    }

    /// Returns the largest objects. A controller lists the objects of the cluster; a worker lists
    /// those in its object store.
    pub fn objects(&self, limit: u32) -> Result<ListObjectsReply, Error> {
        let request = v1::ListObjectsRequest { limit };
        let mut client = self.client.clone();
        self.request(PATIENCE, async move { client.list_objects(request).await })
    }

    /// Returns the largest objects in a worker's object store, and how full the store is. It asks
    /// the worker itself, which has the same token.
    pub fn objects_at(
        &self,
        worker: &WorkerStatus,
        token: Option<Arc<str>>,
        limit: u32,
    ) -> Result<ListObjectsReply, Error> {
        if worker.address == self.address {
            return self.objects(limit);
        }
        Control::at(&worker.address, token)?.objects(limit)
    }

    /// Returns the workers, and whether there are more than `limit`.
    pub fn workers(&self, limit: u32) -> Result<(Vec<WorkerStatus>, bool), Error> {
        self.workers_beginning("", limit)
    }

    /// Returns the worker with this id, if it is in the cluster.
    pub fn worker(&self, worker: &str) -> Result<Option<WorkerStatus>, Error> {
        let (found, _) = self.workers_beginning(worker, 1)?;
        Ok(found.into_iter().find(|found| found.worker_id == worker))
    }

    /// Returns the workers whose ids begin with `prefix`, and whether there are more than `limit`.
    pub fn workers_beginning(
        &self,
        prefix: &str,
        limit: u32,
    ) -> Result<(Vec<WorkerStatus>, bool), Error> {
        let request = v1::ListWorkersRequest { limit, id_prefix: prefix.into() };
        let mut client = self.client.clone();
        let reply = self.request(PATIENCE, async move { client.list_workers(request).await })?;
        Ok((reply.workers, reply.more))
    }

    /// Drains a worker: it finishes its work, gives back what is not done after `grace`, and
    /// leaves.
    pub fn drain(&self, worker: SessionId, grace: Duration) -> Result<(), Error> {
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        let request = v1::DrainWorkerRequest { worker_id: worker.to_string(), grace_ms };
        let mut client = self.client.clone();
        self.request(PATIENCE, async move { client.drain_worker(request).await }).map(drop)
    }

    /// Reads a log from `offset` on. If there is no text yet, waits for some up to `patience`. Only
    /// the node of the worker that ran the task or the actor can answer.
    pub fn read_log(&self, of: LogOf, offset: u64, patience: Duration) -> Result<LogPart, Error> {
        let mut request = v1::ReadLogRequest {
            offset,
            timeout_ms: patience.as_millis() as u64,
            ..v1::ReadLogRequest::default()
        };
        match of {
            LogOf::Task(task) => request.task_id = task.to_string(),
            LogOf::Actor(actor) => request.actor_id = actor.to_string(),
        }
        let mut client = self.client.clone();
        let reply =
            self.request(PATIENCE + patience, async move { client.read_log(request).await })?;
        let v1::ReadLogReply { chunks, offset, next_offset, number } = reply;
        Ok(LogPart { chunks, offset, next_offset, number })
    }
}
