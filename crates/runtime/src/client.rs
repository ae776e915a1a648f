//! What a program that submits work holds: tasks, values, actors, and waiting for them.

mod arguments;
mod objects;
mod pending;
mod pull;
mod upload;

pub use pending::{Callback, Pending, wait_for_some};

use crate::control::{Control, TaskStatus, check_address};
use crate::executor::{LEND_AFTER, poll_until, runs_here};
use crate::net::credentials::{Credentials, Token};
use crate::net::{MAX_MESSAGE_BYTES, dial};
use crate::node::{Membership, Node, OutputReceiver, OutputSender, Shell};
use crate::process::JOIN_PATIENCE;
use crate::process_identity::ProcessIdentity;
use crate::stream::{Feed, ItemStream};
use crate::upstream::{Upstream, UpstreamToken};
use marline_channel::{oneshot, watch};
use marline_core::controller::Role;
use marline_core::error::{Error, ErrorKind, Ran};
use marline_core::id::{ActorId, ObjectId, Referent, TaskId};
use marline_core::message::{AttemptId, CancelMode, FoundActor};
use marline_core::output::{Audience, OutputSource};
use marline_core::payload::{Outcome, Value};
use marline_core::spec::{ActorSpec, TaskSpec};
use objects::NearbyStore;
use pending::gone;
use pull::Brings;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// The most bytes of arguments or values: a message without what surrounds them.
const MAX_CARRIED_BYTES: usize = MAX_MESSAGE_BYTES - (1 << 20);

/// A client of a cluster. Cheap to clone; its session ends with the last clone.
#[derive(Clone)]
pub struct Client {
    shared: Arc<ClientShared>,
}

/// A client that does not keep its session. A clone is the same one.
#[derive(Clone)]
pub struct WeakClient(Weak<ClientShared>);

impl WeakClient {
    /// The client, if somebody has it still.
    pub fn upgrade(&self) -> Option<Client> {
        self.0.upgrade().map(|shared| Client { shared })
    }
}

struct ClientShared {
    node: Arc<Node>,
    index: usize,
    /// Its controller is elsewhere. Then the node lives for this client alone, and ends with it.
    is_elsewhere: bool,
    /// Asks the controller that is elsewhere; with the token that it asks for.
    control: Mutex<Option<(Control, Token)>>,
    /// How many of its sessions have ended.
    ended: Arc<AtomicU64>,
    /// The store of a worker of this machine, as far as it was looked for.
    near: Mutex<NearbyStore>,
    /// How many values were put whose data is in a store, and how many of them its controller knows for sure.
    stored_puts: AtomicU64,
    confirmed_puts: AtomicU64,
    brings: Brings,
    /// It has left its cluster.
    left: AtomicBool,
}

