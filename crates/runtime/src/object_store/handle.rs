//! The handle through which a process reads and makes large values.

use super::pinned::Pinned;
use super::store_protocol::GrantedBlob;
use super::{ObjectStore, ObjectStoreClient, closed};
use bytes::Bytes;
use marline_channel::oneshot;
use marline_core::error::Error;
use marline_core::id::{ObjectId, Session};
use marline_core::payload::{MAX_INLINE_BYTES, Payload};
use marline_objects::View;
use marline_objects::parts::Layout;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The object store of this node, in its own process or from another. A clone is the same store.
#[derive(Clone)]
pub struct ObjectStoreHandle {
    kind: Backend,
    /// Whether the values that are written are part of a long row.
    in_a_row: bool,
}

#[derive(Clone)]
enum Backend {
    Here(ObjectStore),
    Elsewhere(Arc<ObjectStoreClient>),
}

impl ObjectStoreHandle {
    pub(crate) fn here(store: ObjectStore) -> ObjectStoreHandle {
        ObjectStoreHandle { kind: Backend::Here(store), in_a_row: false }
    }

    pub(crate) fn elsewhere(remote: Arc<ObjectStoreClient>) -> ObjectStoreHandle {
        ObjectStoreHandle { kind: Backend::Elsewhere(remote), in_a_row: false }
    }

    /// Returns a handle for a process that makes many values in a row: it may request room for the
    /// next value ahead. The process must call [`pause`](ObjectStoreHandle::pause) when it waits
    /// for something, or has made the last value.
    pub fn allocating_ahead(self) -> ObjectStoreHandle {
        ObjectStoreHandle { in_a_row: true, ..self }
    }

    /// Says that no value follows, or not soon.
    pub fn pause(&self) {
        if let Backend::Elsewhere(remote) = &self.kind {
            remote.pause();
        }
    }

    /// Returns whether the store answers no more.
    pub fn is_over(&self) -> bool {
        match &self.kind {
            Backend::Here(_) => false,
            Backend::Elsewhere(remote) => remote.is_over(),
        }
    }

    /// Writes the parts of a value into the store, as the data of an object. The first part is the
    /// data itself, the others are the buffers outside of it. The data belongs to this process
    /// until the cluster retains it, or the process [discards](ObjectStoreHandle::discard) it.
    /// Returns the session of the worker that has the data. Blocks while there is no room; calls
    /// `go_on` now and then, and stops when that returns false.
    pub fn write(
        &self,
        object: ObjectId,
        parts: &[&[u8]],
        mut go_on: impl FnMut() -> bool,
    ) -> Result<Option<Session>, Error> {
        match &self.kind {
            Backend::Here(store) => store.write(object, parts, &mut go_on),
            Backend::Elsewhere(remote) => remote.write(object, parts, self.in_a_row, &mut go_on),
        }
    }

    /// Writes a payload into the store if it is large. Returns other payloads unchanged.
    pub fn write_if_large(
        &self,
        object: ObjectId,
        payload: Payload,
    ) -> Result<(Payload, Option<Session>), Error> {
        if payload.stored.is_some() || payload.len() <= MAX_INLINE_BYTES {
            return Ok((payload, None));
        }
        let parts: Vec<&[u8]> = payload.parts().collect();
        let at = self.write(object, &parts, || true)?;
        Ok((payload.stored_as(object), at))
    }

    /// Saves the data of a payload so that it outlives this node, if the data is in the store and
    /// this process made it. Inline payloads are in messages, and the controller has them.
    pub fn make_durable(&self, payload: &mut Payload) -> Result<(), Error> {
        let Some(stored) = &mut payload.stored else { return Ok(()) };
        stored.durable = match &self.kind {
            Backend::Here(store) => store.save(stored.object)?,
            Backend::Elsewhere(remote) => remote.save(stored.object)?,
        };
        Ok(())
    }

    /// Discards data that was written for an object and not passed on.
    pub fn discard(&self, object: ObjectId) {
        match &self.kind {
            Backend::Here(store) => store.disown(object),
            Backend::Elsewhere(remote) => remote.discard(object),
        }
    }

