//! What a process has once, and a fork of it has to make anew: threads do not come along.

use std::sync::OnceLock;

/// So many forks of forks can have it.
const MAX_DEPTH: usize = 8;

/// See the [module](self). What an earlier process made is left as it is: its threads are not here, so it
/// must not be touched.
pub(crate) struct PerProcess<T> {
    /// In each: for which process it is. A fork finds those of its forebears taken.
    slots: [OnceLock<(u32, T)>; MAX_DEPTH],
}

impl<T> PerProcess<T> {
    pub const fn new() -> PerProcess<T> {
        PerProcess { slots: [const { OnceLock::new() }; MAX_DEPTH] }
    }

    /// What this process has, if it has made it.
    pub fn get(&self) -> Option<&T> {
        let process = std::process::id();
        self.slots.iter().map_while(OnceLock::get).find(|(of, _)| *of == process).map(|(_, it)| it)
    }

    /// What this process has; made if there is none.
    pub fn get_or_init(&self, make: impl Fn() -> T) -> &T {
        let process = std::process::id();
        let slots = self.slots.iter().map(|slot| slot.get_or_init(|| (process, make())));
        let mine = slots.into_iter().find(|(of, _)| *of == process);
        &mine.expect("a process is not forked from a fork more often (MAX_DEPTH)").1
    }
}
