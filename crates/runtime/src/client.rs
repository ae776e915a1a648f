//! The client: the handle of a program that submits work. Through it the program submits tasks,
//! puts values, creates actors, and waits for results.
//!
//! A client only translates: each method asks the client's state machine in the node
//! (`node/shells.rs`) and registers who waits for the answer. Where to look next:
//!
//! - `client/pending.rs`: results that have not arrived, and waiting for them.
//! - `client/objects.rs`: which object store a large value goes to and comes from.
//! - `client/pull.rs` and `client/upload.rs`: moving large values without blocking, and to other
//!   machines.
//! - `client/arguments.rs`: what must happen to arguments before a task or call is submitted.

mod arguments;
mod objects;
mod pending;
mod pull;
mod submit;
mod upload;

pub use pending::{Callback, Pending, wait_for_some};

use crate::control::{Control, TaskStatus, check_address};
use crate::executor::{LEND_AFTER, poll_until, runs_here};
use crate::net::credentials::{Credentials, Token};
use crate::net::{MAX_MESSAGE_BYTES, dial};
use crate::node::{Membership, Node, OutputReceiver, OutputSender, Shell};
use crate::process::JOIN_PATIENCE;
use crate::process_identity::this_process;
use crate::runtime_log;
use crate::stream::{Feed, ItemStream};
use crate::upstream::{Upstream, UpstreamToken};
use marline_channel::{oneshot, watch};
use marline_core::controller::Role;
use marline_core::error::{Error, Ran};
use marline_core::id::{ActorId, ObjectId, Referent, TaskId};
use marline_core::message::{AttemptId, CancelMode, FoundActor};
use marline_core::output::{Audience, OutputSource};
use marline_core::payload::{Outcome, Value};
use marline_core::spec::{ActorSpec, TaskSpec};
use objects::NearbyStore;
use pending::session_over_error;
use pull::ClientPulls;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// The most bytes of arguments or of values in one message: the message limit, less 1 MiB for the
/// fields around them.
const MAX_CARRIED_BYTES: usize = MAX_MESSAGE_BYTES - (1 << 20);

/// A client of a cluster. Cheap to clone. Its session ends with the last clone.
#[derive(Clone)]
pub struct Client {
    shared: Arc<ClientShared>,
}

/// A weak reference to a client: it does not keep the session open. A clone refers to the same
/// client.
#[derive(Clone)]
pub struct WeakClient(Weak<ClientShared>);

impl WeakClient {
    /// Returns the client, if a strong clone of it still exists.
    pub fn upgrade(&self) -> Option<Client> {
        self.0.upgrade().map(|shared| Client { shared })
    }
}

struct ClientShared {
    node: Arc<Node>,
    index: usize,
    /// Whether its controller is in another process. Then the node exists for this client alone,
    /// and closes with it.
    is_elsewhere: bool,
    /// The handle for requests to the controller elsewhere, with its token. Created at the first
    /// request.
    control: Mutex<Option<(Control, Token)>>,
    /// How many sessions of this client have ended.
    ended: Arc<AtomicU64>,
    /// The object store of a worker on this machine, if the client has looked for one.
    near: Mutex<NearbyStore>,
    /// How many values were put whose data is in an object store, and how many of those the
    /// controller certainly knows.
    stored_puts: AtomicU64,
    confirmed_puts: AtomicU64,
    brings: ClientPulls,
    /// Whether the client has left its cluster.
    left: AtomicBool,
}

impl ClientShared {
    fn new(node: Arc<Node>, index: usize, is_elsewhere: bool) -> Arc<ClientShared> {
        let ended = node.with_state(|state, _| state.client(index).ended.clone());
        let (near, put, known) = (Mutex::default(), AtomicU64::new(0), AtomicU64::new(0));
        let (brings, left) = (ClientPulls::default(), AtomicBool::new(false));
        let control = Mutex::default();
        Arc::new(ClientShared {
            node,
            index,
            is_elsewhere,
            control,
            ended,
            near,
            stored_puts: put,
            confirmed_puts: known,
            brings,
            left,
        })
    }
}

