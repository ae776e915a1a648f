//! The free parts of segments. Pure: this module knows numbers, not memory.
//!
//! Allocation takes the smallest free range that is large enough, and of those with the same length
//! the first. So memory that was used before and is warm is used again before memory that was never
//! touched, which is the large rest of a segment.

use std::collections::{BTreeMap, BTreeSet};

/// The length of every block is a multiple of this, in bytes. Blocks do not share pages, so the
/// memory of one block can be returned to the system alone.
pub const PAGE_BYTES: u64 = 4096;

/// A part of a segment. No two blocks in use overlap.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Block {
    /// The number of the segment.
    pub segment: u32,
    /// The start of the block in the segment, in bytes.
    pub offset: u64,
    /// The length of the block, in bytes: the requested length, rounded up to [`PAGE_BYTES`].
    pub len: u64,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub struct FreeSpace {
    segments: BTreeMap<u32, Tract>,
    /// Every free range, ordered by its length.
    by_len: BTreeSet<(u64, u32, u64)>,
    used: u64,
}

/// The accounts of one segment.
#[derive(Debug)]
struct Tract {
    len: u64,
    used: u64,
    /// The free ranges: the length of each by its start. No two touch.
    free: BTreeMap<u64, u64>,
}

/// Returns the length of a block for this many bytes.
pub fn rounded(len: u64) -> u64 {
    len.max(1).next_multiple_of(PAGE_BYTES)
}

impl FreeSpace {
    /// Adds a segment, all of which is free.
    pub fn add(&mut self, segment: u32, len: u64) {
        assert!(len > 0 && len.is_multiple_of(PAGE_BYTES), "a segment of {len} bytes");
        let tract = Tract { len, used: 0, free: BTreeMap::from([(0, len)]) };
        assert!(self.segments.insert(segment, tract).is_none(), "segment {segment} exists already");
        self.by_len.insert((len, segment, 0));
    }

    /// Removes a segment without blocks in use.
    pub fn remove(&mut self, segment: u32) {
        let tract = self.segments.remove(&segment).expect("the segment exists");
        assert_eq!(tract.used, 0, "segment {segment} is in use");
        self.by_len.remove(&(tract.len, segment, 0));
    }

    /// Takes a free block of at least this length, if there is one.
    pub fn allocate(&mut self, len: u64) -> Option<Block> {
        let len = rounded(len);
        let (found, segment, offset) = *self.by_len.range((len, 0, 0)..).next()?;
        let tract = self.segments.get_mut(&segment).expect("a free range has a segment");
        self.by_len.remove(&(found, segment, offset));
        tract.free.remove(&offset);
        if found > len {
            tract.free.insert(offset + len, found - len);
            self.by_len.insert((found - len, segment, offset + len));
        }
        tract.used += len;
        self.used += len;
        Some(Block { segment, offset, len })
    }

    /// Frees a block.
    pub fn free(&mut self, block: Block) {
        let Block { segment, mut offset, mut len } = block;
        let tract = self.segments.get_mut(&segment).expect("a block has a segment");
        tract.used -= len;
        self.used -= len;
        if let Some((&before, &before_len)) = tract.free.range(..offset).next_back() {
            assert!(before + before_len <= offset, "{block:?} is free already");
            if before + before_len == offset {
                tract.free.remove(&before);
                self.by_len.remove(&(before_len, segment, before));
                (offset, len) = (before, before_len + len);
            }
        }
        if let Some((&after, &after_len)) = tract.free.range(offset..).next() {
            assert!(offset + len <= after, "{block:?} is free already");
            if offset + len == after {
                tract.free.remove(&after);
                self.by_len.remove(&(after_len, segment, after));
                len += after_len;
            }
        }
        tract.free.insert(offset, len);
        self.by_len.insert((len, segment, offset));
    }

    /// Returns how many bytes the blocks in use have.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Returns how many bytes all segments have.
    pub fn total(&self) -> u64 {
        self.segments.values().map(|tract| tract.len).sum()
    }

    /// Returns the segments without blocks in use.
    pub fn unused(&self) -> impl Iterator<Item = u32> {
        self.segments.iter().filter(|(_, tract)| tract.used == 0).map(|(segment, _)| *segment)
    }

    /// Returns all free ranges.
    pub fn all_free(&self) -> impl Iterator<Item = Block> {
        self.by_len.iter().map(|(len, segment, offset)| Block {
            segment: *segment,
            offset: *offset,
            len: *len,
        })
    }

