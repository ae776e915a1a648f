//! What a step of a channel leads to: its result, and what is left to do once the lock is released.

use std::task::Waker;

use crate::queue::node::{CLOSED, DISCARDED, DONE};

/// What an operation leaves to be done outside the lock. `any` is all that is looked at when there
/// is nothing.
pub(crate) struct Effects<T> {
    pub(crate) any: bool,
    /// The operation is one to sample.
    pub(crate) sampled: bool,
    pub(crate) wake: Option<Waker>,
    /// A waker that was not needed after all.
    pub(crate) spare: Option<Waker>,
    pub(crate) discard: Option<T>,
    /// The hand-off number of the value that was taken, should it go back.
    pub(crate) ticket: u64,
}

impl<T> Effects<T> {
    #[inline(always)]
    pub(crate) const fn none() -> Effects<T> {
        Effects { any: false, sampled: false, wake: None, spare: None, discard: None, ticket: 0 }
    }

    pub(super) fn wake(&mut self, waker: Option<Waker>) {
        self.any |= waker.is_some();
        self.wake = waker;
    }

    pub(super) fn sample(&mut self) {
        self.any = true;
        self.sampled = true;
    }

    pub(crate) fn spare(&mut self, waker: Waker) {
        self.any = true;
        self.spare = Some(waker);
    }

    pub(super) fn discard(&mut self, value: Option<T>) {
        self.any |= value.is_some();
        self.discard = value;
    }
}

/// What became of an offered value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offer {
    /// Taken.
    Sent,
    /// Taken and discarded (`DropNewest`).
    Discarded,
    /// Left where it was: no room.
    Full,
    /// Left where it was: closed.
    Closed,
}

impl Offer {
    /// How a send that made it has ended; none when it has not.
    pub(crate) fn outcome(self) -> Option<u8> {
        match self {
            Offer::Sent => Some(DONE),
            Offer::Discarded => Some(DISCARDED),
            Offer::Closed => Some(CLOSED),
            Offer::Full => None,
        }
    }
}

/// What a receiver found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Take {
    /// A value, now in the place given.
    Taken,
    /// Nothing yet.
    Empty,
    /// Nothing, and never again.
    Closed,
}
