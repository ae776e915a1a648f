//! What a program that submits work holds: tasks, values, actors, and waiting for them.

mod arguments;
mod bring;
mod upload;

use crate::control::{Control, TaskStatus};
use crate::executor::child;
use crate::net::server::Secret;
use crate::net::{MAX_MESSAGE_BYTES, data, dial};
use crate::node::{Membership, Node, Onlooker, Printout, Seat};
use crate::process::JOIN_PATIENCE;
use crate::proof::Process;
use crate::store::{Objects, Reading, Remote};
use crate::stream::{Feed, Stream};
use crate::upstream::Upstream;
use bring::Brings;
use bytes::Bytes;
use marline_channel::oneshot;
use marline_core::controller::{Controller, Role};
use marline_core::error::{Error, ErrorKind, Ran};
use marline_core::id::{ActorId, ObjectId, Session, TaskId, Thing};
use marline_core::message::{CopyAt, Manner, Try};
use marline_core::output::{Audience, Source};
use marline_core::payload::{Outcome, Payload, STORED_BYTES, Stored, Value};
use marline_core::spec::{ActorSpec, TaskSpec};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{self, Poll, Wake, Waker, ready};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// The most bytes of arguments or values: a message without what surrounds them.
const MAX_CARRIED_BYTES: usize = MAX_MESSAGE_BYTES - (1 << 20);

/// So often it is asked who has the data of a value that does not come, or whose store is to be used.
const MAX_LOOKS: u32 = 5;
/// Of so many workers it is looked at whether they are on this machine.
const MAX_NEAR: u32 = 1_000;

/// A client of a cluster. Cheap to clone; its session ends with the last clone.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

/// A client that does not keep its session. A clone is the same one.
#[derive(Clone)]
pub struct WeakClient(Weak<Shared>);

impl WeakClient {
    /// The client, if somebody has it still.
    pub fn upgrade(&self) -> Option<Client> {
        self.0.upgrade().map(|shared| Client { shared })
    }
}

struct Shared {
    node: Arc<Node>,
    index: usize,
    /// If its controller is elsewhere: whom to ask. Then the node lives for this client alone, and ends
    /// with it.
    elsewhere: Option<Control>,
    /// How many of its sessions have ended.
    ended: Arc<AtomicU64>,
    /// The store of a worker of this machine, as far as it was looked for.
    near: Mutex<Near>,
    /// How many values were put whose data is in a store, and how many of them its controller knows for sure.
    put: AtomicU64,
    known: AtomicU64,
    brings: Brings,
    /// It has left its cluster.
    left: AtomicBool,
}

impl Shared {
    fn new(node: Arc<Node>, index: usize, elsewhere: Option<Control>) -> Arc<Shared> {
        let ended = node.enter(|state, _| state.client(index).ended.clone());
        let (near, put, known) = (Mutex::default(), AtomicU64::new(0), AtomicU64::new(0));
        let (brings, left) = (Brings::default(), AtomicBool::new(false));
        Arc::new(Shared { node, index, elsewhere, ended, near, put, known, brings, left })
    }
}

/// What is known of stores of this machine.
#[derive(Default)]
struct Near {
    /// In which of the client's sessions it was looked.
    session: u64,
    objects: Option<Objects>,
    looked_at: Option<Instant>,
}

impl Near {
    /// Whether it was found in this session, and is there still.
    fn is_of(&self, session: u64) -> bool {
        self.session == session && !self.objects.as_ref().is_some_and(Objects::is_over)
    }
}

/// If there was none, it is looked again after this long: a worker may have come.
const LOOK_EVERY: Duration = Duration::from_secs(5);

fn is_recent(looked_at: Instant) -> bool {
    looked_at.elapsed() < LOOK_EVERY
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.node.leave_client(self.index);
        if self.elsewhere.is_some() {
            self.node.close();
        }
    }
}

/// Something that was asked for and has not come: await it, or [`wait`](Pending::wait) for it.
pub struct Pending<T> {
    receiver: oneshot::Receiver<T>,
    /// It came while several were waited for.
    came: Option<Result<T, Error>>,
    /// It came, and was given away.
    taken: bool,
}

