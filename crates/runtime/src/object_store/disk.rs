//! The disk of a store: writes blobs and reads them back on a thread of its own, since that takes a
//! while. Under the store's lock, code only queues operations.

use super::{ObjectStore, ObjectStoreShared, ObjectStoreState, unmappable};
use crate::runtime_log::STORE;
use marline_core::error::Error;
use marline_core::object_store::{BlobId, Event};
use marline_core::time::Time;
use marline_objects::{Block, SpillError, SpillFiles, SpilledBlock, Writable};
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::thread;
use tracing::{debug, warn};

/// An operation for the disk thread.
pub(super) enum DiskOperation {
    Write {
        blob: BlobId,
        block: Block,
        bytes: usize,
    },
    Read {
        blob: BlobId,
        spilled: Arc<SpilledBlock>,
        room: Writable,
    },
    /// No process needs the spilled block any more: free its room on the disk.
    Discard(Arc<SpilledBlock>),
}

/// The handle of the disk thread.
pub(super) struct Disk {
    spill: SpillFiles,
    todo: Arc<DiskQueue>,
    is_started: bool,
    start: Start,
}

/// The queued operations, and the signal that wakes the disk thread.
#[derive(Default)]
struct DiskQueue {
    queues: Mutex<Queues>,
    changed: Condvar,
}

#[derive(Default)]
struct Queues {
    /// Operations that a process waits for: they must not queue behind the writes.
    reads: VecDeque<DiskOperation>,
    /// The next write may need the room that these free.
    discards: VecDeque<DiskOperation>,
    writes: VecDeque<DiskOperation>,
    over: bool,
}

/// A function that starts a thread of this name.
pub(super) type Start = fn(&str, Box<dyn FnOnce() + Send>) -> io::Result<()>;

pub(super) fn start_thread(name: &str, run: Box<dyn FnOnce() + Send>) -> io::Result<()> {
    thread::Builder::new().name(name.into()).spawn(run).map(drop)
}

impl DiskQueue {
    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().expect("nothing panics under it")
    }

    fn push(&self, job: DiskOperation) {
        let mut queues = self.queues();
        match &job {
            DiskOperation::Read { .. } => queues.reads.push_back(job),
            DiskOperation::Discard(_) => queues.discards.push_back(job),
            DiskOperation::Write { .. } => queues.writes.push_back(job),
        }
        drop(queues);
        self.changed.notify_one();
    }

    /// Waits for the next operation. Returns `None` when the store is closed.
    fn next(&self) -> Option<DiskOperation> {
        let mut queues = self.queues();
        loop {
            if queues.over {
                return None;
            }
            let Queues { reads, discards, writes, .. } = &mut *queues;
            if let Some(job) = [reads, discards, writes].into_iter().find_map(VecDeque::pop_front) {
                return Some(job);
            }
            queues = self.changed.wait(queues).expect("nothing panics under it");
        }
    }
}

impl Disk {
    pub fn new(spill: SpillFiles) -> Disk {
        Disk { spill, todo: Arc::default(), is_started: false, start: start_thread }
    }

    /// Queues an operation. The store gets an event when it has ended. If no thread can be started
    /// for it, returns the operation with the error; a later call tries to start one again.
    fn take(
        &mut self,
        store: &Weak<ObjectStoreShared>,
        job: DiskOperation,
    ) -> Result<(), (DiskOperation, io::Error)> {
        if !self.is_started {
            let (store, spill, todo) = (store.clone(), self.spill.clone(), self.todo.clone());
            let run = move || work(&store, &spill, &todo);
            if let Err(error) = (self.start)("marline-spill", Box::new(run)) {
                return Err((job, error));
            }
            self.is_started = true;
        }
        self.todo.push(job);
        Ok(())
    }

    /// Frees a spilled block. The thread that wrote it exists and does that.
    fn discard(&self, spilled: Arc<SpilledBlock>) {
        self.todo.push(DiskOperation::Discard(spilled));
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.todo.queues().over = true;
        self.todo.changed.notify_one();
    }
}

