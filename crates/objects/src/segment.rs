//! A segment of shared memory, and the place where a process has mapped it.
//!
//! A segment is a memfd: it has no name, and is gone when no process has it any more. Its size is
//! sealed, so a process that has it mapped never meets a page that is not there. A process that
//! only reads gets a descriptor that cannot be mapped for writing.
//!
//! This file and `view.rs` have all `unsafe` code of the crate. It is sound, besides what each
//! place says, because a [`Mapping`] lives as long as everything that borrows from it, and because
//! the code that allocates [blocks](crate::space::Block) decides which bytes may be read or written
//! when: a block has one writer, and readers only after that.

use crate::copy;
use crate::space::{Block, PAGE_BYTES};
use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

/// How many bytes of a segment are tracked together as written or not: fewer than any value in a
/// block has.
const STRETCH: usize = 64 << 10;

/// The unit of `st_blocks` in `stat(2)`, in bytes.
const STAT_BLOCK_BYTES: u64 = 512;

/// The rights of a process to a segment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Access {
    /// Read sealed blocks.
    Read,
    /// Fill the blocks that it was granted.
    Write,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Segment {
    writer: OwnedFd,
    reader: OwnedFd,
    len: u64,
    trims: AtomicU64,
}

impl Segment {
    /// Creates a segment. It takes no memory before a process writes to it.
    pub fn new(len: u64) -> io::Result<Segment> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let writer = rustix::fs::memfd_create("marline", flags)?;
        rustix::fs::fchmod(&writer, Mode::RUSR | Mode::WUSR)?;
        rustix::fs::ftruncate(&writer, len)?;
        rustix::fs::fcntl_add_seals(&writer, SealFlags::SHRINK | SealFlags::GROW)?;
        let path = format!("/proc/self/fd/{}", writer.as_raw_fd());
        let reader = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Segment { writer, reader, len, trims: AtomicU64::new(0) })
    }

    /// Returns the length of the segment, in bytes.
    pub fn bytes(&self) -> u64 {
        self.len
    }

    /// Returns the descriptor to pass to a process for this access.
    pub fn descriptor(&self, access: Access) -> BorrowedFd<'_> {
        match access {
            Access::Read => self.reader.as_fd(),
            Access::Write => self.writer.as_fd(),
        }
    }

    /// Returns how many bytes of memory the segment takes.
    pub fn taken(&self) -> io::Result<u64> {
        let blocks = rustix::fs::fstat(&self.writer)?.st_blocks;
        Ok(u64::try_from(blocks).unwrap_or(0) * STAT_BLOCK_BYTES)
    }

    /// Returns how often memory of the segment was returned to the system. A page that had memory
    /// at this count still has it, unless its block has been free since.
    pub fn trims(&self) -> u64 {
        self.trims.load(Ordering::Relaxed)
    }

    /// Returns the memory of a block to the system. The block then reads as zeros.
    pub fn return_memory(&self, block: Block) -> io::Result<()> {
        // Relaxed: the code that allocates blocks of the segment has one lock for that and for
        // this.
        self.trims.fetch_add(1, Ordering::Relaxed);
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(&self.writer, flags, block.offset, block.len)?)
    }
}

/// The place where a process has mapped a segment.
///
/// The first use of memory costs many times as much as a copy: for each page the kernel handles a
/// fault, finds a page, clears it and maps it. So [`copy`](Mapping::copy) works in three ways:
///
/// - The first copy to a place goes through the file, which maps nothing and clears nothing. It
///   takes half of the time.
/// - The second copy to the place maps all of its pages at once.
/// - From then on a copy is only a copy, until memory of the segment is returned to the system.
///   That may have been the memory of this place, so all of its pages must be mapped again.
///
/// If the system has no memory left, `copy` fails. Touching the memory would end the process.
pub struct Mapping {
    start: NonNull<u8>,
    len: usize,
    access: Access,
    /// The same memory as a file, if it may be written.
    file: Option<File>,
    /// For each [`STRETCH`], whether this process has copied to it.
    seen: Box<[AtomicBool]>,
    shown: Mutex<PopulatedPages>,
}

/// The pages of a mapping that certainly have memory and are mapped.
#[derive(Default)]
struct PopulatedPages {
    /// The count of [`Segment::trims`] since which that is true.
    trims: u64,
    /// One bit for each page.
    pages: Box<[u64]>,
}

