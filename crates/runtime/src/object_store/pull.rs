//! Pulls: copies the data of an object from another node to this store, once for all requests that
//! wait for it.

#[cfg(test)]
mod tests;

use super::allocation::Allocation;
use super::{
    DataVersion, DeferredAction, LOCATE_TIMEOUT, ObjectStore, ObjectStoreShared, ObjectStoreState,
    lost,
};
use crate::net::credentials::Token;
use crate::net::transfer::{self, PartialTransfer, TransferRequest};
use marline_core::error::{Error, ErrorKind, Ran};
use marline_core::id::{ObjectId, Session};
use marline_core::message::CopyLocation;
use marline_core::object_store::{BlobId, Event, RequestId};
use marline_core::time::Time;
use marline_core::worker;
use marline_objects::Writable;
use std::collections::VecDeque;
use std::sync::Weak;
use std::thread;
use std::time::Duration;

/// The most values that are pulled at a time. Others wait for their turn.
pub(super) const MAX_PULLS: usize = 4;
/// How long a worker tries an ordered pull before it reports failure, so that the controller can
/// order it from another worker.
const ORDERED_PULL_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the received pieces of a value stay while no more arrive. A process that waits for room
/// meanwhile is refused only some time after that (`MARLINE_STORE_PATIENCE`, 30 s by default).
pub(super) const KEEP_FOR: Duration = Duration::from_secs(20);

/// The running pulls, and those that wait for their turn.
#[derive(Default)]
pub(super) struct Pulls {
    pub(super) running: usize,
    pub(super) waiting: VecDeque<(ObjectId, Vec<CopyLocation>)>,
}

/// The pull of one value.
pub(super) struct Pull {
    /// The session under which the pull was requested.
    pub session: Option<Session>,
    pub object: ObjectId,
    /// The nodes that have the data. If empty, the data is read from its saved file.
    pub copies: Vec<CopyLocation>,
}

/// The result of a pull.
pub(super) struct PullResult {
    /// The filled memory, and the version of the data if it is known.
    pub came: Result<(BlobId, Writable, Option<DataVersion>), Error>,
    /// The received pieces, if not all have arrived.
    pub coming: Option<PartialTransfer<(BlobId, Writable)>>,
    /// Whether more pieces have arrived than before the pull.
    pub progressed: bool,
}

impl ObjectStoreState {
    /// Takes the controller's answer to a lookup, and starts a pull from one of the copies.
    pub(super) fn located(
        &mut self,
        now: Time,
        object: ObjectId,
        copies: Result<Vec<CopyLocation>, Error>,
    ) {
        let Some(missing) = self.missing.get_mut(&object) else { return }; // It arrived meanwhile.
        if !std::mem::take(&mut missing.waits) {
            return; // The lookup was sent twice, and a pull is under way.
        }
        let mine = self.worker;
        let copies = copies.map(|mut copies| {
            copies.retain(|copy| Some(copy.worker) != mine);
            copies
        });
        match copies {
            Ok(copies) if copies.is_empty() => {
                self.outside.push(DeferredAction::DeliverToWorker(lost(object)));
                let words = format!("value {object} is not in the store that the controller named");
                self.look_again(now, object, Error::unavailable(Ran::No, words));
            }
            Ok(copies) => self.pull(now, object, copies),
            // The worker has no session now. The next session may know the copies.
            Err(error) if error.kind() == ErrorKind::Unavailable && !error.may_have_run() => {
                self.look_again(now, object, error);
            }
            Err(error) => self.never_comes(now, object, &error),
        }
    }

    /// Starts a pull from one of these copies, or from the saved file if there is none.
    pub(super) fn pull(&mut self, now: Time, object: ObjectId, copies: Vec<CopyLocation>) {
        if self.pulls.running >= MAX_PULLS {
            return self.pulls.waiting.push_back((object, copies));
        }
        self.pulls.running += 1;
        let (store, token) = (self.me.clone(), self.secret.token());
        let pull = Pull { session: self.worker, object, copies };
        let run = move || run_pull(&store, &pull, &token);
        if let Err(error) = thread::Builder::new().name("marline-pull".into()).spawn(run) {
            self.pulls.running -= 1;
            let words = format!("no thread could be started to pull value {object}: {error}");
            self.never_comes(now, object, &Error::unavailable(Ran::No, words));
        }
    }

