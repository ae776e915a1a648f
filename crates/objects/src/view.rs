//! Bytes in shared memory as user code has them: filled once, then read by many.
//!
//! ```text
//!   Writable ──seal──▶ View ──clone, slice──▶ View …
//!      │                 │ the last view is dropped
//!      └── dropped ──────┴──▶ the block is released: free again, or its pin is returned
//! ```
//!
//! The owner of an arena has filled blocks as [`SealedBlock`]s, which are smaller than views, and
//! makes views of them for others.
//!
//! The memory of a view stays for as long as the view lives, whatever becomes of the object, the
//! session and the store that it came from.

use crate::arena::Arena;
use crate::segment::Mapping;
use crate::space::{Block, PAGE_BYTES};
use bytes::Bytes;
use std::fmt;
use std::io;
use std::num::NonZeroU32;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

/// The action when the last owner of a block in this process is gone.
pub(crate) enum OnRelease {
    /// The block is free again.
    Free(Arena),
    /// A function is called with the block.
    Tell(Box<dyn FnOnce(Block) + Send + Sync>),
}

/// The ownership of a block. Dropping it releases the block.
struct BlockGuard {
    mapping: Arc<Mapping>,
    block: Block,
    let_go: Option<OnRelease>,
}

impl BlockGuard {
    fn new(mapping: Arc<Mapping>, block: Block, len: usize, let_go: OnRelease) -> BlockGuard {
        assert!(mapping.covers(block, len), "{block:?} of {len} bytes is not in {mapping:?}");
        BlockGuard { mapping, block, let_go: Some(let_go) }
    }
}

impl Drop for BlockGuard {
    fn drop(&mut self) {
        match self.let_go.take() {
            Some(OnRelease::Free(arena)) => arena.free_block(self.block),
            Some(OnRelease::Tell(tell)) => tell(self.block),
            None => {}
        }
    }
}

/// Bytes that no other code sees yet. Dropping it releases them.
pub struct Writable {
    held: BlockGuard,
    len: usize,
    /// The count of [`Segment::trims`](crate::segment::Segment::trims) when the block was
    /// allocated.
    trims: u64,
}

impl Writable {
    /// Wraps the first bytes of a block that was allocated for this writer alone. `trims` is the
    /// count of `Segment::trims` at that time. `let_go` happens when neither the writer nor any
    /// view of the block is left.
    pub(crate) fn new(
        mapping: Arc<Mapping>,
        block: Block,
        len: usize,
        trims: u64,
        let_go: OnRelease,
    ) -> Writable {
        Writable { held: BlockGuard::new(mapping, block, len, let_go), len, trims }
    }

    /// Returns the count of `Segment::trims` when the block was allocated.
    pub fn trims(&self) -> u64 {
        self.trims
    }

    /// Returns the block of the bytes.
    pub fn block(&self) -> Block {
        self.held.block
    }

    /// Makes sure that the bytes have memory. Without memory, writing to them ends the process.
    pub fn prepare(&mut self) -> io::Result<()> {
        self.held.mapping.prepare(self.held.block, self.len, self.trims)
    }

    /// Copies bytes to this offset. This is quicker than writing to memory that no code has written
    /// before. Fails if the system has no memory for them.
    pub fn copy(&mut self, offset: usize, bytes: &[u8]) -> io::Result<()> {
        let end = offset.checked_add(bytes.len());
        assert!(
            end.is_some_and(|end| end <= self.len),
            "{} bytes at {offset} of {self:?}",
            bytes.len()
        );
        // SAFETY: the block was allocated for this writer alone, which is borrowed for writing.
        unsafe { self.held.mapping.copy(self.held.block, offset, bytes, self.trims) }
    }

    /// Seals the bytes and returns the block, which stays in use until the arena
    /// [frees](Arena::free) it. Only for blocks that an arena of this process allocated.
    pub fn keep(mut self) -> SealedBlock {
        match self.held.let_go.take() {
            Some(OnRelease::Free(_)) => SealedBlock::new(self.held.block),
            Some(OnRelease::Tell(_)) | None => panic!("{self:?} belongs to another process"),
        }
    }

    /// Seals the bytes: they do not change any more.
    pub fn seal(self) -> View {
        View { held: Arc::new(self.held), range: 0..self.len }
    }
}

impl Deref for Writable {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the block was allocated for this writer alone, which is borrowed.
        unsafe { self.held.mapping.bytes(self.held.block, self.len) }
    }
}

impl DerefMut for Writable {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the block was allocated for this writer alone, which is borrowed for writing.
        unsafe { self.held.mapping.bytes_mut(self.held.block, self.len) }
    }
}

impl fmt::Debug for Writable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writable").field("block", &self.held.block).field("len", &self.len).finish()
    }
}

/// A sealed block, for an owner of very many blocks: it takes twelve bytes. The block is not free
/// again before its arena [frees](Arena::free) it.
#[derive(Debug)]
#[must_use]
pub struct SealedBlock {
    segment: u32,
    /// In pages, of which four billion are 16 TB.
    offset: u32,
    len: NonZeroU32,
}

impl SealedBlock {
    fn new(Block { segment, offset, len }: Block) -> SealedBlock {
        let grains =
            |bytes: u64| u32::try_from(bytes / PAGE_BYTES).expect("a segment has fewer pages");
        let len = NonZeroU32::new(grains(len)).expect("no block is empty");
        SealedBlock { segment, offset: grains(offset), len }
    }

    /// Returns the place of the block.
    pub fn block(&self) -> Block {
        let bytes = |grains: u32| u64::from(grains) * PAGE_BYTES;
        Block { segment: self.segment, offset: bytes(self.offset), len: bytes(self.len.get()) }
    }
}

/// Bytes that do not change. A clone is another view of the same bytes.
#[derive(Clone)]
pub struct View {
    held: Arc<BlockGuard>,
    range: Range<usize>,
}

impl View {
    /// Makes a view of the first bytes of a sealed block.
    pub(crate) fn new(mapping: Arc<Mapping>, block: Block, len: usize, let_go: OnRelease) -> View {
        View { held: Arc::new(BlockGuard::new(mapping, block, len, let_go)), range: 0..len }
    }

    /// Returns a view of a part of the bytes.
    pub fn slice(&self, range: Range<usize>) -> View {
        assert!(range.start <= range.end && range.end <= self.range.len(), "{range:?} of {self:?}");
        let start = self.range.start;
        View { held: self.held.clone(), range: start + range.start..start + range.end }
    }

    /// Returns the block, and the range of the view in it.
    pub fn place(&self) -> (Block, Range<usize>) {
        (self.held.block, self.range.clone())
    }

    /// Converts the view to `Bytes`, without a copy.
    pub fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for View {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the block is sealed: no code writes to it before it is released, which is after
        // the last view is dropped.
        let all = unsafe { self.held.mapping.bytes(self.held.block, self.range.end) };
        &all[self.range.start..]
    }
}

impl Deref for View {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.as_ref()
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View").field("block", &self.held.block).field("range", &self.range).finish()
    }
}
