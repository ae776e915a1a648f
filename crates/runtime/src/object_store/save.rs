//! Durable data: saved in a folder that all nodes see, so that it outlives this node, and read from
//! there when no store has the data any more.
//!
//! Each cluster has its own folder in it, named by its id, which is erased when the cluster ends. A
//! saved file is erased when the controller says so. Until the cluster retains the data that was
//! saved, its file is erased when the maker's ownership ends.
//!
//! A task that runs again saves under the same name at another node, while the first attempt may
//! still be saving and know nothing of the second. So a store erases on its own only a file that it
//! made itself, where none was before. When its session is over, another store may have been
//! assigned the task: then this store erases nothing, and saves nothing of what it had begun.

use super::erase::{EraseQueue, FileToErase};
use super::store_protocol::StoreReply;
use super::{Durability, ObjectStore, ObjectStoreShared, ObjectStoreState, unmappable};
use marline_core::error::{Error, Ran};
use marline_core::id::{ClusterId, ObjectId};
use marline_core::map::Map;
use marline_core::message::CopyLocation;
use marline_core::object_store::ProcessId;
use marline_core::time::Time;
use marline_objects::{DurableFiles, FileId, lacks_memory};
use std::io;
use std::sync::Weak;
use std::thread;

/// The folder for durable data, and the saves that only their maker knows of.
pub(super) struct DurableSaves {
    durable: Durability,
    /// The folder of the cluster that this store works for.
    saved: Option<DurableFiles>,
    /// The objects that the cluster does not retain yet, each with the file that this store made
    /// for it.
    unkept: Map<ObjectId, Option<FileId>>,
    erasing: EraseQueue,
}

impl DurableSaves {
    pub fn new(durable: Durability) -> DurableSaves {
        DurableSaves {
            durable,
            saved: None,
            unkept: Map::default(),
            erasing: EraseQueue::default(),
        }
    }

    /// Notes that the cluster retains an object: from now on the controller decides when its file
    /// is erased.
    pub fn note_retained(&mut self, object: ObjectId) {
        self.unkept.remove(&object);
    }

    /// Notes that the data of an object is dropped. Erases its file if only its maker knows of it.
    pub fn dropped(&mut self, object: ObjectId) {
        if let Some(Some(file)) = self.unkept.remove(&object) {
            self.have_erased(object, Some(file));
        }
    }

    /// Notes that the session is over. The worker that has the task now may have saved the object,
    /// or rely on the file. So all files stay until the cluster ends.
    pub fn forget_all(&mut self) {
        self.unkept.clear();
    }

    /// Notes that an object is about to be saved. Returns the file that this store has made for it
    /// before.
    fn begins(&mut self, object: ObjectId) -> Option<FileId> {
        *self.unkept.entry(object).or_default()
    }

    /// Returns whether this store may still save the object.
    fn goes_on(&self, object: ObjectId) -> bool {
        self.unkept.contains_key(&object)
    }

    /// Notes that an object is saved. `file` is `None` if the file is not this store's own.
    fn note_saved(&mut self, object: ObjectId, file: Option<FileId>) {
        // If the cluster retains the object by now, or another store has its task, this store must
        // not erase the file.
        if let Some(own) = self.unkept.get_mut(&object) {
            *own = file;
        }
    }

    /// Queues the file of an object to be erased; no caller waits for it. If `only_if` is a file,
    /// erases only that one.
    fn have_erased(&self, object: ObjectId, only_if: Option<FileId>) {
        if let Some(saved) = self.saved.clone() {
            self.erasing.enqueue(FileToErase { saved, name: name(object), only_if });
        }
    }
}

impl ObjectStore {
    /// Sets the cluster that this store works for from now on.
    pub fn of_cluster(&self, cluster: ClusterId) {
        self.enter(|state, _| {
            state.saving.saved = match &state.saving.durable {
                Durability::In(folder) => {
                    Some(DurableFiles::new(folder.join(format!("marline-{cluster}"))))
                }
                Durability::Nowhere | Durability::NotNeeded => None,
            };
        });
    }

    /// Erases everything that was saved for a cluster that has ended.
    pub fn cluster_ended(&self) {
        if let Some(saved) = self.enter(|state, _| state.saving.saved.take()) {
            saved.erase_all();
        }
    }

    /// Returns whether durable data can be saved.
    pub fn saves(&self) -> bool {
        self.enter(|state, _| matches!(state.saving.durable, Durability::In(_)))
    }

