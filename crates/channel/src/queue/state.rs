//! The decisions of a queue channel. The four kinds share them: rendezvous is capacity 0, unbounded
//! is capacity without end, conflated is capacity 1 with `DropOldest`.
//!
//! Every function runs under the channel's lock and runs no user code: wakers to wake and values to
//! drop leave through [`Effects`], and the caller carries them out after unlocking.
//!
//! Invariants when the lock is free (tests call `State::check_invariants`):
//! 1. A receiver waits only if there is nothing to take: nothing buffered, nothing returned, no
//!    parked sender with a value.
//! 2. A sender waits only if there is no room.
//! 3. No operation waits on a closed channel (once the close has ended them, round by round), and
//!    a channel without receivers holds no value.
//!
//! Every operation keeps them by doing the whole hand-off in one step: an operation that makes room
//! admits the first parked sender before it unlocks, and an operation that brings a value gives it
//! to the first parked receiver. So parked operations are served in order, and a loop of `try_*`
//! cannot overtake them.

mod counting;
mod effects;

use std::{
    mem::MaybeUninit,
    ptr::{self, NonNull},
    task::Waker,
};

use super::{
    Overflow,
    buffer::{Blocks, Buffer},
    node::{CLOSED, DONE, IDLE, List, Node, Parked, WAITING, Want},
    waiting::NOTHING_TO_SEND,
};
use crate::{
    error::ErrorKind,
    lock::Hint,
    metrics::{Counters, HighWater, count},
    sync::broken,
};

pub(crate) use effects::{Effects, Offer, Take};

/// The capacity of an unbounded channel.
pub(crate) const UNBOUNDED: u32 = i32::MAX as u32;

/// Together with the lock in front of it, the first 64 bytes are all that a send or a receive
/// touches in the usual case.
#[repr(C)]
pub(crate) struct State<T> {
    buffer: Buffer<T>,
    pub(super) high_water: HighWater,
    // ---- the second cache line ----
    waiting_senders: List<T>,
    waiting_receivers: List<T>,
    capacity: u32,
    /// Room promised to permits.
    reserved: u32,
    /// How many values went straight from a send to a receive, past the buffer.
    direct: u64,
    measure: Option<fn(&T) -> usize>,
    overflow: Overflow,
    closed: bool,
    // ---- further away ----
    blocks: Blocks<T>,
    /// Its `recvs` is what to add to the buffer's head and `direct`: the receives that those do not
    /// tell of, minus the values that came back or left in another way. It wraps around zero. Its
    /// `sends` is not used.
    pub(crate) counters: Counters,
    /// Values whose receive was dropped after the hand-off, by hand-off number, the oldest last.
    /// They are received before all others.
    returned: Vec<(u64, T)>,
    pub(super) senders: u32,
    pub(super) receivers: u32,
}

// SAFETY: the buffer and the lists point at values and at nodes. Those are only touched under the
// lock of this state (or by the rules of `node`). Nodes hold wakers and values, all `Send`.
unsafe impl<T: Send> Send for State<T> {}

/// The most operations that one round of a close ends, under one lock.
pub(crate) const WAKES_PER_ROUND: usize = 32;

impl<T> State<T> {
    pub(super) fn new(
        capacity: u32,
        overflow: Overflow,
        measure: Option<fn(&T) -> usize>,
    ) -> State<T> {
        State {
            buffer: Buffer::new(),
            high_water: HighWater::default(),
            waiting_senders: List::new(),
            waiting_receivers: List::new(),
            capacity,
            reserved: 0,
            direct: 0,
            measure,
            overflow,
            closed: false,
            blocks: Blocks::new(),
            counters: Counters::default(),
            returned: Vec::new(),
            senders: 1,
            receivers: 1,
        }
    }

