//! Large values: which store they go to and come from.

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

/// So often it is asked whose store is to be used.
pub(super) const MAX_LOOKS: u32 = 5;
/// Of so many workers it is looked at whether they are on this machine.
pub(super) const MAX_NEAR: u32 = 1_000;

/// What is known of stores of this machine.
#[derive(Default)]
pub(super) struct NearbyStore {
    /// In which of the client's sessions it was looked.
    session: u64,
    objects: Option<ObjectStoreHandle>,
    looked_at: Option<Instant>,
}

impl NearbyStore {
    /// Whether it was found in this session, and is there still.
    fn is_of(&self, session: u64) -> bool {
        self.session == session && !self.objects.as_ref().is_some_and(ObjectStoreHandle::is_over)
    }
}

/// If there was none, it is looked again after this long: a worker may have come.
const LOOK_EVERY: Duration = Duration::from_secs(5);

fn is_recent(looked_at: Instant) -> bool {
    looked_at.elapsed() < LOOK_EVERY
}

impl Client {
    /// Puts a value; it is held until it is [released](Client::release). A large one goes to the store of this
    /// node, if there is one.
    pub fn put(&self, value: Value) -> Result<ObjectId, Error> {
        self.put_so(value, false)
    }

    /// The same; what is large is saved where it outlives its node, before this returns.
    pub fn put_durable(&self, value: Value) -> Result<ObjectId, Error> {
        self.put_so(value, true)
    }

    fn put_so(&self, value: Value, durable: bool) -> Result<ObjectId, Error> {
        let object = crate::new_object_id();
        let Value { payload, referents: contains } = value;
        self.stored(object, payload.len(), |objects| {
            let (mut payload, at) = self.kept(object, payload.clone(), objects)?;
            if durable && payload.stored.is_some() {
                objects.ok_or_else(not_durable)?.make_durable(&mut payload)?;
            }
            self.put_as(object, Value { payload, referents: contains.clone() }, at)
        })?;
        Ok(object)
    }

    /// Puts bytes as they are. They are copied once.
    pub fn put_bytes(&self, bytes: &[u8]) -> Result<ObjectId, Error> {
        let object = crate::new_object_id();
        self.stored(object, bytes.len(), |objects| {
            let Some(objects) = objects else {
                let payload = Payload::raw(Bytes::copy_from_slice(bytes));
                let (payload, at) = self.kept(object, payload, None)?;
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

    /// A payload as it travels: in this store if it is large; sent to that of a worker elsewhere if there is none here and
    /// no message carries it.
    pub(super) fn kept(
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

    /// Does something with the data of an object that may go to a store, which is nobody's if it cannot be done.
    pub(super) fn stored<R>(
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

    /// Does something with the store of this node, or without one. The worker whose store it was may have gone, and
    /// another may be there.
    pub fn with_objects<R, E>(
        &self,
        what: impl Fn(Option<&ObjectStoreHandle>) -> Result<R, E>,
    ) -> Result<R, E> {
        with_any(|| self.objects(), what)
    }

    /// The same under a [new id](crate::new_object_id). If its data is in a store, that is the one of the worker
    /// `at`.
    pub fn put_as(&self, object: ObjectId, value: Value, at: Option<Session>) -> Result<(), Error> {
        fits("the value's bytes", value.payload.len())?;
        let is_stored = value.payload.stored.is_some();
        self.with(|machine, effects| machine.put(object, value, at, effects))?;
        self.shared.stored_puts.fetch_add(is_stored.into(), Ordering::AcqRel);
        Ok(())
    }

    /// The store of this node, if this process can use one.
    pub fn objects(&self) -> Option<ObjectStoreHandle> {
        self.known_objects().or_else(|| self.objects_near())
    }

    /// The same, as far as it is known without asking anybody.
    pub(super) fn known_objects(&self) -> Option<ObjectStoreHandle> {
        let near = || {
            // Whoever has the lock may be looking for one.
            let near = self.shared.near.try_lock().ok()?;
            near.objects.clone().filter(|_| near.is_of(self.ended_sessions()))
        };
        child::objects().or_else(|| self.shared.node.objects()).or_else(near)
    }

    /// The store of a worker on this machine, if the controller knows one.
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

    /// Where workers say that processes of their machines reach their stores.
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

    /// A payload with its data, wherever that is. Blocks until it is at this node. A task lends its CPU to what takes
    /// long: other work may have to make a lost value anew.
    pub fn load(&self, payload: &Payload) -> Result<Payload, Error> {
        if payload.stored.is_none() {
            return Ok(payload.clone());
        }
        self.with_objects(|objects| match objects {
            Some(objects) if runs_here() => open_lending(objects, payload),
            Some(objects) => objects.open(payload),
            None => wait_lending_cpu(|_| self.bring(payload)),
        })
    }

    /// Brings the data of a payload into this process.
    fn bring(&self, payload: &Payload) -> Result<Payload, Error> {
        pull::into_this_process(&Arc::downgrade(&self.shared), payload)
    }

    /// Asks who has the data of an object that this client holds.
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

/// Who has the data of an object, when that is known.
pub(super) type Located = oneshot::Receiver<Result<Vec<CopyLocation>, Error>>;

/// Does something with a store, or without one; again with what is there then, if that store is over.
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

/// A task keeps its CPU for this long while a value comes that is nearly there. If it lent its CPU for every read from
/// the disk, ever more tasks would begin, and hold all memory when one of them needs some.
const BRIEFLY: Duration = Duration::from_millis(100);
/// A task that has lent its CPU checks this often whether it may go on waiting.
const CHECK_EVERY: Duration = Duration::from_millis(20);

/// A payload with its data, for a task: lends its CPU if that takes long.
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
        "what is sent to a worker on another machine is not durable: put it in a task, or run a worker here",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use marline_core::error::ErrorKind;
    use std::cell::Cell;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_store_that_is_over_and_stays_the_only_one_is_not_tried_for_ever() {
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
