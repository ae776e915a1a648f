//! The values that a channel holds, first in first out.
//!
//! Two cursors move through slots: values come in at one and go out at the other. A short queue
//! lives in one block, used as a ring. A long queue goes on in further blocks. So growing never
//! copies more than a block (no operation waits behind a large copy under the lock), and a drained
//! burst gives its memory back, except for one block.
//!
//! Positions count up for ever, so they are also the counters of the channel: `tail` values came in
//! and `head` went out. Each cursor has a *stop*: a position at which a value has to take the slow
//! path (the end of a block, no more room, a parked operation, a sample). Between stops a value
//! moves by the fast path, with one comparison against the stop; see [`Buffer::push_quickly`]. A
//! stop may be too early, never too late: code that changes the reason for a stop sets it again.
//!
//! Values come and go by pointer: a move through a chain of `Option`s and `Result`s copies a large
//! value at each step, and every message takes this path.

mod blocks;

use std::{
    mem,
    ptr::{self, NonNull},
};

pub(crate) use blocks::Blocks;
use blocks::{NEVER, block_slots, slots_in};

/// The size of the first ring, in bytes, roughly. Each lap of a ring takes the slow path once.
const FIRST_BYTES: usize = 512;
/// The fewest slots of the first ring, however large the values are.
const FIRST_SLOTS: usize = 4;

/// Fetches the slot at the cursor into this CPU's cache ahead of its use, unless it is smaller than
/// a cache line: the peer used it last, and the next operation would wait for it under the lock.
#[inline(always)]
fn prefetch<T, const TO_WRITE: bool>(slot: NonNull<T>) {
    #[cfg(not(target_arch = "x86_64"))]
    let _ = slot;
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_ET0, _MM_HINT_T0, _mm_prefetch};
        /// The bytes of a cache line.
        const LINE: usize = 64;
        /// The most lines fetched ahead: as many as a CPU waits for at a time.
        const MOST_FETCHED: usize = 8;
        for line in 0..(size_of::<T>() / LINE).min(MOST_FETCHED) {
            let line = slot.as_ptr().cast::<i8>().wrapping_add(line * LINE);
            // SAFETY: a prefetch is a hint, which may point anywhere.
            unsafe {
                if TO_WRITE {
                    _mm_prefetch::<_MM_HINT_ET0>(line);
                } else {
                    _mm_prefetch::<_MM_HINT_T0>(line);
                }
            }
        }
    }
}

/// The cursors: the part that a message touches in the usual case.
#[repr(C)]
pub(crate) struct Buffer<T> {
    head: u64,
    tail: u64,
    next_out: NonNull<T>,
    next_in: NonNull<T>,
    /// The stops, as the low halves of positions. A cursor that is *at* its stop takes the slow
    /// path.
    stop_out: u32,
    stop_in: u32,
}

impl<T> Buffer<T> {
    pub(crate) const fn new() -> Buffer<T> {
        Buffer::at(0)
    }

    const fn at(position: u64) -> Buffer<T> {
        Buffer {
            head: position,
            tail: position,
            next_out: NonNull::dangling(),
            next_in: NonNull::dangling(),
            stop_out: position as u32,
            stop_in: position as u32,
        }
    }

    #[inline(always)]
    pub(crate) fn head(&self) -> u64 {
        self.head
    }

    #[inline(always)]
    pub(crate) fn tail(&self) -> u64 {
        self.tail
    }

    #[inline(always)]
    pub(crate) fn len(&self) -> u64 {
        self.tail - self.head
    }

    // ---- the fast path -------------------------------------------------------------------

    /// Moves the value at `value` in, unless the cursor is at its stop. Returns whether it did.
    ///
    /// # Safety
    /// `value` is valid to read and, if this returns true, not used as a value afterwards.
    #[inline(always)]
    pub(crate) unsafe fn push_quickly(&mut self, value: *const T) -> bool {
        if self.tail as u32 == self.stop_in {
            return false;
        }
        // SAFETY: before a stop the cursor is on a free slot.
        unsafe { self.push(value) };
        true
    }