    pub(super) fn len(&self) -> u64 {
        self.buffer.len() + self.returned.len() as u64
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

    /// Sets the stops of the buffer: how far values may come and go by the fast path. Runs after
    /// every slow move of a value. Between two runs, any change that the fast path would pass by
    /// halts the buffer.
    fn set_stops(&mut self) {
        let plain = self.returned.is_empty() && self.measure.is_none();
        let room = match self.capacity {
            _ if !plain
                || self.closed
                || self.reserved > 0
                || !self.waiting_receivers.is_empty() =>
            {
                0
            }
            UNBOUNDED => u64::MAX >> 1,
            capacity => u64::from(capacity),
        };
        let next_sample = self.counters.next_sampled_send(self.buffer.tail());
        self.buffer.stop_in(&self.blocks, room, next_sample);
        let until = if !plain || !self.waiting_senders.is_empty() {
            self.buffer.head()
        } else if self.closed {
            // After the last value a receive has to report the close.
            self.counters.next_sampled_recv(self.buffer.head()).min(self.buffer.tail())
        } else {
            self.counters.next_sampled_recv(self.buffer.head())
        };
        self.buffer.stop_out(&self.blocks, until);
    }

    fn halt(&mut self) {
        self.buffer.halt_in();
        self.buffer.halt_out();
    }

    /// Makes the next operation one that is sampled.
    pub(super) fn sample_next(&mut self) {
        self.halt();
        self.counters.sample_next();
    }

    // ---- sending -------------------------------------------------------------------------

    /// Takes the value out of `value` if the channel can accept it now.
    #[inline(always)]
    pub(crate) fn offer(&mut self, value: &mut Option<T>, effects: &mut Effects<T>) -> Offer {
        if self.offer_quickly(value) { Offer::Sent } else { self.offer_slowly(value, effects) }
    }

    /// The fast path of [`State::offer`]: no effects, no parked operation to consider. Returns
    /// false, and does nothing, if it does not apply.
    #[inline(always)]
    pub(crate) fn offer_quickly(&mut self, value: &mut Option<T>) -> bool {
        let Some(offered) = value else { return false };
        // SAFETY: a value that was moved into the buffer is overwritten by `None`, not dropped.
        unsafe {
            let pushed = self.buffer.push_quickly(offered);
            if pushed {
                self.high_water.note(self.buffer.len());
                ptr::write(value, None);
            }
            pushed
        }
    }

    /// The slow path of [`State::offer`], for every case.
    #[inline(always)]
    pub(crate) fn offer_slowly(
        &mut self,
        value: &mut Option<T>,
        effects: &mut Effects<T>,
    ) -> Offer {
        // Checked before a receiver is claimed for the value.
        assert!(value.is_some(), "{NOTHING_TO_SEND}");
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
            self.set_stops();
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
                // None, if all the room is promised to permits.
                let oldest = self.pop_held();
                count!(self.counters, dropped_oldest += u64::from(oldest.is_some()));
                effects.discard(oldest.filter(|_| !broken("drop-oldest-tells")));
                self.accept(value, effects);
                self.halt();
                Offer::Sent
            }
        }
    }

    /// Moves a value into the buffer, behind the others. The caller sets the stops.
    fn accept(&mut self, value: &mut Option<T>, effects: &mut Effects<T>) {
        let offered = value.as_mut().expect("an offered value");
        self.count_sent(self.buffer.tail(), offered, effects);
        // SAFETY: the value is moved into the buffer, and so overwritten by `None`, not dropped.
        unsafe {
            self.buffer.push_slowly(&mut self.blocks, offered);
            ptr::write(value, None);
        }
        self.high_water.note(self.len());
    }

    fn claim_receiver(&mut self) -> Option<NonNull<Node<T>>> {
        // SAFETY: under the lock; the caller hands over, which settles the node.
        unsafe { self.waiting_receivers.claim_front() }
    }

    /// Hands a value straight to a claimed receiver, past the buffer.
    fn pass_on(&mut self, receiver: NonNull<Node<T>>, value: T, effects: &mut Effects<T>) {
        self.direct += 1;
        self.count_sent(self.direct, &value, effects);
        self.count_received(self.direct, &value, effects);
        let waker = Self::hand_over(receiver, value, self.ticket());
        effects.wake(waker);
    }

    /// Returns the hand-off number of the last value that left, out of the buffer or past it.
    /// Returned values are ordered by it.
    fn ticket(&self) -> u64 {
        self.direct + self.buffer.head()
    }

    /// Settles a claimed receiver with a value, and returns its waker.
    fn hand_over(receiver: NonNull<Node<T>>, value: T, ticket: u64) -> Option<Waker> {
        // SAFETY: the node was claimed, so its slot is this peer's until it is settled.
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
        self.buffer.halt_out();
    }

    /// Admits the first parked sender, if there is room now.
    #[inline(always)]
    fn admit(&mut self, effects: &mut Effects<T>) {
        if !self.waiting_senders.is_empty() {
            self.admit_first(effects);
        }
    }

    fn admit_first(&mut self, effects: &mut Effects<T>) {
        // The close itself ends the parked senders of a closed channel, round by round.
        if self.closed || !self.has_room() {
            return;
        }
        // SAFETY: under the lock; the node is settled below.
        let Some(sender) = (unsafe { self.waiting_senders.claim_front() }) else { return };
        // SAFETY: the node was claimed, so its slot is this peer's until it is settled.
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
        self.buffer.halt_in();
    }

    /// Gives back a permit's room.
    pub(super) fn unreserve(&mut self, effects: &mut Effects<T>) {
        self.reserved -= 1;
        self.admit(effects);
        self.set_stops();
    }

    /// Sends a value into a permit's room. The room is used up either way. The value stays in
    /// `value` if the channel is closed. A permit is a promise: the value is accepted even if
    /// returned values have filled the channel meanwhile. If the value goes straight to a receiver,
    /// its room is left over for the next sender, whose wake-up is in `then`.
    pub(super) fn send_reserved(
        &mut self,
        value: &mut Option<T>,
        effects: &mut Effects<T>,
        then: &mut Effects<T>,
    ) {
        self.reserved -= 1;
        if self.closed {
            count!(self.counters, send_closed += 1);
        } else if let Some(receiver) = self.claim_receiver() {
            self.pass_on(receiver, value.take().expect("a value to send"), effects);
            self.admit(then);
        } else {
            self.accept(value, effects);
        }
        self.set_stops();
    }

    // ---- receiving -----------------------------------------------------------------------

    /// Moves the next value to `place`, if there is one.
    #[inline(always)]
    pub(crate) fn take(&mut self, place: &mut MaybeUninit<T>, effects: &mut Effects<T>) -> Take {
        match self.take_quickly() {
            // SAFETY: the value was taken out of the buffer, and moves on once.
            Some(slot) => place.write(unsafe { slot.read() }),
            None => return self.take_slowly(place, effects),
        };
        effects.ticket = self.ticket();
        Take::Taken
    }

    /// The fast path of [`State::take`]: no effects, no parked operation to consider. Returns where
    /// the value is. The caller moves it from there before it releases the lock.
    #[inline(always)]
    pub(crate) fn take_quickly(&mut self) -> Option<NonNull<T>> {
        self.buffer.pop_quickly()
    }

    /// Whether a receive would find nothing, as far as the buffer alone can tell. False may mean
    /// that only the slow path can tell.
    #[inline(always)]
    pub(crate) fn is_plainly_empty(&self) -> bool {
        self.buffer.is_plainly_empty()
    }

    /// The slow path of [`State::take`], for every case.
    #[inline(always)]
    pub(crate) fn take_slowly(
        &mut self,
        place: &mut MaybeUninit<T>,
        effects: &mut Effects<T>,
    ) -> Take {
        if self.len() > 0 {
            return self.take_held(place, effects);
        }
        if let Some(sender) = self.claim_sender_with_value() {
            // SAFETY: the node was claimed, so its slot is this peer's until it is settled.
            unsafe {
                let value = sender.as_ref().slot(|slot| slot.take());
                let value = place.write(value.expect("a parked sender has its value"));
                self.direct += 1;
                effects.ticket = self.ticket();
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

    fn take_held(&mut self, place: &mut MaybeUninit<T>, effects: &mut Effects<T>) -> Take {
        let value = if let Some((ticket, value)) = self.returned.pop() {
            self.adjust_recvs(1);
            effects.ticket = ticket;
            place.write(value)
        } else {
            let slot = self.buffer.pop_slowly(&mut self.blocks).expect("something is held");
            effects.ticket = self.ticket();
            // SAFETY: the value was taken out of the buffer, and moves on once.
            place.write(unsafe { slot.read() })
        };
        self.count_received(self.buffer.head(), value, effects);
        self.admit(effects);
        self.set_stops();
        Take::Taken
    }

    /// Removes the oldest value, returned values first, without a receive.
    fn pop_held(&mut self) -> Option<T> {
        if let Some((_, value)) = self.returned.pop() {
            return Some(value);
        }
        let slot = self.buffer.pop_slowly(&mut self.blocks)?;
        self.adjust_recvs(-1);
        // SAFETY: the value was taken out of the buffer, and moves on once.
        Some(unsafe { slot.read() })
    }

    /// Claims the first parked sender that brings a value. Passing by the senders that want a
    /// permit is fair: they wait for room, and a hand-off takes none.
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
        self.buffer.halt_in();
    }

    /// Puts back a value whose receive was dropped after the hand-off, before its owner read the
    /// value: as though that receive had never been there.
    pub(crate) fn give_back(&mut self, ticket: u64, value: T, effects: &mut Effects<T>) {
        let bytes = self.measure.map_or(0, |measure| Self::measured(measure, &value));
        let received = &mut self.counters.totals.bytes_received;
        *received = received.saturating_sub(bytes);
        self.adjust_recvs(-1);
        if self.receivers == 0 {
            count!(self.counters, undelivered += 1);
            effects.discard(Some(value));
        } else if let Some(receiver) = self.claim_receiver() {
            self.adjust_recvs(1);
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
            self.high_water.note(self.len());
            self.halt();
        }
    }

    // ---- leaving -------------------------------------------------------------------------

    /// Takes a parked operation off its list, if it is still there. Returns whether it was.
    ///
    /// # Safety
    /// The node belongs to this channel and, if it is WAITING, is in the list that `sender` names.
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

    /// Closes the channel. Returns whether it was open. [`State::end_waiting`] ends the parked
    /// operations.
    pub(super) fn close(&mut self) -> bool {
        let first = !self.closed;
        self.closed = true;
        self.halt();
        first
    }

    /// Counts one sender fewer. Returns true if that closed the channel.
    pub(super) fn release_sender(&mut self) -> bool {
        self.senders -= 1;
        self.senders == 0 && self.close()
    }

    /// Counts one receiver fewer. Returns true if it was the last: then the channel is closed, and
    /// the values in it are undelivered.
    pub(super) fn release_receiver(&mut self) -> bool {
        self.receivers -= 1;
        if self.receivers == 0 {
            self.close();
        }
        self.receivers == 0
    }

    /// Ends up to [`WAKES_PER_ROUND`] parked operations of a closed channel. Returns true if none
    /// are left.
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
            // SAFETY: the node was claimed above. A sender's value stays in its slot.
            wakes.extend(unsafe { Node::settle(node, CLOSED) });
        }
        false
    }

    /// Takes all values out of a channel without receivers.
    pub(super) fn take_undelivered(&mut self) -> impl Iterator<Item = T> + use<T> {
        debug_assert!(self.receivers == 0);
        count!(self.counters, undelivered += self.len());
        self.adjust_recvs(-(self.buffer.len() as i64));
        let returned = std::mem::take(&mut self.returned);
        let buffered = self.buffer.take_all(&mut self.blocks);
        returned.into_iter().rev().map(|(_, value)| value).chain(buffered)
    }

    /// Returns what the next operation would find, as far as this can tell without a search.
    pub(crate) fn hint(&self) -> Hint {
        if self.closed {
            return Hint::NONE;
        }
        let empty = self.waiting_senders.is_empty() && self.len() == 0;
        let full = self.waiting_receivers.is_empty()
            && self.overflow == Overflow::Block
            && (self.capacity == 0 || !self.has_room());
        Hint::EMPTY.when(empty).and(Hint::FULL.when(full))
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

    #[cfg(test)]
    pub(crate) fn check_invariants(&self) {
        let (senders, receivers) = self.waiting();
        // SAFETY: under the lock.
        let sender_parked = unsafe { self.waiting_senders.any_open(|_| true) };
        let nothing = self.len() == 0 && !self.is_value_parked();
        assert!(!self.is_receiver_parked() || nothing, "1: a receiver waits beside a value");
        assert!(!sender_parked || !self.has_room(), "2: a sender waits beside room");
        assert!(!self.closed || senders + receivers == 0, "3: operations wait on a closed channel");
        assert!(self.receivers > 0 || self.len() == 0, "3: values without a receiver");
        assert!(self.returned.iter().rev().is_sorted_by_key(|(ticket, _)| *ticket));
        self.buffer.check_stops(&self.blocks);
        assert!(!self.closed || !self.buffer.is_plainly_empty(), "a receive may miss the close");
        let plain = self.returned.is_empty() && self.capacity > 0;
        let plainly_in = plain && !self.closed && self.reserved == 0 && receivers == 0;
        assert!(plainly_in || self.buffer.is_stopped_in(), "a fast send may pass something by");
        assert!(plain && senders == 0 || self.buffer.is_stopped_out(), "a fast receive may, too");
        let room = u64::from(self.capacity).saturating_sub(self.buffer.len());
        assert!(self.buffer.until_stop_in() <= room || self.capacity == UNBOUNDED);
    }
}

impl<T> Drop for State<T> {
    fn drop(&mut self) {
        drop(self.buffer.take_all(&mut self.blocks));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_freed_after_the_close_admits_no_parked_send() {
        let mut state = State::<u8>::new(1, Overflow::Block, None);
        state.try_reserve().unwrap();
        let node = Node::new(Some(7));
        // SAFETY: the node is a local that does not move before it is settled.
        unsafe {
            let parked = Parked { waker: None, claim: None, want: Want::Value };
            state.park_sender(NonNull::from(&node), parked);
        }
        assert!(state.release_receiver());
        assert_eq!(state.take_undelivered().count(), 0);
        let mut effects = Effects::none();
        state.unreserve(&mut effects);
        assert_eq!((state.len(), node.state()), (0, WAITING));
        assert!(state.end_waiting(&mut Vec::new()));
        assert_eq!(node.state(), CLOSED);
    }
}
