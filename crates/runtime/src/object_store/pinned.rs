//! A blob that code of the store's own process has pinned to read. Dropping it unpins the blob,
//! read or not.

use super::store_protocol::GrantedBlob;
use super::{OWN_PROCESS, ObjectStore};
use marline_core::object_store::Event;

/// See the [module](self).
pub(super) struct Pinned {
    store: ObjectStore,
    pub given: GrantedBlob,
}

impl Pinned {
    pub fn new(store: ObjectStore, given: GrantedBlob) -> Pinned {
        Pinned { store, given }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.store.is_ours() {
            let blob = self.given.blob;
            self.store.enter(|state, now| {
                state.handle(now, Event::Unpinned { process: OWN_PROCESS, blob });
            });
        }
    }
}
