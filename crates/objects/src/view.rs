//! Bytes in shared memory, as user code has them: to be filled once, then read by many.
//!
//! ```text
//!   Writable ──seal──▶ View ──clone, slice──▶ View …
//!      │                 │ the last one is dropped
//!      └── dropped ──────┴──▶ its block is let go: free again, or its pin returned
//! ```
//!
//! Whoever has an arena keeps what was filled as [`Kept`], which is smaller than a view, and shows it to others.
//!
//! A view keeps its memory for as long as it lives, whatever becomes of the object, the session and the store
//! that it came from.

use crate::arena::Arena;
use crate::segment::Mapping;
use crate::space::{Block, PAGE_BYTES};
use bytes::Bytes;
use std::fmt;
use std::io;
use std::num::NonZeroU32;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

/// What is done when nobody has a block here any more.
pub(crate) enum OnRelease {
    /// It is free again.
    Free(Arena),
    /// Somebody else is told.
    Tell(Box<dyn FnOnce(Block) + Send + Sync>),
}

/// A block that somebody has.
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

/// Bytes that nobody else sees yet. Dropped, they are let go.
pub struct Writable {
    held: BlockGuard,
    len: usize,
    /// How often memory of its segment was given back when it was given out.
    trims: u64,
}

impl Writable {
    /// The first bytes of a block that was given out to be written, and to nobody else, when memory of its segment had
    /// been given back so often. `let_go` is called when neither it nor any view of it is left.
    pub(crate) fn new(
        mapping: Arc<Mapping>,
        block: Block,
        len: usize,
        trims: u64,
        let_go: OnRelease,
    ) -> Writable {
        Writable { held: BlockGuard::new(mapping, block, len, let_go), len, trims }
    }

    /// How often memory of its segment was given back when it was given out.
    pub fn trims(&self) -> u64 {
        self.trims
    }

    /// Where they are.
    pub fn block(&self) -> Block {
        self.held.block
    }

    /// Sees to it that there is memory for them. Where there is none, whoever writes to them is ended.
    pub fn prepare(&mut self) -> io::Result<()> {
        self.held.mapping.prepare(self.held.block, self.len, self.trims)
    }

    /// Copies bytes to this offset: quicker than writing to where nobody has written before. Fails if there is no memory
    /// for them.
    pub fn copy(&mut self, offset: usize, bytes: &[u8]) -> io::Result<()> {
        let end = offset.checked_add(bytes.len());
        assert!(
            end.is_some_and(|end| end <= self.len),
            "{} bytes at {offset} of {self:?}",
            bytes.len()
        );
        // SAFETY: the block was given out to this one alone, which is borrowed for writing.
        unsafe { self.held.mapping.copy(self.held.block, offset, bytes, self.trims) }
    }

    /// They do not change any more, and are shown elsewhere, until the arena is told to [free](Arena::free) them. Only
    /// for what an arena of this process gave out.
    pub fn keep(mut self) -> SealedBlock {
        match self.held.let_go.take() {
            Some(OnRelease::Free(_)) => SealedBlock::new(self.held.block),
            Some(OnRelease::Tell(_)) | None => panic!("{self:?} is another process's to keep"),
        }
    }

    /// They do not change any more.
    pub fn seal(self) -> View {
        View { held: Arc::new(self.held), range: 0..self.len }
    }
}

impl Deref for Writable {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the block was given out to this one alone, which is borrowed.
        unsafe { self.held.mapping.bytes(self.held.block, self.len) }
    }
}

impl DerefMut for Writable {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the block was given out to this one alone, which is borrowed for writing.
        unsafe { self.held.mapping.bytes_mut(self.held.block, self.len) }
    }
}

impl fmt::Debug for Writable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writable").field("block", &self.held.block).field("len", &self.len).finish()
    }
}

/// A block that does not change any more, for whoever has very many: it takes twelve bytes, and is not free again
/// before the arena that it is of is [told so](Arena::free).
#[derive(Debug)]
#[must_use]
pub struct SealedBlock {
    segment: u32,
    /// In grains, of which four billion are 16 TB.
    offset: u32,
    len: NonZeroU32,
}

impl SealedBlock {
    fn new(Block { segment, offset, len }: Block) -> SealedBlock {
        let grains =
            |bytes: u64| u32::try_from(bytes / PAGE_BYTES).expect("a segment is not as large");
        let len = NonZeroU32::new(grains(len)).expect("no block is empty");
        SealedBlock { segment, offset: grains(offset), len }
    }

    /// Where it is.
    pub fn block(&self) -> Block {
        let bytes = |grains: u32| u64::from(grains) * PAGE_BYTES;
        Block { segment: self.segment, offset: bytes(self.offset), len: bytes(self.len.get()) }
    }
}

/// Bytes that do not change. A clone is another view of the same.
#[derive(Clone)]
pub struct View {
    held: Arc<BlockGuard>,
    range: Range<usize>,
}

impl View {
    /// The first bytes of a block that was sealed.
    pub(crate) fn new(mapping: Arc<Mapping>, block: Block, len: usize, let_go: OnRelease) -> View {
        View { held: Arc::new(BlockGuard::new(mapping, block, len, let_go)), range: 0..len }
    }

    /// A part of it.
    pub fn slice(&self, range: Range<usize>) -> View {
        assert!(range.start <= range.end && range.end <= self.range.len(), "{range:?} of {self:?}");
        let start = self.range.start;
        View { held: self.held.clone(), range: start + range.start..start + range.end }
    }

    /// Where it is, and which part of that.
    pub fn place(&self) -> (Block, Range<usize>) {
        (self.held.block, self.range.clone())
    }

    /// The same as `Bytes`, without a copy.
    pub fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for View {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the block was sealed: nobody writes to it before it is let go, which is when all views are.
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
