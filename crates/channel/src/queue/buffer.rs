//! The values a channel holds, first in first out.
//!
//! A short queue lives in one [`Ring`]. A long one goes on in the blocks of [`Rest`], so that
//! growing never copies more than a block (nobody waits behind a large copy under the lock) and a
//! drained burst gives its memory back: one block is kept.
//!
//! Positions count up for ever, so they are also the counters of the channel: `tail` values were
//! put into the ring and `head` were taken out of it. The value at position p is in slot
//! p mod the ring's size, in the ring and in blocks alike.
//!
//! Values come and go by pointer: a move through a chain of `Option`s and `Result`s copies a large
//! value at each step, and this is the path every message takes.

use std::{collections::VecDeque, mem, mem::MaybeUninit, ptr, ptr::NonNull};

/// About this many bytes make a block; a ring of up to this size is kept for ever.
const BLOCK_BYTES: usize = 8 * 1024;
/// Blocks of large values still hold this many.
const FEWEST_SLOTS: usize = 16;
/// The size of the first ring.
const FIRST_SLOTS: usize = 4;

/// The slots of a block: a power of two.
const fn block_slots<T>() -> usize {
    let size = if size_of::<T>() == 0 { 1 } else { size_of::<T>() };
    let slots = BLOCK_BYTES / size;
    if slots > FEWEST_SLOTS { 1 << slots.ilog2() } else { FEWEST_SLOTS }
}

/// The oldest values. Packed, to fit the channel's first cache line.
#[repr(C, packed(4))]
pub(crate) struct Ring<T> {
    slots: NonNull<T>,
    head: u64,
    tail: u64,
    /// A power of two, or 0 before the first value.
    count: u32,
}

/// The values behind the ring's, in blocks: full ones, then one being filled.
pub(crate) struct Rest<T> {
    blocks: VecDeque<Ring<T>>,
    len: u64,
}

impl<T> Ring<T> {
    pub(crate) fn new() -> Ring<T> {
        Ring { slots: NonNull::dangling(), head: 0, tail: 0, count: 0 }
    }

