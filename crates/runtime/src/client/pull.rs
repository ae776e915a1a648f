//! Pulls large values to this node while no caller blocks for them. A few threads block instead,
//! one for each value. Callers that want the same value share one pull.

use super::objects::MAX_LOOKS;
use super::{Callback, Client, ClientShared, session_over_error};
use crate::clock::Clock;
use crate::net::transfer::{self, PartialTransfer, TransferRequest};
use crate::object_store::{Backoff, LOCATE_TIMEOUT, ObjectStoreHandle, PendingRead};
use bytes::Bytes;
use marline_core::error::{Error, Ran};
use marline_core::id::ObjectId;
use marline_core::map::Map;
use marline_core::payload::Payload;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// The most values that a client pulls at a time. Others wait.
const MAX_THREADS: usize = 16;
/// How often a thread that waits for a store checks whether its client still exists.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often a thread that pauses between two tries checks that. Shorter, since a caller that left
/// may wait for the thread to end.
const PAUSE_STEP: Duration = Duration::from_millis(50);

/// The values that a client pulls.
#[derive(Default)]
pub(super) struct ClientPulls(Mutex<State>);

#[derive(Default)]
struct State {
    threads: usize,
    /// The values that no thread has started with, in order.
    waiting: VecDeque<(ObjectId, Payload)>,
    /// The callbacks that wait for each value, whether its pull has started or not.
    wanted: Map<ObjectId, Vec<PullWaiter>>,
}

enum PullWaiter {
    /// Wants the data in this process.
    Data(Callback<Result<Payload, Error>>),
    /// Wants to know when the data is in the store of this node, if there is a store.
    Here(Callback<()>),
}

impl ClientPulls {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("nothing panics under it")
    }
}

impl State {
    fn is_data_wanted(&self, object: ObjectId) -> bool {
        let wishes = self.wanted.get(&object);
        wishes.into_iter().flatten().any(|wish| matches!(wish, PullWaiter::Data(_)))
    }
}

impl Client {
    /// Returns a payload with its data, if the data is in the memory of a store that this process
    /// knows. Waits up to `at_most` for the answer of a store in another process.
    pub fn open_at_once(
        &self,
        payload: &Payload,
        at_most: Duration,
    ) -> Option<Result<Payload, Error>> {
        match self.known_objects()?.read(payload) {
            None => Some(Ok(payload.clone())),
            Some(Ok(mut reading)) => reading.wait(Some(at_most)),
            Some(Err(_)) => None, // Another store may have it.
        }
    }

    /// Calls the callback with a payload and its data when the data is at this node, wherever it
    /// was before. Does not block.
    pub fn load_with_callback(&self, payload: &Payload, tell: Callback<Result<Payload, Error>>) {
        match payload.stored_object() {
            Some(object) => self.bring_for(object, payload, PullWaiter::Data(tell)),
            None => tell(Ok(payload.clone())),
        }
    }

    /// Pulls the data of a payload to the store of this node, if there is one. Calls the callback
    /// when the data is there, or will never be. Does not block.
    pub fn prefetch(&self, payload: &Payload, tell: Callback<()>) {
        match payload.stored_object() {
            Some(object) => self.bring_for(object, payload, PullWaiter::Here(tell)),
            None => tell(()),
        }
    }

    fn bring_for(&self, object: ObjectId, payload: &Payload, wish: PullWaiter) {
        let mut state = self.shared.brings.state();
        let wishes = state.wanted.entry(object).or_default();
        wishes.push(wish);
        if wishes.len() > 1 {
            return; // An earlier caller has started the pull.
        }
        state.waiting.push_back((object, payload.clone()));
        if state.threads == MAX_THREADS {
            return;
        }
        state.threads += 1;
        drop(state);
        let client = Arc::downgrade(&self.shared);
        let spawned = thread::Builder::new().name("marline-bring".into()).spawn(move || {
            while let Some((object, payload)) = next(&client) {
                pull(&client, object, &payload);
            }
        });
        if let Err(error) = spawned {
            let mut state = self.shared.brings.state();
            state.threads -= 1;
            state.waiting.retain(|(waiting, _)| *waiting != object);
            let wishes = state.wanted.remove(&object).unwrap_or_default();
            drop(state);
            let words = format!("no thread could be started to pull value {object} here: {error}");
            tell_all(wishes, Err(Error::unavailable(Ran::No, words)));
        }
    }
}

/// Returns the next value for a thread. Without one, the thread ends.
fn next(client: &Weak<ClientShared>) -> Option<(ObjectId, Payload)> {
    let shared = client.upgrade()?;
    let mut state = shared.brings.state();
    let next = state.waiting.pop_front();
    if next.is_none() {
        state.threads -= 1;
    }
    next
}

