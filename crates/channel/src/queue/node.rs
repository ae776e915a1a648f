//! A parked operation: a node that lives inside the operation itself (its future, or the waiting
//! thread's stack) and is linked into its channel's list. Parking allocates nothing.
//!
//! Which party may touch what:
//! - `links`: only under the channel's lock.
//! - `slot`: the owner while the node is not WAITING; the peer that took the node off its list
//!   (under the lock) until that peer stores the outcome in `state`.
//! - `state`: written under the lock, or by the owner while the node is in no list. The owner may
//!   read it without the lock. A peer's *last* touch of a node is to store an outcome (Release). So
//!   an owner that reads an outcome (Acquire) owns the whole node again and may free it without the
//!   lock.
//! - An owner that wants to free a WAITING node first takes the lock and unlinks the node.
//!
//! The nodes of a select share a [`Claim`]. A peer may use such a node only after it has won the
//! claim. The select's owner then frees nothing before it has taken this channel's lock once more.

use std::{marker::PhantomPinned, mem::MaybeUninit, ptr::NonNull, task::Waker};

use crate::{
    select::Claim,
    sync::{AtomicU8, Ordering, Shared},
};

/// In no list. Nothing has happened.
pub(crate) const IDLE: u8 = 0;
/// In a list.
pub(crate) const WAITING: u8 = 1;
/// Outcome: the value moved (into a receiver's slot, out of a sender's), or the permit was granted.
pub(crate) const DONE: u8 = 2;
/// Outcome: the channel closed.
pub(crate) const CLOSED: u8 = 3;
/// Outcome of a send attempt, never of a parked send: `DropNewest` has discarded the value.
pub(crate) const DISCARDED: u8 = 4;

/// A send whose value is gone: a reusable clause until its refill, or a send that gave its value
/// back.
pub(crate) const SPENT: u8 = 5;

/// The purpose of a parked sender.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Want {
    /// To hand over the value in its slot. Parked receivers carry this, too.
    Value,
    /// Room for a value it will send later.
    Permit,
}

pub(crate) struct Node<T> {
    state: AtomicU8,
    /// Written when the node is listed for the first time. Nothing in it needs dropping: the party
    /// that takes the node off its list takes the waker, too.
    links: Shared<MaybeUninit<Links<T>>>,
    slot: Shared<Option<T>>,
    _pinned: PhantomPinned,
}

/// The part of a node that the channel's lock guards.
pub(crate) struct Links<T> {
    previous: NonNull<Node<T>>,
    next: NonNull<Node<T>>,
    pub(crate) parked: Parked,
    /// The hand-off number of the value in a filled receiver's slot.
    pub(crate) ticket: u64,
}

/// The facts about its owner that a listed node shows to its peers.
pub(crate) struct Parked {
    /// Wakes the owner. None while the owner spins, and for a select, whose waker is in its claim.
    pub(crate) waker: Option<Waker>,
    /// The claim of the select that this node is a clause of, and the index of the clause.
    pub(crate) claim: Option<(NonNull<Claim>, u32)>,
    pub(crate) want: Want,
}

impl<T> Links<T> {
    /// Returns whether a peer may have this operation. If it is a clause of a select, the peer has
    /// to win the claim.
    #[inline(always)]
    fn win(&mut self) -> bool {
        // SAFETY: a claim lives as long as any node of its select is in a list.
        self.parked.claim.is_none_or(|(claim, clause)| unsafe { claim.as_ref() }.try_win(clause))
    }

    fn is_open(&self) -> bool {
        // SAFETY: as above.
        self.parked.claim.is_none_or(|(claim, _)| unsafe { claim.as_ref() }.is_open())
    }
}

impl<T> Node<T> {
    #[inline(always)]
    pub(crate) fn new(value: Option<T>) -> Node<T> {
        let mut node = MaybeUninit::<Node<T>>::uninit();
        let place = node.as_mut_ptr();
        // SAFETY: the only field left unwritten is `MaybeUninit`. (The model checker needs it
        // written.) Fields are written one by one: the compiler would copy a struct literal from a
        // constant, `links` included, for every message.
        unsafe {
            (&raw mut (*place).state).write(AtomicU8::new(IDLE));
            (&raw mut (*place).slot).write(Shared::new(value));
            #[cfg(marline_model)]
            (&raw mut (*place).links).write(Shared::new(MaybeUninit::uninit()));
            node.assume_init()
        }
    }

    /// Fills the slot as a peer would: with a value that the owner has taken from the channel, and
    /// its hand-off number.
    ///
    /// # Safety
    /// The caller is the owner of a node that is IDLE.
    pub(crate) unsafe fn fill(&self, value: T, ticket: u64) {
        let nowhere = NonNull::from(self);
        let parked = Parked { waker: None, claim: None, want: Want::Value };
        // SAFETY: only the owner can reach an IDLE node.
        unsafe {
            self.links.with(|links| {
                links.write(Links { previous: nowhere, next: nowhere, parked, ticket });
            });
            self.slot(|slot| *slot = Some(value));
        }
    }

    /// Returns the state, for the owner.
    #[inline(always)]
    pub(crate) fn state(&self) -> u8 {
        self.state.load(Ordering::Acquire)
    }

    /// Sets the state: while no peer can see the node, or under the lock.
    #[inline(always)]
    pub(crate) fn set_state(&self, state: u8) {
        self.state.store(state, Ordering::Release);
    }