impl ObjectStoreState {
    /// Queues an operation for the disk. If no thread can be started, the operation has failed.
    pub(super) fn have_disk_do(&mut self, now: Time, job: DiskOperation) {
        let disk = self.disk.as_mut().expect("only a store with a disk spills");
        let Err((job, error)) = disk.take(&self.me, job) else { return };
        let words = format!("no thread could be started for the disk: {error}");
        let result = Err(Error::exhausted(words));
        match job {
            DiskOperation::Write { blob, .. } => {
                self.handle(now, Event::SpillEnded { blob, result })
            }
            DiskOperation::Read { blob, room, .. } => {
                drop(room);
                self.handle(now, Event::LoadEnded { blob, result });
            }
            DiskOperation::Discard(_) => {}
        }
    }

    fn add_spilled(&mut self, blob: BlobId, spilled: SpilledBlock) {
        self.spilled.insert(blob, Arc::new(spilled));
        if !self.bodies.contains(blob) {
            self.free_disk(blob);
        }
    }

    /// Frees the room of a blob on the disk.
    pub(super) fn free_disk(&mut self, blob: BlobId) {
        if let Some((spilled, disk)) = self.spilled.remove(&blob).zip(self.disk.as_ref()) {
            disk.discard(spilled);
        }
    }
}

fn work(store: &Weak<ObjectStoreShared>, spill: &SpillFiles, todo: &DiskQueue) {
    while let Some(job) = todo.next() {
        let Some(store) = store.upgrade().map(ObjectStore) else { return };
        do_it(&store, spill, job);
    }
}

fn do_it(store: &ObjectStore, spill: &SpillFiles, job: DiskOperation) {
    match job {
        DiskOperation::Write { blob: blob @ BlobId(id), block, bytes } => {
            let view = store.look_into(block, bytes).map_err(|error| unmappable(&error));
            let written =
                view.and_then(|view| spill.write(&view).map_err(|error| in_words(&error)));
            match &written {
                Ok(_) => debug!(target: STORE, blob = id, bytes, "spilled a value"),
                Err(error) => {
                    warn!(target: STORE, blob = id, bytes, "could not spill a value: {error}")
                }
            }
            store.enter(|state, now| {
                let result = written.map(|spilled| state.add_spilled(blob, spilled));
                state.handle(now, Event::SpillEnded { blob, result });
            });
        }
        DiskOperation::Read { blob: blob @ BlobId(id), spilled, mut room } => {
            let read = room.prepare().map_err(SpillError::NoMemory);
            let read = read.and_then(|()| spilled.read(&mut room));
            drop(spilled);
            match &read {
                Ok(()) => debug!(target: STORE, blob = id, "loaded a spilled value"),
                Err(error) => {
                    warn!(target: STORE, blob = id, "could not load a spilled value: {error}")
                }
            }
            store.enter(|state, now| {
                if read.is_ok() {
                    state.bodies.set_memory(blob, room);
                }
                let result = read.map_err(|error| unreadable(&error));
                state.handle(now, Event::LoadEnded { blob, result });
            });
        }
        DiskOperation::Discard(spilled) => drop(spilled),
    }
}

fn in_words(error: &SpillError) -> Error {
    match error {
        SpillError::Full { .. } | SpillError::Disk(_) => Error::exhausted(error.to_string()),
        SpillError::Corrupt | SpillError::NoMemory(_) => unreadable(error),
    }
}

