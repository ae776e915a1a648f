//! The values a channel holds, first in first out, in blocks.
//!
//! A short queue lives in one ring (`front`). A long one goes on in further blocks, so that
//! growing never copies what is there (nobody waits behind a large copy under the lock) and a
//! drained burst gives its memory back: at most two blocks are kept.

use std::{collections::VecDeque, mem};

/// About this many bytes make a block; a ring of up to this size is kept for ever.
const BLOCK_BYTES: usize = 8 * 1024;
/// Blocks of large values still hold this many.
const FEWEST_SLOTS: usize = 16;

pub(crate) struct Buffer<T> {
    /// The oldest values.
    front: VecDeque<T>,
    /// Full blocks, then one being filled. Empty unless `front` was full.
    rest: VecDeque<VecDeque<T>>,
    len: usize,
}

impl<T> Buffer<T> {
    const SLOTS: usize = {
        let size = if size_of::<T>() == 0 { 1 } else { size_of::<T>() };
        if BLOCK_BYTES / size > FEWEST_SLOTS { BLOCK_BYTES / size } else { FEWEST_SLOTS }
    };

    pub(crate) const fn new() -> Buffer<T> {
        Buffer { front: VecDeque::new(), rest: VecDeque::new(), len: 0 }
    }

    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline(always)]
    pub(crate) fn push_back(&mut self, value: T) {
        self.len += 1;
        if self.rest.is_empty() && self.front.len() < Self::SLOTS {
            self.front.push_back(value);
        } else {
            self.push_rest(value);
        }
    }

    #[inline(never)]
    fn push_rest(&mut self, value: T) {
        match self.rest.back_mut() {
            Some(block) if block.len() < Self::SLOTS => block.push_back(value),
            _ => {
                let mut block = VecDeque::with_capacity(Self::SLOTS);
                block.push_back(value);
                self.rest.push_back(block);
            }
        }
    }

    #[inline(always)]
    pub(crate) fn pop_front(&mut self) -> Option<T> {
        let value = self.front.pop_front()?;
        self.len -= 1;
        if self.front.is_empty() && !self.rest.is_empty() {
            self.advance();
        }
        Some(value)
    }

    /// The next block becomes the front. The list of blocks goes with the last of them.
    #[inline(never)]
    fn advance(&mut self) {
        if let Some(block) = self.rest.pop_front() {
            self.front = block;
        }
        if self.rest.is_empty() {
            self.rest = VecDeque::new();
        }
    }

    /// Moves everything out, to be dropped elsewhere.
    pub(crate) fn take_all(&mut self) -> Buffer<T> {
        mem::replace(self, Buffer::new())
    }
}

impl<T> Iterator for Buffer<T> {
    type Item = T;
    fn next(&mut self) -> Option<T> {
        self.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_survives_block_borders_and_memory_returns() {
        let mut buffer = Buffer::new();
        let mut next_out = 0u64;
        for next_in in 0..50_000u64 {
            buffer.push_back(next_in);
            if next_in % 3 == 0 {
                assert_eq!(buffer.pop_front(), Some(next_out));
                next_out += 1;
            }
        }
        assert_eq!(buffer.len(), 50_000 - next_out as usize);
        while let Some(value) = buffer.pop_front() {
            assert_eq!(value, next_out);
            next_out += 1;
        }
        assert_eq!((next_out, buffer.len(), buffer.rest.capacity()), (50_000, 0, 0));
        assert!(buffer.front.capacity() <= 2 * Buffer::<u64>::SLOTS);
    }
}
