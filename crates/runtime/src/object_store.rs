//! A node's object store: shared memory, the disk, and the processes that read large values.
//!
//! [`marline_core::object_store`] decides; this module owns the memory, the files and the sockets.
//! The process of a worker owns the store. Its executors request room and values over one socket
//! each, and fill and read them in place ([`store_client`]). Code in the worker's own process calls
//! [`ObjectStore`] directly. [`ObjectStoreHandle`] is either of the two.
//!
//! An object has a name that the whole cluster knows. Its data in this store is a blob with a
//! number ([`BlobId`]) that is never used again. A blob belongs to the process that made it until
//! the cluster retains it ([`ObjectStore::retain`]). From then on the store has it until the
//! cluster evicts it.
//!
//! The store treats a process as gone when the worker has handled everything that the process
//! reported, and the socket of the process has ended. Until then the process, or a fork of it, may
//! read the blobs that it has pinned.
//!
//! Locks: a thread with a node's lock may take the store's lock, but not the other way round.
//! Events for the node are delivered after the store's lock is released.

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

/// The version of an object's data: the store where the data was made, and the blob's number there.
/// A copy has the version of the blob that it was copied from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DataVersion(pub u128);

/// The process that owns the store.
const OWN_PROCESS: ProcessId = ProcessId(0);

/// See the [module](self). A clone is the same store.
#[derive(Clone)]
pub(crate) struct ObjectStore(Arc<ObjectStoreShared>);

struct ObjectStoreShared {
    /// The id of the process that owns the store. A fork of it shares the memory, and must not
    /// touch anything else.
    process: u32,
    /// The number that tells this store from all others.
    number: u64,
    state: Mutex<ObjectStoreState>,
    arena: Arena,
    /// The segments that this process has mapped to read. It cannot write there.
    windows: MappedSegments,
    clock: Clock,
    /// The worker that has this store: its node, and its index there.
    owner: OnceLock<(Weak<Node>, usize)>,
    /// Notified when the time of the next due event may have changed.
    due: Arc<Notify>,
    timer: OnceLock<()>,
}

/// The state of a store: its blobs, and the requests that wait.
struct ObjectStoreState {
    machine: machine::ObjectStore,
    arena: Arena,
    me: Weak<ObjectStoreShared>,
    disk: Option<Disk>,
    bodies: BlobIndex,
    /// The makers of blobs that the cluster neither retains nor has evicted yet.
    makers: Map<BlobId, ProcessId>,
    /// The blobs that other processes fill.
    filling: Map<BlobId, Writable>,
    /// The blobs on the disk.
    spilled: Map<BlobId, Arc<SpilledBlock>>,
    /// The versions of blobs that were copied from other stores.
    copied: Map<BlobId, DataVersion>,
    requests: Map<RequestId, PendingRequest>,
    peers: Map<ProcessId, ProcessConnection>,
    /// The objects that the store looks for on other nodes, each with the requests waiting for it.
    missing: Map<ObjectId, MissingObject>,
    pulls: Pulls,
    saving: DurableSaves,
    /// Uploads of clients elsewhere that the cluster does not retain yet. The sender of each is
    /// notified when the cluster retains the upload.
    sent: Map<ObjectId, oneshot::Sender<()>>,
    /// The credentials for connections to other nodes.
    secret: Credentials,
    /// The session of the worker that has this store.
    worker: Option<Session>,
    next_request: u64,
    next_process: u64,
    /// Whether [`hear_all`](Self::hear_all) is running.
    is_hearing: bool,
    /// The processes that may be gone. `enter` removes them at its end, because the step that it
    /// runs may be about them.
    ended: Vec<ProcessId>,
    /// The actions to carry out after the lock is released.
    outside: Vec<DeferredAction>,
}

/// The store's view of one object's data.
pub(crate) struct LocalObject {
    pub object: ObjectId,
    pub bytes: u64,
    /// How many processes read it.
    pub readers: u32,
    pub on_disk: bool,
}

/// An object that this store does not have and that some request or order needs.
#[derive(Default)]
struct MissingObject {
    /// The requests that wait for the data.
    requests: Vec<RequestId>,
    /// Whether a lookup or a pull is under way. Its result decides the next step.
    begun: bool,
    /// Whether the worker was asked for the copies and has not answered yet.
    waits: bool,
    /// Whether the next lookup follows after a pause.
    pauses: bool,
    /// Whether the controller ordered this pull. If the pull fails, the store reports it.
    is_ordered: bool,
    tries: Backoff,
    /// The pieces that have arrived, while the store looks for another node with the rest.
    coming: Option<PartialTransfer<(BlobId, Writable)>>,
}

/// A request that is not answered yet.
struct PendingRequest {
    process: ProcessId,
    answer: ReplyTo,
    /// The object that the process wants to read, wherever it is.
    seeks: Option<ObjectId>,
}

enum ReplyTo {
    /// To a thread of this process, which fills the room.
    Fill(oneshot::Sender<Result<Allocation, Error>>),
    /// To a thread of this process, which reads the blob.
    Read(oneshot::Sender<Result<Pinned, Error>>),
    /// To another process, under the number of its request.
    Peer { number: u64 },
    /// To no process: the request was cancelled.
    Nobody,
}

