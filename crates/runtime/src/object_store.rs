//! A node's store of large values: shared memory, the disk, and who reads what.
//!
//! What is decided is decided in [`marline_core::store`]; here are the memory, the files and the sockets. The
//! process of a worker has the store. Its executors ask for room and for values over a socket each, and fill and
//! read them in place ([`remote`]); whoever lives in the worker's own process does so without ([`Store`]).
//! [`Objects`] is either of them.
//!
//! Objects have names, which the whole cluster knows; data in this store has numbers ([`BlobId`]), which are never used
//! again. Data is its maker's until the cluster keeps it ([`Store::keep`]), which keeps it until it is to be forgotten.
//! A process is gone for the store when its worker has seen to all that it said and its socket has ended: until
//! then it, or a fork of it, may read what it has pinned.
//!
//! Locks: whoever has a node's lock may take the store's, not the other way round. What a store says to its node
//! is said when its lock is released.

mod allocation;
mod backoff;
mod blob_index;
mod disk;
mod erase;
mod forks;
mod handle;
mod options;
mod pinned;
mod process_connection;
mod pull;
mod reply_queue;
mod save;
mod state;
mod store_client;
mod store_protocol;
#[cfg(test)]
mod tests;

pub(crate) use backoff::{Backoff, LOCATE_TIMEOUT};
pub use forks::about_to_fork;
pub use handle::{ObjectStoreHandle, PendingRead};
pub use options::{
    DURABLE_VARIABLE, Durability, MIN_STORE_BYTES, PATIENCE_VARIABLE, SPILL_VARIABLE,
    STORE_VARIABLE, Setting, StoreOptions,
};
pub(crate) use store_client::ObjectStoreClient;

use crate::clock::Clock;
use crate::net::credentials::Credentials;
use crate::net::io;
use crate::net::transfer::PartialTransfer;
use crate::node::Node;
use allocation::Allocation;
use blob_index::BlobIndex;
use disk::Disk;
use marline_channel::oneshot;
use marline_core::error::{Error, ErrorKind};
use marline_core::id::{ObjectId, Session};
use marline_core::map::Map;
use marline_core::message::CopyLocation;
use marline_core::object_store::{
    self as machine, BlobId, Config, Event, ProcessId, RequestId, StoreUsage,
};
use marline_core::time::Time;
use marline_core::worker;
use marline_objects::parts::Layout;
use marline_objects::{
    Access, Arena, Block, MappedSegments, RemovedSegment, SpillFiles, SpilledBlock, View, Writable,
};
use pinned::Pinned;
use process_connection::ProcessConnection;
use pull::Pulls;
use save::DurableSaves;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::Duration;
use store_protocol::GrantedBlob;
use tokio::sync::Notify;

/// Which making of a value some data is: the store where it was made, and its number there. Copies are of the making
/// that they were copied from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DataVersion(pub u128);

/// The process that has the store.
const OWN_PROCESS: ProcessId = ProcessId(0);

/// See the [module](self). A clone is the same one.
#[derive(Clone)]
pub(crate) struct ObjectStore(Arc<ObjectStoreShared>);

struct ObjectStoreShared {
    /// Which process has it. A fork of that has the same memory, and leaves everything else alone.
    process: u32,
    /// What tells it from all other stores.
    number: u64,
    state: Mutex<ObjectStoreState>,
    arena: Arena,
    /// Where this process sees what it reads: it cannot write there.
    windows: MappedSegments,
    clock: Clock,
    /// Whose store it is: the worker at this place of this node.
    owner: OnceLock<(Weak<Node>, usize)>,
    /// The time when something is due may have changed.
    due: Arc<Notify>,
    timer: OnceLock<()>,
}