    /// Returns the free ranges in a part of a segment.
    pub fn free_of(&self, Block { segment, offset, len }: Block) -> Vec<Block> {
        let Some(tract) = self.segments.get(&segment) else { return Vec::new() };
        let end = offset + len;
        let before = tract.free.range(..offset).next_back();
        before
            .into_iter()
            .chain(tract.free.range(offset..end))
            .map(|(&from, &len)| (from.max(offset), (from + len).min(end)))
            .filter(|(from, to)| from < to)
            .map(|(from, to)| Block { segment, offset: from, len: to - from })
            .collect()
    }

    /// Panics if the accounts do not add up.
    pub fn check_invariants(&self) {
        let ranges: usize = self.segments.values().map(|tract| tract.free.len()).sum();
        assert_eq!(ranges, self.by_len.len(), "free ranges counted from both sides");
        assert_eq!(self.segments.values().map(|tract| tract.used).sum::<u64>(), self.used);
        for (segment, tract) in &self.segments {
            let mut end = None;
            for (&offset, &len) in &tract.free {
                assert!(
                    len > 0 && len.is_multiple_of(PAGE_BYTES) && offset.is_multiple_of(PAGE_BYTES)
                );
                assert!(end.is_none_or(|end| end < offset), "free ranges touch in {segment}");
                assert!(self.by_len.contains(&(len, *segment, offset)));
                end = Some(offset + len);
            }
            assert!(end.is_none_or(|end| end <= tract.len));
            assert_eq!(tract.free.values().sum::<u64>() + tract.used, tract.len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use marline_core::random::Random;

    fn space(segments: &[u64]) -> FreeSpace {
        let mut space = FreeSpace::default();
        for (number, pages) in segments.iter().enumerate() {
            space.add(number as u32, pages * PAGE_BYTES);
        }
        space.check_invariants();
        space
    }

    #[test]
    fn freed_space_is_used_again_before_untouched_space() {
        let mut space = space(&[100]);
        let (first, second) = (space.allocate(5 * PAGE_BYTES).unwrap(), space.allocate(1).unwrap());
        assert_eq!((first.offset, second.offset, second.len), (0, 5 * PAGE_BYTES, PAGE_BYTES));
        space.free(first);
        assert_eq!(space.allocate(3 * PAGE_BYTES + 1).unwrap().offset, 0);
        assert_eq!(space.allocate(PAGE_BYTES).unwrap().offset, 4 * PAGE_BYTES);
        assert_eq!(space.allocate(PAGE_BYTES).unwrap().offset, 6 * PAGE_BYTES);
        space.check_invariants();
    }

    #[test]
    fn a_block_that_fits_no_segment_is_not_allocated() {
        let mut space = space(&[4, 8]);
        assert_eq!(space.allocate(8 * PAGE_BYTES + 1), None);
        let all = space.allocate(8 * PAGE_BYTES).unwrap();
        assert_eq!((all.segment, space.allocate(5 * PAGE_BYTES)), (1, None));
        assert_eq!(space.unused().collect::<Vec<_>>(), [0]);
        space.remove(0);
        assert_eq!(space.allocate(1), None);
        space.free(all);
        assert_eq!((space.used(), space.total()), (0, 8 * PAGE_BYTES));
        space.check_invariants();
    }

    #[test]
    fn two_empty_blocks_are_distinct() {
        let mut space = space(&[4]);
        assert_ne!(space.allocate(0), space.allocate(0));
    }

    #[test]
    #[should_panic(expected = "is free already")]
    fn a_block_that_is_freed_twice_panics() {
        let mut space = space(&[8]);
        let (block, _other) = (space.allocate(1).unwrap(), space.allocate(1).unwrap());
        space.free(block);
        // The count of used bytes alone would not show it.
        space.free(Block { ..block });
    }

    #[test]
    fn blocks_never_overlap_and_all_space_is_freed() {
        for seed in 0..50 {
            let mut random = Random::new(seed);
            let mut space = space(&[64, 16, 256]);
            let mut taken: Vec<Block> = Vec::new();
            for _ in 0..400 {
                if random.below(5) < 3 {
                    let len = 1 + random.below(40 * PAGE_BYTES);
                    if let Some(block) = space.allocate(len) {
                        assert!(block.len >= len && block.len < len + PAGE_BYTES);
                        let overlaps = |other: &Block| {
                            other.segment == block.segment
                                && other.offset < block.offset + block.len
                                && block.offset < other.offset + other.len
                        };
                        assert!(!taken.iter().any(overlaps), "seed {seed}");
                        taken.push(block);
                    }
                } else if !taken.is_empty() {
                    let index = random.below(taken.len() as u64) as usize;
                    space.free(taken.swap_remove(index));
                }
                space.check_invariants();
                assert_eq!(space.used(), taken.iter().map(|block| block.len).sum::<u64>());
            }
            taken.drain(..).for_each(|block| space.free(block));
            assert_eq!(space.all_free().count(), 3, "seed {seed}");
            space.check_invariants();
        }
    }
}
