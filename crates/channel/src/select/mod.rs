//! A select waits for the first of any mix of send and receive clauses, from threads and tasks.
//!
//! How one clause wins, and only one:
//! - A select that must wait takes the locks of all its queue channels at once (in address order,
//!   so that two selects cannot deadlock). It sees that no clause could end now, and puts one node
//!   per clause into the channels' lists. All nodes share its [`Claim`].
//! - A peer that meets such a node, under that channel's lock, must win the claim to use it: one
//!   compare-and-swap from OPEN to that clause. A peer that loses takes the node off its list and
//!   goes on to the next node.
//! - An owner that gives up (deadline, cancel, drop) must win the claim, too. Whether it wins or
//!   loses, it then takes every node off its list, each under its channel's lock. Only after that
//!   may the claim and the nodes go. So no peer ever sees a dead claim.
//! - The peer that won takes the waker out of the claim. No other party touches the waker while the
//!   claim is in lists, and the owner changes it only when the claim is in none.
//!
//! Losing clauses keep their values. Clauses that are not queues (oneshot, broadcast, watch) have
//! nothing for a peer to race for: they only wake the select, and its owner first wins its own
//! claim.

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

// SAFETY: one party at a time reaches the waker, as the module says.
unsafe impl Send for Claim {}
// SAFETY: as above.
unsafe impl Sync for Claim {}

impl Claim {
    fn new() -> Claim {
        Claim { word: AtomicU32::new(OPEN), waker: Shared::new(None) }
    }

    /// Opens the claim again, while it is in no list. Returns the old waker.
    fn open(&self, waker: Option<Waker>) -> Option<Waker> {
        self.word.store(OPEN, Ordering::Relaxed);
        // SAFETY: the claim is in no list, so no peer knows it.
        unsafe { self.waker.with(|held| std::mem::replace(held, waker)) }
    }

    /// Tries to end the select with `clause`, for a peer. Returns whether the peer won.
    #[inline]
    pub(crate) fn try_win(&self, clause: u32) -> bool {
        if broken("claim") {
            self.word.store(clause + 1, Ordering::Release);
            return true;
        }
        self.word.compare_exchange(OPEN, clause + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Tries to end the select without a peer, for the owner. Returns whether the owner won.
    fn try_give_up(&self) -> bool {
        self.word.compare_exchange(OPEN, GIVEN_UP, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    pub(crate) fn is_open(&self) -> bool {
        self.word.load(Ordering::Acquire) == OPEN
    }

    /// Returns the clause that a peer chose.
    fn winner(&self) -> Option<usize> {
        match self.word.load(Ordering::Acquire) {
            OPEN | GIVEN_UP => None,
            clause => Some(clause as usize - 1),
        }
    }

    /// # Safety
    /// The caller is the peer that won, and has not released the channel's lock yet.
    pub(crate) unsafe fn take_waker(&self) -> Option<Waker> {
        // SAFETY: the waker is the winner's alone until the owner has taken that lock.
        unsafe { self.waker.with(|waker| waker.take()) }
    }
}