    /// Takes the oldest value out, unless there is none or the cursor is at its stop. Returns its
    /// slot, which is not used again before the next push: the caller moves the value from there.
    #[inline(always)]
    pub(crate) fn pop_quickly(&mut self) -> Option<NonNull<T>> {
        if self.head == self.tail || self.head as u32 == self.stop_out {
            return None;
        }
        // SAFETY: not empty, and before a stop the cursor is on the oldest value.
        Some(unsafe { self.pop() })
    }

    /// Whether the buffer is empty and its cursor is not at a stop, where only the slow path can
    /// tell what a receive would find.
    #[inline(always)]
    pub(crate) fn is_plainly_empty(&self) -> bool {
        self.head == self.tail && self.head as u32 != self.stop_out
    }

    /// # Safety
    /// As for [`Buffer::push_quickly`]; the cursor is on a free slot.
    #[inline(always)]
    unsafe fn push(&mut self, value: *const T) {
        // SAFETY: the caller's promise; the slot is apart from the value's own place.
        unsafe {
            ptr::copy_nonoverlapping(value, self.next_in.as_ptr(), 1);
            self.next_in = self.next_in.add(1);
        }
        prefetch::<T, true>(self.next_in);
        self.tail += 1;
    }

    /// # Safety
    /// The cursor is on the oldest value.
    #[inline(always)]
    unsafe fn pop(&mut self) -> NonNull<T> {
        let slot = self.next_out;
        // SAFETY: the caller's promise: the cursor is inside a block.
        self.next_out = unsafe { slot.add(1) };
        prefetch::<T, false>(self.next_out);
        self.head += 1;
        slot
    }

    // ---- the slow path -------------------------------------------------------------------

    /// Moves the value at `value` in, regardless of the stop. Makes room for it if necessary.
    ///
    /// # Safety
    /// `value` is valid to read, and is not used as a value afterwards.
    pub(crate) unsafe fn push_slowly(&mut self, blocks: &mut Blocks<T>, value: *const T) {
        if blocks.is_ring() && self.len() == u64::from(blocks.slots) {
            if (blocks.slots as usize) < block_slots::<T>() {
                self.grow(blocks);
            } else {
                blocks.last_out = self.tail;
                let next = blocks.append();
                self.go_on_in(blocks, next);
            }
        } else if self.tail == blocks.wrap_in {
            let next = if blocks.is_ring() { blocks.into } else { blocks.append() };
            self.go_on_in(blocks, next);
        }
        // SAFETY: the cursor is on a free slot now; the rest is the caller's promise.
        unsafe { self.push(value) };
    }

    fn go_on_in(&mut self, blocks: &mut Blocks<T>, block: NonNull<T>) {
        (blocks.into, self.next_in) = (block, block);
        blocks.wrap_in = self.tail + u64::from(blocks.slots);
    }

    /// Moves the values into a ring with twice the slots.
    fn grow(&mut self, blocks: &mut Blocks<T>) {
        let slots = (blocks.slots * 2).max(slots_in::<T>(FIRST_BYTES, FIRST_SLOTS) as u32);
        let larger = Blocks::allocate(slots);
        let first = (blocks.wrap_out - self.head).min(self.len()) as usize;
        let second = self.len() as usize - first;
        // SAFETY: the values of a ring are `first` at its cursor and the others at its beginning;
        // the larger block has room for both.
        unsafe {
            let place = larger.as_ptr();
            ptr::copy_nonoverlapping(self.next_out.as_ptr(), place, first);
            ptr::copy_nonoverlapping(blocks.out.as_ptr(), place.add(first), second);
            Blocks::free(blocks.out, blocks.slots);
            self.next_in = larger.add(first + second);
        }
        self.next_out = larger;
        (blocks.out, blocks.into, blocks.slots) = (larger, larger, slots);
        blocks.wrap_out = self.head + u64::from(slots);
        blocks.wrap_in = blocks.wrap_out;
    }

