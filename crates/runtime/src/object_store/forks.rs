//! The forks of this process, which may go on reading what the process reads. A view outlives the
//! session in which it was made. So a fork is announced to every store in which this process has
//! ever read or made something.

use super::{ObjectStore, ObjectStoreClient, ObjectStoreHandle, ObjectStoreShared};
use crate::per_process::PerProcess;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// The stores of this process. A fork does not inherit those that existed when it was made.
static KNOWN: PerProcess<StoreRegistry> = PerProcess::new();

/// Announces a fork to all stores, shortly before the process forks or just after it. The fork may
/// go on reading what the process reads now. The announcement after the fork covers what other
/// threads were granted between the first announcement and the fork.
pub fn about_to_fork() {
    if let Some(known) = KNOWN.get() {
        known.tell_all();
    }
}

/// Registers a store that this process owns.
pub(super) fn add_here(store: &Arc<ObjectStoreShared>) {
    KNOWN.get_or_init(StoreRegistry::default).add(RegisteredStore::Here(Arc::downgrade(store)));
}

/// Registers a store of another process that this process uses.
pub(super) fn add_elsewhere(remote: &Arc<ObjectStoreClient>) {
    KNOWN
        .get_or_init(StoreRegistry::default)
        .add(RegisteredStore::Elsewhere(Arc::downgrade(remote)));
}

/// The stores of a process, each as long as a handle of it exists.
#[derive(Default)]
pub(super) struct StoreRegistry(Mutex<Vec<RegisteredStore>>);

pub(super) enum RegisteredStore {
    Here(Weak<ObjectStoreShared>),
    Elsewhere(Weak<ObjectStoreClient>),
}

impl RegisteredStore {
    fn is_gone(&self) -> bool {
        match self {
            RegisteredStore::Here(store) => store.strong_count() == 0,
            RegisteredStore::Elsewhere(remote) => remote.strong_count() == 0,
        }
    }

    fn objects(&self) -> Option<ObjectStoreHandle> {
        match self {
            RegisteredStore::Here(store) => {
                store.upgrade().map(ObjectStore).map(ObjectStoreHandle::here)
            }
            RegisteredStore::Elsewhere(remote) => {
                remote.upgrade().map(ObjectStoreHandle::elsewhere)
            }
        }
    }
}

impl StoreRegistry {
    fn all(&self) -> MutexGuard<'_, Vec<RegisteredStore>> {
        self.0.lock().expect("nothing panics under it")
    }

    pub fn add(&self, store: RegisteredStore) {
        let mut all = self.all();
        all.retain(|store| !store.is_gone());
        all.push(store);
    }

    pub fn tell_all(&self) {
        let all: Vec<ObjectStoreHandle> =
            self.all().iter().filter_map(RegisteredStore::objects).collect();
        // Not under the lock: dropping the last handle of a store may need it.
        all.iter().for_each(ObjectStoreHandle::about_to_fork);
    }
}