    fn saved(&self) -> Result<DurableFiles, Error> {
        self.enter(|state, _| state.saving.saved.clone()).ok_or_else(|| {
            Error::unsupported(
                "durable values cannot be made here: start the workers with a folder that all of \
                 them see (--durable-dir, MARLINE_DURABLE_DIR)",
            )
        })
    }

    /// Saves the data of an object that is in this store and still belongs to its maker. Returns
    /// after the data is on the disk. Returns whether it was saved: `false` if the cluster needs no
    /// durable data.
    pub(super) fn save(&self, object: ObjectId) -> Result<bool, Error> {
        if self.enter(|state, _| state.saving.durable == Durability::NotNeeded) {
            return Ok(false);
        }
        let saved = self.saved()?;
        let view = self.read_here(object)?;
        let own = self.enter(|state, _| state.saving.begins(object));
        let file = saved.write(&name(object), &view).and_then(|draft| {
            if !self.enter(|state, _| state.saving.goes_on(object)) {
                return Err(io::Error::other("the session in which it was made has ended"));
            }
            saved.publish(&name(object), draft, own)
        });
        match file {
            Ok(file) => {
                self.enter(|state, _| state.saving.note_saved(object, file));
                Ok(true)
            }
            Err(error) => {
                self.enter(|state, _| state.saving.dropped(object));
                Err(Error::exhausted(format!("value {object} could not be saved: {error}")))
            }
        }
    }

    /// Queues the saved file of an object to be erased.
    pub fn erase(&self, object: ObjectId) {
        self.enter(|state, _| state.saving.have_erased(object, None));
    }

    /// Reads the saved data of an object into room that `room` returns.
    pub(super) fn load_saved<R: AsMut<[u8]>>(
        &self,
        object: ObjectId,
        room: impl FnOnce(usize) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let loaded =
            self.saved()?.load(&name(object), |bytes| room(bytes).map_err(LoadError::Room));
        loaded.map_err(|why| match why {
            LoadError::Room(error) => error,
            LoadError::Disk(error) if lacks_memory(&error) => unmappable(&error),
            LoadError::Disk(error) => {
                Error::internal(format!("cannot read the saved value {object}: {error}"))
            }
        })
    }
}

/// Why saved data was not read.
enum LoadError {
    Room(Error),
    Disk(io::Error),
}

impl From<io::Error> for LoadError {
    fn from(error: io::Error) -> LoadError {
        LoadError::Disk(error)
    }
}

impl ObjectStoreState {
    /// Saves the data of an object for another process, which made it.
    pub(super) fn save_for(&mut self, process: ProcessId, number: u64, object: ObjectId) {
        let store = self.me.clone();
        let run = move || save(&store, process, number, object);
        if let Err(error) = thread::Builder::new().name("marline-save".into()).spawn(run) {
            let words = format!("no thread could be started to save value {object}: {error}");
            let error = Error::unavailable(Ran::No, words);
            self.answer(process, &StoreReply::Refused { number, error }, None);
        }
    }

    /// Makes sure that the data of an object is here, on the controller's order: pulls it from one
    /// of these copies, or reads the saved file if there is none.
    pub(super) fn pull_ordered(&mut self, now: Time, object: ObjectId, from: Vec<CopyLocation>) {
        if self.bodies.named(object).is_some() {
            return self.keep_copy(now, object);
        }
        let missing = self.missing.entry(object).or_default();
        missing.is_ordered = true;
        // A lookup may be under way. It does not read saved files, so start that pull in any case.
        if !std::mem::replace(&mut missing.begun, true) || from.is_empty() {
            self.pull(now, object, from);
        }
    }
}

/// Saves an object, and answers the process that asked for it.
fn save(store: &Weak<ObjectStoreShared>, process: ProcessId, number: u64, object: ObjectId) {
    let Some(store) = store.upgrade().map(ObjectStore) else { return };
    let answer = match store.save(object) {
        Ok(durable) => StoreReply::Saved { number, durable },
        Err(error) => StoreReply::Refused { number, error },
    };
    store.enter(|state, _| state.answer(process, &answer, None));
}

fn name(object: ObjectId) -> String {
    format!("{:032x}-{}", object.origin.as_u128(), object.index)
}

#[cfg(test)]
mod tests {
    use super::super::{ObjectStoreHandle, StoreOptions};
    use super::*;
    use crate::net::credentials::Credentials;
    use marline_core::id::{Session, SessionEpoch, SessionId, TaskId};
    use std::path::Path;
    use std::time::{Duration, Instant};

