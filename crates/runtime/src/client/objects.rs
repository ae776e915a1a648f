//! Which object store a client's large values go to and come from.
//!
//! In order: the store that an executor's process was given, the store of a worker in this process,
//! and the store of a worker on this machine. Without any of them, values travel with messages, or
//! are uploaded to and pulled from workers on other machines (`upload.rs`, `pull.rs`).

use super::{Client, fits, pull};
use crate::executor::{child, runs_here, wait_lending_cpu};
use crate::net::transfer;
use crate::object_store::{ObjectStoreClient, ObjectStoreHandle};
use bytes::Bytes;
use marline_channel::oneshot;
use marline_core::controller::Controller;
use marline_core::error::Error;
use marline_core::id::{ObjectId, Session};
use marline_core::message::CopyLocation;
use marline_core::payload::{BlobRef, MAX_INLINE_BYTES, Payload, Value};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How often an operation is tried with another store if the store that it used has ended.
pub(super) const MAX_LOOKS: u32 = 5;
/// The most workers that are checked for a store on this machine.
pub(super) const MAX_NEAR: u32 = 1_000;

/// The last search for an object store on this machine.
#[derive(Default)]
pub(super) struct NearbyStore {
    /// The client's session in which the search took place.
    session: u64,
    objects: Option<ObjectStoreHandle>,
    looked_at: Option<Instant>,
}

impl NearbyStore {
    /// Returns whether the search took place in this session, and did not find a store that has
    /// ended since.
    fn is_of(&self, session: u64) -> bool {
        self.session == session && !self.objects.as_ref().is_some_and(ObjectStoreHandle::is_over)
    }
}

/// How long a search that found no store counts: after that, a worker may have come.
const LOOK_EVERY: Duration = Duration::from_secs(5);

fn is_recent(looked_at: Instant) -> bool {
    looked_at.elapsed() < LOOK_EVERY
}

impl Client {
    /// Puts a value. The client holds it until it is [released](Client::release). A large value
    /// goes to the object store of this node, if there is one.
    pub fn put(&self, value: Value) -> Result<ObjectId, Error> {
        self.put_so(value, false)
    }

    /// Like [`put`](Client::put), but saves a large value where it outlives its node, before this
    /// returns.
    pub fn put_durable(&self, value: Value) -> Result<ObjectId, Error> {
        self.put_so(value, true)
    }

    fn put_so(&self, value: Value, durable: bool) -> Result<ObjectId, Error> {
        let object = crate::new_object_id();
        let Value { payload, referents: contains } = value;
        self.store_or_discard(object, payload.len(), |objects| {
            let (mut payload, at) = self.store_if_large(object, payload.clone(), objects)?;
            if durable && payload.stored.is_some() {
                objects.ok_or_else(not_durable)?.make_durable(&mut payload)?;
            }
            self.put_as(object, Value { payload, referents: contains.clone() }, at)
        })?;
        Ok(object)
    }

    /// Puts raw bytes. They are copied once.
    pub fn put_bytes(&self, bytes: &[u8]) -> Result<ObjectId, Error> {
        let object = crate::new_object_id();
        self.store_or_discard(object, bytes.len(), |objects| {
            let Some(objects) = objects else {
                let payload = Payload::raw(Bytes::copy_from_slice(bytes));
                let (payload, at) = self.store_if_large(object, payload, None)?;
                return self.put_as(object, payload.into(), at);
            };
            let at = objects.write(object, &[bytes], || true)?;
            let stored =
                Some(Box::new(BlobRef { object, bytes: bytes.len() as u64, durable: false }));
            let payload = Payload { stored, ..Payload::raw(Bytes::new()) };
            self.put_as(object, payload.into(), at)
        })?;
        Ok(object)
    }

