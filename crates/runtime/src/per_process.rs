//! A value that exists once in each process. A forked process creates its own, because the threads
//! of its parent do not exist in it.

use std::sync::OnceLock;

/// The most processes in one chain of forks that can each have a value.
/// [`get_or_init`](PerProcess::get_or_init) panics in the next one.
const MAX_DEPTH: usize = 8;

/// See the [module](self). A value that a parent process created stays as it is: its threads do not
/// exist here, so this process must not touch it.
pub(crate) struct PerProcess<T> {
    /// One slot for each process, with the process's id. A forked process finds the slots of its
    /// ancestors filled.
    slots: [OnceLock<(u32, T)>; MAX_DEPTH],
}

impl<T> PerProcess<T> {
    pub const fn new() -> PerProcess<T> {
        PerProcess { slots: [const { OnceLock::new() }; MAX_DEPTH] }
    }

    /// Returns this process's value, if it has created one.
    pub fn get(&self) -> Option<&T> {
        let process = std::process::id();
        self.slots.iter().map_while(OnceLock::get).find(|(of, _)| *of == process).map(|(_, it)| it)
    }

    /// Returns this process's value, and creates it if there is none.
    pub fn get_or_init(&self, make: impl Fn() -> T) -> &T {
        let process = std::process::id();
        let slots = self.slots.iter().map(|slot| slot.get_or_init(|| (process, make())));
        let mine = slots.into_iter().find(|(of, _)| *of == process);
        &mine.expect("a process is not forked from a fork more often (MAX_DEPTH)").1
    }
}