impl ClientShared {
    /// Returns the handle for requests to the controller, if it is elsewhere. The handle is
    /// replaced when the controller's address or token has changed.
    fn control(&self) -> Result<Option<Control>, Error> {
        let Some((address, token)) = self.node.upstream() else { return Ok(None) };
        let mut cached = self.control.lock().expect("nothing panics under it");
        match &*cached {
            Some((control, same)) if *control.address() == *address && *same == token => {
                Ok(Some(control.clone()))
            }
            Some(_) | None => {
                let control = Control::at(&address, token.clone())?;
                *cached = Some((control.clone(), token));
                Ok(Some(control))
            }
        }
    }
}

impl Drop for ClientShared {
    fn drop(&mut self) {
        self.node.leave_client(self.index);
        if self.is_elsewhere {
            self.node.close();
        }
    }
}

impl Client {
    /// Creates a client of a controller in this process.
    pub(crate) fn new(node: Arc<Node>) -> Client {
        let index = node.host_client();
        Client { shared: ClientShared::new(node, index, false) }
    }

    /// Connects to a controller at `host:port` or `unix:/path`. Without a token, uses the one in
    /// the cluster's record, if the cluster runs on this machine for this user.
    pub fn connect(address: &str, token: Option<Arc<str>>) -> Result<Client, Error> {
        check_address(address)?;
        Client::connect_upstream(Upstream::named(address, token))
    }

    /// Connects to the cluster that runs on this machine for this user. When that cluster has
    /// ended, the client joins the next one that runs here. Without a token, uses the one in the
    /// cluster's record.
    pub fn connect_here(token: Option<Arc<str>>) -> Result<Client, Error> {
        let token = token.map_or(UpstreamToken::Recorded, UpstreamToken::Given);
        Client::connect_upstream(Upstream::Here { token })
    }

    fn connect_upstream(upstream: Upstream) -> Result<Client, Error> {
        runtime_log::start_from_environment()?;
        let found = upstream.find(None)?;
        let node = Node::new();
        let index = node.add_client_shell(&found.address, found.token);
        let client = Client { shared: ClientShared::new(node, index, true) };
        let membership = Membership {
            shell: Shell::Client(index),
            session_id: crate::new_session_id(),
            role: Role::Client,
            upstream,
            secret: Credentials::default(),
            process: this_process(),
        };
        dial::join(&client.shared.node, membership, JOIN_PATIENCE)?;
        Ok(client)
    }

    /// Returns a weak reference to this client.
    pub fn downgrade(&self) -> WeakClient {
        WeakClient(Arc::downgrade(&self.shared))
    }

    /// Returns the controller's address, if the controller is elsewhere.
    pub fn address(&self) -> Option<String> {
        self.shared.node.upstream().map(|(address, _)| address)
    }

    /// Ends the session now, even if clones of the client exist. Their requests fail from now on.
    pub fn leave(&self) {
        self.shared.left.store(true, Ordering::Relaxed);
        self.shared.node.end_client(self.shared.index);
    }

    /// Sets the function that shows warnings. By default they go to standard error.
    pub fn on_warning(&self, warn: impl Fn(&str) + Send + Sync + 'static) {
        let warn = Arc::new(warn);
        self.shared.node.with_state(|state, _| state.client(self.shared.index).warn = warn);
    }

    /// Returns a receiver of the output of the work that this client submits, and of the actors
    /// that it creates, from now on. Output that is not taken in time is dropped and counted. The
    /// receiver closes when this client leaves. It stays open if the cluster is lost and comes
    /// back: then it also receives the output of work that is submitted afterwards.
    pub fn output(&self) -> Result<OutputReceiver, Error> {
        let (output_sender, output_receiver) = OutputSender::new();
        self.shared.node.with_state(|state, _| {
            state.client(self.shared.index).output_sender = Some(output_sender)
        });
        self.with(|machine, effects| machine.show_output(Audience::Me, effects))?;
        Ok(output_receiver)
    }

