//! Data that is durable: saved where it outlives this node, in a folder that all nodes see, and read from there when
//! no store has it any more.
//!
//! Each cluster has a folder of its own in it, by its id, which goes with the cluster. What was saved is erased
//! when the controller says so; until the cluster keeps what was saved with it, it is erased with its maker's pin.

use super::words::Answer;
use super::{Durable, Outside, Shared, State, Store};
use marline_core::error::{Error, Ran};
use marline_core::id::{ClusterId, ObjectId};
use marline_core::map::Set;
use marline_core::message::CopyAt;
use marline_core::store::Process;
use marline_core::time::Time;
use marline_core::worker;
use marline_objects::Saved;
use std::io;
use std::sync::Weak;
use std::thread;

/// Where data is saved, and what of it nobody but its maker knows of.
pub(super) struct Saving {
    durable: Durable,
    /// In the folder of the cluster that this store works for.
    saved: Option<Saved>,
    unkept: Set<ObjectId>,
}

impl Saving {
    pub fn new(durable: Durable) -> Saving {
        Saving { durable, saved: None, unkept: Set::default() }
    }

    /// The cluster knows of it: who erases it is told.
    pub fn kept(&mut self, object: ObjectId) {
        self.unkept.remove(&object);
    }

    /// Its data is gone, and if nobody else knows of it, what was saved of it, too.
    pub fn dropped(&mut self, object: ObjectId) {
        if self.unkept.remove(&object) {
            self.erase(object);
        }
    }

    pub fn erase(&self, object: ObjectId) {
        if let Some(saved) = &self.saved {
            saved.erase(&name(object));
        }
    }
}

impl Store {
    /// Works for this cluster from now on.
    pub fn of_cluster(&self, cluster: ClusterId) {
        self.enter(|state, _| {
            state.saving.saved = match &state.saving.durable {
                Durable::In(folder) => Some(Saved::new(folder.join(format!("marline-{cluster}")))),
                Durable::Nowhere | Durable::NotNeeded => None,
            };
        });
    }

    /// The cluster has ended, and with it everything that was saved for it.
    pub fn cluster_ended(&self) {
        if let Some(saved) = self.enter(|state, _| state.saving.saved.take()) {
            saved.erase_all();
        }
    }

    /// Whether data can be saved.
    pub fn saves(&self) -> bool {
        self.enter(|state, _| matches!(state.saving.durable, Durable::In(_)))
    }

    fn saved(&self) -> Result<Saved, Error> {
        self.enter(|state, _| state.saving.saved.clone()).ok_or_else(|| {
            Error::unsupported(
                "nothing durable can be made here: start the workers with a folder for it that all of them see \
                 (--durable-dir, MARLINE_DURABLE_DIR)",
            )
        })
    }

    /// Saves the data of an object, which is in this store and its maker's. It is on the disk when this returns; says
    /// whether it is.
    pub(super) fn save(&self, object: ObjectId) -> Result<bool, Error> {
        if self.enter(|state, _| state.saving.durable == Durable::NotNeeded) {
            return Ok(false);
        }
        let saved = self.saved()?;
        let view = self.read_here(object)?;
        self.enter(|state, _| state.saving.unkept.insert(object));
        let result = saved.save(&name(object), &view);
        result.map(|()| true).map_err(|error| {
            self.enter(|state, _| state.saving.dropped(object));
            Error::exhausted(format!("value {object} could not be saved: {error}"))
        })
    }

    /// Erases what was saved of an object.
    pub fn erase(&self, object: ObjectId) {
        self.enter(|state, _| state.saving.erase(object));
    }

    /// Reads what was saved of an object into room that is made for it.
    pub(super) fn load_saved<R: AsMut<[u8]>>(
        &self,
        object: ObjectId,
        room: impl FnOnce(usize) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let loaded = self.saved()?.load(&name(object), |bytes| room(bytes).map_err(Why::Room));
        loaded.map_err(|why| match why {
            Why::Room(error) => error,
            Why::Disk(error) => {
                Error::internal(format!("what was saved of value {object}: {error}"))
            }
        })
    }
}

/// Why nothing was read.
enum Why {
    Room(Error),
    Disk(io::Error),
}

impl From<io::Error> for Why {
    fn from(error: io::Error) -> Why {
        Why::Disk(error)
    }
}

impl State {
    /// Another process wants the data of an object saved that it made.
    pub(super) fn save_for(&mut self, process: Process, number: u64, object: ObjectId) {
        let store = self.me.clone();
        let run = move || save(&store, process, number, object);
        if let Err(error) = thread::Builder::new().name("marline-save".into()).spawn(run) {
            let words = format!("no thread could be started to save value {object}: {error}");
            let error = Error::unavailable(Ran::No, words);
            self.answer(process, &Answer::Refused { number, error }, None);
        }
    }

    /// The data of an object is to be here, though nobody asked for it: from one of these, or from where it was saved.
    pub(super) fn told_to_bring(&mut self, now: Time, object: ObjectId, from: Vec<CopyAt>) {
        if self.names.contains_key(&object) {
            self.keep(now, object);
            return self.outside.push(Outside::Tell(worker::Event::DataCopied { object }));
        }
        let missing = self.missing.entry(object).or_default();
        missing.told = true;
        // It may be looked for already. Where it was saved, others do not look.
        if !std::mem::replace(&mut missing.begun, true) || from.is_empty() {
            self.pull(now, object, from);
        }
    }
}

/// Saves it, and tells who wanted it.
fn save(store: &Weak<Shared>, process: Process, number: u64, object: ObjectId) {
    let Some(store) = store.upgrade().map(Store) else { return };
    let answer = match store.save(object) {
        Ok(durable) => Answer::Saved { number, durable },
        Err(error) => Answer::Refused { number, error },
    };
    store.enter(|state, _| state.answer(process, &answer, None));
}

fn name(object: ObjectId) -> String {
    format!("{:032x}-{}", object.origin.as_u128(), object.index)
}