/// Pulls a value, and calls the callbacks that wait for it.
fn pull(client: &Weak<ClientShared>, object: ObjectId, payload: &Payload) {
    loop {
        let came = finish_pull(client, object, payload).transpose();
        // If the client is gone, its callbacks were dropped with it.
        let Some(shared) = client.upgrade() else { return };
        let mut state = shared.brings.state();
        if came.is_none() && state.is_data_wanted(object) {
            continue; // Meanwhile a caller has come that wants the data itself.
        }
        let wishes = state.wanted.remove(&object).unwrap_or_default();
        drop(state);
        return tell_all(wishes, came.unwrap_or_else(|| Ok(payload.clone())));
    }
}

fn tell_all(wishes: Vec<PullWaiter>, came: Result<Payload, Error>) {
    for wish in wishes {
        match wish {
            PullWaiter::Data(tell) => tell(came.clone()),
            PullWaiter::Here(tell) => tell(()),
        }
    }
}

/// Returns a payload with its data, or `None` if there is no store to pull it to and no caller
/// wants it in this process.
fn finish_pull(
    client: &Weak<ClientShared>,
    object: ObjectId,
    payload: &Payload,
) -> Result<Option<Payload>, Error> {
    let mut tries = 1;
    loop {
        let client_now = present(client)?;
        let Some(objects) = client_now.objects() else {
            let wanted = client_now.shared.brings.state().is_data_wanted(object);
            drop(client_now);
            return if wanted { into_this_process(client, payload).map(Some) } else { Ok(None) };
        };
        drop(client_now); // The session ends with the last clone, which this must not be.
        match came_to(client, &objects, payload) {
            // The store's worker may have gone, and another worker may be there.
            Err(_) if objects.is_over() && tries < MAX_LOOKS => tries += 1,
            came => return came.map(Some),
        }
    }
}

fn came_to(
    client: &Weak<ClientShared>,
    objects: &ObjectStoreHandle,
    payload: &Payload,
) -> Result<Payload, Error> {
    let Some(reading) = objects.read(payload) else { return Ok(payload.clone()) };
    let mut reading = reading?;
    loop {
        if let Some(came) = reading.wait(Some(LOOK_EVERY)) {
            return came;
        }
        present(client)?;
    }
}

/// Pulls the data of a payload into the memory of this process. Goes on while the session lasts and
/// the client exists.
pub(super) fn into_this_process(
    client: &Weak<ClientShared>,
    payload: &Payload,
) -> Result<Payload, Error> {
    let object = payload.stored_object().expect("it is somewhere else");
    let (token, session, clock) = {
        let client = present(client)?;
        (client.shared.node.token(), client.ended_sessions(), Clock::new())
    };
    let go_on = || present(client).is_ok_and(|client| client.ended_sessions() == session);
    let wanted = TransferRequest { object, token: &token, should_continue: &go_on };
    let (mut tries, mut coming) = (Backoff::default(), None);
    loop {
        let mut located = present(client)?.locate(object)?;
        let copies = located.recv().wait().map_err(|_| session_over_error())??;
        let had = coming.as_ref().map_or(0, PartialTransfer::pieces);
        let error = match transfer::pull(&copies, &wanted, &mut coming, |bytes| Ok(vec![0; bytes]))
        {
            Ok((whole, _)) => return PendingRead::of(object, payload, Bytes::from(whole)),
            Err(error) => error,
        };
        if coming.as_ref().is_some_and(|coming| coming.pieces() > had) {
            tries.progressed();
        }
        // The worker that had the data may be gone, and another may have it.
        let pause = tries.failed(clock.now(), LOCATE_TIMEOUT);
        let Some(pause) = pause.filter(|_| transfer::may_be_elsewhere(&error)) else {
            return Err(error);
        };
        if !pause_while(&go_on, pause) {
            return Err(session_over_error());
        }
    }
}

/// Sleeps for `pause` while `go_on` returns `true`. Returns what `go_on` returned last.
fn pause_while(go_on: &dyn Fn() -> bool, pause: Duration) -> bool {
    let until = Instant::now() + pause;
    while go_on() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        thread::sleep(left.min(PAUSE_STEP));
    }
    false
}

/// Returns the client, if it has not left.
fn present(client: &Weak<ClientShared>) -> Result<Client, Error> {
    let shared = client.upgrade().filter(|shared| !shared.left.load(Ordering::Relaxed));
    shared.map(|shared| Client { shared }).ok_or_else(session_over_error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn a_pause_ends_when_its_condition_becomes_false() {
        let left = AtomicBool::new(false);
        let go_on = || !left.load(Ordering::Relaxed);
        assert!(pause_while(&go_on, Duration::from_millis(1)));
        thread::scope(|threads| {
            let pauses = threads.spawn(|| pause_while(&go_on, Duration::from_secs(3_600)));
            left.store(true, Ordering::Relaxed);
            assert!(!pauses.join().unwrap());
        });
    }
}