    /// Declares that the work this client submits from now on is a part of a task or an actor. The
    /// client that is shown the output of that task or actor is also shown the output of its parts.
    pub fn set_parent(&self, source: OutputSource) -> Result<(), Error> {
        self.with(|machine, effects| machine.show_output(Audience::OfSource(source), effects))
    }

    /// Returns the status of a task or a call.
    pub fn status(&self, task: TaskId) -> Result<TaskStatus, Error> {
        match self.shared.control()? {
            Some(control) => control.task(task),
            None => self.shared.node.task_status(task),
        }
    }

    /// Cancels a task or a call.
    pub fn cancel(&self, task: TaskId, mode: CancelMode) {
        self.with(|machine, effects| machine.cancel(task, mode, effects));
    }

    /// Announces a value that will be [resolved](Client::resolve) later. Work can already need it.
    /// The client holds it until it is [released](Client::release).
    pub fn announce(&self) -> Result<ObjectId, Error> {
        let object = crate::new_object_id();
        self.announce_as(object)?;
        Ok(object)
    }

    /// Like [`announce`](Client::announce), under this id. The id is a new one, or that of a result
    /// of a call that this client made and whose result goes to this client alone.
    pub fn announce_as(&self, object: ObjectId) -> Result<(), Error> {
        self.with(|machine, effects| machine.announce(object, effects))
    }

    /// Gives an announced object its value, or the error why there is none.
    pub fn resolve(&self, object: ObjectId, value: Result<Value, Error>) {
        // `Ran::Maybe`, because the value may be the result of work that ran.
        let fitting = |value: Value| {
            let fits = fits("the value's bytes", value.payload.len());
            fits.map(|()| value).map_err(|error| error.ran(Ran::Maybe))
        };
        let value = value.and_then(fitting);
        self.with(|machine, effects| machine.resolve(object, value, effects));
    }

    /// Gets the value of an object that this client holds.
    pub fn get(&self, object: ObjectId) -> Result<Pending<Result<Value, Error>>, Error> {
        let (tell, pending) = Pending::with_callback();
        self.get_with_callback(object, tell)?;
        Ok(pending)
    }

    /// Like [`get`](Client::get), but calls the callback with the value.
    pub fn get_with_callback(
        &self,
        object: ObjectId,
        tell: Callback<Result<Value, Error>>,
    ) -> Result<(), Error> {
        self.shared.node.with_state(|state, _| {
            let mut effects = Vec::new();
            let shell = state.client(self.shared.index);
            shell.machine.fetch(object, &mut effects)?;
            shell.objects.entry(object).or_default().push(tell);
            state.client_effects(self.shared.index, effects);
            Ok(())
        })
    }

    /// Counts one more handle to a referent.
    pub fn hold(&self, thing: Referent) {
        self.with(|machine, effects| machine.hold(thing, effects));
    }

    /// Counts one handle less to a referent.
    pub fn release(&self, thing: Referent) {
        self.with(|machine, effects| machine.release(thing, effects));
    }

    /// Creates an actor, or finds the actor that has its name.
    pub fn create_actor(
        &self,
        spec: Arc<ActorSpec>,
    ) -> Result<Pending<Result<ActorId, Error>>, Error> {
        fits("the arguments", spec.args.len())?;
        let (waiter, receiver) = oneshot();
        self.shared.node.with_state(|state, _| {
            let mut effects = Vec::new();
            let shell = state.client(self.shared.index);
            let id = spec.id;
            shell.machine.create_actor(spec, &mut effects)?;
            shell.creating.insert(id, waiter);
            state.client_effects(self.shared.index, effects);
            Ok(Pending::new(receiver))
        })
    }

