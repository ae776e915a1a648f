//! The memory behind a buffer: one block of slots, or a chain of blocks, each with a link to the
//! next.

use std::{
    alloc::{self, Layout},
    ptr::NonNull,
};

/// The size of a block, in bytes, roughly. A ring of up to this size is kept for ever.
const BLOCK_BYTES: usize = 8 * 1024;
/// The most bytes of a block of large values, which has room for up to [`BATCH_SLOTS`] of them.
const LARGE_BLOCK_BYTES: usize = 64 * 1024;
/// The slots that a block of large values has if they fit.
const BATCH_SLOTS: usize = 128;
/// The fewest slots of a block, however large the values are.
const FEWEST_SLOTS: usize = 16;

/// Returns the number of slots of a full-sized block: a power of two.
pub(super) const fn block_slots<T>() -> usize {
    let large = slots_in::<T>(LARGE_BLOCK_BYTES, FEWEST_SLOTS);
    slots_in::<T>(BLOCK_BYTES, if large < BATCH_SLOTS { large } else { BATCH_SLOTS })
}

/// Returns the number of slots that fit into `bytes`, rounded down to a power of two, but not fewer
/// than `fewest`.
pub(super) const fn slots_in<T>(bytes: usize, fewest: usize) -> usize {
    let size = if size_of::<T>() == 0 { 1 } else { size_of::<T>() };
    let slots = bytes / size;
    if slots > fewest { 1 << slots.ilog2() } else { fewest }
}

/// The blocks that the cursors move through.
pub(crate) struct Blocks<T> {
    /// The block that values go out of.
    pub(super) out: NonNull<T>,
    /// The position at which the cursor has passed the last slot of `out`.
    pub(super) wrap_out: u64,
    /// The block that values come in to: the same as `out` while there is only one block.
    pub(super) into: NonNull<T>,
    /// The position at which the cursor has passed the last slot of `into`.
    pub(super) wrap_in: u64,
    /// The position at which the `out` block is used up, and the next block takes its place.
    /// NEVER while there is only one block.
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

    /// Returns no blocks, for a buffer at `position`.
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

    /// Allocates a block and links it behind the block that values come in to.
    pub(super) fn append(&mut self) -> NonNull<T> {
        let block = Blocks::allocate(self.slots);
        // SAFETY: the block is alive and has slots.
        unsafe { Blocks::next(self.into).write(block) };
        block
    }

    /// Returns the layout of a block and the offset of its first slot. In front of its slots each
    /// block has a link to the next block.
    fn layout(slots: u32) -> (Layout, usize) {
        let layout = Layout::array::<T>(slots as usize)
            .and_then(|slots| Layout::new::<NonNull<T>>().extend(slots));
        layout.expect("a block is small, or its values could not exist")
    }

    pub(super) fn allocate(slots: u32) -> NonNull<T> {
        let (layout, first_slot) = Blocks::<T>::layout(slots);
        // SAFETY: the layout has at least the size of the link, and the slots are inside it.
        unsafe {
            let Some(block) = NonNull::new(alloc::alloc(layout)) else {
                alloc::handle_alloc_error(layout)
            };
            block.add(first_slot).cast()
        }
    }

    /// Returns where a block's link to the next block is.
    ///
    /// # Safety
    /// The block comes from [`Blocks::allocate`].
    pub(super) unsafe fn next(block: NonNull<T>) -> NonNull<NonNull<T>> {
        let (_, first_slot) = Blocks::<T>::layout(0);
        // SAFETY: the link is there.
        unsafe { block.cast::<u8>().sub(first_slot).cast() }
    }

    /// # Safety
    /// The block comes from [`Blocks::allocate`] with as many slots, or there is no block and
    /// `slots` is 0.
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