/// Converts the error of a read. Data that the disk cannot return is lost, whatever the reason. If
/// only memory is missing, the data is still on the disk.
fn unreadable(error: &SpillError) -> Error {
    match error {
        SpillError::NoMemory(_) => Error::exhausted(error.to_string()),
        SpillError::Full { .. } | SpillError::Disk(_) | SpillError::Corrupt => {
            Error::internal(error.to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ObjectStoreHandle, StoreOptions};
    use super::*;
    use crate::net::credentials::Credentials;
    use marline_core::error::ErrorKind;
    use marline_core::id::{ObjectId, TaskId};
    use std::time::Duration;

    /// The size of the values in these tests. A store has room for one and a half of them.
    const BYTES: usize = 1 << 20;

    fn object(number: u128) -> ObjectId {
        ObjectId::of(TaskId::from_u128(number), 0)
    }

    fn store(folder: &std::path::Path) -> ObjectStore {
        let spill = Some((folder.into(), 1 << 30));
        let (limit, patience) = (BYTES as u64 * 3 / 2, Duration::from_millis(50));
        let options = StoreOptions { limit, spill, patience, ..StoreOptions::default() };
        ObjectStore::new(&options, Credentials::new(None))
    }

    fn make(store: &ObjectStore, number: u128) -> Result<(), Error> {
        let (object, value) = (object(number), vec![number as u8; BYTES]);
        ObjectStoreHandle::here(store.clone()).write(object, &[&value], || true)?;
        store.retain(object);
        Ok(())
    }

    fn start_nothing(_: &str, _: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Returns whether the value can be read and is as it was made.
    fn is_whole(store: &ObjectStore, number: u128) -> bool {
        let read = store.read_here(object(number));
        read.is_ok_and(|view| view.iter().rev().take(BYTES).all(|byte| *byte == number as u8))
    }

    #[test]
    fn a_store_without_a_disk_thread_fails_requests_and_tries_again() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(folder.path());
        let starts =
            |start: Start| store.enter(|state, _| state.disk.as_mut().unwrap().start = start);
        starts(start_nothing);
        make(&store, 1).unwrap();
        let error = make(&store, 2).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Exhausted);
        assert!(error.message().contains("no thread could be started"), "{error}");
        assert!(is_whole(&store, 1));
        starts(start_thread);
        // The store tries the disk again a little after the failure.
        while let Err(error) = make(&store, 2) {
            assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
        }
        assert_eq!(store.usage().spilled, store.usage().used, "the first value is on the disk");
        store.enter(|state, _| {
            let spill = state.disk.as_ref().unwrap().spill.clone();
            let mut disk = Disk::new(spill);
            disk.start = start_nothing;
            state.disk = Some(disk);
        });
        store.evict(object(2));
        let error = store.read_here(object(1)).unwrap_err();
        assert!(error.message().contains("no thread could be started"), "{error}");
        starts(start_thread);
        assert!(is_whole(&store, 1), "the value stays on the disk until it can be read");
    }

    #[test]
    fn a_spilled_blob_is_discarded_by_the_disk_thread_alone() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(folder.path());
        make(&store, 1).unwrap();
        make(&store, 2).unwrap();
        // From here on, no thread takes operations from the queue.
        let (spill, todo) = store.enter(|state, _| {
            let spill = state.disk.as_ref().unwrap().spill.clone();
            let disk = Disk::new(spill.clone());
            let todo = disk.todo.clone();
            state.disk = Some(disk);
            (spill, todo)
        });
        let used = spill.used();
        assert!(used >= BYTES as u64);
        store.evict(object(1));
        assert_eq!((store.usage().spilled, spill.used()), (0, used), "nothing waits for a disk");
        do_it(&store, &spill, todo.next().unwrap());
        assert_eq!(spill.used(), 0);
    }

    #[test]
    fn a_load_fails_as_exhausted_without_memory_and_as_internal_otherwise() {
        let none_left = || io::Error::from(io::ErrorKind::OutOfMemory);
        assert_eq!(unreadable(&SpillError::NoMemory(none_left())).kind(), ErrorKind::Exhausted);
        for lost in [SpillError::Corrupt, SpillError::Disk(io::ErrorKind::Other.into())] {
            assert_eq!(unreadable(&lost).kind(), ErrorKind::Internal, "{lost}");
        }
    }

    #[test]
    fn the_disk_queue_serves_reads_and_discards_before_writes() {
        let folder = tempfile::tempdir().unwrap();
        let (spill, todo) = (SpillFiles::new(folder.path(), 1 << 30), DiskQueue::default());
        let arena = marline_objects::Arena::default();
        let spilled = Arc::new(spill.write(b"some").unwrap());
        let block = arena.allocate(4).unwrap().block();
        todo.push(DiskOperation::Write { blob: BlobId(1), block, bytes: 4 });
        todo.push(DiskOperation::Discard(spilled.clone()));
        let room = arena.allocate(4).unwrap();
        todo.push(DiskOperation::Read { blob: BlobId(2), spilled, room });
        assert!(matches!(todo.next(), Some(DiskOperation::Read { .. })));
        assert!(matches!(todo.next(), Some(DiskOperation::Discard(_))));
        assert!(matches!(todo.next(), Some(DiskOperation::Write { .. })));
    }
}
