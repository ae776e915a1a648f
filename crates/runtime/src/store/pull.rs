//! Bringing the data of an object here that another node has: once, however many wait for it.

use super::{Outside, Shared, State, Store, THIS, To};
use crate::net::data;
use marline_channel::oneshot;
use marline_core::error::{Error, Ran};
use marline_core::id::ObjectId;
use marline_core::message::CopyAt;
use marline_core::store::{Blob, Event};
use marline_core::time::Time;
use marline_core::worker;
use marline_objects::Writable;
use std::collections::VecDeque;
use std::sync::Weak;
use std::thread;

/// So many values are brought at a time; others wait.
const MAX_PULLS: usize = 4;
/// So often it is asked anew who has the data, before those who wait are told that it does not come.
const MAX_ASKED: u32 = 5;

/// What is brought, and what waits for its turn.
#[derive(Default)]
pub(super) struct Pulls {
    running: usize,
    waiting: VecDeque<(ObjectId, Vec<CopyAt>)>,
}

impl State {
    /// Where data is that was looked for.
    pub(super) fn located(&mut self, object: ObjectId, copies: Result<Vec<CopyAt>, Error>) {
        let Some(missing) = self.missing.get_mut(&object) else { return }; // It came meanwhile.
        missing.waits = false;
        let mine = self.worker;
        let copies = copies.map(|mut copies| {
            copies.retain(|copy| Some(copy.worker) != mine);
            copies
        });
        match copies {
            Ok(copies) if copies.is_empty() => {
                // This store was said to have it, and has not.
                let error =
                    Error::internal(format!("the data of {object} is not where it was said to be"));
                self.outside.push(Outside::Tell(worker::Event::DataLost { object, error }));
                self.look_again(object);
            }
            Ok(copies) => self.pull(object, copies),
            Err(error) => self.never_comes(object, &error),
        }
    }

    /// From one of these, or from where it was saved if there is none.
    pub(super) fn pull(&mut self, object: ObjectId, copies: Vec<CopyAt>) {
        if self.pulls.running >= MAX_PULLS {
            return self.pulls.waiting.push_back((object, copies));
        }
        self.pulls.running += 1;
        let (store, token) = (self.me.clone(), self.secret.get());
        let run = move || bring(&store, object, &copies, &token);
        if let Err(error) = thread::Builder::new().name("marline-pull".into()).spawn(run) {
            self.pulls.running -= 1;
            let words = format!("no thread could be started to bring value {object} here: {error}");
            self.never_comes(object, &Error::unavailable(Ran::No, words));
        }
    }

    /// Asks anew who has it, unless that was done often enough.
    fn look_again(&mut self, object: ObjectId) {
        let Some(missing) = self.missing.get_mut(&object) else { return };
        missing.asked += 1;
        if missing.asked <= MAX_ASKED {
            missing.waits = true;
            self.outside.push(Outside::Tell(worker::Event::DataMissing { object }));
        } else {
            let words = format!("value {object} does not come here, however often it is tried");
            self.never_comes(object, &Error::unavailable(Ran::No, words));
        }
    }

    fn never_comes(&mut self, object: ObjectId, error: &Error) {
        let Some(missing) = self.missing.get_mut(&object) else { return };
        if std::mem::take(&mut missing.told) {
            let error = error.clone();
            self.outside.push(Outside::Tell(worker::Event::DataNotBrought { object, error }));
            // Whoever waits for it, waits for what the controller makes of that.
            if !missing.requests.is_empty() {
                if !std::mem::replace(&mut missing.waits, true) {
                    self.outside.push(Outside::Tell(worker::Event::DataMissing { object }));
                }
                return;
            }
        }
        let missing = self.missing.remove(&object).expect("it was looked at");
        for request in missing.requests {
            self.refuse(request, error.clone());
        }
    }

    fn pulled(&mut self, now: Time, object: ObjectId, came: Result<(Blob, Writable), Error>) {
        self.pulls.running -= 1;
        match came {
            Ok((blob, room)) => {
                self.is_in_memory(blob, room.seal());
                if self.worker.is_some() && !self.names.contains_key(&object) {
                    self.sealed(now, blob, object);
                    self.keep(now, object);
                    self.outside.push(Outside::Tell(worker::Event::DataCopied { object }));
                } else {
                    self.abandon(now, THIS, blob); // It was made here meanwhile, or nobody works here any more.
                }
            }
            Err(error) if data::may_be_elsewhere(&error) => self.look_again(object),
            Err(error) => self.never_comes(object, &error),
        }
        if let Some((object, copies)) = self.pulls.waiting.pop_front() {
            self.pull(object, copies);
        }
    }
}

/// Brings it, and says so.
fn bring(
    store: &Weak<Shared>,
    object: ObjectId,
    copies: &[CopyAt],
    token: &crate::net::server::Token,
) {
    let Some(store) = store.upgrade().map(Store) else { return };
    let room = |bytes: usize| {
        let (answer, mut given) = oneshot();
        store.enter(|state, now| {
            let request = state.ask(THIS, To::Fill(answer));
            let bytes = bytes as u64;
            state.handle(now, Event::CreateAsked { request, process: THIS, bytes });
        });
        let (blob, room) = given.recv().wait().map_err(|_| super::closed())??;
        Ok(Room { store: store.clone(), filled: Some((blob, room)) })
    };
    let came = match copies.is_empty() {
        true => store.load_saved(object, room),
        false => data::fetch(copies, token, object, room),
    };
    let came = came.map(|mut room| room.filled.take().expect("it is taken once"));
    store.enter(|state, now| state.pulled(now, object, came));
}

/// Room that is being filled. Dropped before it is, it is given back.
struct Room {
    store: Store,
    filled: Option<(Blob, Writable)>,
}

impl AsMut<[u8]> for Room {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.filled.as_mut().expect("it is being filled").1
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if let Some((blob, room)) = self.filled.take() {
            drop(room);
            self.store.enter(|state, now| state.abandon(now, THIS, blob));
        }
    }
}
