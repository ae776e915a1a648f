//! Forks of this process, which may go on reading what it reads. Views outlive the sessions that they came by, so every
//! store is told that this process has ever read, or made, something in.

use super::{ObjectStore, ObjectStoreClient, ObjectStoreHandle, ObjectStoreShared};
use crate::per_process::PerProcess;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// Of a fork, those are not its own that were there when it was made.
static KNOWN: PerProcess<StoreRegistry> = PerProcess::new();

/// A process is about to fork, or has just forked: what it reads now, the fork may go on reading. What is said after
/// the fork is for what was given to other threads while that was about to be.
pub fn about_to_fork() {
    if let Some(known) = KNOWN.get() {
        known.tell_all();
    }
}

/// There is one more store of this process.
pub(super) fn add_here(store: &Arc<ObjectStoreShared>) {
    KNOWN.get_or_init(StoreRegistry::default).add(RegisteredStore::Here(Arc::downgrade(store)));
}

/// There is one more that it uses.
pub(super) fn add_elsewhere(remote: &Arc<ObjectStoreClient>) {
    KNOWN
        .get_or_init(StoreRegistry::default)
        .add(RegisteredStore::Elsewhere(Arc::downgrade(remote)));
}

/// The stores of a process, for as long as anything is made of them.
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

    pub fn add(&self, one: RegisteredStore) {
        let mut all = self.all();
        all.retain(|one| !one.is_gone());
        all.push(one);
    }

    pub fn tell_all(&self) {
        let all: Vec<ObjectStoreHandle> =
            self.all().iter().filter_map(RegisteredStore::objects).collect();
        // Without the lock: this may be the last that is made of one.
        all.iter().for_each(ObjectStoreHandle::about_to_fork);
    }
}
