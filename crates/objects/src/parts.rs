//! The layout of a value in a block: the number of its parts, the length of each, then the parts
//! one after the other. The first part is the value's data, the others are the buffers outside of
//! it. Each part starts at an address that suits the fastest instructions. The block contains its
//! own layout, so it means the same in memory, in a file, and on another node.

use crate::view::Writable;
use std::io;
use std::ops::Range;

/// The alignment of each part, in bytes: a cache line, and the longest vector register.
pub const ALIGNMENT: usize = 64;
/// How many bytes an encoded number takes.
const NUMBER: usize = size_of::<u64>();

/// The places of a value's parts, and the length of the whole value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layout {
    parts: Vec<Range<usize>>,
    len: usize,
}

impl Layout {
    /// Lays out parts of these lengths. Returns `None` if no block can be so long.
    pub fn of(lens: impl IntoIterator<Item = usize>) -> Option<Layout> {
        let lens: Vec<usize> = lens.into_iter().collect();
        let mut end = lens.len().checked_add(1)?.checked_mul(NUMBER)?;
        let mut parts = Vec::with_capacity(lens.len());
        for len in lens {
            let start = end.checked_next_multiple_of(ALIGNMENT)?;
            end = start.checked_add(len)?;
            parts.push(start..end);
        }
        isize::try_from(end).ok()?;
        Some(Layout { parts, len: end })
    }

    /// Reads the layout of the value in a block. Returns `None` if the block does not start with a
    /// layout.
    pub fn read(block: &[u8]) -> Option<Layout> {
        let number = |index: usize| {
            let at = index.checked_mul(NUMBER)?;
            let bytes = block.get(at..at.checked_add(NUMBER)?)?;
            usize::try_from(u64::from_le_bytes(bytes.try_into().ok()?)).ok()
        };
        let count = number(0)?;
        if count > block.len() / NUMBER {
            return None;
        }
        let lens = (1..=count).map(number).collect::<Option<Vec<usize>>>()?;
        Layout::of(lens).filter(|layout| layout.len <= block.len())
    }

    /// Fills a block of this layout with these parts. Fails if the system has no memory for them.
    pub fn fill(&self, block: &mut Writable, parts: &[&[u8]]) -> io::Result<()> {
        block.copy(0, &head(parts))?;
        for (range, part) in self.parts.iter().zip(parts) {
            assert_eq!(range.len(), part.len(), "a part is as long as in the layout");
            block.copy(range.start, part)?;
        }
        Ok(())
    }

    /// Fills one piece of a block of this layout. The piece begins at `start` in the block. Sets
    /// the bytes between parts to 0.
    pub fn fill_piece(&self, start: usize, piece: &mut [u8], parts: &[&[u8]]) {
        piece.fill(0);
        let head = head(parts);
        copy_common(start, piece, 0, &head);
        for (range, part) in self.parts.iter().zip(parts) {
            copy_common(start, piece, range.start, part);
        }
    }

    /// Returns the place of each part.
    pub fn parts(&self) -> &[Range<usize>] {
        &self.parts
    }

    /// Returns the length of the whole value, in bytes.
    pub fn bytes(&self) -> usize {
        self.len
    }
}

/// Encodes the head of a block: the number of parts, and the length of each.
fn head(parts: &[&[u8]]) -> Vec<u8> {
    let lens = std::iter::once(parts.len()).chain(parts.iter().map(|part| part.len()));
    lens.flat_map(|number| (number as u64).to_le_bytes()).collect()
}

/// Copies bytes into a piece of a block, where the two overlap. In the block, the piece begins at
/// `start` and the bytes belong at `from`.
fn copy_common(start: usize, piece: &mut [u8], from: usize, bytes: &[u8]) {
    let (first, end) = (start.max(from), (start + piece.len()).min(from + bytes.len()));
    if first < end {
        piece[first - start..end - start].copy_from_slice(&bytes[first - from..end - from]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::Arena;
    use marline_core::random::Random;

    #[test]
    fn parts_begin_aligned_and_follow_one_another() {
        let layout = Layout::of([100, 0, 64, 1]).unwrap();
        assert_eq!(layout.parts(), [64..164, 192..192, 192..256, 256..257]);
        assert_eq!(layout.bytes(), 257);
        assert_eq!(Layout::of([]).unwrap().bytes(), 8);
    }

    #[test]
    fn a_block_contains_the_layout_of_its_parts() {
        let parts: [&[u8]; 3] = [b"one", b"", &[7; 1_000]];
        let layout = Layout::of(parts.map(<[u8]>::len)).unwrap();
        let mut block = Arena::default().allocate(layout.bytes() + 10).unwrap();
        layout.fill(&mut block, &parts).unwrap();
        let read = Layout::read(&block).unwrap();
        assert_eq!(read, layout);
        for (range, part) in read.parts().iter().zip(parts) {
            assert_eq!(&block[range.clone()], part);
        }
    }

    #[test]
    fn a_block_can_be_filled_in_pieces_of_any_length() {
        let parts: [&[u8]; 4] = [b"one", b"", &[7; 1_000], b"last"];
        let layout = Layout::of(parts.map(<[u8]>::len)).unwrap();
        let mut block = Arena::default().allocate(layout.bytes()).unwrap();
        layout.fill(&mut block, &parts).unwrap();
        for len in [1, 7, 64, 100, layout.bytes() - 1, layout.bytes()] {
            let mut pieces = vec![9; layout.bytes()];
            for (index, piece) in pieces.chunks_mut(len).enumerate() {
                layout.fill_piece(index * len, piece, &parts);
            }
            assert_eq!(pieces, block[..layout.bytes()]);
        }
    }

    #[test]
    fn lengths_that_no_memory_could_hold_are_rejected() {
        assert_eq!(Layout::of([usize::MAX, 1]), None);
        assert_eq!(Layout::of([isize::MAX as usize, 1]), None);
    }

    #[test]
    fn a_malformed_layout_is_rejected_or_stays_within_its_block() {
        let mut random = Random::new(3);
        for len in 0..200 {
            for _ in 0..50 {
                let mut block: Vec<u8> = (0..len).map(|_| random.below(4) as u8).collect();
                if len > 8 {
                    block[1..8].fill(0);
                }
                if let Some(layout) = Layout::read(&block) {
                    assert!(layout.parts().iter().all(|part| part.end <= block.len()));
                }
            }
        }
        let mut block = vec![0; 64];
        block[..8].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(Layout::read(&block), None);
    }
}
