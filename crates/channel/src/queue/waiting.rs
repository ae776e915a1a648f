//! How an operation attempts, parks, is told, and leaves: the same steps for every operation on a
//! queue channel, whatever it wants.
//!
//! Wakers are cloned and dropped outside the lock, since they are user code. So an operation that
//! has to park with one attempts twice: once to see that it must park, and once more under the
//! lock in which it parks.

use std::{
    mem::MaybeUninit,
    ptr::NonNull,
    task::{Poll, Waker},
};

use super::{
    Channel,
    node::{CLOSED, DISCARDED, DONE, IDLE, Node, Parked, TAKEN, WAITING, Want},
    state::{Effects, Offer, State, Take},
};
use crate::{error::ErrorKind, metrics::count, sync::broken};

/// Which list of the channel a node is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Send,
    Receive,
}

impl<T> Channel<T> {
    /// Attempts; parks `node` when the attempt gives nothing.
    ///
    /// # Safety
    /// The node is pinned, IDLE, and will leave (see [`Channel::leave`]) before it goes.
    #[inline(always)]
    unsafe fn attempt_or_park<R>(
        &self,
        node: &Node<T>,
        side: Side,
        want: Want,
        waker: Option<&Waker>,
        effects: &mut Effects<T>,
        mut attempt: impl FnMut(&mut State<T>, &mut Effects<T>) -> Option<R>,
    ) -> Poll<R> {
        let mut state = self.state.lock();
        if let Some(result) = attempt(&mut state, effects) {
            return Poll::Ready(result);
        }
        let waker = match waker {
            None => None,
            Some(waker) => {
                drop(state);
                let waker = waker.clone();
                state = self.state.lock();
                if !broken("attempt-again-before-parking")
                    && let Some(result) = attempt(&mut state, effects)
                {
                    effects.spare(waker);
                    return Poll::Ready(result);
                }
                Some(waker)
            }
        };
        let parked = Parked { waker, claim: None, want };
        // SAFETY: under the lock; the rest is the caller's promise.
        unsafe {
            match side {
                Side::Send => state.park_sender(NonNull::from(node), parked),
                Side::Receive => state.park_receiver(NonNull::from(node), parked),
            }
        }
        Poll::Pending
    }

    /// Sees to it that a parked node wakes `waker`. Ready when the node was settled meanwhile.
    fn renew(&self, node: &Node<T>, waker: Option<&Waker>) -> Poll<u8> {
        let Some(waker) = waker else {
            return match node.state() {
                WAITING => Poll::Pending,
                outcome => Poll::Ready(outcome),
            };
        };
        let state = self.state.lock();
        // SAFETY: under the lock.
        let same = unsafe {
            // A select that was leaked no longer speaks for it.
            node.links(|links| {
                links.parked.claim = None;
                links.parked.waker.as_ref().is_some_and(|held| held.will_wake(waker))
            })
        };
        if node.state() == WAITING && same {
            return Poll::Pending;
        }
        drop(state);
        let mut waker = Some(waker.clone());
        let state = self.state.lock();
        if node.state() == WAITING {
            // SAFETY: under the lock.
            unsafe { node.links(|links| std::mem::swap(&mut links.parked.waker, &mut waker)) };
            drop(state);
            return Poll::Pending;
        }
        drop(state);
        Poll::Ready(node.state())
    }

    /// Takes a node off its list, if it is parked, and counts why; false when a peer was faster.
    #[inline(never)]
    pub(super) fn leave(&self, node: &Node<T>, side: Side, why: ErrorKind) -> bool {
        let mut state = self.state.lock();
        let parked = node.state() == WAITING;
        // SAFETY: under the lock; the node is on the side it was parked on.
        let left = node.state() == IDLE || unsafe { state.unpark(node, side == Side::Send) };
        if left {
            match (side, why) {
                (Side::Send, ErrorKind::Timeout) => count!(state.counters, send_timeout += 1),
                (Side::Send, _) => count!(state.counters, send_cancelled += 1),
                (Side::Receive, ErrorKind::Timeout) => count!(state.counters, recv_timeout += 1),
                (Side::Receive, _) => count!(state.counters, recv_cancelled += 1),
            }
            // SAFETY: under the lock, after having been listed; the waker is dropped after it.
            let take = || unsafe { node.links(|links| links.parked.waker.take()) };
            let waker = if parked { take() } else { None };
            drop(state);
            drop(waker);
        }
        left
    }

    // ---- sending -------------------------------------------------------------------------

