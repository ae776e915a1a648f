//! All shared memory of a node, in the process that owns it.
//!
//! The arena makes segments as it needs them. A segment stays, unless it is larger than usual:
//! processes keep it mapped until the arena reports it [gone](RemovedSegment). Memory that was used
//! before is *warm*: it is free, and still has its pages for all processes that have the segment
//! mapped.
//!
//! Free memory goes back to the system in two cases, without removing a segment: [all of
//! it](Arena::trim) on request, and the excess when a block is allocated. Blocks of many sizes
//! leave gaps that the next block does not fit into; with those gaps, the segments would take more
//! memory than the limit.

use crate::segment::{Access, Mapping, Segment};
use crate::space::{Block, FreeSpace, rounded};
use crate::view::{OnRelease, SealedBlock, Writable};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

/// The length of a segment, in bytes, unless a larger block must fit. An unused part costs nothing.
/// A process has one descriptor for each segment.
pub const SEGMENT_BYTES: u64 = 256 << 20;

/// How many bytes go back to the system at a time.
const TRIM_BYTES: u64 = 16 << 20;

/// See the [module](self). A clone is the same arena.
#[derive(Clone, Debug)]
pub struct Arena(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    segment_len: u64,
    /// The most bytes of memory that the segments take, as long as the allocated blocks are not
    /// more.
    most: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    space: FreeSpace,
    /// The segments by their numbers, which are never used again.
    segments: BTreeMap<u32, OwnedSegment>,
    next_segment: u32,
    /// At most this many bytes of free memory are warm.
    warm: u64,
    /// The segments that were removed, and that [`Arena::gone`] has not reported yet.
    gone: Vec<RemovedSegment>,
}

/// A segment in which no block will be allocated any more. Other processes may unmap it. Its memory
/// must be [returned](RemovedSegment::give_back) to the system, which takes a while.
#[derive(Debug)]
pub struct RemovedSegment {
    /// The number of the segment.
    pub number: u32,
    own: OwnedSegment,
}

impl RemovedSegment {
    /// Returns the memory to the system, even if processes still have the segment mapped.
    pub fn give_back(self) -> io::Result<()> {
        let (segment, len) = (self.number, self.own.segment.bytes());
        self.own.segment.return_memory(Block { segment, offset: 0, len })
    }
}

/// A segment, and its mapping in this process.
#[derive(Clone, Debug)]
struct OwnedSegment {
    segment: Arc<Segment>,
    mapping: Arc<Mapping>,
}

impl Default for Arena {
    fn default() -> Arena {
        Arena::new(SEGMENT_BYTES)
    }
}

impl Arena {
    /// Creates an arena with segments of at least this length.
    pub fn new(segment_len: u64) -> Arena {
        Arena::with(segment_len, u64::MAX)
    }

    /// Creates an arena that takes no more memory than this, or than its blocks have.
    pub fn at_most(bytes: u64) -> Arena {
        Arena::with(SEGMENT_BYTES, bytes)
    }

