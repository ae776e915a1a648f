//! Which thread has the role of reading the reports of executors: nobody, the background thread, or
//! a thread that waits for an answer.
//!
//! ```text
//!              a thread waits                             nobody has read for a while
//!   Waiter ◀───────────────────────────── Nobody ────────────────────────────────────▶ Background
//!     │                                     ▲  ▲                                            │
//!     └─ has what it waits for, or gives up ┘  └──────── has read, and threads wait ────────┘
//!        (or: another that waits is Waiter)              (or: one of them is Waiter)
//! ```
//!
//! A thread that waits again soon after finds the role free, and has woken no other thread. The
//! cost is that the background thread looks at intervals while threads come and go. While one
//! thread reads for long, the background thread is away: it sleeps until that thread gives up the
//! role and wakes it.

use std::collections::VecDeque;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reader {
    /// No thread has the role.
    Nobody,
    /// The background thread.
    Background,
    /// A thread that waits for an answer.
    Waiter,
}

/// The action after a thread gave up the role.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum WakeAction<W> {
    Nothing,
    /// Wake the next reader.
    Wake(W),
    /// Wake the background thread.
    Notify,
}

/// See the [module](self). Only the waiter knows whether it can become the reader, so the methods
/// take a function that asks it.
#[derive(Debug)]
pub(super) struct ReaderRole<W> {
    reader: Reader,
    /// How often the role has changed.
    changes: u64,
    /// Whether the background thread sleeps and does not look.
    away: bool,
    /// The threads that wait and do not read, in order.
    waiting: VecDeque<W>,
}

impl<W> Default for ReaderRole<W> {
    fn default() -> Self {
        ReaderRole { reader: Reader::Background, changes: 0, away: false, waiting: VecDeque::new() }
    }
}

impl<W: Clone> ReaderRole<W> {
    pub fn reader(&self) -> Reader {
        self.reader
    }

    pub fn changes(&self) -> u64 {
        self.changes
    }

    pub fn is_away(&self) -> bool {
        self.away
    }

    /// Lets a thread wait: it gets the role if that is free, and joins the queue otherwise.
    pub fn arrives(&mut self, waiter: &W, may_read: impl Fn(&W) -> bool) {
        if self.reader != Reader::Nobody {
            self.waiting.push_back(waiter.clone());
        } else if may_read(waiter) {
            self.set(Reader::Waiter);
        }
    }

    /// Removes a thread that does not have the role from the queue: it stops waiting.
    pub fn leaves(&mut self, is_it: impl Fn(&W) -> bool) {
        self.waiting.retain(|waiter| !is_it(waiter));
    }

    /// Takes the role from the thread that has it and stops waiting.
    pub fn release_role(&mut self, may_read: impl Fn(&W) -> bool) -> WakeAction<W> {
        if let Some(next) = self.pass_on(may_read) {
            return WakeAction::Wake(next);
        }
        self.set(Reader::Nobody);
        match std::mem::take(&mut self.away) {
            true => WakeAction::Notify,
            false => WakeAction::Nothing,
        }
    }

    /// Notes that the background thread has read. It keeps the role, unless threads wait.
    pub fn background_has_read(&mut self, may_read: impl Fn(&W) -> bool) -> WakeAction<W> {
        if self.waiting.is_empty() {
            return WakeAction::Nothing;
        }
        match self.pass_on(may_read) {
            Some(next) => WakeAction::Wake(next),
            None => {
                self.set(Reader::Nobody);
                WakeAction::Nothing
            }
        }
    }

    /// Lets the background thread look. `changes` is the number of changes when it looked before.
    /// The background thread takes a role that was free all the time since. It goes away if one
    /// thread has had the role all the time since.
    pub fn background_looks(&mut self, changes: u64) {
        if self.changes == changes {
            match self.reader {
                Reader::Nobody => self.set(Reader::Background),
                Reader::Waiter => self.away = true,
                Reader::Background => {}
            }
        }
    }

    fn pass_on(&mut self, may_read: impl Fn(&W) -> bool) -> Option<W> {
        while let Some(next) = self.waiting.pop_front() {
            if may_read(&next) {
                self.set(Reader::Waiter);
                return Some(next);
            }
        }
        None
    }

    fn set(&mut self, reader: Reader) {
        self.reader = reader;
        self.changes += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const YES: fn(&u32) -> bool = |_| true;
    const NO: fn(&u32) -> bool = |_| false;

    /// Returns a role that is free.
    fn free() -> ReaderRole<u32> {
        let mut role = ReaderRole::default();
        role.arrives(&0, YES);
        assert_eq!(role.background_has_read(NO), WakeAction::Nothing);
        assert_eq!(role.reader(), Reader::Nobody);
        role
    }

    #[test]
    fn the_background_thread_reads_while_no_thread_waits() {
        let mut role = ReaderRole::<u32>::default();
        assert_eq!(role.background_has_read(YES), WakeAction::Nothing);
        assert_eq!(role.reader(), Reader::Background);
    }

    #[test]
    fn the_background_thread_passes_the_role_to_a_thread_that_still_waits() {
        let mut role = ReaderRole::default();
        role.arrives(&1, YES);
        role.arrives(&2, YES);
        assert_eq!(role.background_has_read(|waiter| *waiter == 2), WakeAction::Wake(2));
        assert_eq!(role.reader(), Reader::Waiter);
    }

    #[test]
    fn a_thread_takes_a_free_role_and_releases_it_without_a_wakeup() {
        let mut role = free();
        role.arrives(&1, YES);
        assert_eq!(role.reader(), Reader::Waiter);
        assert_eq!(role.release_role(YES), WakeAction::Nothing);
        assert_eq!(role.reader(), Reader::Nobody);
    }

    #[test]
    fn a_thread_that_has_its_answer_does_not_take_the_role() {
        let mut role = free();
        role.arrives(&1, NO);
        assert_eq!(role.reader(), Reader::Nobody);
    }

    #[test]
    fn a_thread_that_releases_the_role_passes_it_to_the_next_waiter() {
        let mut role = free();
        for waiter in 1..=3 {
            role.arrives(&waiter, YES);
        }
        role.leaves(|waiter| *waiter == 2);
        assert_eq!(role.release_role(YES), WakeAction::Wake(3));
        assert_eq!(role.release_role(YES), WakeAction::Nothing);
    }

    #[test]
    fn the_background_thread_takes_a_role_that_stayed_free() {
        let mut role = free();
        let before = role.changes();
        role.arrives(&1, YES);
        role.release_role(YES);
        role.background_looks(before);
        assert_eq!(role.reader(), Reader::Nobody, "another thread had it meanwhile");
        role.background_looks(role.changes());
        assert_eq!(role.reader(), Reader::Background);
    }

    #[test]
    fn the_background_thread_is_away_during_a_long_read_until_notified() {
        let mut role = free();
        role.arrives(&1, YES);
        role.background_looks(role.changes());
        assert!(role.is_away());
        role.arrives(&2, YES);
        assert_eq!(role.release_role(YES), WakeAction::Wake(2));
        assert!(role.is_away());
        assert_eq!(role.release_role(YES), WakeAction::Notify);
        assert!(!role.is_away());
    }
}
