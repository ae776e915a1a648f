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
    mem::MaybeUninit,
    panic::{AssertUnwindSafe, catch_unwind},
    ptr::{self, NonNull},
    task::Waker,
};

use super::{
    Overflow,
    buffer::{Rest, Ring},
    node::{CLOSED, DONE, IDLE, List, Node, Parked, WAITING, Want},
};
use crate::{
    error::ErrorKind,
    metrics::{Counters, Totals, count},
    sync::broken,
};

/// The capacity of an unbounded channel.
pub(crate) const UNBOUNDED: u32 = i32::MAX as u32;

/// [`State::quick`]: sends go the slow way.
const RECEIVES_ONLY: i32 = -1;
/// [`State::quick`]: everybody goes the slow way.
const NOBODY: i32 = 0;

/// Together with the lock in front of it, the first 64 bytes are all that a send or a receive
/// writes in the usual case; what follows is at most read.
#[repr(C)]
pub(crate) struct State<T> {
    ring: Ring<T>,
    waiting_senders: List<T>,
    waiting_receivers: List<T>,
    /// Who may take the quick way ([`State::refresh`]): sends while the ring holds fewer than this,
    /// and receives unless it is NOBODY.
    quick: i32,
    // ---- the second cache line ----
    capacity: u32,
    overflow: Overflow,
    closed: bool,
    measure: Option<fn(&T) -> usize>,
    pub(crate) counters: Counters,
    rest: Rest<T>,
    /// Values whose receive was dropped after the hand-off, by hand-off number, the oldest last;
    /// taken first.
    returned: Vec<(u64, T)>,
    /// Room promised to permits.
    reserved: u32,
    next_ticket: u64,
    pub(super) senders: u32,
    pub(super) receivers: u32,
    /// Values that went from hand to hand, past the ring.
    direct: u64,
    /// Receives that the ring's head does not tell of, less what left the ring otherwise.
    recvs_beside: i64,
}

// SAFETY: the ring and the lists point at values and at nodes that are only touched under the lock
// this state lives behind (or by the rules of `node`); those hold wakers and values, all `Send`.
unsafe impl<T: Send> Send for State<T> {}

/// What an operation leaves to be done outside the lock. `any` is all that is looked at when there
/// is nothing.
pub(crate) struct Effects<T> {
    pub(crate) any: bool,
    /// Somebody observes this channel and may be due a snapshot.
    pub(crate) observed: bool,
    pub(crate) wake: Option<Waker>,
    /// A waker that was not needed after all.
    pub(crate) spare: Option<Waker>,
    pub(crate) discard: Option<T>,
}

impl<T> Effects<T> {
    #[inline(always)]
    pub(crate) const fn none() -> Effects<T> {
        Effects { any: false, observed: false, wake: None, spare: None, discard: None }
    }

    fn wake(&mut self, waker: Option<Waker>) {
        self.any |= waker.is_some();
        self.wake = waker;
    }

    pub(crate) fn spare(&mut self, waker: Waker) {
        self.any = true;
        self.spare = Some(waker);
    }