    /// # Safety
    /// Under the channel's lock, on a node that has been listed.
    #[inline(always)]
    pub(crate) unsafe fn links<R>(&self, f: impl FnOnce(&mut Links<T>) -> R) -> R {
        // SAFETY: the lock makes it exclusive, and listing has written it.
        unsafe { self.links.with(|links| f(links.assume_init_mut())) }
    }

    /// # Safety
    /// The caller is the owner, and the node is not WAITING; or it is the peer that took the node
    /// off its list.
    #[inline(always)]
    pub(crate) unsafe fn slot<R>(&self, f: impl FnOnce(&mut Option<T>) -> R) -> R {
        // SAFETY: exclusive by the caller's promise.
        unsafe { self.slot.with(f) }
    }

    /// Ends a node that was taken off its list: stores `outcome` and returns the waker to wake.
    /// The caller must not touch the node afterwards.
    ///
    /// # Safety
    /// Under the channel's lock, on a node that [`List::claim_front`] or [`List::claim_first`]
    /// returned.
    #[inline(always)]
    pub(crate) unsafe fn settle(node: NonNull<Node<T>>, outcome: u8) -> Option<Waker> {
        // SAFETY: the node is alive until the outcome is stored; the lock guards its links, and a
        // claim that was won gives its waker to the winner.
        unsafe {
            let node = node.as_ref();
            let waker = node.links(|links| match links.parked.claim {
                None => links.parked.waker.take(),
                Some((claim, _)) => claim.as_ref().take_waker(),
            });
            node.set_state(outcome);
            waker
        }
    }
}

/// The parked operations of one side of a channel, in order of arrival: a circular list of nodes.
pub(crate) struct List<T> {
    head: Option<NonNull<Node<T>>>,
    len: u32,
}

impl<T> List<T> {
    pub(crate) const fn new() -> List<T> {
        List { head: None, len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// # Safety
    /// Under the channel's lock; the node is pinned and IDLE. The caller makes sure that the node
    /// is off the list before it is dropped.
    pub(crate) unsafe fn push_back(&mut self, node: NonNull<Node<T>>, parked: Parked) {
        // SAFETY: the caller's promise; nodes in the list are alive.
        unsafe {
            let head = self.head.unwrap_or(node);
            let tail = self.head.map_or(node, |head| head.as_ref().links(|links| links.previous));
            node.as_ref().links.with(|links| {
                links.write(Links { previous: tail, next: head, parked, ticket: 0 });
            });
            if tail != node {
                tail.as_ref().links(|links| links.next = node);
                head.as_ref().links(|links| links.previous = node);
            }
            node.as_ref().set_state(WAITING);
            self.head = Some(head);
        }
        self.len += 1;
    }

    /// Takes a WAITING node off the list. The caller sets its state.
    ///
    /// # Safety
    /// Under the channel's lock; the node is in this list.
    #[inline(always)]
    pub(crate) unsafe fn remove(&mut self, node: NonNull<Node<T>>) {
        // SAFETY: neighbours in the list are alive.
        unsafe {
            let (previous, next) = node.as_ref().links(|links| (links.previous, links.next));
            if next == node {
                self.head = None;
            } else {
                previous.as_ref().links(|links| links.next = next);
                next.as_ref().links(|links| links.previous = previous);
                if self.head == Some(node) {
                    self.head = Some(next);
                }
            }
        }
        self.len -= 1;
    }

    /// Takes the first operation that is still open. On the way it takes clauses of selects that
    /// were decided elsewhere off the list, so `None` means that the list is now empty.
    ///
    /// # Safety
    /// Under the channel's lock. The node returned must be settled before the lock is released.
    #[inline(always)]
    pub(crate) unsafe fn claim_front(&mut self) -> Option<NonNull<Node<T>>> {
        loop {
            let node = self.head?;
            // SAFETY: the head is in this list, and alive while it is.
            if unsafe { self.claim(node) } {
                return Some(node);
            }
        }
    }

    /// Takes a node off the list. Returns whether the caller may have its operation.
    ///
    /// # Safety
    /// Under the channel's lock; the node is in this list.
    #[inline(always)]
    unsafe fn claim(&mut self, node: NonNull<Node<T>>) -> bool {
        // SAFETY: the caller's promise.
        unsafe {
            self.remove(node);
            let won = node.as_ref().links(Links::win);
            if !won {
                node.as_ref().set_state(IDLE);
            }
            won
        }
    }

    /// Like [`List::claim_front`], for the first open operation that is `fit`. Operations that are
    /// not `fit` stay listed.
    ///
    /// # Safety
    /// As for [`List::claim_front`].
    pub(crate) unsafe fn claim_first(
        &mut self,
        fit: impl Fn(&Links<T>) -> bool,
    ) -> Option<NonNull<Node<T>>> {
        let mut at = self.head?;
        for _ in 0..self.len {
            let node = at;
            // SAFETY: nodes in the list are alive, and the lock guards their links.
            unsafe {
                let (fits, next) = node.as_ref().links(|links| (fit(links), links.next));
                at = next;
                if fits && self.claim(node) {
                    return Some(node);
                }
            }
        }
        None
    }

    /// Whether an operation that is `fit` could be claimed right now.
    ///
    /// # Safety
    /// Under the channel's lock.
    pub(crate) unsafe fn any_open(&self, fit: impl Fn(&Links<T>) -> bool) -> bool {
        let Some(mut at) = self.head else { return false };
        for _ in 0..self.len {
            // SAFETY: nodes in the list are alive.
            let (open, next) =
                unsafe { at.as_ref().links(|links| (fit(links) && links.is_open(), links.next)) };
            if open {
                return true;
            }
            at = next;
        }
        false
    }
}