/// Who is told of something, once, by whichever thread hears of it. It is dropped if it never comes: the
/// cluster was shut down. It must not block.
pub type Tell<T> = Box<dyn FnOnce(T) + Send>;

impl<T: Send + 'static> Pending<T> {
    /// Something that comes, and who is to be told of it.
    pub fn told() -> (Tell<T>, Pending<T>) {
        let (waiter, receiver) = oneshot();
        (Box::new(move |value| drop(waiter.send(value))), Pending::new(receiver))
    }
}

impl<T> Pending<T> {
    fn new(receiver: oneshot::Receiver<T>) -> Pending<T> {
        Pending { receiver, came: None, taken: false }
    }

    /// Blocks this thread until it comes.
    pub fn wait(mut self) -> Result<T, Error> {
        if let Some(came) = self.came {
            return came;
        }
        if self.taken {
            return Err(taken());
        }
        self.receiver.recv().wait().map_err(|_| gone())
    }

    /// Blocks this thread until it comes, or the time is over; then it can be waited for again.
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<T, Error> {
        if let Some(came) = self.came.take() {
            self.taken = true;
            return came;
        }
        if self.taken {
            return Err(taken());
        }
        let came = self.receiver.recv().timeout(timeout).wait();
        self.taken = came.is_ok();
        came.map_err(|error| match error.kind() {
            marline_channel::ErrorKind::Timeout => {
                Error::timeout(format!("nothing came within {timeout:?}; it may still come"))
            }
            _ => gone(),
        })
    }

    /// Whether it has come; also when it was taken since.
    pub fn is_ready(&self) -> bool {
        self.came.is_some() || self.taken || self.receiver.is_settled()
    }

    /// Whether it has come; if not, whoever polls is told when it does.
    pub fn poll_ready(&mut self, cx: &mut task::Context<'_>) -> Poll<()> {
        if self.came.is_none() && self.taken {
            self.came = Some(Err(taken()));
        }
        if self.came.is_none() {
            let receiver = Pin::new(&mut self.receiver);
            self.came = Some(ready!(receiver.poll(cx)).map_err(|_| gone()));
        }
        Poll::Ready(())
    }
}

/// Blocks this thread until `count` of these have come, or the deadline is over. Says how many have.
pub fn wait_for_some<'a, T: 'a>(
    pending: &mut dyn Iterator<Item = &'a mut Pending<T>>,
    count: usize,
    deadline: Option<Instant>,
) -> usize {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut cx = task::Context::from_waker(&waker);
    let mut left: Vec<&mut Pending<T>> = pending.collect();
    let all = left.len();
    loop {
        left.retain_mut(|pending| pending.poll_ready(&mut cx).is_pending());
        let come = all - left.len();
        let time = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if come >= count.min(all) || time.is_some_and(|time| time.is_zero()) {
            return come;
        }
        match time {
            Some(time) => thread::park_timeout(time),
            None => thread::park(),
        }
    }
}

/// Wakes a thread that waits for several things.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl<T: Unpin> Future for Pending<T> {
    type Output = Result<T, Error>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Self::Output> {
        ready!(self.poll_ready(cx));
        self.taken = true;
        Poll::Ready(self.came.take().expect("it has come"))
    }
}

fn taken() -> Error {
    Error::invalid("its result was taken already: it is given once").ran(Ran::Maybe)
}

fn gone() -> Error {
    Error::unavailable(Ran::Maybe, "the cluster was shut down while this was waited for")
}

impl Client {
    /// A client of a controller in the same process.
    pub(crate) fn new(node: Arc<Node>) -> Client {
        let index = node.host_client();
        Client { shared: Shared::new(node, index, None) }
    }