impl PopulatedPages {
    /// Returns the words of `pages` that have the bits of these pages, and those bits of each word.
    fn words(pages: Range<usize>) -> impl Iterator<Item = (usize, u64)> {
        (pages.start / 64..pages.end.div_ceil(64)).map(move |word| {
            let from = pages.start.saturating_sub(word * 64);
            let to = (pages.end - word * 64).min(64);
            (word, (u64::MAX >> (64 - to)) & (u64::MAX << from))
        })
    }

    fn has(&self, pages: Range<usize>) -> bool {
        PopulatedPages::words(pages).all(|(word, bits)| self.pages[word] & bits == bits)
    }

    fn add(&mut self, pages: Range<usize>) {
        for (word, bits) in PopulatedPages::words(pages) {
            self.pages[word] |= bits;
        }
    }
}

// SAFETY: the memory belongs to the whole process, and only the mapping unmaps it. The callers of
// `bytes` and `bytes_mut` decide which code may touch which bytes when.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapping").field("len", &self.len).field("access", &self.access).finish()
    }
}

impl Mapping {
    /// Maps a segment that was made in this process, or passed to it by the process that made it.
    /// Rejects any other descriptor.
    pub fn new(descriptor: impl AsFd, access: Access) -> io::Result<Mapping> {
        let descriptor = descriptor.as_fd();
        let seals = rustix::fs::fcntl_get_seals(descriptor)?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(io::Error::other("the descriptor is not a segment: it could get smaller"));
        }
        let len = usize::try_from(rustix::fs::fstat(descriptor)?.st_size)
            .map_err(|_| io::Error::other("the segment has a negative length"))?;
        Mapping::of(descriptor, len, access)
    }

    fn of(descriptor: BorrowedFd<'_>, len: usize, access: Access) -> io::Result<Mapping> {
        let prot = match access {
            Access::Read => ProtFlags::READ,
            Access::Write => ProtFlags::READ | ProtFlags::WRITE,
        };
        // SAFETY: a new mapping, at an address that the kernel chooses, touches no existing memory.
        let start = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, descriptor, 0)?
        };
        let start = NonNull::new(start.cast()).expect("the kernel maps nothing at address 0");
        let (seen, shown) = (Box::default(), Mutex::default());
        let mut mapping = Mapping { start, len, access, file: None, seen, shown };
        if access == Access::Write {
            let words = len.div_ceil(PAGE_BYTES as usize).div_ceil(64);
            mapping.shown = Mutex::new(PopulatedPages { trims: 0, pages: vec![0; words].into() });
            mapping.file = Some(descriptor.try_clone_to_owned()?.into());
            mapping.seen = (0..len.div_ceil(STRETCH)).map(|_| AtomicBool::default()).collect();
        }
        Ok(mapping)
    }

    /// Returns whether a block of this many bytes is inside the mapping.
    pub fn covers(&self, block: Block, len: usize) -> bool {
        let end = block.offset.checked_add(block.len);
        len as u64 <= block.len && end.is_some_and(|end| end <= self.len as u64)
    }

    /// Returns the first bytes of a block.
    ///
    /// # Safety
    ///
    /// No code of any process writes to these bytes for as long as they are borrowed.
    pub unsafe fn bytes(&self, block: Block, len: usize) -> &[u8] {
        assert!(self.covers(block, len), "{block:?} of {len} bytes is not in {self:?}");
        // SAFETY: the bytes are inside the mapping, which lives as long as the borrow, and no page
        // of them can go (the segment is sealed). The caller promises that no code writes to them.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(block.offset as usize), len) }
    }

    /// Returns the first bytes of a block, to be written.
    ///
    /// # Safety
    ///
    /// No other code of any process reads or writes these bytes for as long as they are borrowed.
    #[expect(
        clippy::mut_from_ref,
        reason = "the memory is behind a pointer, and the caller promises exclusive use"
    )]
    pub unsafe fn bytes_mut(&self, block: Block, len: usize) -> &mut [u8] {
        assert!(self.covers(block, len), "{block:?} of {len} bytes is not in {self:?}");
        assert_eq!(self.access, Access::Write, "the segment is mapped for reading only");
        // SAFETY: as above. The caller promises that no other code uses the bytes.
        unsafe {
            std::slice::from_raw_parts_mut(self.start.as_ptr().add(block.offset as usize), len)
        }
    }

    /// Copies bytes into a block, at this offset. Fails if the system has no memory for them: then
    /// only some of them are there. `trims` is the count of [`Segment::trims`] when the block was
    /// allocated.
    ///
    /// # Safety
    ///
    /// No other code of any process reads or writes there meanwhile.
    pub unsafe fn copy(
        &self,
        block: Block,
        offset: usize,
        bytes: &[u8],
        trims: u64,
    ) -> io::Result<()> {
        // SAFETY: the caller's promise. `bytes_mut` checks that all bytes are in the block, and
        // writable.
        let to = &mut unsafe { self.bytes_mut(block, offset + bytes.len()) }[offset..];
        let at = block.offset as usize + offset;
        if self.shown(trims).has(pages(at, bytes.len())) {
            copy::copy(to, bytes);
            return Ok(());
        }
        let mut done = 0;
        while done < bytes.len() {
            let left = bytes.len() - done;
            // Mapping less than a page takes as long as writing it.
            let (seen, len) = match left < PAGE_BYTES as usize {
                true => (false, left),
                false => self.alike(at + done, left),
            };
            let now = done..done + len;
            if seen || !self.write(at + done, &bytes[now.clone()]) {
                self.show(at + done, len, trims)?;
                copy::copy(&mut to[now.clone()], &bytes[now]);
            }
            done += len;
        }
        Ok(())
    }

    /// Returns the pages that certainly have memory, for the owner of a block that was allocated at
    /// this count of `trims`.
    ///
    /// Only free blocks have their memory returned to the system. The next owner of such a block
    /// has a higher count: then this forgets all pages. Another thread may add pages of a block
    /// that was allocated before. That is correct: its block is in use, so its memory stays.
    fn shown(&self, trims: u64) -> MutexGuard<'_, PopulatedPages> {
        let mut shown = self.shown.lock().expect("nothing panics under it");
        if shown.trims < trims {
            shown.trims = trims;
            shown.pages.fill(0);
        }
        shown
    }

    /// Returns whether this process has copied to the stretch at `at` before, and for how many
    /// bytes, at most `most`, the same is true. From now on it is true for all of them.
    fn alike(&self, at: usize, most: usize) -> (bool, usize) {
        let stretches = &self.seen[at / STRETCH..(at + most).div_ceil(STRETCH)];
        // Relaxed: two threads may fill blocks that share a stretch. The flag only selects the way
        // to copy.
        let seen = stretches[0].load(Ordering::Relaxed);
        let same = stretches.iter().take_while(|next| next.load(Ordering::Relaxed) == seen).count();
        for stretch in &stretches[..same] {
            stretch.store(true, Ordering::Relaxed);
        }
        let end = (at / STRETCH + same) * STRETCH;
        (seen, most.min(end - at))
    }

    /// Writes bytes through the file. Returns whether that worked. If not, the caller copies them,
    /// if there is memory.
    fn write(&self, at: usize, bytes: &[u8]) -> bool {
        self.file.as_ref().is_some_and(|file| file.write_all_at(bytes, at as u64).is_ok())
    }

    /// Makes sure that a block has memory and is mapped. A process that then touches it is not
    /// ended.
    pub fn prepare(&self, block: Block, len: usize, trims: u64) -> io::Result<()> {
        assert!(self.covers(block, len), "{block:?} of {len} bytes is not in {self:?}");
        self.show(block.offset as usize, len, trims)
    }

    fn show(&self, at: usize, len: usize, trims: u64) -> io::Result<()> {
        let pages = pages(at, len);
        if self.shown(trims).has(pages.clone()) {
            return Ok(());
        }
        let (start, end) =
            (pages.start * PAGE_BYTES as usize, (pages.end * PAGE_BYTES as usize).min(self.len));
        // SAFETY: the range is inside the mapping. The call does not change its contents.
        let shown = rustix::io::retry_on_intr(|| unsafe {
            let address = self.start.as_ptr().add(start).cast();
            rustix::mm::madvise(address, end - start, Advice::LinuxPopulateWrite)
        });
        match shown {
            Ok(()) => {
                self.shown(trims).add(pages);
                Ok(())
            }
            // Before Linux 5.14 the kernel cannot be asked. Then a touch maps the page, and nothing
            // is certain.
            Err(Errno::INVAL) => Ok(()),
            // `FAULT` is what would have ended the process.
            Err(Errno::NOMEM | Errno::FAULT) => Err(no_memory()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Returns the pages of `len` bytes at `at`.
fn pages(at: usize, len: usize) -> Range<usize> {
    at / PAGE_BYTES as usize..(at + len).div_ceil(PAGE_BYTES as usize)
}

fn no_memory() -> io::Error {
    io::Error::new(io::ErrorKind::OutOfMemory, "the system has no memory left")
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `new` mapped the memory, and nothing borrows from it any more.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "the memory was mapped");
    }
}

/// Returns a mapping of this many pages of which only the first has memory, and no other will. A
/// system without memory does the same to a process that touches the other pages, or writes to
/// their places.
#[cfg(test)]
pub(crate) fn without_memory(pages: u64) -> Mapping {
    let segment = Segment::new(PAGE_BYTES).unwrap();
    let len = (pages * PAGE_BYTES) as usize;
    Mapping::of(segment.descriptor(Access::Write), len, Access::Write).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;
    use marline_core::random::Random;

    const PAGE: Block = Block { segment: 0, offset: PAGE_BYTES, len: PAGE_BYTES };

    #[test]
    fn bytes_written_through_one_mapping_are_read_through_another() {
        let segment = Segment::new(4 * PAGE_BYTES).unwrap();
        let writes = Mapping::new(segment.descriptor(Access::Write), Access::Write).unwrap();
        let reads = Mapping::new(segment.descriptor(Access::Read), Access::Read).unwrap();
        // SAFETY: no other code has the segment.
        unsafe { writes.bytes_mut(PAGE, 5) }.copy_from_slice(b"hello");
        // SAFETY: the borrow above is over.
        assert_eq!(unsafe { reads.bytes(PAGE, 5) }, b"hello");
        segment.return_memory(PAGE).unwrap();
        // SAFETY: no code writes.
        assert_eq!(unsafe { reads.bytes(PAGE, 5) }, [0; 5]);
    }

    #[test]
    fn a_read_descriptor_permits_no_writes() {
        let segment = Segment::new(PAGE_BYTES).unwrap();
        let error = Mapping::new(segment.descriptor(Access::Read), Access::Write).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        assert!(rustix::io::write(segment.descriptor(Access::Read), b"x").is_err());
    }

    #[test]
    fn a_file_that_is_no_segment_is_rejected() {
        let file = File::open("/proc/self/exe").unwrap();
        assert!(Mapping::new(&file, Access::Read).is_err());
        let unsealed = rustix::fs::memfd_create("other", MemfdFlags::ALLOW_SEALING).unwrap();
        let error = Mapping::new(&unsealed, Access::Read).unwrap_err();
        assert!(error.to_string().contains("not a segment"), "{error}");
    }

    #[test]
    fn copied_bytes_arrive_at_every_offset_and_through_every_mapping() {
        let pages = 200;
        let segment = Segment::new(pages * PAGE_BYTES).unwrap();
        let first = Mapping::new(segment.descriptor(Access::Write), Access::Write).unwrap();
        let second = Mapping::new(segment.descriptor(Access::Write), Access::Write).unwrap();
        let reads = Mapping::new(segment.descriptor(Access::Read), Access::Read).unwrap();
        let all = Block { segment: 0, offset: 0, len: pages * PAGE_BYTES };
        let mut expected = vec![0; all.len as usize];
        let mut random = Random::new(5);
        let source: Vec<u8> = (0..all.len).map(|_| random.below(256) as u8).collect();
        for round in 0..400 {
            let offset = random.below(all.len) as usize;
            let len = random.below(all.len - offset as u64) as usize;
            let block = Block { offset: offset as u64 / PAGE_BYTES * PAGE_BYTES, ..all };
            let block = Block { len: all.len - block.offset, ..block };
            let at = offset - block.offset as usize;
            let by = if random.below(2) == 0 { &first } else { &second };
            // SAFETY: no other code has the segment.
            unsafe { by.copy(block, at, &source[..len], round / 50) }.unwrap();
            expected[offset..offset + len].copy_from_slice(&source[..len]);
            // SAFETY: no code writes.
            assert!(unsafe { reads.bytes(all, expected.len()) } == expected, "round {round}");
        }
        assert!(first.seen.iter().all(|seen| seen.load(Ordering::Relaxed)));
    }

    #[test]
    fn a_copy_without_memory_fails_and_the_process_survives() {
        let mapping = without_memory(100);
        let all = Block { segment: 0, offset: 0, len: 100 * PAGE_BYTES };
        let source = vec![7; all.len as usize];
        // Short and long copies, to places with and without an earlier copy.
        for (offset, len) in [
            (PAGE_BYTES, 10),
            (PAGE_BYTES, 50 * PAGE_BYTES),
            (PAGE_BYTES, 50 * PAGE_BYTES),
            (0, all.len),
        ] {
            let source = &source[..len as usize];
            // SAFETY: no other code has the segment.
            let copied = unsafe { mapping.copy(all, offset as usize, source, 0) };
            assert_eq!(copied.unwrap_err().kind(), io::ErrorKind::OutOfMemory, "{offset}, {len}");
        }
        assert!(mapping.prepare(all, all.len as usize, 0).is_err());
        mapping.prepare(all, PAGE_BYTES as usize, 0).unwrap();
        // SAFETY: as above.
        unsafe { mapping.copy(all, 0, &source[..PAGE_BYTES as usize], 0) }.unwrap();
        // SAFETY: no code writes.
        let copied = unsafe { mapping.bytes(all, PAGE_BYTES as usize) };
        assert_eq!(copied, &source[..PAGE_BYTES as usize]);
    }

    #[test]
    fn populated_pages_are_tracked_one_by_one() {
        let mut shown = PopulatedPages { trims: 0, pages: vec![0; 5].into() };
        let mut expected = [false; 320];
        let mut random = Random::new(9);
        for _ in 0..200 {
            let from = random.below(320) as usize;
            let pages = from..(from + 1 + random.below(100) as usize).min(320);
            assert_eq!(shown.has(pages.clone()), expected[pages.clone()].iter().all(|page| *page));
            if random.one_in(4) {
                shown.add(pages.clone());
                expected[pages].fill(true);
            }
            if random.one_in(40) {
                shown.pages.fill(0);
                expected.fill(false);
            }
        }
        assert!(shown.has(7..7), "an empty range is always there");
    }

    #[test]
    fn pages_are_populated_again_only_after_memory_was_returned() {
        let file = rustix::fs::memfd_create("shrinks", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 20 * PAGE_BYTES).unwrap();
        let mapping = Mapping::of(file.as_fd(), 20 * PAGE_BYTES as usize, Access::Write).unwrap();
        let all = Block { segment: 0, offset: 0, len: 20 * PAGE_BYTES };
        let source = vec![7; all.len as usize];
        for shown in [false, true] {
            // SAFETY: no other code has the segment.
            unsafe { mapping.copy(all, 0, &source, 3) }.unwrap();
            assert_eq!(mapping.shown(3).has(pages(0, source.len())), shown);
        }
        // The file has lost its memory, and gets none again. Touching it would end the process.
        rustix::fs::ftruncate(&file, PAGE_BYTES).unwrap();
        mapping.prepare(all, source.len(), 3).unwrap();
        for offset in [PAGE_BYTES as usize, 0] {
            // SAFETY: as above.
            let copied = unsafe { mapping.copy(all, offset, &source[offset..], 4) };
            assert_eq!(copied.unwrap_err().kind(), io::ErrorKind::OutOfMemory);
        }
        assert!(mapping.prepare(all, source.len(), 4).is_err());
        mapping.prepare(all, PAGE_BYTES as usize, 4).unwrap();
    }

    #[test]
    fn a_segment_cannot_be_shrunk() {
        let segment = Segment::new(2 * PAGE_BYTES).unwrap();
        assert!(rustix::fs::ftruncate(segment.descriptor(Access::Write), PAGE_BYTES).is_err());
        assert_eq!(segment.bytes(), 2 * PAGE_BYTES);
    }

    #[test]
    #[should_panic(expected = "is not in")]
    fn a_read_outside_of_the_segment_panics() {
        let segment = Segment::new(PAGE_BYTES).unwrap();
        let reads = Mapping::new(segment.descriptor(Access::Read), Access::Read).unwrap();
        // SAFETY: no code writes.
        let _ = unsafe { reads.bytes(PAGE, 1) };
    }
}
