//! What somebody of the store's own process was given to read. Dropped, read or not, it is not read any more.

use super::words::Given;
use super::{Store, THIS};
use marline_core::store::Event;

/// See the [module](self).
pub(super) struct Pinned {
    store: Store,
    pub given: Given,
}

impl Pinned {
    pub fn new(store: Store, given: Given) -> Pinned {
        Pinned { store, given }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.store.is_ours() {
            let blob = self.given.blob;
            self.store.enter(|state, now| {
                state.handle(now, Event::Unpinned { process: THIS, blob });
            });
        }
    }
}