    /// Returns a payload as it travels. A large payload goes to this store. Without a store, a
    /// payload that no message can carry is uploaded to the store of a worker elsewhere.
    pub(super) fn store_if_large(
        &self,
        object: ObjectId,
        payload: Payload,
        objects: Option<&ObjectStoreHandle>,
    ) -> Result<(Payload, Option<Session>), Error> {
        match objects {
            Some(objects) => objects.write_if_large(object, payload),
            None if self.must_upload(payload.len()) => {
                let parts: Vec<&[u8]> = payload.parts().collect();
                let at = self.upload(object, &parts, || true)?;
                Ok((payload.stored_as(object), Some(at)))
            }
            None => Ok((payload, None)),
        }
    }

    /// Calls `store` with the object store that the data of an object goes to, or with `None` for a
    /// small value. If `store` fails, discards the data.
    pub(super) fn store_or_discard<R>(
        &self,
        object: ObjectId,
        bytes: usize,
        store: impl Fn(Option<&ObjectStoreHandle>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        if bytes <= MAX_INLINE_BYTES {
            return store(None);
        }
        self.with_objects(|objects| {
            let stored = store(objects);
            if stored.is_err() {
                objects.inspect(|objects| objects.discard(object));
            }
            stored
        })
    }

    /// Calls `what` with the object store of this node, or with `None`. Tries again if the store's
    /// worker has gone, since another worker may be there.
    pub fn with_objects<R, E>(
        &self,
        what: impl Fn(Option<&ObjectStoreHandle>) -> Result<R, E>,
    ) -> Result<R, E> {
        with_any(|| self.objects(), what)
    }

    /// Puts a value under a [new id](crate::new_object_id). If its data is in an object store, `at`
    /// is the worker of that store.
    pub fn put_as(&self, object: ObjectId, value: Value, at: Option<Session>) -> Result<(), Error> {
        fits("the value's bytes", value.payload.len())?;
        let is_stored = value.payload.stored.is_some();
        self.with(|machine, effects| machine.put(object, value, at, effects))?;
        self.shared.stored_puts.fetch_add(is_stored.into(), Ordering::AcqRel);
        Ok(())
    }

    /// Returns the object store of this node, if this process can use one.
    pub fn objects(&self) -> Option<ObjectStoreHandle> {
        self.known_objects().or_else(|| self.objects_near())
    }

    /// Like [`objects`](Client::objects), but does not search for a store that is not known yet.
    pub(super) fn known_objects(&self) -> Option<ObjectStoreHandle> {
        let near = || {
            // The thread that has the lock may be searching, so do not wait for it.
            let near = self.shared.near.try_lock().ok()?;
            near.objects.clone().filter(|_| near.is_of(self.ended_sessions()))
        };
        child::objects().or_else(|| self.shared.node.objects()).or_else(near)
    }

    /// Returns the object store of a worker on this machine, if the controller knows one.
    fn objects_near(&self) -> Option<ObjectStoreHandle> {
        let session = self.ended_sessions();
        let mut near = self.shared.near.lock().expect("nothing panics under it");
        if near.is_of(session) && (near.objects.is_some() || near.looked_at.is_some_and(is_recent))
        {
            return near.objects.clone();
        }
        let token = self.shared.node.token();
        let paths = self.store_paths().ok()?;
        let socket =
            paths.iter().find_map(|path| transfer::connect_to_object_store(path, &token).ok());
        let objects =
            socket.map(|socket| ObjectStoreHandle::elsewhere(ObjectStoreClient::new(socket)));
        *near = NearbyStore { session, objects: objects.clone(), looked_at: Some(Instant::now()) };
        objects
    }

    /// Returns the paths at which processes of the workers' machines reach their stores.
    fn store_paths(&self) -> Result<Vec<String>, Error> {
        let Some(control) = self.shared.control()? else {
            let paths = self.shared.node.with_state(|state, _| {
                let workers = state.controller().into_iter().flat_map(Controller::list_workers);
                workers.filter_map(|worker| Some(worker.info.store?.to_string())).collect()
            });
            return Ok(paths);
        };
        let (workers, _) = control.workers(MAX_NEAR)?;
        Ok(workers.into_iter().map(|worker| worker.store).filter(|path| !path.is_empty()).collect())
    }

    /// Returns a payload with its data, wherever that is. Blocks until the data is at this node. A
    /// task lends its CPU if that takes long: other work may have to recompute a lost value.
    pub fn load(&self, payload: &Payload) -> Result<Payload, Error> {
        if payload.stored.is_none() {
            return Ok(payload.clone());
        }
        self.with_objects(|objects| match objects {
            Some(objects) if runs_here() => open_lending(objects, payload),
            Some(objects) => objects.open(payload),
            None => wait_lending_cpu(|_| self.pull(payload)),
        })
    }

    /// Pulls the data of a payload into the memory of this process.
    fn pull(&self, payload: &Payload) -> Result<Payload, Error> {
        pull::into_this_process(&Arc::downgrade(&self.shared), payload)
    }

    /// Asks the controller which workers have the data of an object that this client holds.
    pub(super) fn locate(&self, object: ObjectId) -> Result<Located, Error> {
        let (waiter, receiver) = oneshot();
        self.shared.node.with_state(|state, _| {
            let mut effects = Vec::new();
            let shell = state.client(self.shared.index);
            shell.machine.locate(object, &mut effects)?;
            shell.locating.entry(object).or_default().push(waiter);
            state.client_effects(self.shared.index, effects);
            Ok::<_, Error>(())
        })?;
        Ok(receiver)
    }
}

/// The future answer to which workers have the data of an object.
pub(super) type Located = oneshot::Receiver<Result<Vec<CopyLocation>, Error>>;

/// Calls `what` with a store, or with `None`. If that fails and the store has ended, tries again
/// with the store that is there then, [`MAX_LOOKS`] times in all.
fn with_any<R, E>(
    objects: impl Fn() -> Option<ObjectStoreHandle>,
    what: impl Fn(Option<&ObjectStoreHandle>) -> Result<R, E>,
) -> Result<R, E> {
    let mut tries = 1;
    loop {
        let objects = objects();
        let done = what(objects.as_ref());
        let is_over = objects.is_some_and(|objects| objects.is_over());
        if done.is_ok() || !is_over || tries == MAX_LOOKS {
            return done;
        }
        tries += 1;
    }
}

/// How long a task keeps its CPU while it waits for a value that is probably close. If a task lent
/// its CPU for every read from the disk, more and more tasks would start, and together hold all
/// memory when one of them needs some.
const BRIEFLY: Duration = Duration::from_millis(100);
/// How often a task that has lent its CPU checks whether it may keep waiting.
const CHECK_EVERY: Duration = Duration::from_millis(20);

/// Returns a payload with its data, for a task: lends its CPU if that takes longer than
/// [`BRIEFLY`].
fn open_lending(objects: &ObjectStoreHandle, payload: &Payload) -> Result<Payload, Error> {
    let Some(reading) = objects.read(payload) else { return Ok(payload.clone()) };
    let mut reading = reading?;
    if let Some(came) = reading.wait(Some(BRIEFLY)) {
        return came;
    }
    wait_lending_cpu(|wait| {
        loop {
            if let Some(came) = reading.wait(Some(CHECK_EVERY)) {
                return came;
            }
            if let Some(error) = wait.error() {
                return Err(error);
            }
        }
    })
}

fn not_durable() -> Error {
    Error::unsupported(
        "a value that is sent to a worker on another machine cannot be durable: put it inside a task, or run a worker on this machine",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use marline_core::error::ErrorKind;
    use std::cell::Cell;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_dead_store_is_tried_a_limited_number_of_times() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let dead = ObjectStoreHandle::elsewhere(ObjectStoreClient::new(ours));
        drop(theirs);
        let stored = Payload::default().stored_as(crate::new_object_id());
        let tries = Cell::new(0);
        let opened = with_any(
            || Some(dead.clone()),
            |objects| {
                tries.set(tries.get() + 1);
                objects.expect("it is there").open(&stored)
            },
        );
        assert_eq!(opened.unwrap_err().kind(), ErrorKind::Unavailable);
        assert_eq!(tries.get(), MAX_LOOKS);
    }
}