    /// Calls the callback when the first instance of an actor is ready, or with the error why there
    /// will be none. The callback is dropped if the session ends first.
    pub fn await_actor_ready(
        &self,
        actor: ActorId,
        tell: Callback<Result<(), Error>>,
    ) -> Result<(), Error> {
        self.shared.node.with_state(|state, _| {
            let mut effects = Vec::new();
            let shell = state.client(self.shared.index);
            shell.machine.await_actor_ready(actor, &mut effects)?;
            shell.actor_ready_waiters.entry(actor).or_default().push(tell);
            state.client_effects(self.shared.index, effects);
            Ok(())
        })
    }

    /// Finds an actor by its name.
    pub fn find_actor(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Pending<Result<FoundActor, Error>>, Error> {
        let (waiter, receiver) = oneshot();
        self.shared.node.with_state(|state, _| {
            let mut effects = Vec::new();
            let shell = state.client(self.shared.index);
            shell.next_request += 1;
            let request = shell.next_request;
            shell.machine.find_actor(request, namespace.into(), name.into(), &mut effects)?;
            shell.finding.insert(request, waiter);
            state.client_effects(self.shared.index, effects);
            Ok(Pending::new(receiver))
        })
    }

    /// Blocks this thread until the controller has handled everything that this client sent before.
    /// Call this before another process tells the controller about the same referents.
    pub fn sync(&self) -> Result<(), Error> {
        let put = self.shared.stored_puts.load(Ordering::Acquire);
        let (waiter, receiver) = oneshot();
        self.shared.node.with_state(|state, _| {
            let mut effects = Vec::new();
            let shell = state.client(self.shared.index);
            shell.next_request += 1;
            let request = shell.next_request;
            shell.machine.sync(request, &mut effects)?;
            shell.syncing.insert(request, waiter);
            state.client_effects(self.shared.index, effects);
            Ok(())
        })?;
        Pending::new(receiver).wait()?;
        self.shared.confirmed_puts.fetch_max(put, Ordering::AcqRel);
        Ok(())
    }

    /// Holds the referents that the answer of an attempt in this process contains, or one of its
    /// items. They stay held until the answer has arrived at its caller, even if the handles to
    /// them are dropped. [Sync](Client::sync) before the executor reports the answer.
    pub fn enclose(
        &self,
        call: AttemptId,
        item: Option<u32>,
        things: Vec<Referent>,
    ) -> Result<(), Error> {
        self.with(|machine, effects| machine.enclose(call, item, things, effects))
    }

    /// Returns whether the controller is in this process. Then it has handled each message as soon
    /// as the client sent it.
    pub fn is_local(&self) -> bool {
        !self.shared.is_elsewhere
    }

    /// Deletes an actor.
    pub fn delete_actor(&self, actor: ActorId) -> Result<(), Error> {
        self.with(|machine, effects| machine.delete_actor(actor, effects))
    }

    /// Returns how many sessions of this client have ended. Objects that were put in an ended
    /// session are gone.
    pub fn ended_sessions(&self) -> u64 {
        self.shared.ended.load(Ordering::Relaxed)
    }

    /// Ends the current instance of an actor. The actor restarts if it may.
    pub fn kill_actor(&self, actor: ActorId) -> Result<(), Error> {
        self.with(|machine, effects| machine.kill_actor(actor, effects))
    }

    /// Calls an actor. `values` are the values of the objects that the call needs.
    pub fn call(
        &self,
        spec: Arc<TaskSpec>,
        values: Vec<Value>,
        deadline: Option<Duration>,
    ) -> Result<Pending<Outcome>, Error> {
        let (tell, pending) = Pending::with_callback();
        self.call_with_callback(spec, Some(values), deadline, tell)?;
        Ok(pending)
    }

    /// Like [`call`](Client::call), but calls the callback with the outcome. Without values, the
    /// call waits until they are [supplied](Client::supply), and later calls of the same actor wait
    /// behind it.
    pub fn call_with_callback(
        &self,
        spec: Arc<TaskSpec>,
        values: Option<Vec<Value>>,
        deadline: Option<Duration>,
        tell: Callback<Outcome>,
    ) -> Result<(), Error> {
        self.call_feeding(spec, values, deadline, tell, None)
    }

    /// Like [`call_with_callback`](Client::call_with_callback), for a call whose items are taken
    /// while it runs.
    pub fn call_stream(
        &self,
        spec: Arc<TaskSpec>,
        values: Option<Vec<Value>>,
        deadline: Option<Duration>,
        tell: Callback<Outcome>,
    ) -> Result<ItemStream, Error> {
        let (stream, feed) = ItemStream::new(self.clone(), &spec);
        self.call_feeding(spec, values, deadline, tell, Some(feed))?;
        Ok(stream)
    }

    fn call_feeding(
        &self,
        spec: Arc<TaskSpec>,
        values: Option<Vec<Value>>,
        deadline: Option<Duration>,
        tell: Callback<Outcome>,
        feed: Option<Feed>,
    ) -> Result<(), Error> {
        fits("the arguments", spec.args.len() + carried(values.iter().flatten()))?;
        self.shared.node.with_state(|state, now| {
            let mut effects = Vec::new();
            let shell = state.client(self.shared.index);
            let call = spec.id;
            let deadline = deadline.map(|deadline| now + deadline);
            shell.machine.call(spec, values, deadline, &mut effects)?;
            shell.tasks.insert(call, tell);
            shell.streams.extend(feed.map(|feed| (call, feed)));
            state.client_effects(self.shared.index, effects);
            Ok(())
        })
    }

    /// Supplies the values of the objects that a call needs, or the error why there will be none.
    pub fn supply(&self, call: &TaskSpec, values: Result<Vec<Value>, Error>) {
        let fit = |values: &Vec<Value>| fits("the arguments", call.args.len() + carried(values));
        let values = values.and_then(|values| fit(&values).map(|()| values));
        self.with(|machine, effects| machine.supply(call.id, values, effects));
    }

    fn with<R>(
        &self,
        ask: impl FnOnce(&mut marline_core::client::Client, &mut Vec<marline_core::client::Effect>) -> R,
    ) -> R {
        self.shared.node.with_state(|state, _| {
            let mut effects = Vec::new();
            let result = ask(&mut state.client(self.shared.index).machine, &mut effects);
            state.client_effects(self.shared.index, effects);
            result
        })
    }
}

/// Blocks this thread until there may be room. A task lends its CPU if the wait takes longer than
/// [`LEND_AFTER`]: a new client gets its first room sooner than that.
fn wait_for_change(room: &mut watch::Receiver<u64>) -> Result<(), Error> {
    if !runs_here() {
        return room.changed().wait().map_err(|_| session_over_error());
    }
    match room.changed().timeout(LEND_AFTER).wait() {
        Err(error) if error.kind() == marline_channel::ErrorKind::Timeout => {}
        changed => return changed.map_err(|_| session_over_error()),
    }
    let lent = {
        let mut changed = pin!(room.changed());
        poll_until(None, |cx| changed.as_mut().poll(cx))
    };
    match lent {
        Ok(Some(Ok(()))) => Ok(()),
        Ok(Some(Err(_)) | None) => Err(session_over_error()),
        // The worker has as many waiting tasks as it may have, so this task keeps its CPU. Other
        // tasks that end may still make room.
        Err(_) => room.changed().wait().map_err(|_| session_over_error()),
    }
}

/// Checks that a payload fits into a message, to a controller or to an executor of this process's
/// worker. A larger message would break the connection each time it is sent.
fn fits(what: &str, bytes: usize) -> Result<(), Error> {
    if bytes <= MAX_CARRIED_BYTES {
        return Ok(());
    }
    Err(Error::too_large(format!(
        "{what} are {bytes} bytes, the limit is {MAX_CARRIED_BYTES} (MAX_CARRIED_BYTES): pass fewer bytes at a time"
    )))
}

/// Returns the inline bytes of these values together.
fn carried<'a>(values: impl IntoIterator<Item = &'a Value>) -> usize {
    values.into_iter().map(|value| value.payload.len()).sum()
}