/// An action to carry out after the lock is released.
enum DeferredAction {
    Fill(oneshot::Sender<Result<Allocation, Error>>, Result<(BlobId, Writable), Error>),
    Read(oneshot::Sender<Result<Pinned, Error>>, Result<GrantedBlob, Error>),
    DeliverToWorker(worker::Event),
    /// Look for the data of an object again after a pause.
    LookUpLater(ObjectId, Duration),
    /// Drop the received pieces of an object, unless more arrive within this time.
    DropPiecesLater(ObjectId, Option<Session>, Duration),
    /// Report that the cluster retains an upload.
    UploadRetained(oneshot::Sender<()>),
    /// Wake the timer: the time of the next due event may have changed.
    WakeTimer,
    /// Return unused memory to the system.
    TrimMemory,
    /// Return the memory of a removed segment to the system.
    ReturnSegment(RemovedSegment),
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

    /// Sets the worker that has this store.
    pub fn set_node(&self, node: Weak<Node>, worker: usize) {
        let _ = self.0.owner.set((node, worker));
    }

    fn lock(&self) -> MutexGuard<'_, ObjectStoreState> {
        self.0.state.lock().expect("nothing panics under it")
    }

    /// Runs `what` on the state, releases the lock, and carries out the deferred actions.
    fn enter<R>(&self, what: impl FnOnce(&mut ObjectStoreState, Time) -> R) -> R {
        let mut state = self.lock();
        let now = self.0.clock.now();
        let result = what(&mut state, now);
        while let Some(process) = state.ended.pop() {
            state.remove_process(now, process);
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
            // If the caller has gone, or goes before it reads the value, the drop returns the room
            // or the pin.
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
            DeferredAction::LookUpLater(object, pause) => {
                self.later(pause, move |state, now| state.ask_again(now, object));
            }
            DeferredAction::DropPiecesLater(object, session, time) => {
                self.later(time, move |state, now| state.let_go_of_old(now, object, session));
            }
            DeferredAction::UploadRetained(to) => drop(to.send(())),
            DeferredAction::WakeTimer => {
                self.0.timer.get_or_init(|| drop(io().spawn(keep_time(Arc::downgrade(&self.0)))));
                self.0.due.notify_one();
            }
            DeferredAction::TrimMemory => {
                let arena = self.0.arena.clone();
                // This takes a while. Memory that the system does not take is simply used again.
                io().spawn_blocking(move || drop(arena.trim()));
            }
            DeferredAction::ReturnSegment(gone) => {
                let store = self.clone();
                io().spawn_blocking(move || {
                    store.0.windows.remove(gone.number);
                    drop(gone.give_back());
                });
            }
        }
    }

    /// Returns whether this process owns the store, and is not a fork of the owner.
    fn is_ours(&self) -> bool {
        self.0.process == std::process::id()
    }

    /// Runs `what` on the state after a while, if the store still exists. Blocks no thread
    /// meanwhile.
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

    /// Sets the session of the worker; `None` ends it. Without a session the store retains nothing
    /// for the cluster, and readers wait for the next session, as long as a lookup may take.
    pub fn set_session(&self, session: Option<Session>) {
        self.enter(|state, now| {
            if session.is_none() && state.worker.is_some() {
                state.saving.forget_all();
                state.forget_all(now);
                state.stop_looking(now);
            }
            let joins = state.worker.is_none() && session.is_some();
            state.worker = session;
            if joins {
                state.look_up_all(now);
            }
        });
    }

    /// Retains the data of an object for the cluster. Reports the data as lost if it is not here.
    pub fn retain(&self, object: ObjectId) {
        self.enter(|state, now| state.retain(now, object));
    }

    /// Evicts the data of an object: the cluster needs it no more.
    pub fn evict(&self, object: ObjectId) {
        self.enter(|state, now| state.evict(now, object));
    }

    /// Ends the maker's ownership of a blob, after the worker has handled the answer that the blob
    /// was made for. Unless the cluster retains the blob, the blob then has no owner.
    pub fn disown(&self, object: ObjectId) {
        self.enter(|state, now| state.disown(now, object));
    }

    /// Takes the controller's answer to a lookup of an object's copies.
    pub fn located(&self, object: ObjectId, copies: Result<Vec<CopyLocation>, Error>) {
        self.enter(|state, now| state.located(now, object, copies));
    }

    /// Returns how full the store is.
    pub fn usage(&self) -> StoreUsage {
        self.lock().machine.usage()
    }

    /// Pulls the data of an object on the controller's order, without a request from here.
    pub fn pull(&self, object: ObjectId, from: Vec<CopyLocation>) {
        self.enter(|state, now| state.pull_ordered(now, object, from));
    }

    /// Lists the objects in this store, the largest first.
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

    /// Writes these parts into new room, as the data of an object. The blob belongs to this process
    /// until the cluster retains it.
    fn write(
        &self,
        object: ObjectId,
        parts: &[&[u8]],
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Session>, Error> {
        let layout = layout_of(parts)?;
        let (answer, mut given) = oneshot();
        let request = self.enter(|state, now| {
            let request = state.new_request(OWN_PROCESS, ReplyTo::Fill(answer));
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

    /// Requests the data of an object.
    fn read(&self, object: ObjectId) -> oneshot::Receiver<Result<Pinned, Error>> {
        let (answer, given) = oneshot();
        self.enter(|state, now| {
            let request = state.new_request(OWN_PROCESS, ReplyTo::Read(answer));
            state.read(now, request, object);
        });
        given
    }

    /// Returns the data of an object if it is in this store. Blocks while the data is read from the
    /// disk.
    pub fn read_here(&self, object: ObjectId) -> Result<View, Error> {
        self.read_with_blob(object).map(|(view, _)| view)
    }

    /// Returns the data of an object, and its version, to send it to another node. If the data is
    /// not here, reports it as lost: the controller believed that this store has it.
    pub fn read_to_send(&self, object: ObjectId) -> Result<(View, DataVersion), Error> {
        let read = self.read_with_blob(object);
        self.enter(|state, _| match read {
            Ok((view, blob)) => {
                let made_here = DataVersion(u128::from(self.0.number) << 64 | u128::from(blob.0));
                Ok((view, state.copied.get(&blob).copied().unwrap_or(made_here)))
            }
            Err(error) => {
                if error.kind() == ErrorKind::NotFound {
                    state.report_lost(object);
                }
                Err(error)
            }
        })
    }

    fn lack_of_room(&self) -> Option<Error> {
        self.lock().machine.lack_of_room()
    }

    /// Returns whether the store retains the data of an object for the cluster.
    pub fn retains(&self, object: ObjectId) -> bool {
        let state = self.lock();
        state.bodies.named(object).is_some_and(|blob| !state.makers.contains_key(&blob))
    }

    fn read_with_blob(&self, object: ObjectId) -> Result<(View, BlobId), Error> {
        let (answer, mut given) = oneshot();
        self.enter(|state, now| match state.find(now, object) {
            Some(blob) => {
                let request = state.new_request(OWN_PROCESS, ReplyTo::Read(answer));
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

    /// Maps a pinned blob so that this process cannot write to it.
    fn show(&self, object: ObjectId, pinned: Pinned) -> Result<(View, Layout), Error> {
        let GrantedBlob { block, bytes, .. } = pinned.given;
        let shown = self
            .map(block.segment)
            .and_then(|()| self.0.windows.view(block, bytes as usize, |_| drop(pinned)));
        laid_out(object, shown.map_err(|error| unmappable(&error))?)
    }

    /// Maps a segment for reading, unless it is mapped already.
    fn map(&self, number: u32) -> std::io::Result<()> {
        let windows = &self.0.windows;
        if windows.has(number, Access::Read) {
            return Ok(());
        }
        let segment = self.0.arena.segment(number).expect("a block of the segment is in use");
        windows.add(number, Access::Read, segment.descriptor(Access::Read))
    }

    /// Returns the bytes of a block. They are valid only as long as the machine leaves the block in
    /// its place.
    fn look_into(&self, block: Block, bytes: usize) -> std::io::Result<View> {
        self.map(block.segment)?;
        self.0.windows.view(block, bytes, |_| ())
    }

    /// Tells the store that this process is about to fork: the fork may go on reading its pinned
    /// blobs.
    fn about_to_fork(&self) {
        self.enter(|state, now| state.handle(now, Event::Forked { process: OWN_PROCESS }));
    }
}

/// Wakes the store's machine when its next event is due.
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

/// Returns the event that reports data as lost: the controller believes that it is in this store,
/// and it is not.
fn lost(object: ObjectId) -> worker::Event {
    let error = Error::internal(format!(
        "the data of {object} is not in the store that the controller named"
    ));
    worker::Event::DataLost { object, error }
}

/// Lays out the parts of a value. Fails with `TooLarge` if their size overflows.
pub(crate) fn layout_of(parts: &[&[u8]]) -> Result<Layout, Error> {
    Layout::of(parts.iter().map(|part| part.len()))
        .ok_or_else(|| Error::too_large("the value is larger than any memory"))
}

/// Returns a blob's bytes with its layout.
fn laid_out(object: ObjectId, view: View) -> Result<(View, Layout), Error> {
    match Layout::read(&view) {
        Some(layout) => Ok((view, layout)),
        None => Err(Error::internal(format!("the data of {object} cannot be decoded"))),
    }
}

fn unmappable(error: &std::io::Error) -> Error {
    Error::exhausted(format!(
        "shared memory cannot be allocated: {error}: check the limits of this process on memory \
         (ulimit -v) and on open files (ulimit -n)"
    ))
}

/// How often a thread that waits for room checks whether to go on.
const LOOK_EVERY: Duration = Duration::from_millis(20);

fn given_up() -> Error {
    Error::cancelled("no caller waits for room in this node's store any more")
}

fn closed() -> Error {
    Error::unavailable(marline_core::error::Ran::Maybe, "this node's store was closed")
}
