//! How an operation attempts, parks, is settled, and leaves: the same steps for every operation on
//! a queue channel.
//!
//! Wakers are cloned and dropped outside the lock, since they are user code. So an operation that
//! has to park with a waker locks and attempts twice. The first attempt shows that it must park.
//! Then it unlocks, clones the waker, locks again, attempts again, and parks before it unlocks. If
//! the lock's hint says beforehand that the operation will park, it skips the first attempt.

use std::{
    mem::MaybeUninit,
    ptr::NonNull,
    task::{Poll, Waker},
};

use super::{
    Channel,
    node::{CLOSED, DONE, IDLE, Node, Parked, WAITING, Want},
    state::{Effects, Offer, State, Take},
};
use crate::{
    error::ErrorKind,
    lock::{Guard, Hint},
    metrics::count,
    sync::broken,
};

/// The list of the channel that a node goes into.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Send,
    Receive,
}

/// The panic message of a send that is used again after it has ended.
pub(super) const NOTHING_TO_SEND: &str =
    "a send that no longer has its value was used again: create another one with `send`";

/// Releases the lock and leaves the hint of what the next operation would find.
fn unlock<T>(state: Guard<'_, State<T>>) {
    let hint = state.hint();
    state.release(hint);
}

impl<T> Channel<T> {
    /// Attempts, and parks `node` if the attempt returns None. A caller that passes no lock in
    /// `state` expects to park.
    ///
    /// # Safety
    /// The node is pinned and IDLE. The caller calls [`Channel::leave`] before it drops a node that
    /// is parked.
    #[inline(always)]
    unsafe fn attempt_or_park<'a, R>(
        &'a self,
        state: Option<Guard<'a, State<T>>>,
        node: &Node<T>,
        (side, want): (Side, Want),
        waker: Option<&Waker>,
        effects: &mut Effects<T>,
        mut attempt: impl FnMut(&mut State<T>, &mut Effects<T>) -> Option<R>,
    ) -> Poll<R> {
        let mut cloned = if state.is_none() { waker.cloned() } else { None };
        let mut state = state.unwrap_or_else(|| self.lock(waker.is_some()));
        loop {
            if let Some(result) = attempt(&mut state, effects) {
                unlock(state);
                cloned.into_iter().for_each(|waker| effects.spare(waker));
                return Poll::Ready(result);
            }
            if cloned.is_some() || waker.is_none() {
                break;
            }
            unlock(state);
            cloned = waker.cloned();
            state = self.lock(true);
            if broken("attempt-again-before-parking") {
                break;
            }
        }
        let parked = Parked { waker: cloned, claim: None, want };
        // SAFETY: under the lock; the rest is the caller's promise.
        unsafe {
            match side {
                Side::Send => state.park_sender(NonNull::from(node), parked),
                Side::Receive => state.park_receiver(NonNull::from(node), parked),
            }
        }
        unlock(state);
        Poll::Pending
    }

    /// Makes sure that a parked node wakes `waker`. Ready if a peer settled the node meanwhile.
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
            // The node may have been a clause of a select that was leaked. That select is over, and
            // so is its claim.
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

    /// Takes a node off its list, if it is parked, and counts the reason. Returns false if a peer
    /// settled the node first.
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
            // SAFETY: under the lock, and the node was listed. The waker is dropped after the lock.
            let take = || unsafe { node.links(|links| links.parked.waker.take()) };
            let waker = if parked { take() } else { None };
            drop(state);
            drop(waker);
        }
        left
    }

    // ---- sending -------------------------------------------------------------------------

    /// Offers the value in `slot` without waiting. With `tries`, an offer that finds no room counts
    /// in `send_full`.
    #[inline(always)]
    pub(super) fn offer(&self, slot: &mut Option<T>, tries: bool) -> Offer {
        let mut state = self.lock(false);
        if state.offer_quickly(slot) {
            return Offer::Sent;
        }
        self.offer_slowly(state, slot, tries, |_| {})
    }

    /// Offers the value in the slot of a node that is not parked, without waiting.
    #[inline(always)]
    pub(super) fn offer_node(&self, node: &Node<T>, is_task: bool) -> Offer {
        let mut state = self.lock(is_task);
        // SAFETY: the caller is the owner of a node that is not parked.
        if unsafe { node.slot(|slot| state.offer_quickly(slot)) } {
            node.set_state(DONE);
            return Offer::Sent;
        }
        self.offer_node_slowly(state, node)
    }

    #[inline(never)]
    fn offer_node_slowly(&self, state: Guard<'_, State<T>>, node: &Node<T>) -> Offer {
        // The state is set before the effects run: if one panics, the node must not look as though
        // the send never began.
        let ended =
            |offer: Offer| offer.outcome().into_iter().for_each(|outcome| node.set_state(outcome));
        // SAFETY: the caller is the owner of a node that is not parked.
        unsafe { node.slot(|slot| self.offer_slowly(state, slot, false, ended)) }
    }

    #[inline(never)]
    fn offer_slowly(
        &self,
        mut state: Guard<'_, State<T>>,
        slot: &mut Option<T>,
        tries: bool,
        ended: impl FnOnce(Offer),
    ) -> Offer {
        let mut effects = Effects::none();
        let offer = state.offer_slowly(slot, &mut effects);
        if offer == Offer::Full {
            count!(state.counters, send_full += tries);
        }
        unlock(state);
        ended(offer);
        self.carry_out(&mut effects);
        offer
    }

    /// Offers the value in the node's slot, or parks with it. Ready with DONE, CLOSED (the value
    /// is still in the slot), DISCARDED, or SPENT (the value was gone before).
    ///
    /// # Safety
    /// The node is pinned. The caller calls [`Channel::leave`] before it drops a node that is
    /// parked.
    #[inline(always)]
    pub(super) unsafe fn poll_send(&self, node: &Node<T>, waker: Option<&Waker>) -> Poll<u8> {
        if node.state() != IDLE {
            return self.poll_parked_send(node, waker);
        }
        let state = if waker.is_some() && self.state.says(Hint::FULL) {
            None
        } else {
            let mut state = self.lock(waker.is_some());
            // SAFETY: the owner of an IDLE node may use its slot.
            if unsafe { node.slot(|slot| state.offer_quickly(slot)) } {
                node.set_state(DONE);
                return Poll::Ready(DONE);
            }
            Some(state)
        };
        // SAFETY: the caller's promise.
        unsafe { self.poll_send_slowly(state, node, waker) }
    }

    /// # Safety
    /// As for [`Channel::attempt_or_park`].
    #[inline(always)]
    unsafe fn poll_send_slowly<'a>(
        &'a self,
        state: Option<Guard<'a, State<T>>>,
        node: &Node<T>,
        waker: Option<&Waker>,
    ) -> Poll<u8> {
        // SAFETY: the owner of an IDLE node may use its slot.
        assert!(unsafe { node.slot(|slot| slot.is_some()) }, "{NOTHING_TO_SEND}");
        let mut effects = Effects::none();
        let as_sender = (Side::Send, Want::Value);
        // SAFETY: the owner of an IDLE node may use its slot; the rest is the caller's promise.
        let polled = unsafe {
            self.attempt_or_park(state, node, as_sender, waker, &mut effects, |state, effects| {
                node.slot(|slot| state.offer_slowly(slot, effects)).outcome()
            })
        };
        if let Poll::Ready(outcome) = polled {
            // The state is set before the effects run: if one panics, the node must not look as
            // though the send never began.
            node.set_state(outcome);
            self.carry_out(&mut effects);
        }
        polled
    }

    #[inline(never)]
    fn poll_parked_send(&self, node: &Node<T>, waker: Option<&Waker>) -> Poll<u8> {
        match node.state() {
            WAITING => self.renew(node, waker),
            outcome => Poll::Ready(outcome),
        }
    }

    /// Asks for room, or parks for it. Ready with DONE or CLOSED.
    ///
    /// # Safety
    /// As for [`Channel::poll_send`].
    pub(super) unsafe fn poll_reserve(&self, node: &Node<T>, waker: Option<&Waker>) -> Poll<u8> {
        if node.state() != IDLE {
            return self.poll_parked_send(node, waker);
        }
        let mut effects = Effects::none();
        let (state, as_permit) = (Some(self.state.lock()), (Side::Send, Want::Permit));
        // SAFETY: no peer knows the node yet; the rest is the caller's promise.
        let polled =
            unsafe {
                self.attempt_or_park(state, node, as_permit, waker, &mut effects, |state, _| {
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

    /// Moves a value to `place` without waiting. With `tries`, a take that finds no value counts in
    /// `recv_empty`.
    #[inline(always)]
    pub(super) fn take(&self, place: &mut MaybeUninit<T>, is_task: bool, tries: bool) -> Take {
        match self.take_quickly(is_task, |value| _ = place.write(value)) {
            Ok(()) => Take::Taken,
            Err(state) => self.take_slowly(state, place, tries),
        }
    }

    /// Passes a value to `put`, if the fast path applies. Returns the held lock otherwise.
    #[inline(always)]
    pub(super) fn take_quickly(
        &self,
        is_task: bool,
        put: impl FnOnce(T),
    ) -> Result<(), Guard<'_, State<T>>> {
        let mut state = self.lock(is_task);
        let Some(slot) = state.take_quickly() else { return Err(state) };
        // SAFETY: the value was taken out of the buffer, and moves on once, still under the lock.
        put(unsafe { slot.read() });
        let hint = Hint::EMPTY.when(state.is_plainly_empty());
        state.release(hint);
        Ok(())
    }

    #[inline(never)]
    pub(super) fn take_slowly(
        &self,
        mut state: Guard<'_, State<T>>,
        place: &mut MaybeUninit<T>,
        tries: bool,
    ) -> Take {
        let mut effects = Effects::none();
        let take = state.take_slowly(place, &mut effects);
        if take == Take::Empty {
            count!(state.counters, recv_empty += tries);
        }
        unlock(state);
        if take == Take::Taken {
            // SAFETY: a value was taken, so the place is written.
            unsafe { self.deliver(&mut effects, place) };
        }
        take
    }

    /// Moves a value to `place`, or parks for one. Ready with `Taken` or `Closed`. Then the node is
    /// IDLE again.
    ///
    /// # Safety
    /// The node is pinned. The caller calls [`Channel::leave`] before it drops a node that is
    /// parked.
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
        let state = if waker.is_some() && self.state.says(Hint::EMPTY) {
            None
        } else {
            match self.take_quickly(waker.is_some(), |value| _ = place.write(value)) {
                Ok(()) => return Poll::Ready(Take::Taken),
                Err(state) => Some(state),
            }
        };
        // SAFETY: the caller's promise.
        unsafe { self.poll_recv_slowly(state, node, place, waker) }
    }

    /// # Safety
    /// As for [`Channel::attempt_or_park`].
    #[inline(always)]
    unsafe fn poll_recv_slowly<'a>(
        &'a self,
        state: Option<Guard<'a, State<T>>>,
        node: &Node<T>,
        place: &mut MaybeUninit<T>,
        waker: Option<&Waker>,
    ) -> Poll<Take> {
        let mut effects = Effects::none();
        let as_receiver = (Side::Receive, Want::Value);
        // SAFETY: the caller's promise.
        let polled = unsafe {
            self.attempt_or_park(state, node, as_receiver, waker, &mut effects, |state, effects| {
                Some(state.take_slowly(place, effects)).filter(|take| *take != Take::Empty)
            })
        };
        match polled {
            // SAFETY: a value was taken, so the place is written.
            Poll::Ready(Take::Taken) => unsafe { self.deliver(&mut effects, place) },
            Poll::Ready(_) => self.carry_out(&mut effects),
            Poll::Pending => {}
        }
        polled
    }

    #[inline(never)]
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

    /// Ends a receive that may be parked or filled: it leaves, or puts its value back.
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
        // SAFETY: under the lock; a node with a value has its hand-off number.
        let ticket = unsafe { node.links(|links| links.ticket) };
        state.give_back(ticket, value, &mut effects);
        drop(state);
        node.set_state(IDLE);
        self.carry_out(&mut effects);
    }
}
