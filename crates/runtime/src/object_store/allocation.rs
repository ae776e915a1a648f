//! Room in a store that a thread of this process fills with data from elsewhere, and uploads that
//! it received.

use super::{DeferredAction, OWN_PROCESS, ObjectStore, ObjectStoreState, ReplyTo};
use marline_channel::oneshot;
use marline_core::error::{Error, Ran};
use marline_core::id::{ObjectId, Session};
use marline_core::object_store::{BlobId, Event};
use marline_core::time::Time;
use marline_objects::Writable;
use std::time::Duration;

/// Room that a thread of this process fills. Dropping it returns the room to the store, filled or
/// not, unless [`taken`](Self::taken) has handed the room over.
pub(crate) struct Allocation {
    store: ObjectStore,
    room: Option<(BlobId, Writable)>,
}

impl Allocation {
    pub(super) fn new(store: ObjectStore, blob: BlobId, room: Writable) -> Allocation {
        Allocation { store, room: Some((blob, room)) }
    }

    /// Returns the memory to fill.
    pub(super) fn writable(&mut self) -> &mut Writable {
        &mut self.room.as_mut().expect("the room is not handed over yet").1
    }

    /// Hands over the filled memory and its blob.
    pub(super) fn taken(mut self) -> (BlobId, Writable) {
        self.room.take().expect("the room is handed over once")
    }
}

impl AsMut<[u8]> for Allocation {
    fn as_mut(&mut self) -> &mut [u8] {
        self.writable()
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if let Some((blob, room)) = self.room.take() {
            drop(room);
            self.store.enter(|state, now| state.handle(now, Event::Abandoned { blob }));
        }
    }
}

/// Data that a client elsewhere has sent, and that the cluster does not know yet. It belongs to
/// this process until the cluster retains it. Dropping it before that ends the ownership.
pub(crate) struct ReceivedUpload {
    store: ObjectStore,
    object: ObjectId,
    blob: BlobId,
    /// The session of the worker that has the data.
    pub worker: Session,
    retained: oneshot::Receiver<()>,
}

impl ReceivedUpload {
    /// Waits until the cluster retains the data, at most this long.
    pub fn wait_until_retained(mut self, at_most: Duration) {
        let _ = self.retained.recv().timeout(at_most).wait();
    }
}

impl Drop for ReceivedUpload {
    fn drop(&mut self) {
        self.store.enter(|state, now| {
            // If the client has sent the value again, another blob has the name.
            if state.bodies.named(self.object) == Some(self.blob) {
                state.sent.remove(&self.object);
                state.disown(now, self.object);
            }
        });
    }
}

impl ObjectStore {
    /// Waits for room for this many bytes.
    pub fn room(&self, bytes: usize) -> Result<Allocation, Error> {
        let (answer, mut given) = oneshot();
        self.enter(|state, now| {
            let request = state.new_request(OWN_PROCESS, ReplyTo::Fill(answer));
            let bytes = bytes as u64;
            state.handle(
                now,
                Event::CreateRequested { request, process: OWN_PROCESS, bytes, speculative: false },
            );
        });
        let mut room = given.recv().wait().map_err(|_| super::closed())??;
        room.writable().prepare().map_err(|error| super::unmappable(&error))?;
        Ok(room)
    }

    /// Wraps room that was granted earlier.
    pub(super) fn room_again(&self, filled: (BlobId, Writable)) -> Allocation {
        Allocation { store: self.clone(), room: Some(filled) }
    }

    /// Makes filled room the data of an object that a client elsewhere is about to put.
    pub fn take_in(&self, object: ObjectId, room: Allocation) -> Result<ReceivedUpload, Error> {
        let (tell, retained) = oneshot();
        let (blob, room) = room.taken();
        let worker = self.enter(|state, now| {
            state.bodies.set_memory(blob, room);
            let Some(worker) = state.worker else {
                state.handle(now, Event::Abandoned { blob });
                return None;
            };
            state.sealed(now, blob, object);
            if state.bodies.named(object) == Some(blob) {
                state.sent.insert(object, tell);
            }
            Some(worker)
        });
        let nowhere = || Error::unavailable(Ran::No, "this worker is not part of a cluster now");
        Ok(ReceivedUpload {
            store: self.clone(),
            object,
            blob,
            worker: worker.ok_or_else(nowhere)?,
            retained,
        })
    }
}

impl ObjectStoreState {
    /// Notifies the thread that waits until the cluster retains an upload.
    pub(super) fn notify_retained(&mut self, object: ObjectId) {
        self.outside.extend(self.sent.remove(&object).map(DeferredAction::UploadRetained));
    }

    /// Ends the maker's ownership of an object's blob.
    pub(super) fn disown(&mut self, now: Time, object: ObjectId) {
        let Some(blob) = self.bodies.named(object) else { return };
        if self.makers.remove(&blob).is_some() {
            self.handle(now, Event::Disowned { blob });
        }
    }
}