impl ClientShared {
    fn new(node: Arc<Node>, index: usize, is_elsewhere: bool) -> Arc<ClientShared> {
        let ended = node.with_state(|state, _| state.client(index).ended.clone());
        let (near, put, known) = (Mutex::default(), AtomicU64::new(0), AtomicU64::new(0));
        let (brings, left) = (Brings::default(), AtomicBool::new(false));
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
    /// Whom to ask about the cluster, if its controller is elsewhere: it may be at another address than
    /// before.
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
    /// A client of a controller in the same process.
    pub(crate) fn new(node: Arc<Node>) -> Client {
        let index = node.host_client();
        Client { shared: ClientShared::new(node, index, false) }
    }

    /// Connects to a controller at `host:port` or `unix:/path`. Without a token it is that of the
    /// cluster's record, if the cluster runs on this machine for this user.
    pub fn connect(address: &str, token: Option<Arc<str>>) -> Result<Client, Error> {
        check_address(address)?;
        Client::connect_upstream(Upstream::named(address, token))
    }

    /// Connects to the cluster that runs on this machine for this user. When that cluster has ended, the
    /// client joins the next one that runs here. The token is that of the cluster's record, unless
    /// another is given.
    pub fn connect_here(token: Option<Arc<str>>) -> Result<Client, Error> {
        let token = token.map_or(UpstreamToken::Recorded, UpstreamToken::Given);
        Client::connect_upstream(Upstream::Here { token })
    }

    fn connect_upstream(upstream: Upstream) -> Result<Client, Error> {
        let found = upstream.find(None)?;
        let node = Node::new();
        let index = node.seat_client(&found.address, found.token);
        let client = Client { shared: ClientShared::new(node, index, true) };
        let membership = Membership {
            shell: Shell::Client(index),
            session_id: crate::new_session_id(),
            role: Role::Client,
            upstream,
            secret: Credentials::default(),
            process: ProcessIdentity::this(),
        };
        dial::join(&client.shared.node, membership, JOIN_PATIENCE)?;
        Ok(client)
    }

    /// The same, which its session does not wait for.
    pub fn downgrade(&self) -> WeakClient {
        WeakClient(Arc::downgrade(&self.shared))
    }

    /// Where its controller is, if that is elsewhere.
    pub fn address(&self) -> Option<String> {
        self.shared.node.upstream().map(|(address, _)| address)
    }

    /// Submits a task, if there is room; `Exhausted`, naming the limit, if there is none.
    pub fn try_submit(&self, spec: Arc<TaskSpec>) -> Result<Pending<Outcome>, Error> {
        let (tell, pending) = Pending::with_callback();
        self.try_submit_with_callback(spec, || tell)?;
        Ok(pending)
    }

    /// The same; tells how it ended, if it was taken.
    pub fn try_submit_with_callback(
        &self,
        spec: Arc<TaskSpec>,
        tell: impl FnOnce() -> Callback<Outcome>,
    ) -> Result<(), Error> {
        fits("the arguments", spec.args.len())?;
        self.shared.node.with_state(|state, _| {
            let mut effects = Vec::new();
            let shell = state.client(self.shared.index);
            let task = spec.id;
            shell.machine.submit(spec, &mut effects)?;
            shell.tasks.insert(task, tell());
            state.client_effects(self.shared.index, effects);
            Ok(())
        })
    }

    /// Submits a task whose items are taken while it runs, if there is room; tells how it ended, if it was taken.
    pub fn try_submit_stream(
        &self,
        spec: Arc<TaskSpec>,
        tell: impl FnOnce() -> Callback<Outcome>,
    ) -> Result<ItemStream, Error> {
        fits("the arguments", spec.args.len())?;
        let (stream, feed) = ItemStream::new(self.clone(), &spec);
        self.shared.node.with_state(|state, _| {
            let mut effects = Vec::new();
            let shell = state.client(self.shared.index);
            let task = spec.id;
            shell.machine.submit(spec, &mut effects)?;
            shell.tasks.insert(task, tell());
            shell.streams.insert(task, feed);
            state.client_effects(self.shared.index, effects);
            Ok(())
        })?;
        Ok(stream)
    }

    /// The same, blocking this thread until there is room.
    pub fn submit_stream(
        &self,
        spec: Arc<TaskSpec>,
        tell: impl Fn() -> Callback<Outcome>,
    ) -> Result<ItemStream, Error> {
        self.with_room(|| self.try_submit_stream(spec.clone(), &tell))
    }

    /// Of the items of a stream, so many were taken in all.
    pub(crate) fn took(&self, task: TaskId, count: u32) {
        self.with(|machine, effects| machine.report_consumed(task, count, effects));
    }

    /// Wants no more items of a stream.
    pub(crate) fn close_stream(&self, task: TaskId) {
        self.shared.node.with_state(|state, _| {
            let mut effects = Vec::new();
            let shell = state.client(self.shared.index);
            shell.machine.close_stream(task, &mut effects);
            state.client_effects(self.shared.index, effects);
        });
    }

    /// Submits a task, blocking this thread until there is room.
    pub fn submit(&self, spec: Arc<TaskSpec>) -> Result<Pending<Outcome>, Error> {
        self.with_room(|| self.try_submit(spec.clone()))
    }

    /// The same; tells how it ended, if it was taken.
    pub fn submit_with_callback(
        &self,
        spec: Arc<TaskSpec>,
        tell: impl Fn() -> Callback<Outcome>,
    ) -> Result<(), Error> {
        self.with_room(|| self.try_submit_with_callback(spec.clone(), &tell))
    }

    /// Tries until there is room. The tasks that make room may need the CPU of the one that waits for it, which lends
    /// it.
    fn with_room<R>(&self, submit: impl Fn() -> Result<R, Error>) -> Result<R, Error> {
        let mut room = None;
        loop {
            match submit() {
                Err(error) if error.kind() == ErrorKind::Exhausted => match &mut room {
                    // Tried once more after this, so that no room made meanwhile is missed.
                    None => room = Some(self.room()),
                    Some(room) => wait_for_change(room)?,
                },
                result => return result,
            }
        }
    }

    /// Submits a task, waiting until there is room.
    pub async fn submit_async(&self, spec: Arc<TaskSpec>) -> Result<Pending<Outcome>, Error> {
        let mut room = None;
        loop {
            match self.try_submit(spec.clone()) {
                Err(error) if error.kind() == ErrorKind::Exhausted => match &mut room {
                    None => room = Some(self.room()),
                    Some(room) => room.changed().await.map_err(|_| gone())?,
                },
                result => return result,
            }
        }
    }

    /// Ends the session now, whoever has clones still: what they ask for fails from now on.
    pub fn leave(&self) {
        self.shared.left.store(true, Ordering::Relaxed);
        self.shared.node.end_client(self.shared.index);
    }

    /// What is done with warnings (they are printed to standard error, unless said otherwise).
    pub fn on_warning(&self, warn: impl Fn(&str) + Send + Sync + 'static) {
        let warn = Arc::new(warn);
        self.shared.node.with_state(|state, _| state.client(self.shared.index).warn = warn);
    }

    /// What the work prints that this client submits, and the actors that it creates, from now on. What is
    /// not taken in time is dropped and counted. It ends when this client leaves: if its cluster was lost and
    /// comes back, what is submitted then is shown too.
    pub fn output(&self) -> Result<OutputReceiver, Error> {
        let (output_sender, output_receiver) = OutputSender::new();
        self.shared.node.with_state(|state, _| {
            state.client(self.shared.index).output_sender = Some(output_sender)
        });
        self.with(|machine, effects| machine.show_output(Audience::Me, effects))?;
        Ok(output_receiver)
    }

    /// What this client submits from now on is a part of a task or an actor: whoever is shown what that
    /// prints is shown what its parts print.
    pub fn set_parent(&self, source: OutputSource) -> Result<(), Error> {
        self.with(|machine, effects| machine.show_output(Audience::OfSource(source), effects))
    }

    fn room(&self) -> watch::Receiver<u64> {
        self.shared.node.with_state(|state, _| state.client(self.shared.index).room.subscribe())
    }

    /// What is known of a task or a call.
    pub fn status(&self, task: TaskId) -> Result<TaskStatus, Error> {
        match self.shared.control()? {
            Some(control) => control.task(task),
            None => self.shared.node.task_status(task),
        }
    }

    /// Stops a task or a call.
    pub fn cancel(&self, task: TaskId, mode: CancelMode) {
        self.with(|machine, effects| machine.cancel(task, mode, effects));
    }

    /// Announces a value that comes later, and can be needed from now on; it is held until it is
    /// [released](Client::release).
    pub fn announce(&self) -> Result<ObjectId, Error> {
        let object = crate::new_object_id();
        self.announce_as(object)?;
        Ok(object)
    }

    /// The same under this id: a new one, or that of a result of a call that this client made and that comes to it
    /// alone.
    pub fn announce_as(&self, object: ObjectId) -> Result<(), Error> {
        self.with(|machine, effects| machine.announce(object, effects))
    }

    /// The value of what was announced, or why there is none.
    pub fn resolve(&self, object: ObjectId, value: Result<Value, Error>) {
        // The value may be the result of work that ran.
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

    /// The same; tells which it is.
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

    /// There is one more handle to a thing.
    pub fn hold(&self, thing: Referent) {
        self.with(|machine, effects| machine.hold(thing, effects));
    }

    /// There is one handle less to a thing.
    pub fn release(&self, thing: Referent) {
        self.with(|machine, effects| machine.release(thing, effects));
    }

    /// Creates an actor, or finds the one that has its name.
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

    /// Tells when the first instance of an actor is ready, or why there will be none. Nobody is told if the session
    /// ends before.
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

    /// Blocks this thread until the controller has done all that this client told it. To be called before
    /// somebody else speaks of it.
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

    /// The answer of what runs in this process, or one of its items, names these things: they are held until it has come, whenever
    /// handles to them go. To be [told](Client::sync) before the answer is given.
    pub fn enclose(
        &self,
        call: AttemptId,
        item: Option<u32>,
        things: Vec<Referent>,
    ) -> Result<(), Error> {
        self.with(|machine, effects| machine.enclose(call, item, things, effects))
    }

    /// Whether its controller is in the same process: then it has heard whatever it was told.
    pub fn is_local(&self) -> bool {
        !self.shared.is_elsewhere
    }

    /// Ends an actor for good.
    pub fn delete_actor(&self, actor: ActorId) -> Result<(), Error> {
        self.with(|machine, effects| machine.delete_actor(actor, effects))
    }

    /// How many of its sessions have ended. What was put in one that has is gone.
    pub fn ended_sessions(&self) -> u64 {
        self.shared.ended.load(Ordering::Relaxed)
    }

    /// Ends the current life of an actor, which lives on if it may be restarted.
    pub fn kill_actor(&self, actor: ActorId) -> Result<(), Error> {
        self.with(|machine, effects| machine.kill_actor(actor, effects))
    }

    /// Calls an actor; the values of the objects that the call needs go along.
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

    /// The same; tells how it ended. Without values it waits until they are [supplied](Client::supply), and
    /// calls of the same actor that are made after it wait behind it.
    pub fn call_with_callback(
        &self,
        spec: Arc<TaskSpec>,
        values: Option<Vec<Value>>,
        deadline: Option<Duration>,
        tell: Callback<Outcome>,
    ) -> Result<(), Error> {
        self.call_feeding(spec, values, deadline, tell, None)
    }

    /// The same, of a call whose items are taken while it runs.
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

    /// The values of the objects that a call needs, or why there will be none.
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

/// Blocks this thread until there may be room. A task lends its CPU if that takes long: the first room of a new client
/// comes soon.
fn wait_for_change(room: &mut watch::Receiver<u64>) -> Result<(), Error> {
    if !runs_here() {
        return room.changed().wait().map_err(|_| gone());
    }
    match room.changed().timeout(LEND_AFTER).wait() {
        Err(error) if error.kind() == marline_channel::ErrorKind::Timeout => {}
        changed => return changed.map_err(|_| gone()),
    }
    let lent = {
        let mut changed = pin!(room.changed());
        poll_until(None, |cx| changed.as_mut().poll(cx))
    };
    match lent {
        Ok(Some(Ok(()))) => Ok(()),
        Ok(Some(Err(_)) | None) => Err(gone()),
        // As many tasks wait as may: this one keeps its CPU, and others that end may make room.
        Err(_) => room.changed().wait().map_err(|_| gone()),
    }
}

/// What does not fit into a message would break the connection whenever it is sent: one to a controller, or one
/// to an executor of this process's own.
fn fits(what: &str, bytes: usize) -> Result<(), Error> {
    if bytes <= MAX_CARRIED_BYTES {
        return Ok(());
    }
    Err(Error::too_large(format!(
        "{what} are {bytes} bytes, the limit is {MAX_CARRIED_BYTES} (MAX_CARRIED_BYTES): pass less at a time"
    )))
}

fn carried<'a>(values: impl IntoIterator<Item = &'a Value>) -> usize {
    values.into_iter().map(|value| value.payload.len()).sum()
}