    /// Takes the oldest value out, regardless of the stop. None if there is no value. The rule for
    /// the slot is that of [`Buffer::pop_quickly`].
    pub(crate) fn pop_slowly(&mut self, blocks: &mut Blocks<T>) -> Option<NonNull<T>> {
        if self.head == self.tail {
            return None;
        }
        if self.head == blocks.last_out {
            // SAFETY: there is a next block, and every value of this one was taken.
            let next = unsafe {
                let next = Blocks::next(blocks.out).read();
                Blocks::free(blocks.out, blocks.slots);
                next
            };
            let last = next == blocks.into;
            blocks.last_out = if last { NEVER } else { self.head + u64::from(blocks.slots) };
            self.go_on_out(blocks, next);
        } else if self.head == blocks.wrap_out {
            self.go_on_out(blocks, blocks.out);
        }
        // SAFETY: not empty, and the cursor is on the oldest value now.
        Some(unsafe { self.pop() })
    }

    fn go_on_out(&mut self, blocks: &mut Blocks<T>, block: NonNull<T>) {
        (blocks.out, self.next_out) = (block, block);
        blocks.wrap_out = self.head + u64::from(blocks.slots);
    }

    // ---- stops ---------------------------------------------------------------------------

    /// Lets values in by the fast path while fewer than `room` are inside, and up to the position
    /// `until`. Lets none in if the cursor is at `until` already.
    pub(crate) fn stop_in(&mut self, blocks: &Blocks<T>, room: u64, until: u64) {
        let slots = if blocks.is_ring() { self.head + u64::from(blocks.slots) } else { NEVER };
        let stop = until.min(self.head + room).min(blocks.wrap_in).min(slots);
        self.stop_in = stop.max(self.tail).min(self.tail + u64::from(u32::MAX)) as u32;
    }

    /// Lets values out by the fast path up to the position `until`. Lets none out if the cursor is
    /// at `until` already.
    pub(crate) fn stop_out(&mut self, blocks: &Blocks<T>, until: u64) {
        let stop = until.min(blocks.wrap_out).min(blocks.last_out);
        self.stop_out = stop.min(self.head + u64::from(u32::MAX)) as u32;
    }

    /// Lets no value in by the fast path.
    pub(crate) fn halt_in(&mut self) {
        self.stop_in = self.tail as u32;
    }

    /// Lets no value out by the fast path.
    pub(crate) fn halt_out(&mut self) {
        self.stop_out = self.head as u32;
    }

    #[cfg(test)]
    pub(crate) fn until_stop_in(&self) -> u64 {
        u64::from(self.stop_in.wrapping_sub(self.tail as u32))
    }

    #[cfg(test)]
    pub(crate) fn is_stopped_in(&self) -> bool {
        self.until_stop_in() == 0
    }

    #[cfg(test)]
    pub(crate) fn is_stopped_out(&self) -> bool {
        self.head as u32 == self.stop_out
    }

    /// Checks that no stop lets a cursor past the end of its block.
    #[cfg(test)]
    pub(crate) fn check_stops(&self, blocks: &Blocks<T>) {
        assert!(self.until_stop_in() <= blocks.wrap_in - self.tail);
        let slots = u64::from(blocks.slots);
        assert!(!blocks.is_ring() || self.until_stop_in() + self.len() <= slots);
        let until_stop_out = u64::from(self.stop_out.wrapping_sub(self.head as u32));
        let last = blocks.last_out.min(blocks.wrap_out);
        assert!(until_stop_out <= last - self.head);
    }

    /// Moves all values out, for the caller to drop elsewhere.
    pub(crate) fn take_all(&mut self, blocks: &mut Blocks<T>) -> Drain<T> {
        let buffer = mem::replace(self, Buffer::at(self.tail));
        Drain { buffer, blocks: mem::replace(blocks, Blocks::at(self.tail)) }
    }
}

/// All the values that a channel held.
pub(crate) struct Drain<T> {
    buffer: Buffer<T>,
    blocks: Blocks<T>,
}

impl<T> Iterator for Drain<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        // SAFETY: the value was taken out of the buffer, and moves on once.
        self.buffer.pop_slowly(&mut self.blocks).map(|slot| unsafe { slot.read() })
    }
}

