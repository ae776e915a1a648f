//! The results of a step of a channel, and the work that is left for after the lock is released.

use std::task::Waker;

use crate::queue::node::{CLOSED, DISCARDED, DONE};

/// The work that an operation leaves for outside the lock. If there is none, only `any` is read.
pub(crate) struct Effects<T> {
    pub(crate) any: bool,
    /// Whether to sample the operation.
    pub(crate) sampled: bool,
    pub(crate) wake: Option<Waker>,
    /// A waker that was not needed after all.
    pub(crate) spare: Option<Waker>,
    pub(crate) discard: Option<T>,
    /// The hand-off number of the value that was taken, in case it goes back.
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

/// How a channel responded to an offered value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offer {
    /// The value was taken.
    Sent,
    /// The value was taken and discarded (`DropNewest`).
    Discarded,
    /// The value is where it was: there is no room.
    Full,
    /// The value is where it was: the channel is closed.
    Closed,
}

impl Offer {
    /// Returns how the send that made this offer has ended. None if it has not.
    pub(crate) fn outcome(self) -> Option<u8> {
        match self {
            Offer::Sent => Some(DONE),
            Offer::Discarded => Some(DISCARDED),
            Offer::Closed => Some(CLOSED),
            Offer::Full => None,
        }
    }
}

/// The result of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Take {
    /// A value, which is now in the caller's place.
    Taken,
    /// No value yet.
    Empty,
    /// No value, now or ever: the channel is closed and drained.
    Closed,
}
