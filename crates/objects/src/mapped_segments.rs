//! The segments of another process that were passed to this one. Each is mapped once and stays
//! mapped until it is gone, so that memory that was used before is quick to reach again.

use crate::segment::{Access, Mapping};
use crate::space::Block;
use crate::view::{OnRelease, View, Writable};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard};

/// See the [module](self).
#[derive(Debug, Default)]
pub struct MappedSegments(Mutex<BTreeMap<(u32, Access), Arc<Mapping>>>);

impl MappedSegments {
    fn mappings(&self) -> MutexGuard<'_, BTreeMap<(u32, Access), Arc<Mapping>>> {
        self.0.lock().expect("nothing panics under it")
    }

    /// Returns whether a segment was passed for this access.
    pub fn has(&self, segment: u32, access: Access) -> bool {
        self.mappings().contains_key(&(segment, access))
    }

    /// Maps a segment that was passed for this access.
    pub fn add(&self, segment: u32, access: Access, descriptor: impl AsFd) -> io::Result<()> {
        let mapping = Arc::new(Mapping::new(descriptor, access)?);
        self.mappings().insert((segment, access), mapping);
        Ok(())
    }

    /// Removes a segment that is gone: nothing in it will be read or written any more. Its mapping
    /// stays until the last view of it is dropped.
    pub fn remove(&self, segment: u32) {
        for access in [Access::Read, Access::Write] {
            // Unmap it without the lock: other threads can go on.
            let mapping = self.mappings().remove(&(segment, access));
            drop(mapping);
        }
    }

    fn mapping(&self, block: Block, len: usize, access: Access) -> io::Result<Arc<Mapping>> {
        let mapping = self.mappings().get(&(block.segment, access)).cloned();
        let mapping = mapping.ok_or_else(|| {
            io::Error::other(format!("segment {} was not passed for {access:?}", block.segment))
        })?;
        if !mapping.covers(block, len) {
            return Err(io::Error::other(format!(
                "{block:?} of {len} bytes is not in its segment"
            )));
        }
        Ok(mapping)
    }

    /// Makes a view of the first bytes of a sealed block that is pinned for this process. Calls
    /// `unpin` when no view of them is left.
    pub fn view(
        &self,
        block: Block,
        len: usize,
        unpin: impl FnOnce(Block) + Send + Sync + 'static,
    ) -> io::Result<View> {
        let mapping = self.mapping(block, len, Access::Read)?;
        Ok(View::new(mapping, block, len, OnRelease::Tell(Box::new(unpin))))
    }

    /// Wraps a block that was granted to this process, to be filled. `trims` is the count of
    /// [`Segment::trims`](crate::segment::Segment::trims) when the block was allocated. Calls
    /// `let_go` when the block is dropped and no view of it is left.
    pub fn writable(
        &self,
        block: Block,
        len: usize,
        trims: u64,
        let_go: impl FnOnce(Block) + Send + Sync + 'static,
    ) -> io::Result<Writable> {
        let mapping = self.mapping(block, len, Access::Write)?;
        Ok(Writable::new(mapping, block, len, trims, OnRelease::Tell(Box::new(let_go))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::Segment;
    use crate::space::PAGE_BYTES;
    use std::sync::Weak;

    #[test]
    fn a_removed_segment_is_unmapped_when_its_last_view_is_gone() {
        let (windows, segment) = (MappedSegments::default(), Segment::new(PAGE_BYTES).unwrap());
        let weak = |access| -> Weak<Mapping> { Arc::downgrade(&windows.mappings()[&(3, access)]) };
        for access in [Access::Read, Access::Write] {
            windows.add(3, access, segment.descriptor(access)).unwrap();
        }
        windows.add(4, Access::Read, segment.descriptor(Access::Read)).unwrap();
        let (reads, writes) = (weak(Access::Read), weak(Access::Write));
        let block = Block { segment: 3, offset: 0, len: PAGE_BYTES };
        let view = windows.view(block, 10, |_| ()).unwrap();
        windows.remove(3);
        assert!(!windows.has(3, Access::Read) && !windows.has(3, Access::Write));
        assert!(windows.has(4, Access::Read));
        assert_eq!(writes.strong_count(), 0);
        assert_eq!(&view[..], &[0; 10], "the view stays valid");
        drop(view);
        assert_eq!(reads.strong_count(), 0);
        windows.remove(3);
    }
}
