//! Spill files: where blocks go when memory is short. The files have no names, and are gone when
//! their process is. Their parts are allocated and freed like those of [segments](crate::space).
//!
//! Every block has a checksum, which stays in memory and is checked when the block is read back.
//! Data that a disk has changed is detected and not handed out.

use crate::checksum;
use crate::space::{Block, FreeSpace, rounded};
use rustix::fs::{FallocateFlags, Mode, OFlags};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

/// The length of a file, in bytes, unless a larger block must fit. It takes no room on the disk
/// before it is written.
const FILE_BYTES: u64 = 4 << 30;

/// See the [module](self). A clone writes to the same files.
#[derive(Clone, Debug)]
pub struct SpillFiles(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    folder: PathBuf,
    /// The most bytes on the disk.
    limit: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    space: FreeSpace,
    files: BTreeMap<u32, Arc<File>>,
}

/// Why a block was not spilled, or not read back.
#[derive(Debug)]
pub enum SpillError {
    /// The files have as many bytes as they may have.
    Full {
        /// How many bytes they have.
        used: u64,
        /// How many bytes they may have.
        limit: u64,
    },
    /// The disk failed, or is full.
    Disk(io::Error),
    /// The disk returned other bytes than were written.
    Corrupt,
    /// The system has no memory to read the block into.
    NoMemory(io::Error),
}

impl fmt::Display for SpillError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SpillError::Full { used, limit } => write!(f, "{used} of {limit} bytes are spilled"),
            SpillError::Disk(error) => write!(f, "the disk failed: {error}"),
            SpillError::Corrupt => {
                f.write_str("the data that was read back from the disk is not what was written")
            }
            SpillError::NoMemory(error) => {
                write!(f, "there is no memory to read the data from the disk: {error}")
            }
        }
    }
}

impl std::error::Error for SpillError {}

impl From<io::Error> for SpillError {
    fn from(error: io::Error) -> SpillError {
        SpillError::Disk(error)
    }
}

/// A block on the disk. Dropping it frees its room.
pub struct SpilledBlock {
    spill: SpillFiles,
    file: Arc<File>,
    block: Block,
    len: usize,
    checksum: u64,
}

impl fmt::Debug for SpilledBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpilledBlock").field("block", &self.block).field("len", &self.len).finish()
    }
}

impl SpillFiles {
    /// Creates spill files in this folder, up to this many bytes. The first file is made when it is
    /// needed.
    pub fn new(folder: impl AsRef<Path>, limit: u64) -> SpillFiles {
        let folder = folder.as_ref().to_path_buf();
        SpillFiles(Arc::new(Shared { folder, limit, state: Mutex::default() }))
    }

    /// Checks that files can be made in the folder.
    pub fn check(&self) -> io::Result<()> {
        nameless(&self.0.folder).map(drop)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().expect("nothing panics under it")
    }

    /// Returns how many bytes of the disk are taken.
    pub fn used(&self) -> u64 {
        self.state().space.used()
    }

    /// Writes these bytes.
    pub fn write(&self, bytes: &[u8]) -> Result<SpilledBlock, SpillError> {
        let (block, file) = self.allocate(bytes.len() as u64)?;
        // Dropping it frees its room, if the write fails.
        let mut spilled =
            SpilledBlock { spill: self.clone(), file, block, len: bytes.len(), checksum: 0 };
        spilled.file.write_all_at(bytes, block.offset)?;
        spilled.checksum = checksum(bytes);
        Ok(spilled)
    }

    fn allocate(&self, len: u64) -> Result<(Block, Arc<File>), SpillError> {
        let mut state = self.state();
        let (used, limit) = (state.space.used(), self.0.limit);
        if used.checked_add(rounded(len)).is_none_or(|used| used > limit) {
            return Err(SpillError::Full { used, limit });
        }
        let block = match state.space.allocate(len) {
            Some(block) => block,
            None => {
                state.add(&self.0.folder, FILE_BYTES.max(rounded(len)))?;
                state.space.allocate(len).expect("the new file has room")
            }
        };
        let file = state.files[&block.segment].clone();
        Ok((block, file))
    }
}

impl State {
    fn add(&mut self, folder: &Path, len: u64) -> io::Result<()> {
        let number = self.files.last_key_value().map_or(0, |(last, _)| last + 1);
        self.files.insert(number, Arc::new(nameless(folder)?));
        self.space.add(number, len);
        Ok(())
    }
}

/// Makes a file without a name.
fn nameless(folder: &Path) -> io::Result<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::open(folder, flags, Mode::RUSR | Mode::WUSR)?))
}

