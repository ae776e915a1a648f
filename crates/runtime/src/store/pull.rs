//! Bringing the data of an object here that another node has: once, however many wait for it.

use super::room::Room;
use super::{Outside, Shared, State, Store, THIS};
use crate::net::data;
use marline_core::error::{Error, Ran};
use marline_core::id::{ObjectId, Session};
use marline_core::message::CopyAt;
use marline_core::store::Blob;
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
    pub(super) running: usize,
    pub(super) waiting: VecDeque<(ObjectId, Vec<CopyAt>)>,
}

impl State {
    /// Where data is that was looked for.
    pub(super) fn located(&mut self, object: ObjectId, copies: Result<Vec<CopyAt>, Error>) {
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
        let (store, token, session) = (self.me.clone(), self.secret.get(), self.worker);
        let run = move || bring(&store, session, object, &copies, &token);
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

    /// The session is over, and with it whatever it was asked for: nobody answers any more.
    pub(super) fn stop_looking(&mut self) {
        self.pulls.waiting.clear();
        for (object, missing) in std::mem::take(&mut self.missing) {
            let words = format!(
                "the session of this worker ended while value {object} was looked for: ask for it again"
            );
            let error = Error::unavailable(Ran::No, words);
            for request in missing.requests {
                self.refuse(request, error.clone());
            }
        }
    }

    /// What was begun under this session has ended.
    pub(super) fn pulled(
        &mut self,
        now: Time,
        session: Option<Session>,
        object: ObjectId,
        came: Result<(Blob, Writable), Error>,
    ) {
        self.pulls.running -= 1;
        // Under another session it counts for nothing: what is looked for now was asked for anew.
        let counts = session.is_some() && self.worker == session;
        match came {
            Ok((blob, room)) => {
                self.is_in_memory(blob, room);
                if counts && !self.names.contains_key(&object) {
                    self.sealed(now, blob, object);
                    self.keep(now, object);
                    self.outside.push(Outside::Tell(worker::Event::DataCopied { object }));
                } else {
                    self.abandon(now, THIS, blob); // Or it was made here meanwhile.
                }
            }
            Err(_) if !counts => {}
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
    session: Option<Session>,
    object: ObjectId,
    copies: &[CopyAt],
    token: &crate::net::server::Token,
) {
    let Some(store) = store.upgrade().map(Store) else { return };
    let came = match copies.is_empty() {
        true => store.load_saved(object, |bytes| store.room(bytes)),
        false => data::fetch(copies, token, object, |bytes| store.room(bytes)),
    };
    let came = came.map(Room::taken);
    store.enter(|state, now| state.pulled(now, session, object, came));
}