/// What is there, and who waits.
struct ObjectStoreState {
    machine: machine::ObjectStore,
    arena: Arena,
    me: Weak<ObjectStoreShared>,
    disk: Option<Disk>,
    bodies: BlobIndex,
    /// Who made what is neither kept nor forgotten yet.
    makers: Map<BlobId, ProcessId>,
    /// What other processes fill.
    filling: Map<BlobId, Writable>,
    /// What is on the disk.
    spilled: Map<BlobId, Arc<SpilledBlock>>,
    /// What was copied from other stores, where it was made.
    copied: Map<BlobId, DataVersion>,
    requests: Map<RequestId, PendingRequest>,
    peers: Map<ProcessId, ProcessConnection>,
    /// What is looked for elsewhere, and for whom.
    missing: Map<ObjectId, MissingObject>,
    pulls: Pulls,
    saving: DurableSaves,
    /// What clients elsewhere have sent: who is told when it is kept.
    sent: Map<ObjectId, oneshot::Sender<()>>,
    /// What others are told who have data.
    secret: Credentials,
    /// The session of the worker whose store it is.
    worker: Option<Session>,
    next_request: u64,
    next_process: u64,
    /// Everybody is being heard.
    is_hearing: bool,
    /// Processes of which nothing may be left. They are seen off when what is being done is done: it may be about them.
    ended: Vec<ProcessId>,
    /// Done when the lock is released.
    outside: Vec<DeferredAction>,
}

/// What a store says of the data of an object.
pub(crate) struct LocalObject {
    pub object: ObjectId,
    pub bytes: u64,
    /// How many processes read it.
    pub readers: u32,
    pub on_disk: bool,
}

/// What is looked for elsewhere.
#[derive(Default)]
struct MissingObject {
    /// Who waits for it.
    requests: Vec<RequestId>,
    /// It was asked who has it, or told: whatever that leads to goes on with it.
    begun: bool,
    /// It was asked, and is not answered.
    waits: bool,
    /// It is asked again after a pause.
    pauses: bool,
    /// The worker was told to bring it: if it does not come, it says so.
    is_ordered: bool,
    tries: Backoff,
    /// What has come of it, while it is looked for who has the rest.
    coming: Option<PartialTransfer<(BlobId, Writable)>>,
}

/// Who asked for something.
struct PendingRequest {
    process: ProcessId,
    answer: ReplyTo,
    /// The object that it wants to read, wherever that is.
    seeks: Option<ObjectId>,
}

enum ReplyTo {
    /// Somebody in this process, who is to fill it.
    Fill(oneshot::Sender<Result<Allocation, Error>>),
    /// ... or to read it.
    Read(oneshot::Sender<Result<Pinned, Error>>),
    /// Another process, by the number it gave.
    Peer { number: u64 },
    /// Whoever asked has let go of it.
    Nobody,
}

/// What is done when the lock is released.
enum DeferredAction {
    Fill(oneshot::Sender<Result<Allocation, Error>>, Result<(BlobId, Writable), Error>),
    Read(oneshot::Sender<Result<Pinned, Error>>, Result<GrantedBlob, Error>),
    DeliverToWorker(worker::Event),
    /// It is asked again who has the data of an object.
    AskLater(ObjectId, Duration),
    /// What has come of it is let go of, if the rest has not come by then.
    LetGoLater(ObjectId, Option<Session>, Duration),
    /// What was sent here is kept.
    Kept(oneshot::Sender<()>),
    /// The time when something is due may have changed.
    Due,
    /// Memory that nobody uses goes back to the system.
    GiveBack,
    /// So does that of a segment which is gone.
    Gone(RemovedSegment),
}

impl ObjectStore {
    pub fn new(options: &StoreOptions, secret: Credentials) -> ObjectStore {
        ObjectStore::with(options, secret, Arena::at_most(options.limit))
    }

    fn with(options: &StoreOptions, secret: Credentials, arena: Arena) -> ObjectStore {
        let config = Config {
            limit: options.limit,
            spills: options.spill.is_some(),
            patience: options.patience,
        };
        let disk = options
            .spill
            .as_ref()
            .map(|(folder, limit)| Disk::new(SpillFiles::new(folder, *limit)));
        let shared = Arc::new_cyclic(|me| ObjectStoreShared {
            process: std::process::id(),
            number: crate::new_store_number(),
            state: Mutex::new(ObjectStoreState {
                machine: machine::ObjectStore::new(config),
                arena: arena.clone(),
                me: me.clone(),
                disk,
                bodies: BlobIndex::new(arena.clone()),
                makers: Map::default(),
                filling: Map::default(),
                spilled: Map::default(),
                copied: Map::default(),
                requests: Map::default(),
                peers: Map::default(),
                missing: Map::default(),
                pulls: Pulls::default(),
                saving: DurableSaves::new(options.durable.clone()),
                sent: Map::default(),
                secret,
                worker: None,
                next_request: 0,
                next_process: OWN_PROCESS.0,
                is_hearing: false,
                ended: Vec::new(),
                outside: Vec::new(),
            }),
            arena,
            windows: MappedSegments::default(),
            clock: Clock::new(),
            owner: OnceLock::new(),
            due: Arc::default(),
            timer: OnceLock::new(),
        });
        forks::add_here(&shared);
        ObjectStore(shared)
    }

