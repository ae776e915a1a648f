//! Bringing the data of an object here that another node has: once, however many wait for it.

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

/// So many values are brought at a time; others wait.
pub(super) const MAX_PULLS: usize = 4;
/// So long a worker tries to bring what it was told to before it says that it cannot: then another is told.
const ORDERED_PULL_TIMEOUT: Duration = Duration::from_secs(5);
/// So long what has come of a value stays while the rest does not: whoever waits for room meanwhile is refused some
/// time after that (`MARLINE_STORE_PATIENCE`, 30 s unless said otherwise).
pub(super) const KEEP_FOR: Duration = Duration::from_secs(20);

/// What is brought, and what waits for its turn.
#[derive(Default)]
pub(super) struct Pulls {
    pub(super) running: usize,
    pub(super) waiting: VecDeque<(ObjectId, Vec<CopyLocation>)>,
}

/// A value that is brought.
pub(super) struct Pull {
    /// The session that it was asked for under.
    pub session: Option<Session>,
    pub object: ObjectId,
    /// Whoever has it. Nobody: it is read from where it was saved.
    pub copies: Vec<CopyLocation>,
}

/// How that ended.
pub(super) struct PullResult {
    /// It, and of which making it is, if that is known.
    pub came: Result<(BlobId, Writable, Option<DataVersion>), Error>,
    /// What has come of it, if not all has.
    pub coming: Option<PartialTransfer<(BlobId, Writable)>>,
    /// More of it has come than had before.
    pub progressed: bool,
}

impl ObjectStoreState {
    /// Where data is that was looked for.
    pub(super) fn located(
        &mut self,
        now: Time,
        object: ObjectId,
        copies: Result<Vec<CopyLocation>, Error>,
    ) {
        let Some(missing) = self.missing.get_mut(&object) else { return }; // It came meanwhile.
        if !std::mem::take(&mut missing.waits) {
            return; // It was asked twice, and is on its way.
        }
        let mine = self.worker;
        let copies = copies.map(|mut copies| {
            copies.retain(|copy| Some(copy.worker) != mine);
            copies
        });
        match copies {
            Ok(copies) if copies.is_empty() => {
                self.outside.push(DeferredAction::DeliverToWorker(lost(object)));
                let words = format!("value {object} is not where it was said to be");
                self.look_again(now, object, Error::unavailable(Ran::No, words));
            }
            Ok(copies) => self.pull(now, object, copies),
            // There is no session at the moment. The next one may know of it.
            Err(error) if error.kind() == ErrorKind::Unavailable && !error.may_have_run() => {
                self.look_again(now, object, error);
            }
            Err(error) => self.never_comes(now, object, &error),
        }
    }

    /// From one of these, or from where it was saved if there is none.
    pub(super) fn pull(&mut self, now: Time, object: ObjectId, copies: Vec<CopyLocation>) {
        if self.pulls.running >= MAX_PULLS {
            return self.pulls.waiting.push_back((object, copies));
        }
        self.pulls.running += 1;
        let (store, token) = (self.me.clone(), self.secret.token());
        let pull = Pull { session: self.worker, object, copies };
        let run = move || bring(&store, &pull, &token);
        if let Err(error) = thread::Builder::new().name("marline-pull".into()).spawn(run) {
            self.pulls.running -= 1;
            let words = format!("no thread could be started to bring value {object} here: {error}");
            self.never_comes(now, object, &Error::unavailable(Ran::No, words));
        }
    }

    /// Asks anew who has it after a pause, unless that was done for long enough.
    fn look_again(&mut self, now: Time, object: ObjectId, error: Error) {
        let Some(missing) = self.missing.get_mut(&object) else { return };
        if missing.waits || missing.pauses {
            return; // It is asked already.
        }
        let at_most = if missing.is_ordered { ORDERED_PULL_TIMEOUT } else { LOCATE_TIMEOUT };
        let Some(pause) = missing.tries.failed(now, at_most) else {
            let words = format!("value {object} does not come here, however often it is tried");
            let error = Error::unavailable(Ran::No, words).caused_by(error);
            return self.never_comes(now, object, &error);
        };
        missing.pauses = true;
        self.outside.push(DeferredAction::AskLater(object, pause));
        if missing.coming.is_some() {
            let left = KEEP_FOR.saturating_sub(missing.tries.failing_for(now));
            self.outside.push(DeferredAction::LetGoLater(object, self.worker, left));
        }
    }

