//! The segments of another process, as far as they were passed on to this one. Each is mapped once and stays:
//! what was read or written before is quick to reach again.

use crate::segment::{Access, Mapping};
use crate::space::Block;
use crate::view::{LetGo, View, Writable};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard};

/// See the [module](self).
#[derive(Debug, Default)]
pub struct Windows(Mutex<BTreeMap<(u32, Access), Arc<Mapping>>>);

impl Windows {
    fn mappings(&self) -> MutexGuard<'_, BTreeMap<(u32, Access), Arc<Mapping>>> {
        self.0.lock().expect("nothing panics under it")
    }

    /// Whether a segment was passed on, for this use.
    pub fn has(&self, segment: u32, access: Access) -> bool {
        self.mappings().contains_key(&(segment, access))
    }

    /// A segment was passed on.
    pub fn add(&self, segment: u32, access: Access, descriptor: impl AsFd) -> io::Result<()> {
        let mapping = Arc::new(Mapping::new(descriptor, access)?);
        self.mappings().insert((segment, access), mapping);
        Ok(())
    }

    fn mapping(&self, block: Block, len: usize, access: Access) -> io::Result<Arc<Mapping>> {
        let mapping = self.mappings().get(&(block.segment, access)).cloned();
        let mapping = mapping.ok_or_else(|| {
            io::Error::other(format!("segment {} was not passed on for {access:?}", block.segment))
        })?;
        if !mapping.covers(block, len) {
            return Err(io::Error::other(format!(
                "{block:?} of {len} bytes is not in its segment"
            )));
        }
        Ok(mapping)
    }

    /// The first bytes of a block that was sealed, and is pinned for this process. `unpin` is called when no
    /// view of them is left.
    pub fn view(
        &self,
        block: Block,
        len: usize,
        unpin: impl FnOnce(Block) + Send + Sync + 'static,
    ) -> io::Result<View> {
        let mapping = self.mapping(block, len, Access::Read)?;
        Ok(View::new(mapping, block, len, LetGo::Tell(Box::new(unpin))))
    }

    /// A block that was given out to this process, to be filled. `let_go` is called when it is dropped, and
    /// no view of it is left.
    pub fn writable(
        &self,
        block: Block,
        len: usize,
        let_go: impl FnOnce(Block) + Send + Sync + 'static,
    ) -> io::Result<Writable> {
        let mapping = self.mapping(block, len, Access::Write)?;
        Ok(Writable::new(mapping, block, len, LetGo::Tell(Box::new(let_go))))
    }
}
