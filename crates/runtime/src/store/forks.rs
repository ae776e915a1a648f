//! Forks of this process, which may go on reading what it reads. Views outlive the sessions that they came by, so every
//! store is told that this process has ever read, or made, something in.

use super::{Objects, Remote, Shared, Store};
use crate::per_process::PerProcess;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// Of a fork, those are not its own that were there when it was made.
static KNOWN: PerProcess<Known> = PerProcess::new();

/// A process is about to fork, or has just forked: what it reads now, the fork may go on reading. What is said after
/// the fork is for what was given to other threads while that was about to be.
pub fn about_to_fork() {
    if let Some(known) = KNOWN.get() {
        known.tell_all();
    }
}

/// There is one more store of this process.
pub(super) fn add_here(store: &Arc<Shared>) {
    KNOWN.get_or_init(Known::default).add(One::Here(Arc::downgrade(store)));
}

/// There is one more that it uses.
pub(super) fn add_elsewhere(remote: &Arc<Remote>) {
    KNOWN.get_or_init(Known::default).add(One::Elsewhere(Arc::downgrade(remote)));
}

/// The stores of a process, for as long as anything is made of them.
#[derive(Default)]
pub(super) struct Known(Mutex<Vec<One>>);

pub(super) enum One {
    Here(Weak<Shared>),
    Elsewhere(Weak<Remote>),
}

impl One {
    fn is_gone(&self) -> bool {
        match self {
            One::Here(store) => store.strong_count() == 0,
            One::Elsewhere(remote) => remote.strong_count() == 0,
        }
    }

    fn objects(&self) -> Option<Objects> {
        match self {
            One::Here(store) => store.upgrade().map(Store).map(Objects::here),
            One::Elsewhere(remote) => remote.upgrade().map(Objects::elsewhere),
        }
    }
}

impl Known {
    fn all(&self) -> MutexGuard<'_, Vec<One>> {
        self.0.lock().expect("nothing panics under it")
    }

    pub fn add(&self, one: One) {
        let mut all = self.all();
        all.retain(|one| !one.is_gone());
        all.push(one);
    }

    pub fn tell_all(&self) {
        let all: Vec<Objects> = self.all().iter().filter_map(One::objects).collect();
        // Without the lock: this may be the last that is made of one.
        all.iter().for_each(Objects::about_to_fork);
    }
}