    /// Requests the data of a payload, wherever it is. Returns `None` if the payload has its data
    /// inline.
    pub fn read(&self, payload: &Payload) -> Option<Result<PendingRead, Error>> {
        let object = payload.stored_object()?;
        let (encoding, code_version) = (payload.encoding, payload.code_version);
        let bare = Payload { encoding, code_version, ..Payload::default() };
        let comes = match &self.kind {
            Backend::Here(store) => Ok(ReadSource::Here(store.clone(), store.read(object))),
            Backend::Elsewhere(remote) => remote
                .read(object)
                .map(|number| ReadSource::Elsewhere(remote.clone(), Some(number))),
        };
        Some(comes.map(|comes| PendingRead { object, bare, comes }))
    }

    /// Returns an `Exhausted` error with the figures, if a request waits because the store has no
    /// room.
    pub fn lack_of_room(&self) -> Option<Error> {
        match &self.kind {
            Backend::Here(store) => store.lack_of_room(),
            Backend::Elsewhere(remote) => remote.lack_of_room(),
        }
    }

    /// Returns a payload with its data, which is read in place for as long as any part of it lives.
    /// Blocks until the data is at this node.
    pub fn open(&self, payload: &Payload) -> Result<Payload, Error> {
        match self.read(payload) {
            None => Ok(payload.clone()),
            Some(reading) => reading?.wait(None).expect("without a limit, `wait` returns a result"),
        }
    }

    /// Tells the store that this process is about to fork: the fork may go on reading its pinned
    /// blobs.
    pub(super) fn about_to_fork(&self) {
        match &self.kind {
            Backend::Here(store) => store.about_to_fork(),
            Backend::Elsewhere(remote) => remote.about_to_fork(),
        }
    }
}

/// A request for the data of a payload. Dropping it cancels the request.
pub struct PendingRead {
    object: ObjectId,
    /// The payload without its data.
    bare: Payload,
    comes: ReadSource,
}

enum ReadSource {
    Here(ObjectStore, oneshot::Receiver<Result<Pinned, Error>>),
    /// A request under this number. `None` after the data has arrived.
    Elsewhere(Arc<ObjectStoreClient>, Option<u64>),
}

impl PendingRead {
    /// Waits until the data has arrived, at most `at_most`. After a timeout it returns `None`, and
    /// can be called again.
    pub fn wait(&mut self, at_most: Option<Duration>) -> Option<Result<Payload, Error>> {
        let shown = match &mut self.comes {
            ReadSource::Here(store, given) => {
                let came = match at_most {
                    None => given.recv().wait(),
                    Some(at_most) => given.recv().timeout(at_most).wait(),
                };
                match came {
                    Ok(Ok(pinned)) => store.show(self.object, pinned),
                    Ok(Err(error)) => Err(error),
                    Err(error) if error.kind() == marline_channel::ErrorKind::Timeout => {
                        return None;
                    }
                    Err(_) => Err(closed()),
                }
            }
            ReadSource::Elsewhere(remote, number) => {
                let until = at_most.map(|at_most| Instant::now() + at_most);
                let asked = (*number)?;
                let came: Result<GrantedBlob, Error> = remote.wait(asked, until)?;
                *number = None;
                came.and_then(|given| remote.show(self.object, asked, given))
            }
        };
        Some(shown.and_then(|(view, layout)| self.payload(&view, &layout)))
    }

    fn payload(&self, view: &View, layout: &Layout) -> Result<Payload, Error> {
        let parts = layout.parts().iter().map(|part| view.slice(part.clone()).into_bytes());
        with_parts(self.object, &self.bare, parts.collect())
    }

    /// Returns a payload with data that was pulled into this process.
    pub(crate) fn of(object: ObjectId, payload: &Payload, whole: Bytes) -> Result<Payload, Error> {
        let layout = Layout::read(&whole)
            .ok_or_else(|| Error::internal(format!("the data of {object} cannot be decoded")))?;
        let parts = layout.parts().iter().map(|part| whole.slice(part.clone()));
        let bare = Payload { stored: None, ..payload.clone() };
        with_parts(object, &bare, parts.collect())
    }
}

fn with_parts(object: ObjectId, bare: &Payload, mut parts: Vec<Bytes>) -> Result<Payload, Error> {
    if parts.is_empty() {
        return Err(Error::internal(format!("the data of {object} has no parts")));
    }
    let inline = parts.remove(0);
    Ok(Payload { inline, buffers: parts, ..bare.clone() })
}

impl Drop for ReadSource {
    fn drop(&mut self) {
        if let ReadSource::Elsewhere(remote, Some(number)) = self {
            remote.cancel_request(*number);
        }
    }
}