    /// What has come of it is let go of, if nothing has come since for long enough: it may be a long time until the rest
    /// does, if that is not made anew.
    pub(super) fn let_go_of_old(&mut self, now: Time, object: ObjectId, session: Option<Session>) {
        let Some(missing) = self.missing.get_mut(&object) else { return };
        if self.worker == session && missing.tries.failing_for(now) >= KEEP_FOR {
            let coming = missing.coming.take();
            self.drop_coming(now, coming);
        }
    }

    /// The pause is over.
    pub(super) fn ask_again(&mut self, now: Time, object: ObjectId) {
        let Some(missing) = self.missing.get_mut(&object) else { return };
        if !std::mem::take(&mut missing.pauses) {
            return;
        }
        if missing.requests.is_empty() && !missing.is_ordered {
            let _ = self.looked_for(now, object); // Nobody waits for it any more.
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
            // Whoever waits for it, waits for what the controller makes of that.
            if !missing.requests.is_empty() {
                if !std::mem::replace(&mut missing.waits, true) {
                    self.outside.push(DeferredAction::DeliverToWorker(
                        worker::Event::DataMissing { object },
                    ));
                }
                return;
            }
        }
        for request in self.looked_for(now, object) {
            self.refuse(request, error.clone());
        }
    }

    /// It is not looked for any more; says who waited for it.
    pub(super) fn looked_for(&mut self, now: Time, object: ObjectId) -> Vec<RequestId> {
        let Some(missing) = self.missing.remove(&object) else { return Vec::new() };
        self.drop_coming(now, missing.coming);
        missing.requests
    }

    /// The rest of it does not come, or not to this room.
    fn drop_coming(&mut self, now: Time, coming: Option<PartialTransfer<(BlobId, Writable)>>) {
        if let Some((blob, room)) = coming.map(PartialTransfer::into_room) {
            drop(room);
            self.handle(now, Event::Abandoned { blob });
        }
    }

    /// The session is over: nobody answers any more. Readers whose own sessions live wait for the next one, for as long
    /// as for any value that does not come.
    pub(super) fn stop_looking(&mut self, now: Time) {
        self.pulls.waiting.clear();
        for object in self.missing.keys().copied().collect::<Vec<_>>() {
            let missing = self.missing.get_mut(&object).expect("it was listed");
            (missing.is_ordered, missing.waits, missing.pauses) = (false, false, false);
            let coming = missing.coming.take();
            let nobody = missing.requests.is_empty();
            self.drop_coming(now, coming);
            if nobody {
                self.missing.remove(&object);
                continue;
            }
            let words = format!(
                "the session of this worker ended while value {object} was looked for: ask for it again"
            );
            self.look_again(now, object, Error::unavailable(Ran::No, words));
        }
    }

    /// There is a session again: what is missing is asked for at once.
    pub(super) fn look_anew(&mut self, now: Time) {
        let mut missing: Vec<ObjectId> = self.missing.keys().copied().collect();
        missing.sort_unstable();
        for object in missing {
            self.ask_again(now, object);
        }
    }

    /// What was begun under a session has ended.
    pub(super) fn pulled(&mut self, now: Time, pull: &Pull, ended: PullResult) {
        let object = pull.object;
        let PullResult { came, coming, progressed } = ended;
        self.pulls.running -= 1;
        // Under another session it counts for nothing: what is looked for now was asked for anew.
        let counts = pull.session.is_some() && self.worker == pull.session;
        match came {
            Ok((blob, room, making)) => {
                self.bodies.set_memory(blob, room);
                self.copied.extend(making.map(|making| (blob, making)));
                if counts && self.bodies.named(object).is_none() {
                    if let Some(missing) = self.missing.get_mut(&object) {
                        missing.is_ordered = false; // It is answered below, as for others.
                    }
                    self.sealed(now, blob, object);
                    self.keep_copy(now, object);
                } else {
                    self.handle(now, Event::Abandoned { blob }); // Or it was made here meanwhile.
                }
            }
            Err(_) if !counts => self.drop_coming(now, coming),
            // Where it was saved it is, or it is not.
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

    /// What has come stays, for whoever brings the rest.
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
            None => coming, // It came meanwhile.
        };
        self.drop_coming(now, before);
    }
}

/// Brings it, and says so.
fn bring(store: &Weak<ObjectStoreShared>, pull: &Pull, token: &Token) {
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