    fn object(number: u128) -> ObjectId {
        ObjectId::of(TaskId::from_u128(number), 0)
    }

    /// Returns the store of a worker of one cluster, which saves in this folder.
    fn store(folder: &Path) -> ObjectStore {
        let durable = Durability::In(folder.into());
        let options =
            StoreOptions { spill: None, limit: 1 << 30, durable, ..StoreOptions::default() };
        let store = ObjectStore::new(&options, Credentials::new(None));
        store.of_cluster(ClusterId::from_u128(1));
        store.set_session(Some(Session { id: SessionId::from_u128(1), epoch: SessionEpoch(1) }));
        store
    }

    /// Makes and saves an object, as a task at this store does.
    fn make(store: &ObjectStore, object: ObjectId, byte: u8) {
        ObjectStoreHandle::here(store.clone()).write(object, &[&[byte; 200_000]], || true).unwrap();
        assert!(store.save(object).unwrap());
    }

    fn is_saved(store: &ObjectStore, object: ObjectId) -> bool {
        store.load_saved(object, |bytes| Ok(vec![0; bytes])).is_ok()
    }

    /// Waits until the saved file of an object is erased.
    fn until_erased(store: &ObjectStore, object: ObjectId) {
        let until = Instant::now() + Duration::from_secs(30);
        while is_saved(store, object) {
            assert!(Instant::now() < until, "the file is not erased");
            thread::yield_now();
        }
    }

    /// Waits until this store has erased all queued files: it erases in order.
    fn until_all_erased(store: &ObjectStore) {
        let last = object(u128::MAX);
        make(store, last, 1);
        store.disown(last);
        until_erased(store, last);
    }

    #[test]
    fn a_saved_file_is_erased_with_its_unretained_blob_or_on_order() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(folder.path());
        make(&store, object(1), 1);
        make(&store, object(1), 2);
        store.disown(object(1));
        until_erased(&store, object(1));
        make(&store, object(2), 2);
        store.retain(object(2));
        store.evict(object(2));
        until_all_erased(&store);
        assert!(is_saved(&store, object(2)), "the controller decides when it is erased");
        store.erase(object(2));
        until_erased(&store, object(2));
    }

    #[test]
    fn a_store_does_not_erase_a_file_that_another_store_saved_after_it() {
        let folder = tempfile::tempdir().unwrap();
        let (first, second) = (store(folder.path()), store(folder.path()));
        for (number, byte) in [(1, 1), (2, 2)] {
            let object = object(number);
            make(&first, object, 1);
            make(&second, object, byte);
            second.retain(object);
            first.disown(object);
            until_all_erased(&first);
            assert!(is_saved(&second, object), "{number}");
        }
    }

    #[test]
    fn a_store_that_saves_after_another_does_not_own_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let (late, kept) = (store(folder.path()), store(folder.path()));
        for (number, byte) in [(1, 1), (2, 2)] {
            let object = object(number);
            make(&kept, object, 1);
            kept.retain(object);
            make(&late, object, byte);
            late.disown(object);
            until_all_erased(&late);
            assert!(is_saved(&kept, object), "{number}");
        }
    }

    #[test]
    fn disown_and_erase_return_before_the_file_is_erased() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(folder.path());
        let starts = |start| store.enter(|state, _| state.saving.erasing.start = start);
        starts(|_, _| Err(io::ErrorKind::WouldBlock.into()));
        for number in [1, 2] {
            make(&store, object(number), 1);
        }
        store.disown(object(1));
        store.erase(object(2));
        assert!(is_saved(&store, object(1)) && is_saved(&store, object(2)), "no thread runs yet");
        starts(super::super::disk::start_thread);
        until_all_erased(&store);
        assert!(!is_saved(&store, object(1)) && !is_saved(&store, object(2)));
    }

    #[test]
    fn the_end_of_a_session_erases_no_saved_files() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(folder.path());
        make(&store, object(1), 1);
        store.set_session(None);
        until_all_erased(&store);
        assert!(is_saved(&store, object(1)));
    }

    #[test]
    fn a_save_that_began_in_an_ended_session_does_not_go_on() {
        let mut saving = DurableSaves::new(Durability::Nowhere);
        assert_eq!(saving.begins(object(1)), None);
        assert!(saving.goes_on(object(1)));
        saving.forget_all();
        assert!(!saving.goes_on(object(1)));
    }
}
