//! Memory for copied elements that are too large to travel inline. The sender takes a block and the
//! receiver gives it back, so that a busy channel allocates nothing once it is warm.

use std::{
    mem::MaybeUninit,
    sync::{Mutex, PoisonError},
};

/// Room for one element. Dropping a block frees its memory.
pub(crate) type Block = Box<[MaybeUninit<u8>]>;

/// The most bytes of a channel's spare blocks.
const MOST_SPARE_BYTES: usize = 1 << 20;
/// The most spare blocks of a channel. One spare block is always allowed, however large.
const MOST_SPARE: usize = 64;

/// A channel's spare blocks, all of its element size.
#[derive(Default)]
pub(crate) struct Blocks {
    spare: Mutex<Vec<Block>>,
}

impl Blocks {
    /// Returns a spare block, or else a new one. `size` is the channel's element size.
    pub(crate) fn take(&self, size: usize) -> Result<Block, crate::code::Code> {
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop();
        match spare {
            Some(block) => Ok(block),
            None => allocate(size),
        }
    }

    /// Adds a block to the spare ones, or frees it if there are enough.
    pub(crate) fn put(&self, block: Block) {
        let most = (MOST_SPARE_BYTES / block.len().max(1)).clamp(1, MOST_SPARE);
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.len() < most {
            spare.push(block);
        }
    }
}

/// Allocates a block. Fails with ENOMEM where Rust would end the process.
pub(crate) fn allocate(size: usize) -> Result<Block, crate::code::Code> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(size).map_err(|_| crate::code::Code::NO_MEMORY)?;
    bytes.resize(size, MaybeUninit::uninit());
    Ok(bytes.into_boxed_slice())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_returned_block_is_reused_and_spare_blocks_are_bounded() {
        let blocks = Blocks::default();
        let first = blocks.take(100).unwrap();
        let address = first.as_ptr();
        blocks.put(first);
        let again = blocks.take(100).unwrap();
        assert_eq!(again.as_ptr(), address);
        for _ in 0..1_000 {
            blocks.put(allocate(100).unwrap());
        }
        assert_eq!(blocks.spare.lock().unwrap().len(), MOST_SPARE);
    }
}