    fn discard(&mut self, value: Option<T>) {
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

/// The wakers of one round of a close.
pub(crate) const WAKES_PER_ROUND: usize = 32;

impl<T> State<T> {
    pub(super) fn new(
        capacity: u32,
        overflow: Overflow,
        measure: Option<fn(&T) -> usize>,
    ) -> State<T> {
        State {
            ring: Ring::new(),
            waiting_senders: List::new(),
            waiting_receivers: List::new(),
            quick: capacity as i32,
            capacity,
            overflow,
            closed: false,
            measure,
            counters: Counters::default(),
            rest: Rest::new(),
            returned: Vec::new(),
            reserved: 0,
            next_ticket: 0,
            senders: 1,
            receivers: 1,
            direct: 0,
            recvs_beside: 0,
        }
    }

    pub(super) fn len(&self) -> u64 {
        self.ring.len() + self.rest.len() + self.returned.len() as u64
    }

    pub(super) fn capacity(&self) -> u32 {
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

    /// How many senders and receivers are parked.
    pub(super) fn waiting(&self) -> (usize, usize) {
        (self.waiting_senders.len(), self.waiting_receivers.len())
    }

    pub(super) fn has_room(&self) -> bool {
        self.capacity == UNBOUNDED
            || self.len() + u64::from(self.reserved) < u64::from(self.capacity)
    }

    /// After anything out of the ordinary has come or gone.
    fn refresh(&mut self) {
        let all_in_the_ring = !self.closed && self.reserved == 0 && self.rest.len() == 0;
        self.quick = if !self.returned.is_empty() || self.capacity == 0 {
            NOBODY
        } else if all_in_the_ring {
            self.capacity as i32
        } else {
            RECEIVES_ONLY
        };
    }

    // ---- sending -------------------------------------------------------------------------

    /// Takes the value out of `value` if the channel can have it now.
    #[inline(always)]
    pub(crate) fn offer(&mut self, value: &mut Option<T>, effects: &mut Effects<T>) -> Offer {
        if self.waiting_receivers.is_empty()
            && (self.ring.len() as i64) < i64::from(self.quick)
            && let Some(offered) = value
            // SAFETY: what was moved into the ring is made `None` without being dropped.
            && unsafe { self.ring.try_push_from(offered) }
        {
            self.count_sent(self.ring.tail(), offered, effects);
            self.counters.level(self.ring.len());
            // SAFETY: as above.
            unsafe { ptr::write(value, None) };
            return Offer::Sent;
        }
        self.offer_slowly(value, effects)
    }

    #[inline(never)]
    fn offer_slowly(&mut self, value: &mut Option<T>, effects: &mut Effects<T>) -> Offer {
        if self.closed {
            count!(self.counters, send_closed += 1);
            return Offer::Closed;
        }
        if let Some(receiver) = self.claim_receiver() {
            self.pass_on(receiver, value.take().expect("an offered value"), effects);
            return Offer::Sent;
        }
        if self.has_room() {
            self.accept(value, effects);
            return Offer::Sent;
        }
        match self.overflow {
            Overflow::Block => Offer::Full,
            Overflow::DropNewest => {
                effects.discard(value.take());
                count!(self.counters, dropped_newest += 1);
                Offer::Discarded
            }
            Overflow::DropOldest => {
                // Nothing, when all the room is promised to permits.
                let oldest = self.pop_held();
                count!(self.counters, dropped_oldest += u64::from(oldest.is_some()));
                effects.discard(oldest.filter(|_| !broken("drop-oldest-tells")));
                self.accept(value, effects);
                Offer::Sent
            }
        }
    }

    /// Moves a value behind those held.
    fn accept(&mut self, value: &mut Option<T>, effects: &mut Effects<T>) {
        let offered = value.as_mut().expect("an offered value");
        self.count_sent(self.sends(), offered, effects);
        let all_in_the_ring = self.rest.len() == 0;
        // SAFETY: moved into the buffer, and so made `None` without being dropped.
        unsafe {
            self.ring.push_from(&mut self.rest, offered);
            ptr::write(value, None);
        }
        if all_in_the_ring {
            self.refresh();
        }
        self.counters.level(self.len());
    }

    fn claim_receiver(&mut self) -> Option<NonNull<Node<T>>> {
        // SAFETY: under the lock; the caller hands over, which settles the node.
        unsafe { self.waiting_receivers.claim_front() }
    }

    /// Sends a value from hand to hand.
    fn pass_on(&mut self, receiver: NonNull<Node<T>>, value: T, effects: &mut Effects<T>) {
        self.direct += 1;
        self.next_ticket += 1;
        self.count_sent(self.direct, &value, effects);
        self.count_received(self.direct, &value, effects);
        let waker = Self::hand_over(receiver, value, self.next_ticket);
        effects.wake(waker);
    }

    /// Gives a value to a claimed receiver.
    fn hand_over(receiver: NonNull<Node<T>>, value: T, ticket: u64) -> Option<Waker> {
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
    pub(crate) unsafe fn park_sender(&mut self, node: NonNull<Node<T>>, parked: Parked) {
        debug_assert!(!self.closed && !self.has_room());
        // SAFETY: the caller's promise.
        unsafe { self.waiting_senders.push_back(node, parked) }
    }

    /// Room may have appeared: lets the first parked sender in.
    #[inline(always)]
    fn admit(&mut self, effects: &mut Effects<T>) {
        if !self.waiting_senders.is_empty() {
            self.admit_first(effects);
        }
    }

    fn admit_first(&mut self, effects: &mut Effects<T>) {
        if !self.has_room() {
            return;
        }
        // SAFETY: under the lock; the node is settled below.
        let Some(sender) = (unsafe { self.waiting_senders.claim_front() }) else { return };
        // SAFETY: the node was claimed, so its slot is ours until it is settled.
        unsafe {
            match sender.as_ref().links(|links| links.parked.want) {
                Want::Permit => self.reserve(),
                Want::Value => sender.as_ref().slot(|slot| self.accept(slot, effects)),
            }
            let waker = Node::settle(sender, DONE);
            effects.wake(waker.filter(|_| !broken("admit-wakes-sender")));
        }
    }

    // ---- permits -------------------------------------------------------------------------

    /// Takes room for a value that comes later.
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
        self.refresh();
    }

    /// Gives back a permit's room.
    pub(super) fn unreserve(&mut self, effects: &mut Effects<T>) {
        self.reserved -= 1;
        self.refresh();
        self.admit(effects);
    }

    /// Sends a value into a permit's room, which is used up either way; it stays in `value` when
    /// the channel is closed. A permit is a promise: values that went back may have filled the
    /// channel meanwhile, and the value is accepted all the same. The room left over by a value that
    /// went straight to a receiver is for the next sender, whose wake-up is in `then`.
    pub(super) fn send_reserved(
        &mut self,
        value: &mut Option<T>,
        effects: &mut Effects<T>,
        then: &mut Effects<T>,
    ) {
        self.reserved -= 1;
        self.refresh();
        if self.closed {
            count!(self.counters, send_closed += 1);
        } else if let Some(receiver) = self.claim_receiver() {
            self.pass_on(receiver, value.take().expect("a value to send"), effects);
            self.admit(then);
        } else {
            self.accept(value, effects);
        }
    }

    // ---- receiving -----------------------------------------------------------------------

    /// Moves the next value to `place`, if there is one.
    #[inline(always)]
    pub(crate) fn take(&mut self, place: &mut MaybeUninit<T>, effects: &mut Effects<T>) -> Take {
        if self.quick != NOBODY && self.ring.pop_to(place) {
            if self.quick < 0 && self.ring.len() == 0 {
                self.advance();
            }
            // SAFETY: just written.
            self.count_received(self.ring.head(), unsafe { place.assume_init_ref() }, effects);
            self.admit(effects);
            return Take::Taken;
        }
        self.take_slowly(place, effects)
    }

    #[inline(never)]
    fn take_slowly(&mut self, place: &mut MaybeUninit<T>, effects: &mut Effects<T>) -> Take {
        if let Some((_, value)) = self.returned.pop() {
            self.recvs_beside += 1;
            self.refresh();
            self.count_received(self.ring.head(), place.write(value), effects);
            self.admit(effects);
            return Take::Taken;
        }
        if let Some(sender) = self.claim_sender_with_value() {
            // SAFETY: the node was claimed, so its slot is ours until it is settled.
            unsafe {
                let value = sender.as_ref().slot(|slot| slot.take());
                let value = place.write(value.expect("a parked sender has its value"));
                self.direct += 1;
                self.count_sent(self.direct, value, effects);
                self.count_received(self.direct, value, effects);
                effects.wake(Node::settle(sender, DONE));
                return Take::Taken;
            }
        }
        if self.closed {
            count!(self.counters, recv_closed += 1);
            return Take::Closed;
        }
        Take::Empty
    }

    /// The ring is empty: the next block, if there is one, takes its place.
    #[cold]
    fn advance(&mut self) {
        self.ring.advance(&mut self.rest);
        self.refresh();
    }

    /// Removes the oldest value inside, returned ones first, without anybody receiving it.
    fn pop_held(&mut self) -> Option<T> {
        let mut place = MaybeUninit::uninit();
        let oldest = if let Some((_, value)) = self.returned.pop() {
            Some(value)
        } else if self.ring.pop_to(&mut place) {
            self.recvs_beside -= 1;
            self.ring.advance(&mut self.rest);
            // SAFETY: just written.
            Some(unsafe { place.assume_init() })
        } else {
            None
        };
        self.refresh();
        oldest
    }

    /// The first parked sender that brings a value. Those that want a permit wait for room, and a
    /// hand-off takes none, so passing them by is fair.
    fn claim_sender_with_value(&mut self) -> Option<NonNull<Node<T>>> {
        // SAFETY: under the lock; the caller settles the node.
        unsafe { self.waiting_senders.claim_first(|links| links.parked.want == Want::Value) }
    }

    /// Parks a receive that found nothing.
    ///
    /// # Safety
    /// The node is pinned, IDLE, and will be taken off before it goes.
    pub(crate) unsafe fn park_receiver(&mut self, node: NonNull<Node<T>>, parked: Parked) {
        debug_assert!(!self.closed && self.len() == 0);
        // SAFETY: the caller's promise.
        unsafe { self.waiting_receivers.push_back(node, parked) }
    }

    /// Puts back a value that was handed to a receive which was dropped before it was looked at:
    /// as though that receive had never been there.
    pub(crate) fn give_back(&mut self, ticket: u64, value: T, effects: &mut Effects<T>) {
        let bytes = self.measure.map_or(0, |measure| Self::measured(measure, &value));
        let received = &mut self.counters.totals.bytes_received;
        *received = received.saturating_sub(bytes);
        self.recvs_beside -= 1;
        if self.receivers == 0 {
            count!(self.counters, undelivered += 1);
            effects.discard(Some(value));
        } else if let Some(receiver) = self.claim_receiver() {
            self.recvs_beside += 1;
            self.count_received(self.direct, &value, effects);
            effects.wake(Self::hand_over(receiver, value, ticket));
        } else if self.overflow == Overflow::DropOldest && !self.has_room() {
            count!(self.counters, dropped_oldest += 1);
            effects.discard(Some(value));
        } else if broken("give-back") {
            effects.discard(Some(value));
        } else {
            let at = self.returned.partition_point(|(other, _)| *other > ticket);
            self.returned.insert(at, (ticket, value));
            self.refresh();
            self.counters.level(self.len());
        }
    }

    // ---- leaving -------------------------------------------------------------------------

    /// Takes a parked operation off its list, if it is still there; says whether it was.
    ///
    /// # Safety
    /// The node belongs to this channel and, when WAITING, to the side given.
    pub(crate) unsafe fn unpark(&mut self, node: &Node<T>, sender: bool) -> bool {
        if node.state() != WAITING {
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
        self.refresh();
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
        self.recvs_beside -= (self.ring.len() + self.rest.len()) as i64;
        let returned = std::mem::take(&mut self.returned);
        returned.into_iter().rev().map(|(_, value)| value).chain(self.ring.take_all(&mut self.rest))
    }

    // ---- selecting -----------------------------------------------------------------------

    /// Whether a receive attempt would end now.
    pub(crate) fn could_take(&self) -> bool {
        self.closed || self.len() > 0 || self.is_value_parked()
    }

    /// Whether a send attempt would end now.
    pub(crate) fn could_offer(&self) -> bool {
        self.closed
            || self.has_room()
            || self.overflow != Overflow::Block
            || self.is_receiver_parked()
    }

    fn is_value_parked(&self) -> bool {
        // SAFETY: under the lock.
        unsafe { self.waiting_senders.any_open(|links| links.parked.want == Want::Value) }
    }

    fn is_receiver_parked(&self) -> bool {
        // SAFETY: under the lock.
        unsafe { self.waiting_receivers.any_open(|_| true) }
    }

    // ---- counting ------------------------------------------------------------------------

    /// The bytes of a value, where its size is not the same for all.
    #[cold]
    fn measured(measure: fn(&T) -> usize, value: &T) -> u64 {
        // A measure that panics must not leave a claimed peer behind: it counts as nothing.
        catch_unwind(AssertUnwindSafe(|| measure(value))).unwrap_or(0) as u64
    }

    /// The number of sends is the ring's tail and what went past it; only the rest is counted.
    #[inline(always)]
    fn count_sent(&mut self, number: u64, value: &T, effects: &mut Effects<T>) {
        if let Some(measure) = self.measure {
            count!(self.counters, bytes_sent += Self::measured(measure, value));
        }
        if self.counters.is_send_sampled(number) {
            effects.observed |= self.counters.sample();
            effects.any |= effects.observed;
        }
    }

    #[inline(always)]
    fn count_received(&mut self, number: u64, value: &T, effects: &mut Effects<T>) {
        if let Some(measure) = self.measure {
            count!(self.counters, bytes_received += Self::measured(measure, value));
        }
        if self.counters.is_recv_sampled(number) {
            effects.observed |= self.counters.sample();
            effects.any |= effects.observed;
        }
    }

    #[inline(always)]
    fn sends(&self) -> u64 {
        self.ring.tail() + self.rest.len() + self.direct
    }

    /// The totals, with what the ring's positions tell.
    pub(super) fn totals(&self) -> Totals {
        let mut totals = self.counters.totals;
        if !cfg!(feature = "metrics") {
            return totals;
        }
        totals.sends = self.sends();
        totals.recvs = (self.ring.head() + self.direct).wrapping_add_signed(self.recvs_beside);
        if self.measure.is_none() {
            totals.bytes_sent = totals.sends * size_of::<T>() as u64;
            totals.bytes_received = totals.recvs * size_of::<T>() as u64;
        }
        totals
    }

    #[cfg(test)]
    pub(crate) fn check_invariants(&self) {
        let (senders, receivers) = self.waiting();
        // SAFETY: under the lock.
        let sender_parked = unsafe { self.waiting_senders.any_open(|_| true) };
        let nothing = self.len() == 0 && !self.is_value_parked();
        assert!(!self.is_receiver_parked() || nothing, "1: a receiver waits beside a value");
        assert!(!sender_parked || !self.has_room(), "2: a sender waits beside room");
        assert!(!self.closed || senders + receivers == 0, "3: somebody waits on a closed channel");
        assert!(self.receivers > 0 || self.len() == 0, "3: values held for nobody");
        assert!(self.returned.iter().rev().is_sorted_by_key(|(ticket, _)| *ticket));
        assert!(self.ring.len() > 0 || self.rest.len() == 0, "a block is behind an empty ring");
        let in_order = self.returned.is_empty() && self.capacity > 0;
        assert_eq!(self.quick != NOBODY, in_order);
        let all_in_the_ring = !self.closed && u64::from(self.reserved) + self.rest.len() == 0;
        assert_eq!(self.quick > 0, in_order && all_in_the_ring);
    }
}