    /// An empty ring whose next value has this position.
    fn with_slots(count: usize, position: u64) -> Ring<T> {
        let slots = Box::leak(Box::<[T]>::new_uninit_slice(count));
        let slots = NonNull::from(slots).cast();
        Ring { slots, head: position, tail: position, count: count as u32 }
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

    #[inline(always)]
    fn slot(&self, position: u64) -> *mut T {
        let index = position as u32 & self.count.wrapping_sub(1);
        let slots = self.slots;
        // SAFETY: masked to the number of slots, which is a power of two.
        unsafe { slots.as_ptr().add(index as usize) }
    }

    /// Moves the value at `value` in; false when there is no free slot.
    ///
    /// # Safety
    /// `value` is valid to read and, when this is true, not used as a value afterwards.
    #[inline(always)]
    pub(crate) unsafe fn try_push_from(&mut self, value: *const T) -> bool {
        if self.len() >= u64::from(self.count) {
            return false;
        }
        // SAFETY: a free slot, apart from the value's own place.
        unsafe { ptr::copy_nonoverlapping(value, self.slot(self.tail), 1) };
        self.tail += 1;
        true
    }

    /// Moves the oldest value to `place`; false when there is none.
    #[inline(always)]
    pub(crate) fn pop_to(&mut self, place: &mut MaybeUninit<T>) -> bool {
        if self.head == self.tail {
            return false;
        }
        // SAFETY: the head holds a value, which is moved out.
        unsafe { ptr::copy_nonoverlapping(self.slot(self.head), place.as_mut_ptr(), 1) };
        self.head += 1;
        true
    }

    /// Moves the value at `value` behind everything there is.
    ///
    /// # Safety
    /// `value` is valid to read, and is not used as a value afterwards.
    #[inline(never)]
    pub(crate) unsafe fn push_from(&mut self, rest: &mut Rest<T>, value: *const T) {
        let most = block_slots::<T>();
        // SAFETY: the caller's promise; each ring has a free slot when it must.
        unsafe {
            if rest.blocks.is_empty() {
                if self.try_push_from(value) {
                    return;
                }
                if (self.count as usize) < most {
                    self.grow();
                    let pushed = self.try_push_from(value);
                    return debug_assert!(pushed);
                }
            }
            rest.push_from(value, self.tail + rest.len);
        }
    }

    /// When the ring is empty, the next block takes its place.
    pub(crate) fn advance(&mut self, rest: &mut Rest<T>) {
        if self.head == self.tail
            && let Some(block) = rest.blocks.pop_front()
        {
            rest.len -= block.len();
            *self = block;
            if rest.blocks.is_empty() {
                rest.blocks = VecDeque::new();
            }
        }
    }

    /// Twice the slots.
    fn grow(&mut self) {
        let mut larger = Ring::with_slots((self.count as usize * 2).max(FIRST_SLOTS), self.head);
        while self.head != self.tail {
            // SAFETY: one value, from a ring that has one to a ring that has room.
            let pushed = unsafe { larger.try_push_from(self.slot(self.head)) };
            debug_assert!(pushed);
            self.head += 1;
        }
        *self = larger;
    }

    /// Moves everything out, to be dropped elsewhere.
    pub(crate) fn take_all(&mut self, rest: &mut Rest<T>) -> Drain<T> {
        let end = self.tail + rest.len;
        let ring = mem::replace(self, Ring { head: end, tail: end, ..Ring::new() });
        Drain { ring, rest: mem::replace(rest, Rest::new()) }
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        let mut place = MaybeUninit::uninit();
        if mem::needs_drop::<T>() {
            while self.pop_to(&mut place) {
                // SAFETY: just written.
                unsafe { place.assume_init_drop() };
            }
        }
        let slots = NonNull::slice_from_raw_parts(self.slots, self.count as usize);
        // SAFETY: made by `with_slots`, or without slots and so without an allocation.
        drop(unsafe { Box::from_raw(slots.as_ptr() as *mut [MaybeUninit<T>]) });
    }
}

impl<T> Rest<T> {
    pub(crate) const fn new() -> Rest<T> {
        Rest { blocks: VecDeque::new(), len: 0 }
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// # Safety
    /// As for [`Ring::push_from`].
    unsafe fn push_from(&mut self, value: *const T, position: u64) {
        self.len += 1;
        // SAFETY: the caller's promise.
        unsafe {
            if let Some(block) = self.blocks.back_mut()
                && block.try_push_from(value)
            {
                return;
            }
            let mut block = Ring::with_slots(block_slots::<T>(), position);
            let pushed = block.try_push_from(value);
            debug_assert!(pushed);
            self.blocks.push_back(block);
        }
    }
}

/// Everything a channel held.
pub(crate) struct Drain<T> {
    ring: Ring<T>,
    rest: Rest<T>,
}

impl<T> Iterator for Drain<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.ring.advance(&mut self.rest);
        let mut place = MaybeUninit::uninit();
        // SAFETY: written when it says so.
        self.ring.pop_to(&mut place).then(|| unsafe { place.assume_init() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Both<T>(Ring<T>, Rest<T>);

    impl<T> Both<T> {
        fn push(&mut self, value: T) {
            let value = mem::ManuallyDrop::new(value);
            // SAFETY: moved from.
            unsafe { self.0.push_from(&mut self.1, &*value) };
        }

        fn pop(&mut self) -> Option<T> {
            let mut place = MaybeUninit::uninit();
            let popped = self.0.pop_to(&mut place);
            self.0.advance(&mut self.1);
            // SAFETY: written when it says so.
            popped.then(|| unsafe { place.assume_init() })
        }
    }

    #[test]
    fn order_survives_block_borders_and_memory_returns() {
        let mut both = Both(Ring::new(), Rest::new());
        let mut next_out = 0u64;
        for next_in in 0..50_000u64 {
            both.push(next_in);
            if next_in % 3 == 0 {
                assert_eq!(both.pop(), Some(next_out));
                next_out += 1;
            }
            assert_eq!(both.0.len() + both.1.len(), next_in + 1 - next_out);
        }
        while let Some(value) = both.pop() {
            assert_eq!(value, next_out);
            next_out += 1;
        }
        assert_eq!((next_out, both.0.len(), both.1.blocks.capacity()), (50_000, 0, 0));
        assert_eq!((both.0.head(), both.0.tail()), (50_000, 50_000));
        assert!(both.0.count as usize <= block_slots::<u64>());
    }

    #[test]
    fn what_is_left_inside_is_dropped_once() {
        let count = std::rc::Rc::new(());
        let mut both = Both(Ring::new(), Rest::new());
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
        drop(both);
        assert_eq!(std::rc::Rc::strong_count(&count), 1);
    }

    #[test]
    fn values_without_a_size_are_counted() {
        let mut both = Both(Ring::new(), Rest::new());
        (0..10_000).for_each(|_| both.push(()));
        assert_eq!(both.0.take_all(&mut both.1).count(), 10_000);
    }
}