    /// Connects to a controller at `host:port` or `unix:/path`.
    pub fn connect(address: &str, token: Option<Arc<str>>) -> Result<Client, Error> {
        let elsewhere = Some(Control::at(address, token.clone())?);
        let node = Node::new();
        let index = node.seat_client(address, token.clone());
        let client = Client { shared: Shared::new(node, index, elsewhere) };
        let membership = Membership {
            seat: Seat::Client(index),
            session_id: crate::new_session_id(),
            role: Role::Client,
            upstream: Upstream::At { address: address.into(), token },
            secret: Secret::default(),
            process: Process::this(),
        };
        dial::join(&client.shared.node, membership, JOIN_PATIENCE)?;
        Ok(client)
    }

    /// The same, which its session does not wait for.
    pub fn downgrade(&self) -> WeakClient {
        WeakClient(Arc::downgrade(&self.shared))
    }

    /// Where its controller is, if that is elsewhere.
    pub fn address(&self) -> Option<&str> {
        self.shared.elsewhere.as_ref().map(Control::address)
    }

    /// Submits a task, if there is room; `Exhausted`, naming the limit, if there is none.
    pub fn try_submit(&self, spec: Arc<TaskSpec>) -> Result<Pending<Outcome>, Error> {
        let (tell, pending) = Pending::told();
        self.try_submit_telling(spec, || tell)?;
        Ok(pending)
    }

    /// The same; tells how it ended, if it was taken.
    pub fn try_submit_telling(
        &self,
        spec: Arc<TaskSpec>,
        tell: impl FnOnce() -> Tell<Outcome>,
    ) -> Result<(), Error> {
        fits("the arguments", spec.args.len())?;
        self.shared.node.enter(|state, _| {
            let mut effects = Vec::new();
            let seat = state.client(self.shared.index);
            let task = spec.id;
            seat.machine.submit(spec, &mut effects)?;
            seat.tasks.insert(task, tell());
            state.client_effects(self.shared.index, effects);
            Ok(())
        })
    }

    /// Submits a task whose items are taken while it runs, if there is room; tells how it ended, if it was taken.
    pub fn try_submit_stream(
        &self,
        spec: Arc<TaskSpec>,
        tell: impl FnOnce() -> Tell<Outcome>,
    ) -> Result<Stream, Error> {
        fits("the arguments", spec.args.len())?;
        let (stream, feed) = Stream::new(self.clone(), &spec);
        self.shared.node.enter(|state, _| {
            let mut effects = Vec::new();
            let seat = state.client(self.shared.index);
            let task = spec.id;
            seat.machine.submit(spec, &mut effects)?;
            seat.tasks.insert(task, tell());
            seat.streams.insert(task, feed);
            state.client_effects(self.shared.index, effects);
            Ok(())
        })?;
        Ok(stream)
    }

    /// The same, blocking this thread until there is room.
    pub fn submit_stream(
        &self,
        spec: Arc<TaskSpec>,
        tell: impl Fn() -> Tell<Outcome>,
    ) -> Result<Stream, Error> {
        self.with_room(|| self.try_submit_stream(spec.clone(), &tell))
    }

    /// Of the items of a stream, so many were taken in all.
    pub(crate) fn took(&self, task: TaskId, count: u32) {
        self.with(|machine, effects| machine.took(task, count, effects));
    }

    /// Wants no more items of a stream.
    pub(crate) fn close_stream(&self, task: TaskId) {
        self.shared.node.enter(|state, _| {
            let mut effects = Vec::new();
            let seat = state.client(self.shared.index);
            seat.machine.close_stream(task, &mut effects);
            state.client_effects(self.shared.index, effects);
        });
    }

    /// Submits a task, blocking this thread until there is room.
    pub fn submit(&self, spec: Arc<TaskSpec>) -> Result<Pending<Outcome>, Error> {
        self.with_room(|| self.try_submit(spec.clone()))
    }

    /// The same; tells how it ended, if it was taken.
    pub fn submit_telling(
        &self,
        spec: Arc<TaskSpec>,
        tell: impl Fn() -> Tell<Outcome>,
    ) -> Result<(), Error> {
        self.with_room(|| self.try_submit_telling(spec.clone(), &tell))
    }

