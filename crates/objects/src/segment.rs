//! One piece of shared memory, and where a process sees it.
//!
//! It is a memfd: it has no name, and is gone when nobody has it any more. It is sealed against changing its
//! size, so that whoever has it mapped never meets a page that is not there. Whoever is to read it gets a
//! descriptor that cannot be mapped for writing.
//!
//! This and `view.rs` have all `unsafe` code of the crate. What makes it sound, besides what each place says: a [`Mapping`] lives as
//! long as whatever borrows from it, and which bytes may be read or written when is decided by whoever
//! hands out [blocks](crate::space::Block): a block has one writer, and readers only after that.

use crate::space::Block;
use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

/// What the system counts blocks in.
const STAT_BLOCK_BYTES: u64 = 512;

/// What somebody may do with a segment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Access {
    /// Read what was sealed.
    Read,
    /// Fill blocks that it was given.
    Write,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Segment {
    writer: OwnedFd,
    reader: OwnedFd,
    len: u64,
}

impl Segment {
    /// Makes one. It takes no memory before somebody writes to it.
    pub fn new(len: u64) -> io::Result<Segment> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let writer = rustix::fs::memfd_create("marline", flags)?;
        rustix::fs::fchmod(&writer, Mode::RUSR | Mode::WUSR)?;
        rustix::fs::ftruncate(&writer, len)?;
        rustix::fs::fcntl_add_seals(&writer, SealFlags::SHRINK | SealFlags::GROW)?;
        let path = format!("/proc/self/fd/{}", writer.as_raw_fd());
        let reader = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Segment { writer, reader, len })
    }

    /// How long it is.
    pub fn bytes(&self) -> u64 {
        self.len
    }

    /// What is passed to those who are to read or write it.
    pub fn descriptor(&self, access: Access) -> BorrowedFd<'_> {
        match access {
            Access::Read => self.reader.as_fd(),
            Access::Write => self.writer.as_fd(),
        }
    }

    /// How many bytes of memory it takes.
    pub fn taken(&self) -> io::Result<u64> {
        let blocks = rustix::fs::fstat(&self.writer)?.st_blocks;
        Ok(u64::try_from(blocks).unwrap_or(0) * STAT_BLOCK_BYTES)
    }

    /// Gives the memory of a part of it back to the system. What was there reads as zeros.
    pub fn forget(&self, block: Block) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(&self.writer, flags, block.offset, block.len)?)
    }
}

/// Where a process sees a segment.
pub struct Mapping {
    start: NonNull<u8>,
    len: usize,
    access: Access,
}

// SAFETY: it is memory of the whole process, which the mapping alone gives back. Who may touch which of it when
// is up to those who call `bytes` and `bytes_mut`.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapping").field("len", &self.len).field("access", &self.access).finish()
    }
}

impl Mapping {
    /// Maps a segment that was made here, or passed on by whoever made it. Refuses what is no such segment.
    pub fn new(descriptor: impl AsFd, access: Access) -> io::Result<Mapping> {
        let descriptor = descriptor.as_fd();
        let seals = rustix::fs::fcntl_get_seals(descriptor)?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(io::Error::other("what was passed on is no segment: it could get smaller"));
        }
        let len = usize::try_from(rustix::fs::fstat(descriptor)?.st_size)
            .map_err(|_| io::Error::other("a segment of a length below 0"))?;
        let prot = match access {
            Access::Read => ProtFlags::READ,
            Access::Write => ProtFlags::READ | ProtFlags::WRITE,
        };
        // SAFETY: a new mapping, at an address that the kernel chooses, touches nothing that is there.
        let start = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, descriptor, 0)?
        };
        let start = NonNull::new(start.cast()).expect("the kernel maps nothing at 0");
        Ok(Mapping { start, len, access })
    }

    /// Whether a block of some bytes is inside of it.
    pub fn covers(&self, block: Block, len: usize) -> bool {
        let end = block.offset.checked_add(block.len);
        len as u64 <= block.len && end.is_some_and(|end| end <= self.len as u64)
    }

    /// The first bytes of a block.
    ///
    /// # Safety
    ///
    /// Nobody writes to them, in any process, for as long as they are borrowed.
    pub unsafe fn bytes(&self, block: Block, len: usize) -> &[u8] {
        assert!(self.covers(block, len), "{block:?} of {len} bytes is not in {self:?}");
        // SAFETY: it is inside of the mapping, which lives as long as the borrow, and no page of it can go
        // (the segment is sealed). That nobody writes to it is the caller's promise.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(block.offset as usize), len) }
    }

    /// The same, to be written.
    ///
    /// # Safety
    ///
    /// Nobody else reads or writes them, in any process, for as long as they are borrowed.
    #[expect(
        clippy::mut_from_ref,
        reason = "it is memory behind a pointer, and the caller's promise"
    )]
    pub unsafe fn bytes_mut(&self, block: Block, len: usize) -> &mut [u8] {
        assert!(self.covers(block, len), "{block:?} of {len} bytes is not in {self:?}");
        assert_eq!(self.access, Access::Write, "it is mapped for reading");
        // SAFETY: as above; that nobody else uses it is the caller's promise.
        unsafe {
            std::slice::from_raw_parts_mut(self.start.as_ptr().add(block.offset as usize), len)
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped by `new`, and nobody borrows from it any more.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "it was mapped");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::GRAIN;
    use std::fs::File;

    const PAGE: Block = Block { segment: 0, offset: GRAIN, len: GRAIN };

    #[test]
    fn what_one_mapping_writes_another_reads() {
        let segment = Segment::new(4 * GRAIN).unwrap();
        let writes = Mapping::new(segment.descriptor(Access::Write), Access::Write).unwrap();
        let reads = Mapping::new(segment.descriptor(Access::Read), Access::Read).unwrap();
        // SAFETY: nobody else has the segment.
        unsafe { writes.bytes_mut(PAGE, 5) }.copy_from_slice(b"hello");
        // SAFETY: the borrow above is over.
        assert_eq!(unsafe { reads.bytes(PAGE, 5) }, b"hello");
        segment.forget(PAGE).unwrap();
        // SAFETY: nobody writes.
        assert_eq!(unsafe { reads.bytes(PAGE, 5) }, [0; 5]);
    }

    #[test]
    fn whoever_is_to_read_cannot_write() {
        let segment = Segment::new(GRAIN).unwrap();
        let error = Mapping::new(segment.descriptor(Access::Read), Access::Write).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        assert!(rustix::io::write(segment.descriptor(Access::Read), b"x").is_err());
    }

    #[test]
    fn what_is_no_segment_is_refused() {
        let file = File::open("/proc/self/exe").unwrap();
        assert!(Mapping::new(&file, Access::Read).is_err());
        let unsealed = rustix::fs::memfd_create("other", MemfdFlags::ALLOW_SEALING).unwrap();
        let error = Mapping::new(&unsealed, Access::Read).unwrap_err();
        assert!(error.to_string().contains("no segment"), "{error}");
    }

    #[test]
    fn its_size_stays() {
        let segment = Segment::new(2 * GRAIN).unwrap();
        assert!(rustix::fs::ftruncate(segment.descriptor(Access::Write), GRAIN).is_err());
        assert_eq!(segment.bytes(), 2 * GRAIN);
    }

    #[test]
    #[should_panic(expected = "is not in")]
    fn what_is_outside_of_it_is_not_touched() {
        let segment = Segment::new(GRAIN).unwrap();
        let reads = Mapping::new(segment.descriptor(Access::Read), Access::Read).unwrap();
        // SAFETY: nobody writes.
        let _ = unsafe { reads.bytes(PAGE, 1) };
    }
}