    /// Looks the copies up again after a pause. Gives up if that has failed for long enough.
    fn look_again(&mut self, now: Time, object: ObjectId, error: Error) {
        let Some(missing) = self.missing.get_mut(&object) else { return };
        if missing.waits || missing.pauses {
            return; // A lookup is under way, or due.
        }
        let at_most = if missing.is_ordered { ORDERED_PULL_TIMEOUT } else { LOCATE_TIMEOUT };
        let Some(pause) = missing.tries.failed(now, at_most) else {
            let words = format!("value {object} could not be pulled in many attempts");
            let error = Error::unavailable(Ran::No, words).caused_by(error);
            return self.never_comes(now, object, &error);
        };
        missing.pauses = true;
        self.outside.push(DeferredAction::LookUpLater(object, pause));
        if missing.coming.is_some() {
            let left = KEEP_FOR.saturating_sub(missing.tries.failing_for(now));
            self.outside.push(DeferredAction::DropPiecesLater(object, self.worker, left));
        }
    }

    /// Drops the received pieces of a value if no more have arrived for [`KEEP_FOR`]: it may take
    /// long until the rest arrives, if the value is not recomputed instead.
    pub(super) fn let_go_of_old(&mut self, now: Time, object: ObjectId, session: Option<Session>) {
        let Some(missing) = self.missing.get_mut(&object) else { return };
        if self.worker == session && missing.tries.failing_for(now) >= KEEP_FOR {
            let coming = missing.coming.take();
            self.drop_coming(now, coming);
        }
    }

    /// Looks the copies up again after a pause, if a request still waits.
    pub(super) fn ask_again(&mut self, now: Time, object: ObjectId) {
        let Some(missing) = self.missing.get_mut(&object) else { return };
        if !std::mem::take(&mut missing.pauses) {
            return;
        }
        if missing.requests.is_empty() && !missing.is_ordered {
            let _ = self.take_waiting_requests(now, object); // No request waits for it any more.
            return;
        }
        missing.waits = true;
        self.outside.push(DeferredAction::DeliverToWorker(worker::Event::DataMissing { object }));
    }

    fn never_comes(&mut self, now: Time, object: ObjectId, error: &Error) {
        let Some(missing) = self.missing.get_mut(&object) else { return };
        if std::mem::take(&mut missing.is_ordered) {
            let error = error.clone();
            self.outside.push(DeferredAction::DeliverToWorker(worker::Event::DataPullFailed {
                object,
                error,
            }));
            // The requests wait for what the controller does about the failure.
            if !missing.requests.is_empty() {
                if !std::mem::replace(&mut missing.waits, true) {
                    self.outside.push(DeferredAction::DeliverToWorker(
                        worker::Event::DataMissing { object },
                    ));
                }
                return;
            }
        }
        for request in self.take_waiting_requests(now, object) {
            self.refuse(request, error.clone());
        }
    }

    /// Ends the search for an object. Returns the requests that waited for it.
    pub(super) fn take_waiting_requests(&mut self, now: Time, object: ObjectId) -> Vec<RequestId> {
        let Some(missing) = self.missing.remove(&object) else { return Vec::new() };
        self.drop_coming(now, missing.coming);
        missing.requests
    }

    /// Drops received pieces: the rest will not arrive, or not into this room.
    fn drop_coming(&mut self, now: Time, coming: Option<PartialTransfer<(BlobId, Writable)>>) {
        if let Some((blob, room)) = coming.map(PartialTransfer::into_room) {
            drop(room);
            self.handle(now, Event::Abandoned { blob });
        }
    }