    /// Tries until there is room.
    fn with_room<R>(&self, submit: impl Fn() -> Result<R, Error>) -> Result<R, Error> {
        let mut room = None;
        loop {
            match submit() {
                Err(error) if error.kind() == ErrorKind::Exhausted => match &mut room {
                    // Tried once more after this, so that no room made meanwhile is missed.
                    None => room = Some(self.room()),
                    Some(room) => room.changed().wait().map_err(|_| gone())?,
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
        self.shared.node.enter(|state, _| state.client(self.shared.index).warn = warn);
    }

    /// What the work prints that this client submits, and the actors that it creates, from now on. What is
    /// not taken in time is dropped and counted. It ends when this client leaves: if its cluster was lost and
    /// comes back, what is submitted then is shown too.
    pub fn output(&self) -> Result<Printout, Error> {
        let (onlooker, printout) = Onlooker::new();
        self.shared
            .node
            .enter(|state, _| state.client(self.shared.index).onlooker = Some(onlooker));
        self.with(|machine, effects| machine.show_output(Audience::Me, effects))?;
        Ok(printout)
    }

    /// What this client submits from now on is a part of a task or an actor: whoever is shown what that
    /// prints is shown what its parts print.
    pub fn work_for(&self, source: Source) -> Result<(), Error> {
        self.with(|machine, effects| machine.show_output(Audience::OfSource(source), effects))
    }

    fn room(&self) -> marline_channel::watch::Receiver<u64> {
        self.shared.node.enter(|state, _| state.client(self.shared.index).room.subscribe())
    }

    /// What is known of a task or a call.
    pub fn status(&self, task: TaskId) -> Result<TaskStatus, Error> {
        match &self.shared.elsewhere {
            Some(control) => control.task(task),
            None => self.shared.node.task_status(task),
        }
    }

    /// Stops a task or a call.
    pub fn cancel(&self, task: TaskId, how: Manner) {
        self.with(|machine, effects| machine.cancel(task, how, effects));
    }

    /// Puts a value; it is held until it is [released](Client::release). A large one goes to the store of this
    /// node, if there is one.
    pub fn put(&self, value: Value) -> Result<ObjectId, Error> {
        self.put_so(value, false)
    }

    /// The same; what is large is saved where it outlives its node, before this returns.
    pub fn put_durable(&self, value: Value) -> Result<ObjectId, Error> {
        self.put_so(value, true)
    }

    fn put_so(&self, value: Value, durable: bool) -> Result<ObjectId, Error> {
        let object = crate::new_object_id();
        let Value { payload, contains } = value;
        self.stored(object, payload.len(), |objects| {
            let (mut payload, at) = self.kept(object, payload.clone(), objects)?;
            if durable && payload.stored.is_some() {
                objects.ok_or_else(not_durable)?.make_durable(&mut payload)?;
            }
            self.put_as(object, Value { payload, contains: contains.clone() }, at)
        })?;
        Ok(object)
    }

    /// Puts bytes as they are. They are copied once.
    pub fn put_bytes(&self, bytes: &[u8]) -> Result<ObjectId, Error> {
        let object = crate::new_object_id();
        self.stored(object, bytes.len(), |objects| {
            let Some(objects) = objects else {
                let payload = Payload::raw(Bytes::copy_from_slice(bytes));
                let (payload, at) = self.kept(object, payload, None)?;
                return self.put_as(object, payload.into(), at);
            };
            let at = objects.write(object, &[bytes], || true)?;
            let stored =
                Some(Box::new(Stored { object, bytes: bytes.len() as u64, durable: false }));
            let payload = Payload { stored, ..Payload::raw(Bytes::new()) };
            self.put_as(object, payload.into(), at)
        })?;
        Ok(object)
    }

    /// A payload as it travels: in this store if it is large; sent to that of a worker elsewhere if there is none here and
    /// no message carries it.
    fn kept(
        &self,
        object: ObjectId,
        payload: Payload,
        objects: Option<&Objects>,
    ) -> Result<(Payload, Option<Session>), Error> {
        match objects {
            Some(objects) => objects.keep(object, payload),
            None if self.must_upload(payload.len()) => {
                let parts: Vec<&[u8]> = payload.parts().collect();
                let at = self.upload(object, &parts, || true)?;
                Ok((payload.stored_as(object), Some(at)))
            }
            None => Ok((payload, None)),
        }
    }

    /// Does something with the data of an object that may go to a store, which is nobody's if it cannot be done.
    fn stored<R>(
        &self,
        object: ObjectId,
        bytes: usize,
        store: impl Fn(Option<&Objects>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        if bytes <= STORED_BYTES {
            return store(None);
        }
        self.with_objects(|objects| {
            let stored = store(objects);
            if stored.is_err() {
                objects.inspect(|objects| objects.discard(object));
            }
            stored
        })
    }

    /// Does something with the store of this node, or without one. The worker whose store it was may have gone, and
    /// another may be there.
    fn with_objects<R>(
        &self,
        what: impl Fn(Option<&Objects>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let mut tries = 1;
        loop {
            let objects = self.objects();
            let done = what(objects.as_ref());
            let is_over = objects.is_some_and(|objects| objects.is_over());
            if done.is_ok() || !is_over || tries == MAX_LOOKS {
                return done;
            }
            tries += 1;
        }
    }

    /// The same under a [new id](crate::new_object_id). If its data is in a store, that is the one of the worker
    /// `at`.
    pub fn put_as(&self, object: ObjectId, value: Value, at: Option<Session>) -> Result<(), Error> {
        fits("the value's bytes", value.payload.len())?;
        let is_stored = value.payload.stored.is_some();
        self.with(|machine, effects| machine.put(object, value, at, effects))?;
        self.shared.put.fetch_add(is_stored.into(), Ordering::AcqRel);
        Ok(())
    }

    /// The store of this node, if this process can use one.
    pub fn objects(&self) -> Option<Objects> {
        self.known_objects().or_else(|| self.objects_near())
    }

    /// The same, as far as it is known without asking anybody.
    fn known_objects(&self) -> Option<Objects> {
        let near = || {
            // Whoever has the lock may be looking for one.
            let near = self.shared.near.try_lock().ok()?;
            near.objects.clone().filter(|_| near.is_of(self.ended_sessions()))
        };
        child::objects().or_else(|| self.shared.node.objects()).or_else(near)
    }

    /// The store of a worker on this machine, if the controller knows one.
    fn objects_near(&self) -> Option<Objects> {
        let session = self.ended_sessions();
        let mut near = self.shared.near.lock().expect("nothing panics under it");
        if near.is_of(session) && (near.objects.is_some() || near.looked_at.is_some_and(is_recent))
        {
            return near.objects.clone();
        }
        let token = self.shared.node.token();
        let paths = self.store_paths().ok()?;
        let socket = paths.iter().find_map(|path| data::reach_store(path, &token).ok());
        let objects = socket.map(|socket| Objects::elsewhere(Remote::new(socket)));
        *near = Near { session, objects: objects.clone(), looked_at: Some(Instant::now()) };
        objects
    }

    /// Where workers say that processes of their machines reach their stores.
    fn store_paths(&self) -> Result<Vec<String>, Error> {
        let Some(control) = &self.shared.elsewhere else {
            let paths = self.shared.node.enter(|state, _| {
                let workers = state.controller().into_iter().flat_map(Controller::list_workers);
                workers.filter_map(|worker| Some(worker.info.store?.to_string())).collect()
            });
            return Ok(paths);
        };
        let (workers, _) = control.workers(MAX_NEAR)?;
        Ok(workers.into_iter().map(|worker| worker.store).filter(|path| !path.is_empty()).collect())
    }

    /// A payload with its data, wherever that is. Blocks until it is at this node.
    pub fn open(&self, payload: &Payload) -> Result<Payload, Error> {
        if payload.stored.is_none() {
            return Ok(payload.clone());
        }
        self.with_objects(|objects| match objects {
            Some(objects) => objects.open(payload),
            None => self.bring(payload),
        })
    }

    /// Brings the data of a payload into this process.
    fn bring(&self, payload: &Payload) -> Result<Payload, Error> {
        let object = payload.stored_object().expect("it is somewhere else");
        let token = self.shared.node.token();
        let mut tries = 1;
        loop {
            let copies = self.locate(object)?;
            match data::fetch(&copies, &token, object, |bytes| Ok(vec![0; bytes])) {
                Ok(whole) => return Reading::of(object, payload, Bytes::from(whole)),
                Err(error) if tries == MAX_LOOKS || !data::may_be_elsewhere(&error) => {
                    return Err(error);
                }
                // Whoever had it may be gone, and somebody else may have it.
                Err(_) => tries += 1,
            }
        }
    }

    /// Who has the data of an object that this client holds.
    fn locate(&self, object: ObjectId) -> Result<Vec<CopyAt>, Error> {
        let (waiter, mut receiver) = oneshot();
        self.shared.node.enter(|state, _| {
            let mut effects = Vec::new();
            let seat = state.client(self.shared.index);
            seat.machine.locate(object, &mut effects)?;
            seat.locating.entry(object).or_default().push(waiter);
            state.client_effects(self.shared.index, effects);
            Ok::<_, Error>(())
        })?;
        receiver.recv().wait().map_err(|_| gone())?
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
        let fitting = |value: Value| fits("the value's bytes", value.payload.len()).map(|()| value);
        let value = value.and_then(fitting);
        self.with(|machine, effects| machine.resolve(object, value, effects));
    }

    /// Gets the value of an object that this client holds.
    pub fn get(&self, object: ObjectId) -> Result<Pending<Result<Value, Error>>, Error> {
        let (tell, pending) = Pending::told();
        self.get_telling(object, tell)?;
        Ok(pending)
    }

    /// The same; tells which it is.
    pub fn get_telling(
        &self,
        object: ObjectId,
        tell: Tell<Result<Value, Error>>,
    ) -> Result<(), Error> {
        self.shared.node.enter(|state, _| {
            let mut effects = Vec::new();
            let seat = state.client(self.shared.index);
            seat.machine.fetch(object, &mut effects)?;
            seat.objects.entry(object).or_default().push(tell);
            state.client_effects(self.shared.index, effects);
            Ok(())
        })
    }

    /// There is one more handle to a thing.
    pub fn retain(&self, thing: Thing) {
        self.with(|machine, effects| machine.retain(thing, effects));
    }

    /// There is one handle less to a thing.
    pub fn release(&self, thing: Thing) {
        self.with(|machine, effects| machine.release(thing, effects));
    }

    /// Creates an actor, or finds the one that has its name.
    pub fn create_actor(
        &self,
        spec: Arc<ActorSpec>,
    ) -> Result<Pending<Result<ActorId, Error>>, Error> {
        fits("the arguments", spec.args.len())?;
        let (waiter, receiver) = oneshot();
        self.shared.node.enter(|state, _| {
            let mut effects = Vec::new();
            let seat = state.client(self.shared.index);
            let id = spec.id;
            seat.machine.create_actor(spec, &mut effects)?;
            seat.creating.insert(id, waiter);
            state.client_effects(self.shared.index, effects);
            Ok(Pending::new(receiver))
        })
    }

    /// Finds an actor by its name.
    pub fn find_actor(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Pending<Result<ActorId, Error>>, Error> {
        let (waiter, receiver) = oneshot();
        self.shared.node.enter(|state, _| {
            let mut effects = Vec::new();
            let seat = state.client(self.shared.index);
            seat.next_request += 1;
            let request = seat.next_request;
            seat.machine.find_actor(request, namespace.into(), name.into(), &mut effects)?;
            seat.finding.insert(request, waiter);
            state.client_effects(self.shared.index, effects);
            Ok(Pending::new(receiver))
        })
    }

    /// Blocks this thread until the controller has done all that this client told it. To be called before
    /// somebody else speaks of it.
    pub fn sync(&self) -> Result<(), Error> {
        let put = self.shared.put.load(Ordering::Acquire);
        let (waiter, receiver) = oneshot();
        self.shared.node.enter(|state, _| {
            let mut effects = Vec::new();
            let seat = state.client(self.shared.index);
            seat.next_request += 1;
            let request = seat.next_request;
            seat.machine.sync(request, &mut effects)?;
            seat.syncing.insert(request, waiter);
            state.client_effects(self.shared.index, effects);
            Ok(())
        })?;
        Pending::new(receiver).wait()?;
        self.shared.known.fetch_max(put, Ordering::AcqRel);
        Ok(())
    }

    /// The answer of what runs in this process, or one of its items, names these things: they are held until it has come, whenever
    /// handles to them go. To be [told](Client::sync) before the answer is given.
    pub fn enclose(&self, call: Try, item: Option<u32>, things: Vec<Thing>) -> Result<(), Error> {
        self.with(|machine, effects| machine.enclose(call, item, things, effects))
    }

    /// Whether its controller is in the same process: then it has heard whatever it was told.
    pub fn is_local(&self) -> bool {
        self.shared.elsewhere.is_none()
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
        let (tell, pending) = Pending::told();
        self.call_telling(spec, Some(values), deadline, tell)?;
        Ok(pending)
    }

    /// The same; tells how it ended. Without values it waits until they are [supplied](Client::supply), and
    /// calls of the same actor that are made after it wait behind it.
    pub fn call_telling(
        &self,
        spec: Arc<TaskSpec>,
        values: Option<Vec<Value>>,
        deadline: Option<Duration>,
        tell: Tell<Outcome>,
    ) -> Result<(), Error> {
        self.call_feeding(spec, values, deadline, tell, None)
    }

    /// The same, of a call whose items are taken while it runs.
    pub fn call_stream(
        &self,
        spec: Arc<TaskSpec>,
        values: Option<Vec<Value>>,
        deadline: Option<Duration>,
        tell: Tell<Outcome>,
    ) -> Result<Stream, Error> {
        let (stream, feed) = Stream::new(self.clone(), &spec);
        self.call_feeding(spec, values, deadline, tell, Some(feed))?;
        Ok(stream)
    }

    fn call_feeding(
        &self,
        spec: Arc<TaskSpec>,
        values: Option<Vec<Value>>,
        deadline: Option<Duration>,
        tell: Tell<Outcome>,
        feed: Option<Feed>,
    ) -> Result<(), Error> {
        fits("the arguments", spec.args.len() + carried(values.iter().flatten()))?;
        self.shared.node.enter(|state, now| {
            let mut effects = Vec::new();
            let seat = state.client(self.shared.index);
            let call = spec.id;
            let deadline = deadline.map(|deadline| now + deadline);
            seat.machine.call(spec, values, deadline, &mut effects)?;
            seat.tasks.insert(call, tell);
            seat.streams.extend(feed.map(|feed| (call, feed)));
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
        self.shared.node.enter(|state, _| {
            let mut effects = Vec::new();
            let result = ask(&mut state.client(self.shared.index).machine, &mut effects);
            state.client_effects(self.shared.index, effects);
            result
        })
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

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(1);

    #[test]
    fn what_came_is_given_once() {
        let (tell, mut pending) = Pending::<u32>::told();
        assert_eq!(pending.wait_timeout(SOON).unwrap_err().kind(), ErrorKind::Timeout);
        tell(7);
        assert_eq!(pending.wait_timeout(SOON).unwrap(), 7);
        assert!(pending.is_ready());
        for again in [pending.wait_timeout(SOON), pending.wait()] {
            let error = again.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.message().contains("its result was taken already"), "{error}");
        }
    }

    #[test]
    fn what_never_comes_is_not_taken_for_what_was_taken() {
        let (tell, mut pending) = Pending::<u32>::told();
        drop(tell);
        assert_eq!(pending.wait_timeout(SOON).unwrap_err().kind(), ErrorKind::Unavailable);
    }
}

fn not_durable() -> Error {
    Error::unsupported(
        "what is sent to a worker on another machine is not durable: put it in a task, or run a worker here",
    )
}
