//! The unary operations from the caller's side: what `marline status` and its siblings ask. Whoever
//! submits work of any amount uses a [`Client`](crate::Client), which has a link.

use crate::executor::command::CommandLine;
use crate::net::address::ConnectError;
use crate::net::credentials::ClusterIdentity;
use crate::net::frame_connection::Socket;
use crate::net::handshake::ConnectionKind;
use crate::net::{MAX_MESSAGE_BYTES, dial, io, ticket};
use crate::wire::convert::control::add_worker_view;
use crate::wire::convert::from_status;
use crate::wire::v1;
use crate::wire::v1::control_client::ControlClient;
use marline_core::error::{Error, Ran};
use marline_core::id::{ActorId, SessionId, TaskId};
use marline_core::spec::TaskOptions;
use std::sync::Arc;
use std::time::Duration;

pub use crate::net::address::check_address;
pub use crate::wire::v1::{
    ActorState, ActorStatus, ClusterResourcesReply as ClusterStatus, DeathCause,
    ErrorKind as WireErrorKind, ListObjectsReply, LogChunk, ObjectHere, ObjectStatus,
    Resources as WireResources, StoreStatus, TaskState, TaskStatus, UnableRuntime, WorkerState,
    WorkerStatus,
};

/// How long one question may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Asks a node, one question at a time. Blocks; cheap to clone.
#[derive(Clone)]
pub struct Control {
    client: ControlClient<dial::GrpcChannel>,
    address: String,
}

/// Makes short-lived tokens for gRPC clients that are not Marline's own, such as grpcurl.
#[derive(Clone)]
pub struct Tickets {
    token: Option<Arc<str>>,
    incarnation: ClusterIdentity,
}

impl Tickets {
    /// How long a ticket is good.
    pub const LIFE: Duration = ticket::TICKET_LIFE;

    /// Tickets for the cluster at this address. Whatever listens there proves first that it knows the token.
    pub fn at(address: &str, token: Option<Arc<str>>) -> Result<Tickets, Error> {
        check_address(address)?;
        let (tell, mut told) = marline_channel::oneshot();
        let (to, key) = (address.to_owned(), token.clone());
        io().spawn(async move { tell.send(Socket::dial(&to, ConnectionKind::Grpc, &key).await) });
        match told.recv().wait() {
            Ok(Ok((_, incarnation))) => Ok(Tickets { token, incarnation }),
            Ok(Err(error)) => Err(ConnectError::of_dialling(address, &error).error),
            Err(_) => Err(Error::internal("the thread that dials has ended")),
        }
    }

    /// Whether the cluster asks for any.
    pub fn are_needed(&self) -> bool {
        self.token.is_some()
    }

    /// A ticket that is good from now on.
    pub fn ticket(&self) -> String {
        ticket::make(&self.token, self.incarnation, ticket::now())
    }
}

/// Whose log is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogOf {
    /// A task's.
    Task(TaskId),
    /// An actor's, calls included.
    Actor(ActorId),
}

/// A part of a log.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct LogPart {
    /// What was printed.
    pub chunks: Vec<LogChunk>,
    /// Where it begins; later than was asked for if what was there is not kept any more.
    pub offset: u64,
    /// What to ask for next.
    pub next_offset: u64,
    /// Which attempt of the task, or which epoch of the actor; 0 if nothing was printed.
    pub number: u64,
}