    /// Stops all lookups, because the session is over and no controller answers. Processes with
    /// sessions of their own wait for the next session of this worker, for at most
    /// [`LOCATE_TIMEOUT`].
    pub(super) fn stop_looking(&mut self, now: Time) {
        self.pulls.waiting.clear();
        for object in self.missing.keys().copied().collect::<Vec<_>>() {
            let missing = self.missing.get_mut(&object).expect("the object is in the list");
            (missing.is_ordered, missing.waits, missing.pauses) = (false, false, false);
            let coming = missing.coming.take();
            let nobody = missing.requests.is_empty();
            self.drop_coming(now, coming);
            if nobody {
                self.missing.remove(&object);
                continue;
            }
            let words = format!(
                "this worker's session ended while value {object} was located: request it again"
            );
            self.look_again(now, object, Error::unavailable(Ran::No, words));
        }
    }

    /// Looks all missing objects up at once, because there is a session again.
    pub(super) fn look_up_all(&mut self, now: Time) {
        let mut missing: Vec<ObjectId> = self.missing.keys().copied().collect();
        missing.sort_unstable();
        for object in missing {
            self.ask_again(now, object);
        }
    }

    /// Takes the result of a pull.
    pub(super) fn pulled(&mut self, now: Time, pull: &Pull, ended: PullResult) {
        let object = pull.object;
        let PullResult { came, coming, progressed } = ended;
        self.pulls.running -= 1;
        // A pull of an earlier session counts for nothing: this session has requested the data
        // again.
        let counts = pull.session.is_some() && self.worker == pull.session;
        match came {
            Ok((blob, room, making)) => {
                self.bodies.set_memory(blob, room);
                self.copied.extend(making.map(|making| (blob, making)));
                if counts && self.bodies.named(object).is_none() {
                    if let Some(missing) = self.missing.get_mut(&object) {
                        missing.is_ordered = false; // `keep_copy` below reports the copy.
                    }
                    self.sealed(now, blob, object);
                    self.keep_copy(now, object);
                } else {
                    self.handle(now, Event::Abandoned { blob }); // It does not count, or is here.
                }
            }
            Err(_) if !counts => self.drop_coming(now, coming),
            // A saved file does not move: if it could not be read, another lookup does not help.
            Err(error) if transfer::may_be_elsewhere(&error) && !pull.copies.is_empty() => {
                self.keep_coming(now, object, coming, progressed);
                self.look_again(now, object, error);
            }
            Err(error) => {
                self.drop_coming(now, coming);
                self.never_comes(now, object, &error);
            }
        }
        if let Some((object, copies)) = self.pulls.waiting.pop_front() {
            self.pull(now, object, copies);
        }
    }

    /// Stores the received pieces for the pull that brings the rest.
    fn keep_coming(
        &mut self,
        now: Time,
        object: ObjectId,
        coming: Option<PartialTransfer<(BlobId, Writable)>>,
        progressed: bool,
    ) {
        let before = match self.missing.get_mut(&object) {
            Some(missing) => {
                if progressed {
                    missing.tries.progressed();
                }
                std::mem::replace(&mut missing.coming, coming)
            }
            None => coming, // The data arrived meanwhile.
        };
        self.drop_coming(now, before);
    }
}

/// Runs a pull, and hands its result to the store.
fn run_pull(store: &Weak<ObjectStoreShared>, pull: &Pull, token: &Token) {
    let Some(store) = store.upgrade().map(ObjectStore) else { return };
    let object = pull.object;
    let coming = store
        .enter(|state, _| state.missing.get_mut(&object).and_then(|missing| missing.coming.take()));
    let mut coming = coming.map(|coming| coming.map(|filled| store.room_again(filled)));
    let had = coming.as_ref().map_or(0, PartialTransfer::pieces);
    let go_on = || store.lock().worker == pull.session;
    let wanted = TransferRequest { object, token, should_continue: &go_on };
    let came = match pull.copies.is_empty() {
        true => store.load_saved(object, |bytes| store.room(bytes)).map(|room| (room, None)),
        false => transfer::pull(&pull.copies, &wanted, &mut coming, |bytes| store.room(bytes))
            .map(|(room, making)| (room, Some(making))),
    };
    let came = came.map(|(room, making)| {
        let (blob, room) = room.taken();
        (blob, room, making)
    });
    let progressed = coming.as_ref().is_some_and(|coming| coming.pieces() > had);
    let coming = coming.map(|coming| coming.map(Allocation::taken));
    store.enter(|state, now| state.pulled(now, pull, PullResult { came, coming, progressed }));
}