    /// Whose store it is.
    pub fn belongs_to(&self, node: Weak<Node>, worker: usize) {
        let _ = self.0.owner.set((node, worker));
    }

    fn lock(&self) -> MutexGuard<'_, ObjectStoreState> {
        self.0.state.lock().expect("nothing panics under it")
    }

    /// Does something with the state, releases the lock, and does what follows.
    fn enter<R>(&self, what: impl FnOnce(&mut ObjectStoreState, Time) -> R) -> R {
        let mut state = self.lock();
        let now = self.0.clock.now();
        let result = what(&mut state, now);
        while let Some(process) = state.ended.pop() {
            state.see_off(now, process);
        }
        let outside = std::mem::take(&mut state.outside);
        drop(state);
        for outside in outside {
            self.carry_out(outside);
        }
        result
    }

    fn carry_out(&self, outside: DeferredAction) {
        match outside {
            // If nobody waits for it any more, or stops before it has looked, it is given back as it is dropped.
            DeferredAction::Fill(to, given) => {
                let given = given.map(|(blob, room)| Allocation::new(self.clone(), blob, room));
                drop(to.send(given));
            }
            DeferredAction::Read(to, given) => {
                drop(to.send(given.map(|given| Pinned::new(self.clone(), given))));
            }
            DeferredAction::DeliverToWorker(event) => {
                if let Some((node, worker)) = self.0.owner.get()
                    && let Some(node) = node.upgrade()
                {
                    node.deliver_executor_event(*worker, event);
                }
            }
            DeferredAction::AskLater(object, pause) => {
                self.later(pause, move |state, now| state.ask_again(now, object));
            }
            DeferredAction::LetGoLater(object, session, time) => {
                self.later(time, move |state, now| state.let_go_of_old(now, object, session));
            }
            DeferredAction::Kept(to) => drop(to.send(())),
            DeferredAction::Due => {
                self.0.timer.get_or_init(|| drop(io().spawn(keep_time(Arc::downgrade(&self.0)))));
                self.0.due.notify_one();
            }
            DeferredAction::GiveBack => {
                let arena = self.0.arena.clone();
                // It takes its time. If the system does not take it, it is used again all the same.
                io().spawn_blocking(move || drop(arena.trim()));
            }
            DeferredAction::Gone(gone) => {
                let store = self.clone();
                io().spawn_blocking(move || {
                    store.0.windows.remove(gone.number);
                    drop(gone.give_back());
                });
            }
        }
    }

    /// Whether this process has it, and is not a fork of that one.
    fn is_ours(&self) -> bool {
        self.0.process == std::process::id()
    }

    /// Does something with the state after a while, if it is there by then. Nobody blocks meanwhile.
    fn later(
        &self,
        time: Duration,
        what: impl FnOnce(&mut ObjectStoreState, Time) + Send + 'static,
    ) {
        let store = Arc::downgrade(&self.0);
        io().spawn(async move {
            tokio::time::sleep(time).await;
            if let Some(shared) = store.upgrade() {
                ObjectStore(shared).enter(what);
            }
        });
    }

    /// The worker works under this session, or under none: then nothing is kept for the cluster, and readers wait for
    /// the next session.
    pub fn set_session(&self, session: Option<Session>) {
        self.enter(|state, now| {
            if session.is_none() && state.worker.is_some() {
                state.saving.leave_all();
                state.forget_all(now);
                state.stop_looking(now);
            }
            let joins = state.worker.is_none() && session.is_some();
            state.worker = session;
            if joins {
                state.look_anew(now);
            }
        });
    }

    /// The cluster keeps the data of this object. What is not here is said to be lost.
    pub fn retain(&self, object: ObjectId) {
        self.enter(|state, now| state.retain(now, object));
    }

    /// It does not any more.
    pub fn evict(&self, object: ObjectId) {
        self.enter(|state, now| state.evict(now, object));
    }

    /// The worker has seen to the answer that this was made for: if it was not kept, it is nobody's.
    pub fn disown(&self, object: ObjectId) {
        self.enter(|state, now| state.disown(now, object));
    }

    /// Where data is that was looked for.
    pub fn located(&self, object: ObjectId, copies: Result<Vec<CopyLocation>, Error>) {
        self.enter(|state, now| state.located(now, object, copies));
    }

    /// How full it is.
    pub fn figures(&self) -> StoreUsage {
        self.lock().machine.figures()
    }

    /// Has the data of an object brought that nobody here asked for.
    pub fn pull(&self, object: ObjectId, from: Vec<CopyLocation>) {
        self.enter(|state, now| state.told_to_bring(now, object, from));
    }

    /// What it has, the largest first.
    pub fn list(&self, limit: usize) -> Vec<LocalObject> {
        self.enter(|state, _| {
            let held = state.bodies.all_named().filter_map(|(object, blob)| {
                let (bytes, readers, is_in_memory) = state.machine.look(blob)?;
                let readers = readers as u32;
                Some(LocalObject { object, bytes, readers, on_disk: !is_in_memory })
            });
            let mut held: Vec<LocalObject> = held.collect();
            held.sort_unstable_by_key(|held| (std::cmp::Reverse(held.bytes), held.object));
            held.truncate(limit);
            held
        })
    }

    /// Fills room with these parts, as the data of an object. It is this process's until the cluster keeps it.
    fn write(
        &self,
        object: ObjectId,
        parts: &[&[u8]],
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Session>, Error> {
        let layout = layout_of(parts)?;
        let (answer, mut given) = oneshot();
        let request = self.enter(|state, now| {
            let request = state.ask(OWN_PROCESS, ReplyTo::Fill(answer));
            let bytes = layout.bytes() as u64;
            state.handle(
                now,
                Event::CreateRequested { request, process: OWN_PROCESS, bytes, speculative: false },
            );
            request
        });
        let mut room = loop {
            match given.recv().timeout(LOOK_EVERY).wait() {
                Ok(given) => break given?,
                Err(error) if error.kind() != marline_channel::ErrorKind::Timeout => {
                    return Err(closed());
                }
                Err(_) if go_on() => {}
                Err(_) => {
                    self.enter(|state, now| state.handle(now, Event::RequestCancelled { request }));
                    return Err(given_up());
                }
            }
        };
        layout.fill(room.writable(), parts).map_err(|error| unmappable(&error))?;
        let (blob, room) = room.taken();
        Ok(self.enter(|state, now| {
            state.bodies.set_memory(blob, room);
            state.sealed(now, blob, object);
            state.worker
        }))
    }

    /// Asks for the data of an object.
    fn read(&self, object: ObjectId) -> oneshot::Receiver<Result<Pinned, Error>> {
        let (answer, given) = oneshot();
        self.enter(|state, now| {
            let request = state.ask(OWN_PROCESS, ReplyTo::Read(answer));
            state.read(now, request, object);
        });
        given
    }

    /// The data of an object, if it is in this store. Blocks while it is read from the disk.
    pub fn read_here(&self, object: ObjectId) -> Result<View, Error> {
        self.read_with_blob(object).map(|(view, _)| view)
    }

    /// The same for another node, which was told that it is here, and of which making it is. If it is not, whoever said so
    /// is told.
    pub fn read_to_send(&self, object: ObjectId) -> Result<(View, DataVersion), Error> {
        let read = self.read_with_blob(object);
        self.enter(|state, _| match read {
            Ok((view, blob)) => {
                let made_here = DataVersion(u128::from(self.0.number) << 64 | u128::from(blob.0));
                Ok((view, state.copied.get(&blob).copied().unwrap_or(made_here)))
            }
            Err(error) => {
                if error.kind() == ErrorKind::NotFound {
                    state.asked_in_vain(object);
                }
                Err(error)
            }
        })
    }

    fn lack_of_room(&self) -> Option<Error> {
        self.lock().machine.lack_of_room()
    }

    /// Whether it keeps the data of an object for the cluster.
    pub fn keeps(&self, object: ObjectId) -> bool {
        let state = self.lock();
        state.bodies.named(object).is_some_and(|blob| !state.makers.contains_key(&blob))
    }

    fn read_with_blob(&self, object: ObjectId) -> Result<(View, BlobId), Error> {
        let (answer, mut given) = oneshot();
        self.enter(|state, now| match state.find(now, object) {
            Some(blob) => {
                let request = state.ask(OWN_PROCESS, ReplyTo::Read(answer));
                state.handle(now, Event::PinRequested { request, process: OWN_PROCESS, blob });
            }
            None => {
                let words = format!("the data of {object} is not in this store");
                state.outside.push(DeferredAction::Read(answer, Err(Error::not_found(words))));
            }
        });
        let pinned = given.recv().wait().map_err(|_| closed())??;
        let blob = pinned.given.blob;
        self.show(object, pinned).map(|(view, _)| (view, blob))
    }

    /// It has come: shows it where it cannot be written.
    fn show(&self, object: ObjectId, pinned: Pinned) -> Result<(View, Layout), Error> {
        let GrantedBlob { block, bytes, .. } = pinned.given;
        let shown = self
            .map(block.segment)
            .and_then(|()| self.0.windows.view(block, bytes as usize, |_| drop(pinned)));
        laid_out(object, shown.map_err(|error| unmappable(&error))?)
    }

    /// Sees to it that this process can read a segment.
    fn map(&self, number: u32) -> std::io::Result<()> {
        let windows = &self.0.windows;
        if windows.has(number, Access::Read) {
            return Ok(());
        }
        let segment = self.0.arena.segment(number).expect("its block is given out");
        windows.add(number, Access::Read, segment.descriptor(Access::Read))
    }

    /// The bytes of a block, for as long as the machine has it stay where it is.
    fn look_into(&self, block: Block, bytes: usize) -> std::io::Result<View> {
        self.map(block.segment)?;
        self.0.windows.view(block, bytes, |_| ())
    }

    /// This process is about to fork: what it reads now, the fork may go on reading.
    fn about_to_fork(&self) {
        self.enter(|state, now| state.handle(now, Event::Forked { process: OWN_PROCESS }));
    }
}