impl<T> Drop for Drain<T> {
    fn drop(&mut self) {
        if mem::needs_drop::<T>() {
            self.for_each(drop);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A buffer with its blocks, which takes the fast path where it may.
    struct Both<T>(Buffer<T>, Blocks<T>);

    impl<T> Both<T> {
        fn new() -> Both<T> {
            Both(Buffer::new(), Blocks::new())
        }

        fn push(&mut self, value: T) {
            let value = mem::ManuallyDrop::new(value);
            // SAFETY: the value is moved from once.
            unsafe {
                if !self.0.push_quickly(&*value) {
                    self.0.push_slowly(&mut self.1, &*value);
                    self.set_stops();
                }
            }
        }

        fn pop(&mut self) -> Option<T> {
            let popped = self.0.pop_quickly().or_else(|| self.0.pop_slowly(&mut self.1));
            self.set_stops();
            // SAFETY: the value was taken out of the buffer, and moves on once.
            popped.map(|slot| unsafe { slot.read() })
        }

        fn set_stops(&mut self) {
            self.0.stop_in(&self.1, u64::MAX >> 1, u64::MAX);
            self.0.stop_out(&self.1, u64::MAX);
        }
    }

    #[test]
    fn values_keep_their_order_across_blocks_and_the_buffer_shrinks() {
        let mut both = Both::new();
        let mut next_out = 0u64;
        for next_in in 0..50_000u64 {
            both.push(next_in);
            if next_in % 3 == 0 {
                assert_eq!(both.pop(), Some(next_out));
                next_out += 1;
            }
            assert_eq!(both.0.len(), next_in + 1 - next_out);
        }
        while let Some(value) = both.pop() {
            assert_eq!(value, next_out);
            next_out += 1;
        }
        assert_eq!((next_out, both.0.len(), both.1.out), (50_000, 0, both.1.into));
        assert_eq!((both.0.head(), both.0.tail(), both.1.is_ring()), (50_000, 50_000, true));
        assert!(both.1.slots as usize <= block_slots::<u64>());
    }

    /// Every way round a ring, through growth and into a chain of blocks and back.
    #[test]
    fn values_keep_their_order_under_random_pushes_and_pops() {
        for seed in 0..200u64 {
            let mut both = Both::<[u64; 64]>::new();
            let (mut next_in, mut next_out) = (0, 0);
            let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            for _ in 0..400 {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                for _ in 0..random % 23 {
                    if random & 64 == 0 {
                        both.push([next_in; 64]);
                        next_in += 1;
                    } else if let Some(value) = both.pop() {
                        assert_eq!(value, [next_out; 64], "seed {seed}");
                        next_out += 1;
                    }
                }
                assert_eq!(both.0.len(), next_in - next_out, "seed {seed}");
            }
            assert_eq!(both.0.take_all(&mut both.1).count() as u64, next_in - next_out);
        }
    }

    #[test]
    fn quick_pushes_and_pops_never_pass_a_stop() {
        let mut both = Both::new();
        (0..10).for_each(|value| both.push(value));
        both.0.stop_in(&both.1, 12, u64::MAX);
        // SAFETY: the value is `Copy`.
        let push = |both: &mut Both<i32>| unsafe { both.0.push_quickly(&0) };
        assert_eq!([push(&mut both), push(&mut both), push(&mut both)], [true, true, false]);
        both.0.stop_in(&both.1, 100, 13);
        assert_eq!([push(&mut both), push(&mut both)], [true, false]);
        both.0.stop_out(&both.1, 2);
        let mut pop = || both.0.pop_quickly().is_some();
        assert_eq!([pop(), pop(), pop()], [true, true, false]);
    }

    #[test]
    fn a_dropped_drain_drops_each_remaining_value_once() {
        let count = std::rc::Rc::new(());
        let mut both = Both::new();
        for _ in 0..5_000 {
            both.push(count.clone());
        }
        (0..100).for_each(|_| drop(both.pop()));
        let mut drain = both.0.take_all(&mut both.1);
        assert!(drain.next().is_some());
        drop(drain);
        assert_eq!(std::rc::Rc::strong_count(&count), 1);
        both.push(count.clone());
        assert_eq!(both.0.head(), 5_000);
        drop(both.0.take_all(&mut both.1));
        assert_eq!(std::rc::Rc::strong_count(&count), 1);
    }

    #[test]
    fn zero_sized_values_are_counted() {
        let mut both = Both::new();
        (0..100_000).for_each(|_| both.push(()));
        (0..30_000).for_each(|_| assert_eq!(both.pop(), Some(())));
        assert_eq!(both.0.take_all(&mut both.1).count(), 70_000);
    }
}
