//! What a store writes to the disk and reads back, on a thread of its own: it takes its time.

use super::{Shared, Store, unmappable};
use marline_core::error::Error;
use marline_core::store::{Blob, Event};
use marline_objects::{Block, Spill, SpillError, Spilled, Writable};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread;

/// What is to be done.
pub(super) enum Job {
    Write { blob: Blob, block: Block, bytes: usize },
    Read { blob: Blob, spilled: Arc<Spilled>, room: Writable },
}

/// Whoever does it.
pub(super) struct Disk {
    spill: Spill,
    jobs: Option<Sender<Job>>,
}

impl Disk {
    pub fn new(spill: Spill) -> Disk {
        Disk { spill, jobs: None }
    }

    /// Has it done; the store is told how it went.
    pub fn take(&mut self, store: &Weak<Shared>, job: Job) {
        let jobs = self.jobs.get_or_insert_with(|| {
            let (jobs, todo) = channel();
            let (store, spill) = (store.clone(), self.spill.clone());
            // Without a thread, what is to be done is dropped with `todo`, and whoever waits is told in time.
            let run = move || work(&store, &spill, &todo);
            let _ = thread::Builder::new().name("marline-spill".into()).spawn(run);
            jobs
        });
        let _ = jobs.send(job);
    }
}

fn work(store: &Weak<Shared>, spill: &Spill, todo: &Receiver<Job>) {
    while let Ok(job) = todo.recv() {
        let Some(store) = store.upgrade().map(Store) else { return };
        match job {
            Job::Write { blob, block, bytes } => {
                let view = store.look_into(block, bytes).map_err(|error| unmappable(&error));
                let written =
                    view.and_then(|view| spill.write(&view).map_err(|error| in_words(&error)));
                store.enter(|state, now| {
                    let result = written.map(|spilled| state.is_on_disk(blob, spilled));
                    state.handle(now, Event::SpillEnded { blob, result });
                });
            }
            Job::Read { blob, spilled, mut room } => {
                let read = spilled.read(&mut room);
                drop(spilled);
                store.enter(|state, now| {
                    if read.is_ok() {
                        state.is_in_memory(blob, room);
                    }
                    let result = read.map_err(|error| unreadable(&error));
                    state.handle(now, Event::LoadEnded { blob, result });
                });
            }
        }
    }
}

fn in_words(error: &SpillError) -> Error {
    match error {
        SpillError::Full { .. } | SpillError::Disk(_) => Error::exhausted(error.to_string()),
        SpillError::Corrupt => unreadable(error),
    }
}

/// What a disk does not give back is lost, whatever it says.
fn unreadable(error: &SpillError) -> Error {
    Error::internal(error.to_string())
}
