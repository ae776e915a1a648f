//! How the parts of a value lie in a block, one after the other: its data, and the buffers that stand outside
//! of it. Each begins where the fastest instructions want it.

use std::ops::Range;

/// What the beginning of each part is a multiple of: a line of a cache, and the longest vectors.
pub const ALIGNMENT: usize = 64;

/// Where each of these parts is, and how long all of it is. Nothing if no block could be so long.
pub fn lay_out(lens: impl IntoIterator<Item = usize>) -> Option<(Vec<Range<usize>>, usize)> {
    let mut end = 0_usize;
    let mut parts = Vec::new();
    for len in lens {
        let start = end.checked_next_multiple_of(ALIGNMENT)?;
        end = start.checked_add(len)?;
        parts.push(start..end);
    }
    isize::try_from(end).ok()?;
    Some((parts, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_begin_aligned_and_follow_one_another() {
        let (parts, len) = lay_out([100, 0, 64, 1]).unwrap();
        assert_eq!(parts, [0..100, 128..128, 128..192, 192..193]);
        assert_eq!(len, 193);
        assert_eq!(lay_out([]), Some((vec![], 0)));
    }

    #[test]
    fn what_no_memory_could_hold_is_refused() {
        assert_eq!(lay_out([usize::MAX, 1]), None);
        assert_eq!(lay_out([isize::MAX as usize, 1]), None);
    }
}
