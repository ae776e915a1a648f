//! The memory behind a buffer: one block of slots, or a chain of them, each knowing the next.

use std::{
    alloc::{self, Layout},
    ptr::NonNull,
};

/// About this many bytes make a block; a ring of up to this size is kept for ever.
const BLOCK_BYTES: usize = 8 * 1024;
/// Blocks of large values have up to this many bytes, for as many as [`BATCH_SLOTS`] values.
const LARGE_BLOCK_BYTES: usize = 64 * 1024;
const BATCH_SLOTS: usize = 128;
/// Blocks of very large values still hold this many.
const FEWEST_SLOTS: usize = 16;

/// The slots of a full-sized block: a power of two.
pub(super) const fn block_slots<T>() -> usize {
    let large = slots_in::<T>(LARGE_BLOCK_BYTES, FEWEST_SLOTS);
    slots_in::<T>(BLOCK_BYTES, if large < BATCH_SLOTS { large } else { BATCH_SLOTS })
}

/// A power of two: as many as there is place for, but not fewer than `fewest`.
pub(super) const fn slots_in<T>(bytes: usize, fewest: usize) -> usize {
    let size = if size_of::<T>() == 0 { 1 } else { size_of::<T>() };
    let slots = bytes / size;
    if slots > fewest { 1 << slots.ilog2() } else { fewest }
}

/// What the cursors move through.
pub(crate) struct Blocks<T> {
    /// The block values go out of, and the position at which its last slot has been passed.
    pub(super) out: NonNull<T>,
    pub(super) wrap_out: u64,
    /// The block values come in to: the same, while there is only one.
    pub(super) into: NonNull<T>,
    pub(super) wrap_in: u64,
    /// The position at which the `out` block is done for, and the next one takes its place;
    /// NEVER while there is only one.
    pub(super) last_out: u64,
    /// The slots of each block.
    pub(super) slots: u32,
}

/// [`Blocks::last_out`] of a ring.
pub(super) const NEVER: u64 = u64::MAX;

impl<T> Blocks<T> {
    pub(crate) const fn new() -> Blocks<T> {
        Blocks::at(0)
    }

    /// No blocks, for a buffer at this position.
    pub(super) const fn at(position: u64) -> Blocks<T> {
        Blocks {
            out: NonNull::dangling(),
            wrap_out: position,
            into: NonNull::dangling(),
            wrap_in: position,
            last_out: NEVER,
            slots: 0,
        }
    }

    pub(super) fn is_ring(&self) -> bool {
        self.last_out == NEVER
    }

    /// A block behind the one that values come in to.
    pub(super) fn append(&mut self) -> NonNull<T> {
        let block = Blocks::allocate(self.slots);
        // SAFETY: a block that is alive, and has slots.
        unsafe { Blocks::next(self.into).write(block) };
        block
    }

    /// In front of its slots each block has a place for where the next block is.
    fn layout(slots: u32) -> (Layout, usize) {
        let layout = Layout::array::<T>(slots as usize)
            .and_then(|slots| Layout::new::<NonNull<T>>().extend(slots));
        layout.expect("a block is small, or its values could not exist")
    }

    pub(super) fn allocate(slots: u32) -> NonNull<T> {
        let (layout, first_slot) = Blocks::<T>::layout(slots);
        // SAFETY: the layout has a size, that of the link at least; the slots are inside.
        unsafe {
            let Some(block) = NonNull::new(alloc::alloc(layout)) else {
                alloc::handle_alloc_error(layout)
            };
            block.add(first_slot).cast()
        }
    }

    /// # Safety
    /// The block was made by [`Blocks::allocate`].
    pub(super) unsafe fn next(block: NonNull<T>) -> NonNull<NonNull<T>> {
        let (_, first_slot) = Blocks::<T>::layout(0);
        // SAFETY: the link is there.
        unsafe { block.cast::<u8>().sub(first_slot).cast() }
    }

    /// # Safety
    /// The block was made by [`Blocks::allocate`] with as many slots, or has none and was not made.
    pub(super) unsafe fn free(block: NonNull<T>, slots: u32) {
        let (layout, first_slot) = Blocks::<T>::layout(slots);
        if slots > 0 {
            // SAFETY: the caller's promise.
            unsafe { alloc::dealloc(block.cast::<u8>().sub(first_slot).as_ptr(), layout) };
        }
    }
}

impl<T> Drop for Blocks<T> {
    fn drop(&mut self) {
        let mut block = self.out;
        // SAFETY: each block is freed once, and each but the last has a next one.
        unsafe {
            while block != self.into {
                let next = Blocks::next(block).read();
                Blocks::free(block, self.slots);
                block = next;
            }
            Blocks::free(block, self.slots);
        }
    }
}