    /// Offers the value in the node's slot, or parks with it. Ready with DONE, CLOSED (the value
    /// is still there) or DISCARDED.
    ///
    /// # Safety
    /// As for [`Channel::attempt_or_park`], for a node that is IDLE.
    #[inline(always)]
    pub(super) unsafe fn poll_send(&self, node: &Node<T>, waker: Option<&Waker>) -> Poll<u8> {
        match node.state() {
            IDLE => {}
            WAITING => return self.renew(node, waker),
            outcome => return Poll::Ready(outcome),
        }
        let mut effects = Effects::none();
        // SAFETY: the owner of an IDLE node may use its slot; the rest is the caller's promise.
        let polled = unsafe {
            self.attempt_or_park(
                node,
                Side::Send,
                Want::Value,
                waker,
                &mut effects,
                |state, effects| match node.slot(|slot| state.offer(slot, effects)) {
                    Offer::Sent => Some(DONE),
                    Offer::Discarded => Some(DISCARDED),
                    Offer::Closed => Some(CLOSED),
                    Offer::Full => None,
                },
            )
        };
        if let Poll::Ready(outcome) = polled {
            // Before the effects: should one panic, the node must not look as though it never began.
            node.set_state(outcome);
            self.carry_out(&mut effects);
        }
        polled
    }

    /// Asks for room, or parks for it. Ready with DONE or CLOSED.
    ///
    /// # Safety
    /// As for [`Channel::poll_send`].
    pub(super) unsafe fn poll_reserve(&self, node: &Node<T>, waker: Option<&Waker>) -> Poll<u8> {
        match node.state() {
            IDLE => {}
            WAITING => return self.renew(node, waker),
            outcome => return Poll::Ready(outcome),
        }
        let mut effects = Effects::none();
        // SAFETY: nobody else knows the node yet; the rest is the caller's promise.
        let polled = unsafe {
            self.attempt_or_park(node, Side::Send, Want::Permit, waker, &mut effects, |state, _| {
                match state.try_reserve() {
                    Ok(()) => Some(DONE),
                    Err(ErrorKind::Closed) => Some(CLOSED),
                    Err(_) => None,
                }
            })
        };
        if let Poll::Ready(outcome) = polled {
            node.set_state(outcome);
            self.carry_out(&mut effects);
        }
        polled
    }

    // ---- receiving -----------------------------------------------------------------------

    /// Moves a value to `place`, or parks for one. Ready with `Taken` or `Closed`; the node is IDLE
    /// again then.
    ///
    /// # Safety
    /// As for [`Channel::attempt_or_park`].
    #[inline(always)]
    pub(super) unsafe fn poll_recv(
        &self,
        node: &Node<T>,
        place: &mut MaybeUninit<T>,
        waker: Option<&Waker>,
    ) -> Poll<Take> {
        if node.state() != IDLE {
            return self.poll_parked_recv(node, place, waker);
        }
        let mut effects = Effects::none();
        // SAFETY: the caller's promise.
        let polled = unsafe {
            self.attempt_or_park(
                node,
                Side::Receive,
                Want::Value,
                waker,
                &mut effects,
                |state, effects| {
                    Some(state.take(place, effects)).filter(|take| *take != Take::Empty)
                },
            )
        };
        match polled {
            // SAFETY: taken, so the place is written.
            Poll::Ready(Take::Taken) => unsafe { self.deliver(&mut effects, place) },
            Poll::Ready(_) => self.carry_out(&mut effects),
            Poll::Pending => {}
        }
        polled
    }

    #[cold]
    fn poll_parked_recv(
        &self,
        node: &Node<T>,
        place: &mut MaybeUninit<T>,
        waker: Option<&Waker>,
    ) -> Poll<Take> {
        let outcome = match node.state() {
            WAITING => match self.renew(node, waker) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(outcome) => outcome,
            },
            outcome => outcome,
        };
        node.set_state(IDLE);
        if outcome == CLOSED {
            return Poll::Ready(Take::Closed);
        }
        // SAFETY: a settled node is its owner's again.
        place.write(unsafe { node.slot(|slot| slot.take()) }.expect("a filled slot"));
        Poll::Ready(Take::Taken)
    }

    /// Ends a receive that may be parked or filled: leaves, or puts the value back.
    #[cold]
    #[inline(never)]
    pub(super) fn drop_recv(&self, node: &Node<T>) {
        if node.state() == IDLE || self.leave(node, Side::Receive, ErrorKind::Cancelled) {
            return;
        }
        // SAFETY: settled, so the slot is the owner's again.
        let Some(value) = (unsafe { node.slot(|slot| slot.take()) }) else { return };
        let mut effects = Effects::none();
        let mut state = self.state.lock();
        let ticket = match node.state() {
            TAKEN => 0,
            // SAFETY: under the lock, after having been listed.
            _ => unsafe { node.links(|links| links.ticket) },
        };
        state.give_back(ticket, value, &mut effects);
        drop(state);
        node.set_state(IDLE);
        self.carry_out(&mut effects);
    }
}