impl SpilledBlock {
    /// Returns how many bytes the block has.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the block has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Reads the block back into a buffer of exactly its length.
    pub fn read(&self, room: &mut [u8]) -> Result<(), SpillError> {
        assert_eq!(room.len(), self.len, "the buffer has the length of the block");
        self.file.read_exact_at(room, self.block.offset).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => SpillError::Corrupt,
            _ if lacks_memory(&error) => SpillError::NoMemory(error),
            _ => SpillError::Disk(error),
        })?;
        if checksum(room) != self.checksum {
            return Err(SpillError::Corrupt);
        }
        Ok(())
    }
}

/// Returns whether a read failed because there was no memory for the data. No disk reports these
/// errors.
pub fn lacks_memory(error: &io::Error) -> bool {
    let errno = rustix::io::Errno::from_io_error(error);
    error.kind() == io::ErrorKind::OutOfMemory
        || matches!(errno, Some(rustix::io::Errno::FAULT | rustix::io::Errno::NOMEM))
}

impl Drop for SpilledBlock {
    fn drop(&mut self) {
        let Block { offset, len, .. } = self.block;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // A file system that cannot do this still has the room used again.
        let _ = rustix::fs::fallocate(&self.file, flags, offset, len);
        self.spill.state().space.free(self.block);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::without_memory;
    use crate::space::PAGE_BYTES;
    use crate::view::{OnRelease, Writable};

    fn bytes(seed: u8, len: usize) -> Vec<u8> {
        (0..len).map(|index| seed.wrapping_add((index % 251) as u8)).collect()
    }

    fn read(spilled: &SpilledBlock) -> Result<Vec<u8>, SpillError> {
        let mut room = vec![0; spilled.len()];
        spilled.read(&mut room).map(|()| room)
    }

    #[test]
    fn spilled_bytes_are_read_back_and_freed_room_is_used_again() {
        let folder = tempfile::tempdir().unwrap();
        let spill = SpillFiles::new(folder.path(), 1 << 30);
        let (one, two) = (bytes(1, 100_000), bytes(2, 1));
        let (first, second) = (spill.write(&one).unwrap(), spill.write(&two).unwrap());
        assert_eq!((read(&first).unwrap(), read(&second).unwrap()), (one, two));
        assert_eq!(spill.used(), rounded(100_000) + PAGE_BYTES);
        let place = first.block;
        drop(first);
        assert_eq!(spill.write(&bytes(3, 90_000)).unwrap().block.offset, place.offset);
        assert_eq!(read(&second).unwrap(), bytes(2, 1));
        drop(second);
        assert_eq!(spill.used(), 0);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "files have no names");
    }

    #[test]
    fn a_changed_or_truncated_spill_file_is_corrupt() {
        let folder = tempfile::tempdir().unwrap();
        let spill = SpillFiles::new(folder.path(), 1 << 30);
        let spilled = spill.write(&bytes(7, 200_000)).unwrap();
        spilled.file.write_all_at(b"x", spilled.block.offset + 150_000).unwrap();
        assert!(matches!(read(&spilled), Err(SpillError::Corrupt)));
        spilled.file.set_len(spilled.block.offset + 1000).unwrap();
        assert!(matches!(read(&spilled), Err(SpillError::Corrupt)));
    }

    #[test]
    fn a_read_without_memory_does_not_report_the_data_as_corrupt() {
        let folder = tempfile::tempdir().unwrap();
        let spill = SpillFiles::new(folder.path(), 1 << 30);
        let spilled = spill.write(&bytes(7, 10 * PAGE_BYTES as usize)).unwrap();
        let block = Block { segment: 0, offset: 0, len: 10 * PAGE_BYTES };
        let nowhere = Arc::new(without_memory(10));
        let let_go = OnRelease::Tell(Box::new(|_| ()));
        let mut room = Writable::new(nowhere, block, spilled.len(), 0, let_go);
        assert!(matches!(spilled.read(&mut room), Err(SpillError::NoMemory(_))));
        assert_eq!(
            read(&spilled).unwrap(),
            bytes(7, 10 * PAGE_BYTES as usize),
            "the block is still on the disk"
        );
    }

    #[test]
    fn a_spill_beyond_the_limit_fails_with_the_figures() {
        let folder = tempfile::tempdir().unwrap();
        let spill = SpillFiles::new(folder.path(), 10 * PAGE_BYTES);
        let kept = spill.write(&bytes(1, 6 * PAGE_BYTES as usize)).unwrap();
        let error = spill.write(&bytes(2, 5 * PAGE_BYTES as usize)).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("{} of {} bytes are spilled", 6 * PAGE_BYTES, 10 * PAGE_BYTES)
        );
        drop(kept);
        spill.write(&bytes(2, 10 * PAGE_BYTES as usize)).unwrap();
    }

    #[test]
    fn a_missing_folder_is_an_error_and_takes_no_room() {
        let spill = SpillFiles::new("/nowhere/at/all", 1 << 30);
        assert!(matches!(spill.write(b"text"), Err(SpillError::Disk(_))));
        assert_eq!(spill.used(), 0);
    }
}
