//! Waiting for whichever comes first: any mix of send and receive clauses, from threads and tasks.
//!
//! How one clause wins, and only one:
//! - A select that must wait takes the locks of all its queue channels at once (in address order,
//!   so two selects cannot lock each other out), sees that no clause could end now, and puts one
//!   node per clause into the channels' lists. All nodes share its [`Claim`].
//! - A peer that meets such a node, under that channel's lock, must win the claim to use it: one
//!   compare-and-swap from OPEN to that clause. Whoever loses takes the node off its list and looks
//!   at the next.
//! - The owner that gives up (deadline, cancel, drop) must win the claim too. Having won or lost it,
//!   it takes every node off its list, each under its channel's lock; only then may the claim and
//!   the nodes go. So no peer ever sees a dead claim.
//! - The peer that won takes the waker out of the claim: nobody else touches it while the claim is
//!   in lists, and the owner changes it only when it is in none.
//!
//! Losing clauses keep their values. Clauses that are not queues (oneshot, broadcast, watch) hand
//! out nothing to race for: they only wake the select, whose owner then wins its own claim first.

mod clause;
mod macros;
mod race;
mod selector;
mod turn;
mod typed;

pub use clause::Clause;
pub(crate) use clause::ClauseAction;
pub use selector::{Next, RecvKey, Selecting, Selector, SendKey};
pub use typed::{Arms, Clauses, Race, Select};

use std::task::Waker;

use crate::sync::{AtomicU32, Ordering, Shared, broken};

const OPEN: u32 = 0;
const GIVEN_UP: u32 = u32::MAX;

/// The one word that decides a select: OPEN, GIVEN_UP, or 1 + the clause that won.
pub struct Claim {
    word: AtomicU32,
    waker: Shared<Option<Waker>>,
}

// SAFETY: the waker is reached by one party at a time, as the module says.
unsafe impl Send for Claim {}
// SAFETY: as above.
unsafe impl Sync for Claim {}

impl Claim {
    fn new() -> Claim {
        Claim { word: AtomicU32::new(OPEN), waker: Shared::new(None) }
    }

    /// Opens the claim again, in no list; returns the old waker.
    fn open(&self, waker: Option<Waker>) -> Option<Waker> {
        self.word.store(OPEN, Ordering::Relaxed);
        // SAFETY: in no list, so nobody else knows it.
        unsafe { self.waker.with(|held| std::mem::replace(held, waker)) }
    }

    /// A peer's attempt to end the select with this clause.
    #[inline]
    pub(crate) fn try_win(&self, clause: u32) -> bool {
        if broken("claim") {
            self.word.store(clause + 1, Ordering::Release);
            return true;
        }
        self.word.compare_exchange(OPEN, clause + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// The owner's attempt to end the select without a peer.
    fn try_give_up(&self) -> bool {
        self.word.compare_exchange(OPEN, GIVEN_UP, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    pub(crate) fn is_open(&self) -> bool {
        self.word.load(Ordering::Acquire) == OPEN
    }

    /// The clause a peer chose.
    fn winner(&self) -> Option<usize> {
        match self.word.load(Ordering::Acquire) {
            OPEN | GIVEN_UP => None,
            clause => Some(clause as usize - 1),
        }
    }

    /// # Safety
    /// For the peer that won, before it releases the channel's lock.
    pub(crate) unsafe fn take_waker(&self) -> Option<Waker> {
        // SAFETY: the winner's alone until the owner has been through that lock.
        unsafe { self.waker.with(|waker| waker.take()) }
    }
}
