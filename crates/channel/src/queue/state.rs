//! The decisions of a queue channel, one for all four kinds: rendezvous is capacity 0, unbounded
//! is capacity without end, conflated is capacity 1 with `DropOldest`.
//!
//! Every function runs under the channel's lock and runs no user code: what is to be woken or
//! dropped leaves through [`Effects`], and the caller deals with it after unlocking.
//!
//! What always holds when the lock is free ([`State::check_invariants`]):
//! 1. a receiver waits only when there is nothing to take: nothing buffered, nothing returned, no
//!    parked sender with a value;
//! 2. a sender waits only when there is no room;
//! 3. nobody waits on a closed channel; nothing is held on one without receivers.
//!
//! They are kept by doing the whole hand-off in one step: whoever makes room admits the first
//! parked sender before it unlocks, and whoever brings a value gives it to the first parked
//! receiver. So parked operations are served in order, and a loop of `try_*` cannot overtake them.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    ptr::NonNull,
    task::Waker,
};

use super::{
    Overflow,
    buffer::Buffer,
    node::{CLOSED, DONE, IDLE, List, Node, Want},
};
use crate::{
    error::ErrorKind,
    metrics::{Counters, count},
    sync::broken,
};

/// The capacity of an unbounded channel.
pub(crate) const UNBOUNDED: usize = usize::MAX;

pub(crate) struct State<T> {
    buffer: Buffer<T>,
    /// Values whose receive was dropped after the hand-off, by hand-off number; taken first.
    returned: VecDeque<(u64, T)>,
    waiting_senders: List<T>,
    waiting_receivers: List<T>,
    capacity: usize,
    /// Room promised to permits.
    reserved: usize,
    /// `returned.len() + reserved`, so that the usual path looks at one number.
    set_aside: usize,
    overflow: Overflow,
    closed: bool,
    next_ticket: u64,
    pub(super) senders: usize,
    pub(super) receivers: usize,
    measure: Option<fn(&T) -> usize>,
    pub(crate) counters: Counters,
}

// SAFETY: the lists point at nodes that are only touched under the lock this state lives behind
// (or by the rules of `node`), and those hold wakers and values, which are `Send`.
unsafe impl<T: Send> Send for State<T> {}

/// What an operation leaves to be done outside the lock.
pub(crate) struct Effects<T> {
    pub(crate) wake: Option<Waker>,
    pub(crate) discard: Option<T>,
    /// Somebody observes this channel and may be due a snapshot.
    pub(crate) observed: bool,
}