    fn with(segment_len: u64, most: u64) -> Arena {
        let segment_len = rounded(segment_len);
        Arena(Arc::new(Shared { segment_len, most, state: Mutex::default() }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().expect("nothing panics under it")
    }

    /// Allocates a block for this many bytes. The arena does not limit their sum: the caller does.
    /// Fails only if the system fails.
    pub fn allocate(&self, len: usize) -> io::Result<Writable> {
        let mut state = self.state();
        let block = match state.space.allocate(len as u64) {
            Some(block) => block,
            None => {
                state.remove_large(self.0.segment_len);
                state.add(self.0.segment_len.max(rounded(len as u64)))?;
                state.space.allocate(len as u64).expect("the new segment has room")
            }
        };
        state.give_back(self.0.most, block.len)?;
        let OwnedSegment { segment, mapping } = &state.segments[&block.segment];
        let (mapping, trims) = (mapping.clone(), segment.trims());
        drop(state);
        Ok(Writable::new(mapping, block, len, trims, OnRelease::Free(self.clone())))
    }

    /// Frees a block that nothing uses or reads any more.
    pub fn free(&self, kept: SealedBlock) {
        self.free_block(kept.block());
    }

    pub(crate) fn free_block(&self, block: Block) {
        self.state().free(block);
    }

    /// Returns a segment, to pass it to another process.
    pub fn segment(&self, number: u32) -> Option<Arc<Segment>> {
        self.state().segments.get(&number).map(|own| own.segment.clone())
    }

    /// Returns the segments that were removed since the last call.
    pub fn gone(&self) -> Vec<RemovedSegment> {
        std::mem::take(&mut self.state().gone)
    }

    /// Returns how many bytes the allocated blocks have.
    pub fn used(&self) -> u64 {
        self.state().space.used()
    }

    /// Returns all free memory to the system, in small steps, so that no other thread waits long
    /// for the lock.
    pub fn trim(&self) -> io::Result<()> {
        let free: Vec<Block> = self.state().space.all_free().collect();
        for piece in free.into_iter().flat_map(pieces) {
            let state = self.state(); // The lock: no block is allocated in it meanwhile.
            for block in state.space.free_of(piece) {
                state.segments[&block.segment].segment.return_memory(block)?;
            }
        }
        let mut state = self.state();
        state.warm = state.taken()?.saturating_sub(state.space.used());
        Ok(())
    }

    /// Returns how many bytes of memory the segments take.
    pub fn resident_bytes(&self) -> io::Result<u64> {
        self.state().taken()
    }

    /// Panics if the accounts do not add up.
    pub fn check_invariants(&self) {
        self.state().space.check_invariants();
    }
}

impl State {
    fn add(&mut self, len: u64) -> io::Result<()> {
        let segment = Arc::new(Segment::new(len)?);
        let mapping = Arc::new(Mapping::new(segment.descriptor(Access::Write), Access::Write)?);
        self.segments.insert(self.next_segment, OwnedSegment { segment, mapping });
        self.space.add(self.next_segment, len);
        self.next_segment += 1;
        Ok(())
    }

    /// Removes unused segments that are larger than `usual`. Otherwise values that each are a
    /// little larger than the last would leave a segment each.
    fn remove_large(&mut self, usual: u64) {
        let unused: Vec<u32> = self.space.unused().collect();
        for number in unused {
            if self.segments[&number].segment.bytes() > usual {
                self.space.remove(number);
                let own = self.segments.remove(&number).expect("the segment is in the arena");
                self.gone.push(RemovedSegment { number, own });
            }
        }
    }

    fn free(&mut self, block: Block) {
        self.space.free(block);
        self.warm += block.len; // An upper bound: the block may have reused warm memory.
    }

    fn taken(&self) -> io::Result<u64> {
        self.segments.values().map(|own| own.segment.taken()).sum()
    }

    /// Returns the excess of warm memory to the system, after a block of `new` bytes was allocated.
    /// The smallest gaps go first, since they are the least use. It returns no more than the
    /// excess, because all threads wait for the lock meanwhile.
    fn give_back(&mut self, most: u64, new: u64) -> io::Result<()> {
        if self.space.used().saturating_add(self.warm) <= most {
            return Ok(());
        }
        self.warm = self.taken()?.saturating_sub(self.space.used() - new);
        let mut excess = (self.space.used() + self.warm).saturating_sub(most);
        let gaps: Vec<Block> = match excess {
            0 => Vec::new(),
            _ => self.space.all_free().collect(),
        };
        for piece in gaps.into_iter().flat_map(pieces) {
            let segment = &self.segments[&piece.segment].segment;
            let before = segment.taken()?;
            segment.return_memory(piece)?;
            let given_back = before.saturating_sub(segment.taken()?);
            self.warm = self.warm.saturating_sub(given_back);
            excess = excess.saturating_sub(given_back);
            if excess == 0 {
                break;
            }
        }
        Ok(())
    }
}

/// Splits a block into pieces that each take little time to return to the system.
fn pieces(Block { segment, offset, len }: Block) -> impl Iterator<Item = Block> {
    (0..len).step_by(TRIM_BYTES as usize).map(move |from| Block {
        segment,
        offset: offset + from,
        len: TRIM_BYTES.min(len - from),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::PAGE_BYTES;
    use crate::view::View;
    use marline_core::random::Random;
    use std::thread;

    fn filled(arena: &Arena, len: usize, byte: u8) -> View {
        let mut room = arena.allocate(len).unwrap();
        room.fill(byte);
        room.seal()
    }

    #[test]
    fn a_block_is_free_again_when_the_last_view_of_it_is_gone() {
        let arena = Arena::new(64 * PAGE_BYTES);
        let view = filled(&arena, 10_000, 7);
        let (part, bytes) = (view.slice(5_000..6_000), view.clone().into_bytes());
        let place = view.place().0;
        drop(view);
        assert_eq!((&part[..], &bytes[..]), (&[7; 1_000][..], &[7; 10_000][..]));
        assert_eq!(part.slice(10..20).place(), (place, 5_010..5_020));
        drop(part);
        assert_eq!(arena.used(), 3 * PAGE_BYTES);
        drop(bytes);
        assert_eq!(arena.used(), 0);
        assert_eq!(arena.allocate(1).unwrap().block().offset, place.offset);
    }

    #[test]
    fn gaps_return_memory_before_the_arena_exceeds_its_limit() {
        let arena = Arena::with(1024 * PAGE_BYTES, 100 * PAGE_BYTES);
        let pages = |count: u64| (count * PAGE_BYTES) as usize;
        // Every other one of many small blocks goes: no larger block fits between the others.
        let mut small: Vec<View> = (0..100).map(|byte| filled(&arena, pages(1), byte)).collect();
        assert_eq!(arena.resident_bytes().unwrap(), 100 * PAGE_BYTES);
        let mut byte = 0;
        small.retain(|_| {
            byte += 1;
            byte % 2 == 0
        });
        assert_eq!(
            (arena.used(), arena.resident_bytes().unwrap()),
            (50 * PAGE_BYTES, 100 * PAGE_BYTES),
            "the free blocks are warm"
        );
        let large: Vec<View> = (0..25).map(|byte| filled(&arena, pages(2), byte)).collect();
        assert_eq!(arena.used(), 100 * PAGE_BYTES);
        assert!(
            arena.resident_bytes().unwrap() <= 100 * PAGE_BYTES,
            "{}",
            arena.resident_bytes().unwrap()
        );
        for (view, byte) in small.iter().zip((1..100).step_by(2)) {
            assert!(view.iter().all(|it| *it == byte), "blocks in use do not change");
        }
        drop((small, large));
        assert_eq!(
            (arena.used(), arena.resident_bytes().unwrap()),
            (0, 100 * PAGE_BYTES),
            "warm memory stays"
        );
        let before = arena.allocate(1).unwrap().trims();
        arena.trim().unwrap();
        assert_eq!(arena.resident_bytes().unwrap(), 0);
        assert!(arena.allocate(1).unwrap().trims() > before, "the next owner sees it");
        arena.check_invariants();
    }

    #[test]
    fn a_large_gap_returns_no_more_memory_than_is_needed() {
        let arena = Arena::with(8 * TRIM_BYTES, 6 * TRIM_BYTES);
        let [mut gap, mut stays] =
            [3, 1].map(|pieces| arena.allocate(pieces * TRIM_BYTES as usize).unwrap());
        gap.prepare().unwrap();
        stays.prepare().unwrap();
        drop(gap);
        assert_eq!(arena.resident_bytes().unwrap(), 4 * TRIM_BYTES, "the gap is warm");
        // It does not fit into the gap, so the segments could take a little more than one piece too
        // much.
        let larger = arena.allocate(3 * TRIM_BYTES as usize + 1).unwrap();
        assert_eq!(
            arena.resident_bytes().unwrap(),
            2 * TRIM_BYTES,
            "one piece in use, one that is warm"
        );
        drop((stays, larger));
        arena.check_invariants();
    }

    #[test]
    fn an_unsealed_block_is_free_again_when_it_is_dropped() {
        let arena = Arena::new(PAGE_BYTES);
        drop(arena.allocate(100).unwrap());
        assert_eq!(arena.used(), 0);
    }

    #[test]
    fn a_sealed_block_is_in_use_until_it_is_freed() {
        assert_eq!(size_of::<Option<SealedBlock>>(), 12);
        let arena = Arena::new(10 * PAGE_BYTES);
        let first = arena.allocate(1).unwrap();
        let room = arena.allocate(2 * PAGE_BYTES as usize + 1).unwrap();
        let block = room.block();
        let kept = room.keep();
        assert_eq!((kept.block(), arena.used()), (block, 4 * PAGE_BYTES));
        arena.free(kept);
        assert_eq!(arena.used(), PAGE_BYTES);
        drop(first);
        arena.check_invariants();
    }

    #[test]
    fn a_value_larger_than_a_segment_gets_a_segment_of_its_own() {
        let arena = Arena::new(PAGE_BYTES);
        let large = filled(&arena, 10 * PAGE_BYTES as usize + 1, 1);
        assert_eq!(arena.segment(large.place().0.segment).unwrap().bytes(), 11 * PAGE_BYTES);
        let empty = filled(&arena, 0, 1);
        assert!(empty.is_empty());
        arena.check_invariants();
    }

    #[test]
    fn growing_values_do_not_keep_a_segment_each() {
        let arena = Arena::new(PAGE_BYTES);
        let small = filled(&arena, 100, 1);
        let first = filled(&arena, 2 * PAGE_BYTES as usize, 2);
        let numbers: Vec<u32> = (3..50)
            .map(|pages| filled(&arena, pages * PAGE_BYTES as usize, 3).place().0.segment)
            .collect();
        assert!(numbers.is_sorted_by(|one, next| one < next), "no number is used again");
        let there = (0..100).filter(|number| arena.segment(*number).is_some()).count();
        assert_eq!(there, 3, "the segments in use, and the last one");
        assert_eq!(arena.resident_bytes().unwrap(), 52 * PAGE_BYTES);
        let gone = arena.gone();
        let gone_numbers: Vec<u32> = gone.iter().map(|gone| gone.number).collect();
        assert_eq!(gone_numbers, numbers[..numbers.len() - 1], "each is reported once");
        assert!(arena.gone().is_empty());
        for gone in gone {
            let segment = gone.own.segment.clone();
            assert!(segment.taken().unwrap() > 0);
            gone.give_back().unwrap();
            assert_eq!(segment.taken().unwrap(), 0);
        }
        assert_eq!((small[0], first[0]), (1, 2));
        arena.check_invariants();
    }

    #[test]
    fn views_outlive_the_arena() {
        let arena = Arena::new(PAGE_BYTES);
        let view = filled(&arena, 100, 9);
        drop(arena);
        assert_eq!(&view[..], &[9; 100]);
    }

    #[test]
    fn trim_returns_the_memory_of_free_blocks_to_the_system() {
        let arena = Arena::new(1 << 20);
        let (kept, gone) = (filled(&arena, 100_000, 1), filled(&arena, 100_000, 2));
        let before = arena.resident_bytes().unwrap();
        drop(gone);
        assert_eq!(arena.resident_bytes().unwrap(), before, "the memory stays warm");
        arena.trim().unwrap();
        assert!(arena.resident_bytes().unwrap() < before);
        assert_eq!(&kept[..], &[1; 100_000][..]);
        drop(kept);
        arena.trim().unwrap();
        assert_eq!(arena.resident_bytes().unwrap(), 0);
        assert_eq!(&filled(&arena, 100_000, 3)[..], &[3; 100_000][..]);
    }

    #[test]
    fn blocks_of_concurrent_threads_never_mix() {
        let arena = Arena::new(256 * PAGE_BYTES);
        thread::scope(|threads| {
            for thread in 0..4_u8 {
                let arena = arena.clone();
                threads.spawn(move || {
                    let mut random = Random::new(thread.into());
                    let mut views: Vec<(View, u8)> = Vec::new();
                    for round in 0..500_u32 {
                        let byte = (round % 60) as u8 * 4 + thread;
                        views.push((filled(&arena, random.below(20_000) as usize, byte), byte));
                        if views.len() > 10 {
                            let (view, byte) = views.swap_remove(random.below(10) as usize);
                            assert!(view.iter().all(|one| *one == byte), "thread {thread}");
                        }
                    }
                });
            }
        });
        assert_eq!(arena.used(), 0);
        arena.check_invariants();
    }
}