impl Control {
    /// Speaks to the node at this address.
    pub fn at(address: &str, token: Option<Arc<str>>) -> Result<Control, Error> {
        let _guard = io().enter();
        let client = ControlClient::new(dial::grpc_channel(address, token)?)
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES);
        Ok(Control { client, address: address.into() })
    }

    /// Whom it speaks to.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Blocks this thread until there is an answer, or `patience` is over.
    fn ask<R: Send + 'static>(
        &self,
        patience: Duration,
        answer: impl Future<Output = Result<tonic::Response<R>, tonic::Status>> + Send + 'static,
    ) -> Result<R, Error> {
        let (tell, mut told) = marline_channel::oneshot();
        io().spawn(async move { tell.send(tokio::time::timeout(patience, answer).await) });
        let address = &self.address;
        match told.recv().wait() {
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

    /// The cluster as a whole.
    pub fn cluster(&self) -> Result<ClusterStatus, Error> {
        let mut client = self.client.clone();
        self.ask(
            PATIENCE,
            async move { client.cluster_resources(v1::ClusterResourcesRequest {}).await },
        )
    }

    /// The latest tasks, and whether there are others.
    pub fn tasks(
        &self,
        limit: u32,
        states: &[TaskState],
    ) -> Result<(Vec<TaskStatus>, bool), Error> {
        let states = states.iter().map(|state| (*state).into()).collect();
        let request = v1::ListTasksRequest { limit, states, ..Default::default() };
        self.list_tasks(request)
    }

    /// The latest tasks whose ids begin so, and whether there are others.
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
        let reply = self.ask(PATIENCE, async move { client.list_tasks(request).await })?;
        Ok((reply.tasks, reply.more))
    }

    /// What is known of a task.
    pub fn task(&self, task: TaskId) -> Result<TaskStatus, Error> {
        let request = v1::GetTaskStatusRequest { task_id: task.to_string() };
        let mut client = self.client.clone();
        self.ask(PATIENCE, async move { client.get_task_status(request).await })
    }

    /// Stops a task; at once if `force`. Says whether it had not ended.
    pub fn cancel(&self, task: TaskId, force: bool) -> Result<bool, Error> {
        let request = v1::CancelTaskRequest { task_id: task.to_string(), force };
        let mut client = self.client.clone();
        let reply = self.ask(PATIENCE, async move { client.cancel_task(request).await })?;
        Ok(reply.had_not_ended)
    }

    /// Submits a command that belongs to nobody: its result is kept for a while.
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
        let reply = self.ask(PATIENCE, async move { client.submit_task(request).await })?;
        reply.task_id.parse()
    }

    /// The latest actors, and whether there are others.
    pub fn actors(&self, limit: u32) -> Result<(Vec<ActorStatus>, bool), Error> {
        self.actors_beginning("", limit)
    }

    /// The latest actors whose ids begin so, and whether there are others.
    pub fn actors_beginning(
        &self,
        prefix: &str,
        limit: u32,
    ) -> Result<(Vec<ActorStatus>, bool), Error> {
        let request = v1::ListActorsRequest { limit, id_prefix: prefix.into() };
        let mut client = self.client.clone();
        let reply = self.ask(PATIENCE, async move { client.list_actors(request).await })?;
        Ok((reply.actors, reply.more))
    }

    /// What is known of an actor.
    pub fn actor(&self, actor: ActorId) -> Result<ActorStatus, Error> {
        let actor_id = actor.to_string();
        let request = v1::GetActorStatusRequest { actor_id, ..Default::default() };
        let mut client = self.client.clone();
        self.ask(PATIENCE, async move { client.get_actor_status(request).await })
    }

    /// What is known of the actor that has this name in this namespace, and lives.
    pub fn actor_named(&self, namespace: &str, name: &str) -> Result<ActorStatus, Error> {
        let (namespace, name) = (namespace.into(), name.into());
        let request = v1::GetActorStatusRequest { actor_id: String::new(), namespace, name };
        let mut client = self.client.clone();
        self.ask(PATIENCE, async move { client.get_actor_status(request).await })
    }

    /// Adds what the actor's worker knows: the calls that went there direct. Says whether that is known now:
    /// the worker may not answer.
    pub fn ask_worker_of(&self, actor: &mut ActorStatus, token: Option<Arc<str>>) -> bool {
        if actor.worker_address.is_empty() || actor.worker_address == self.address {
            return true; // There are no such calls, or the same node has answered.
        }
        let Ok(id) = actor.actor_id.parse() else { return false };
        let worker = Control::at(&actor.worker_address, token);
        let here = worker.and_then(|worker| worker.actor(id));
        here.is_ok_and(|here| {
            add_worker_view(actor, &here);
            here.epoch == actor.epoch
        })
    }

    /// Ends an actor for good; one that has ended is `NotFound`.
    pub fn delete_actor(&self, actor: ActorId) -> Result<(), Error> {
        let request = v1::DeleteActorRequest { actor_id: actor.to_string() };
        let mut client = self.client.clone();
        self.ask(PATIENCE, async move { client.delete_actor(request).await }).map(drop)
    }

    /// The largest values; of a worker, what its store has.
    pub fn objects(&self, limit: u32) -> Result<ListObjectsReply, Error> {
        let request = v1::ListObjectsRequest { limit };
        let mut client = self.client.clone();
        self.ask(PATIENCE, async move { client.list_objects(request).await })
    }

    /// What the store of a worker has, the largest first, and how full it is. Asked of the worker itself, which has
    /// the same token.
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

    /// The workers, and whether there are others.
    pub fn workers(&self, limit: u32) -> Result<(Vec<WorkerStatus>, bool), Error> {
        self.workers_beginning("", limit)
    }

    /// The worker with this id, if it is here.
    pub fn worker(&self, worker: &str) -> Result<Option<WorkerStatus>, Error> {
        let (found, _) = self.workers_beginning(worker, 1)?;
        Ok(found.into_iter().find(|found| found.worker_id == worker))
    }

    /// The workers whose ids begin so, and whether there are others.
    pub fn workers_beginning(
        &self,
        prefix: &str,
        limit: u32,
    ) -> Result<(Vec<WorkerStatus>, bool), Error> {
        let request = v1::ListWorkersRequest { limit, id_prefix: prefix.into() };
        let mut client = self.client.clone();
        let reply = self.ask(PATIENCE, async move { client.list_workers(request).await })?;
        Ok((reply.workers, reply.more))
    }

    /// Has a worker finish what it has, move what is left after `grace`, and leave.
    pub fn drain(&self, worker: SessionId, grace: Duration) -> Result<(), Error> {
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        let request = v1::DrainWorkerRequest { worker_id: worker.to_string(), grace_ms };
        let mut client = self.client.clone();
        self.ask(PATIENCE, async move { client.drain_worker(request).await }).map(drop)
    }

    /// What was printed, from `offset` on; waits up to `patience` for something to be there. To be asked
    /// of the node that has the worker.
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
        let reply = self.ask(PATIENCE + patience, async move { client.read_log(request).await })?;
        let v1::ReadLogReply { chunks, offset, next_offset, number } = reply;
        Ok(LogPart { chunks, offset, next_offset, number })
    }
}