impl<T> Effects<T> {
    #[inline(always)]
    pub(crate) const fn none() -> Effects<T> {
        Effects { wake: None, discard: None, observed: false }
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

/// The wakers of one round of a close.
pub(crate) const WAKES_PER_ROUND: usize = 32;

impl<T> State<T> {
    pub(super) fn new(
        capacity: usize,
        overflow: Overflow,
        measure: Option<fn(&T) -> usize>,
    ) -> State<T> {
        State {
            buffer: Buffer::new(),
            returned: VecDeque::new(),
            waiting_senders: List::new(),
            waiting_receivers: List::new(),
            capacity,
            reserved: 0,
            set_aside: 0,
            overflow,
            closed: false,
            next_ticket: 0,
            senders: 1,
            receivers: 1,
            measure,
            counters: Counters::default(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.buffer.len() + self.returned.len()
    }

    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    pub(super) fn overflow(&self) -> Overflow {
        self.overflow
    }

    pub(super) fn set_overflow(&mut self, overflow: Overflow) {
        self.overflow = overflow;
    }

    pub(super) fn waiting(&self) -> (usize, usize) {
        (self.waiting_senders.len(), self.waiting_receivers.len())
    }

    #[inline(always)]
    pub(super) fn has_room(&self) -> bool {
        self.buffer.len() + self.set_aside < self.capacity
    }

    // ---- sending -------------------------------------------------------------------------

    /// Takes the value out of `value` if the channel can have it now.
    #[inline(always)]
    pub(crate) fn offer(&mut self, value: &mut Option<T>, effects: &mut Effects<T>) -> Offer {
        if self.closed {
            count!(self.counters, send_closed += 1);
            return Offer::Closed;
        }
        if !self.waiting_receivers.is_empty()
            && let Some(receiver) = self.claim_receiver()
        {
            let value = value.take().expect("an offered value is there");
            self.count_sent(&value, effects);
            effects.wake = self.hand_over(receiver, value, None, effects);
            return Offer::Sent;
        }
        if self.has_room() {
            let value = value.take().expect("an offered value is there");
            self.accept(value, effects);
            return Offer::Sent;
        }
        self.offer_without_room(value, effects)
    }

    #[cold]
    fn offer_without_room(&mut self, value: &mut Option<T>, effects: &mut Effects<T>) -> Offer {
        match self.overflow {
            Overflow::Block => Offer::Full,
            Overflow::DropNewest => {
                effects.discard = value.take();
                count!(self.counters, dropped_newest += 1);
                Offer::Discarded
            }
            Overflow::DropOldest => {
                effects.discard = self.pop_held().filter(|_| !broken("drop-oldest-tells"));
                count!(self.counters, dropped_oldest += 1);
                let value = value.take().expect("an offered value is there");
                self.accept(value, effects);
                Offer::Sent
            }
        }
    }

    /// Puts a value behind those held.
    #[inline(always)]
    fn accept(&mut self, value: T, effects: &mut Effects<T>) {
        self.count_sent(&value, effects);
        self.buffer.push_back(value);
        self.counters.level(self.buffer.len() + self.returned.len());
    }

    fn claim_receiver(&mut self) -> Option<NonNull<Node<T>>> {
        // SAFETY: under the lock; the caller hands over, which settles the node.
        unsafe { self.waiting_receivers.claim_front() }
    }

    /// Gives a value to a claimed receiver.
    fn hand_over(
        &mut self,
        receiver: NonNull<Node<T>>,
        value: T,
        ticket: Option<u64>,
        effects: &mut Effects<T>,
    ) -> Option<Waker> {
        let ticket = ticket.unwrap_or_else(|| {
            self.next_ticket += 1;
            self.next_ticket
        });
        self.count_received(&value, effects);
        // SAFETY: the node was claimed, so its slot is ours until it is settled.
        unsafe {
            receiver.as_ref().links(|links| links.ticket = ticket);
            receiver.as_ref().slot(|slot| *slot = Some(value));
            Node::settle(receiver, DONE)
        }
    }

    /// Parks a send or a reserve that found no room.
    ///
    /// # Safety
    /// The node is pinned, IDLE, and will be taken off before it goes.
    pub(crate) unsafe fn park_sender(&mut self, node: NonNull<Node<T>>) {
        debug_assert!(!self.closed && !self.has_room());
        // SAFETY: the caller's promise.
        unsafe { self.waiting_senders.push_back(node) }
    }

    /// Room may have appeared: lets the first parked sender in.
    #[inline(always)]
    fn admit(&mut self, effects: &mut Effects<T>) {
        if self.waiting_senders.is_empty() || !self.has_room() {
            return;
        }
        // SAFETY: under the lock; the node is settled below.
        if let Some(sender) = unsafe { self.waiting_senders.claim_front() } {
            self.admit_claimed(sender, effects);
        }
    }

    fn admit_claimed(&mut self, sender: NonNull<Node<T>>, effects: &mut Effects<T>) {
        // SAFETY: the node was claimed, so its slot is ours until it is settled.
        let (want, value) = unsafe {
            let want = sender.as_ref().links(|links| links.want);
            (want, sender.as_ref().slot(|slot| slot.take()))
        };
        match want {
            Want::Permit => self.reserve(),
            Want::Value => {
                self.accept(value.expect("a parked sender has its value"), effects);
            }
        }
        if broken("admit-wakes-sender") {
            // SAFETY: as below.
            drop(unsafe { Node::settle(sender, DONE) });
            return;
        }
        // SAFETY: claimed above, under the lock.
        effects.wake = unsafe { Node::settle(sender, DONE) };
    }

    // ---- permits -------------------------------------------------------------------------

    /// Takes room for a value that comes later; false when there is none.
    pub(super) fn try_reserve(&mut self) -> Result<(), ErrorKind> {
        if self.closed {
            count!(self.counters, send_closed += 1);
            return Err(ErrorKind::Closed);
        }
        if !self.has_room() {
            return Err(ErrorKind::Full);
        }
        self.reserve();
        Ok(())
    }

    fn reserve(&mut self) {
        self.reserved += 1;
        self.set_aside += 1;
    }

    /// Gives back a permit's room.
    pub(super) fn unreserve(&mut self, effects: &mut Effects<T>) {
        self.reserved -= 1;
        self.set_aside -= 1;
        self.admit(effects);
    }

    /// Sends a value into a permit's room, which is used up either way; false when the channel is
    /// closed. A permit is a promise: values that went back may have filled the channel meanwhile,
    /// and the value is accepted all the same. The room left over by a value that went straight to
    /// a receiver is for the next sender, whose wake-up is in `then`.
    pub(super) fn send_reserved(
        &mut self,
        value: &mut Option<T>,
        effects: &mut Effects<T>,
        then: &mut Effects<T>,
    ) -> bool {
        self.reserved -= 1;
        self.set_aside -= 1;
        if self.closed {
            count!(self.counters, send_closed += 1);
            return false;
        }
        let value = value.take().expect("a value to send");
        match self.claim_receiver() {
            Some(receiver) => {
                self.count_sent(&value, effects);
                effects.wake = self.hand_over(receiver, value, None, effects);
                self.admit(then);
            }
            None => self.accept(value, effects),
        }
        true
    }

    // ---- receiving -----------------------------------------------------------------------

    /// Takes the next value, if there is one.
    #[inline(always)]
    pub(crate) fn take(&mut self, effects: &mut Effects<T>) -> Result<T, ErrorKind> {
        if self.set_aside == self.reserved
            && let Some(value) = self.buffer.pop_front()
        {
            self.count_received(&value, effects);
            self.admit(effects);
            return Ok(value);
        }
        self.take_slowly(effects)
    }

    fn take_slowly(&mut self, effects: &mut Effects<T>) -> Result<T, ErrorKind> {
        if let Some(value) = self.pop_held() {
            self.count_received(&value, effects);
            self.admit(effects);
            return Ok(value);
        }
        if let Some(sender) = self.claim_sender_with_value() {
            // SAFETY: the node was claimed, so its slot is ours until it is settled.
            unsafe {
                let value = sender.as_ref().slot(|slot| slot.take());
                let value = value.expect("a parked sender has its value");
                self.count_sent(&value, effects);
                self.count_received(&value, effects);
                effects.wake = Node::settle(sender, DONE);
                return Ok(value);
            }
        }
        if self.closed {
            count!(self.counters, recv_closed += 1);
            return Err(ErrorKind::Closed);
        }
        Err(ErrorKind::Empty)
    }

    /// The oldest value inside, returned ones first.
    fn pop_held(&mut self) -> Option<T> {
        if let Some((_, value)) = self.returned.pop_front() {
            self.set_aside -= 1;
            return Some(value);
        }
        self.buffer.pop_front()
    }

    /// The first parked sender that brings a value. Those that want a permit wait for room, and a
    /// hand-off takes none, so passing them by is fair.
    fn claim_sender_with_value(&mut self) -> Option<NonNull<Node<T>>> {
        // SAFETY: under the lock; the caller settles the node.
        unsafe { self.waiting_senders.claim_first(|links| links.want == Want::Value) }
    }

    /// Parks a receive that found nothing.
    ///
    /// # Safety
    /// The node is pinned, IDLE, and will be taken off before it goes.
    pub(crate) unsafe fn park_receiver(&mut self, node: NonNull<Node<T>>) {
        debug_assert!(!self.closed && self.len() == 0);
        // SAFETY: the caller's promise.
        unsafe { self.waiting_receivers.push_back(node) }
    }

    /// Puts back a value that was handed to a receive which was dropped before it was looked at:
    /// as though that receive had never been there.
    pub(crate) fn give_back(&mut self, ticket: u64, value: T, effects: &mut Effects<T>) {
        let bytes = self.bytes(&value);
        self.counters.unreceived(bytes);
        if self.receivers == 0 {
            count!(self.counters, undelivered += 1);
            effects.discard = Some(value);
            return;
        }
        if let Some(receiver) = self.claim_receiver() {
            effects.wake = self.hand_over(receiver, value, Some(ticket), effects);
            return;
        }
        if self.overflow == Overflow::DropOldest && self.len() >= self.capacity {
            count!(self.counters, dropped_oldest += 1);
            effects.discard = Some(value);
            return;
        }
        if broken("give-back") {
            effects.discard = Some(value);
            return;
        }
        let at = self.returned.partition_point(|(other, _)| *other < ticket);
        self.returned.insert(at, (ticket, value));
        self.set_aside += 1;
        self.counters.level(self.len());
    }

    // ---- leaving -------------------------------------------------------------------------

    /// Takes a parked operation off its list, if it is still there; says whether it was.
    ///
    /// # Safety
    /// The node belongs to this channel and, when WAITING, to the side given.
    pub(crate) unsafe fn unpark(&mut self, node: &Node<T>, sender: bool) -> bool {
        if node.state() != super::node::WAITING {
            return false;
        }
        let list = if sender { &mut self.waiting_senders } else { &mut self.waiting_receivers };
        // SAFETY: a WAITING node is in its list.
        unsafe { list.remove(NonNull::from(node)) };
        node.set_state(IDLE);
        true
    }

    /// Closes the channel. Parked operations are ended by [`State::end_waiting`].
    pub(super) fn close(&mut self) -> bool {
        let first = !self.closed;
        self.closed = true;
        first
    }

    /// One sender fewer; true when that closed the channel.
    pub(super) fn let_go_sender(&mut self) -> bool {
        self.senders -= 1;
        self.senders == 0 && self.close()
    }

    /// One receiver fewer; true when it was the last: the channel is closed, and what it holds is
    /// undelivered.
    pub(super) fn let_go_receiver(&mut self) -> bool {
        self.receivers -= 1;
        if self.receivers == 0 {
            self.close();
        }
        self.receivers == 0
    }

    /// Ends up to a round's worth of parked operations of a closed channel; true when none are left.
    pub(super) fn end_waiting(&mut self, wakes: &mut Vec<Waker>) -> bool {
        debug_assert!(self.closed);
        for _ in 0..WAKES_PER_ROUND {
            // SAFETY: under the lock; the node is settled below.
            let node = unsafe {
                if let Some(node) = self.waiting_receivers.claim_front() {
                    count!(self.counters, recv_closed += 1);
                    node
                } else if let Some(node) = self.waiting_senders.claim_front() {
                    count!(self.counters, send_closed += 1);
                    node
                } else {
                    return true;
                }
            };
            // SAFETY: claimed above; a sender's value stays in its slot.
            wakes.extend(unsafe { Node::settle(node, CLOSED) });
        }
        false
    }

    /// Empties a channel without receivers.
    pub(super) fn take_undelivered(&mut self) -> impl Iterator<Item = T> + use<T> {
        debug_assert!(self.receivers == 0);
        count!(self.counters, undelivered += self.len());
        let returned = std::mem::take(&mut self.returned);
        self.set_aside -= returned.len();
        returned.into_iter().map(|(_, value)| value).chain(self.buffer.take_all())
    }

    // ---- selecting -----------------------------------------------------------------------

    /// Whether a receive attempt would end now.
    pub(crate) fn could_take(&self) -> bool {
        // SAFETY: under the lock.
        self.closed
            || self.len() > 0
            || unsafe { self.waiting_senders.any_open(|links| links.want == Want::Value) }
    }

    /// Whether a send attempt would end now.
    pub(crate) fn could_offer(&self) -> bool {
        // SAFETY: under the lock.
        self.closed
            || self.has_room()
            || self.overflow != Overflow::Block
            || unsafe { self.waiting_receivers.any_open(|_| true) }
    }

    // ---- counting ------------------------------------------------------------------------

    fn bytes(&self, value: &T) -> u64 {
        match self.measure {
            None => size_of::<T>() as u64,
            // A measure that panics must not leave a claimed peer behind: it counts as nothing.
            Some(measure) => catch_unwind(AssertUnwindSafe(|| measure(value))).unwrap_or(0) as u64,
        }
    }

    #[inline(always)]
    fn count_sent(&mut self, value: &T, effects: &mut Effects<T>) {
        count!(self.counters, bytes_sent += self.bytes(value));
        if self.counters.sent() {
            effects.observed |= self.counters.sample();
        }
    }

    #[inline(always)]
    fn count_received(&mut self, value: &T, effects: &mut Effects<T>) {
        count!(self.counters, bytes_received += self.bytes(value));
        if self.counters.received() {
            effects.observed |= self.counters.sample();
        }
    }

    #[cfg(test)]
    pub(crate) fn check_invariants(&self) {
        let (senders, receivers) = self.waiting();
        // SAFETY: under the lock.
        let values_parked =
            unsafe { self.waiting_senders.any_open(|links| links.want == Want::Value) };
        let open_senders = unsafe { self.waiting_senders.any_open(|_| true) };
        let open_receivers = unsafe { self.waiting_receivers.any_open(|_| true) };
        assert!(
            !open_receivers || (self.len() == 0 && !values_parked),
            "1: a receiver waits beside a value"
        );
        assert!(!open_senders || !self.has_room(), "2: a sender waits beside room");
        assert!(!self.closed || senders + receivers == 0, "3: somebody waits on a closed channel");
        assert!(self.receivers > 0 || self.len() == 0, "3: values held for nobody");
        assert_eq!(self.set_aside, self.returned.len() + self.reserved);
        assert!(self.returned.iter().is_sorted_by_key(|(ticket, _)| *ticket));
    }
}