/// Has the store look at the clock when something is due.
async fn keep_time(store: Weak<ObjectStoreShared>) {
    loop {
        let Some(shared) = store.upgrade() else { return };
        let (due, clock) = (shared.due.clone(), shared.clock);
        let wait = ObjectStore(shared).lock().machine.next_wake().map(|time| clock.until(time));
        let changed = due.notified();
        match wait {
            None => changed.await,
            Some(wait) => {
                if tokio::time::timeout(wait, changed).await.is_err()
                    && let Some(shared) = store.upgrade()
                {
                    ObjectStore(shared).enter(|state, now| state.handle(now, Event::TimePassed));
                }
            }
        }
    }
}

/// This store was said to have the data of an object, and has not.
fn lost(object: ObjectId) -> worker::Event {
    let error = Error::internal(format!("the data of {object} is not where it was said to be"));
    worker::Event::DataLost { object, error }
}

/// Where these parts go. More than any memory has are refused.
pub(crate) fn layout_of(parts: &[&[u8]]) -> Result<Layout, Error> {
    Layout::of(parts.iter().map(|part| part.len()))
        .ok_or_else(|| Error::too_large("a value that no memory could hold"))
}

/// What is read, and where its parts are.
fn laid_out(object: ObjectId, view: View) -> Result<(View, Layout), Error> {
    match Layout::read(&view) {
        Some(layout) => Ok((view, layout)),
        None => Err(Error::internal(format!("the data of {object} makes no sense"))),
    }
}

fn unmappable(error: &std::io::Error) -> Error {
    Error::exhausted(format!(
        "shared memory cannot be had: {error}; is there a limit to the memory of this process (ulimit -v), or to how \
         many files it has open (ulimit -n)?"
    ))
}

/// Who waits for room looks this often whether it is to go on.
const LOOK_EVERY: Duration = Duration::from_millis(20);

fn given_up() -> Error {
    Error::cancelled("nobody waits any more for room in this node's store")
}

fn closed() -> Error {
    Error::unavailable(marline_core::error::Ran::Maybe, "this node's store was closed")
}
