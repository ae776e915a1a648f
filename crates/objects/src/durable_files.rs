//! Durable files: data that must outlive its node, one file for each value, in a folder that all
//! nodes see.
//!
//! A file is written under a temporary name, and gets its name when all of it is on the disk. So a
//! file under its name has the data that was written, or its checksum shows that the disk has
//! changed it.
//!
//! Several nodes may save under one name, one after the other or at the same time. The last one
//! counts, and none knows what became of the others' files. So no node erases a file that another
//! may rely on: [`publish`](DurableFiles::publish) says whether the file belongs to this node alone
//! ([`FileId`]), and [`erase_own`](DurableFiles::erase_own) erases only that file, as long as it
//! has the name.

use crate::checksum;
use std::collections::hash_map::RandomState;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::hash::BuildHasher;
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The start of a file. After it come the number of data bytes, and their checksum.
const MARK: [u8; 8] = *b"marline1";
const HEAD_BYTES: usize = 24;
/// How often this process makes a folder that another process removes at the same time, or removes
/// one that another process uses.
const MAX_TRIES: u32 = 100;
/// The identity of a file, whatever its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileId {
    device: u64,
    inode: u64,
}

impl From<Metadata> for FileId {
    fn from(metadata: Metadata) -> FileId {
        FileId { device: metadata.dev(), inode: metadata.ino() }
    }
}

/// Data on the disk under a temporary name. Dropping it erases the data, unless it was published.
pub struct Draft {
    path: PathBuf,
    file: FileId,
}

impl Drop for Draft {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path); // Fails if it was renamed.
    }
}

/// See the [module](self).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DurableFiles {
    folder: PathBuf,
}

impl DurableFiles {
    /// Returns the files of this folder, which is made when something is saved.
    pub fn new(folder: impl AsRef<Path>) -> DurableFiles {
        DurableFiles { folder: folder.as_ref().to_path_buf() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Returns a new temporary path for a file with this name. No other process has the same.
    fn unnamed(&self, name: &str) -> PathBuf {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        /// A random number: processes of two machines may have the same id.
        static PROCESS: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(0));
        let (process, number) = (*PROCESS, NUMBERS.fetch_add(1, Ordering::Relaxed));
        self.path(&format!(".{name}.{}.{process:x}.{number}", std::process::id()))
    }

    /// Writes data for a file with this name. The data is on the disk when this returns.
    pub fn write(&self, name: &str, bytes: &[u8]) -> io::Result<Draft> {
        let path = self.unnamed(name);
        let file = self.draft(&path)?;
        let draft = Draft { path, file: file.metadata()?.into() };
        write(file, bytes)?;
        Ok(draft)
    }

    /// Gives the data its name, also on the disk. Returns the file if this process may erase it: no
    /// other process had saved under the name. `own` is the file that an earlier call returned for
    /// the name.
    pub fn publish(
        &self,
        name: &str,
        draft: Draft,
        own: Option<FileId>,
    ) -> io::Result<Option<FileId>> {
        let path = self.path(name);
        // Try a link first. It replaces no file, so its success shows that there was none.
        let replaced = match fs::hard_link(&draft.path, &path) {
            Ok(()) => None,
            Err(_) => {
                let there = self.open(name).and_then(|(file, ..)| file.metadata());
                fs::rename(&draft.path, &path)?;
                there.ok().map(FileId::from)
            }
        };
        File::open(&self.folder)?.sync_all()?;
        Ok((replaced.is_none() || replaced == own).then_some(draft.file))
    }

    /// Creates a file. Makes the folder if it does not exist. The process that erases the last file
    /// also removes the folder: then this makes it again.
    fn draft(&self, path: &Path) -> io::Result<File> {
        let mut tries = 0;
        loop {
            DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
            match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound && tries < MAX_TRIES => {
                    tries += 1;
                }
                made => return made,
            }
        }
    }

    /// Reads the file with this name into the memory that `room` returns for its length.
    pub fn load<R: AsMut<[u8]>, E: From<io::Error>>(
        &self,
        name: &str,
        room: impl FnOnce(usize) -> Result<R, E>,
    ) -> Result<R, E> {
        let (mut file, bytes, sum) = self.open(name)?;
        let mut room = room(bytes as usize)?;
        file.read_exact(room.as_mut())?;
        if checksum(room.as_mut()) != sum {
            return Err(corrupt(name).into());
        }
        Ok(room)
    }

    /// Opens a file and checks its head. Returns the file after its head, the number of data bytes,
    /// and their checksum.
    fn open(&self, name: &str) -> io::Result<(File, u64, u64)> {
        let mut file = File::open(self.path(name))?;
        let mut head = [0; HEAD_BYTES];
        file.read_exact(&mut head)?;
        let number = |at: usize| {
            u64::from_le_bytes(head[at..at + 8].try_into().expect("the range has eight bytes"))
        };
        let bytes = number(8);
        let there = file.metadata()?.len();
        if head[..8] != MARK || Some(there) != bytes.checked_add(HEAD_BYTES as u64) {
            return Err(corrupt(name));
        }
        Ok((file, bytes, number(16)))
    }

    /// Erases the file with this name, if it exists.
    pub fn erase(&self, name: &str) {
        let _ = fs::remove_file(self.path(name));
        let _ = fs::remove_dir(&self.folder); // Fails if there are other files.
    }

    /// Erases the file with this name if it is `own`.
    pub fn erase_own(&self, name: &str, own: FileId) {
        let is_own = |path: &Path| fs::metadata(path).is_ok_and(|there| FileId::from(there) == own);
        let (path, aside) = (self.path(name), self.unnamed(name));
        if !is_own(&path) || fs::rename(&path, &aside).is_err() {
            return;
        }
        // Another process may have published its own file just then: that one goes back, unless
        // there is a newer.
        let is_back = is_own(&aside) || fs::hard_link(&aside, &path).is_ok() || path.exists();
        if is_back || fs::rename(&aside, &path).is_err() {
            let _ = fs::remove_file(&aside);
        }
        let _ = fs::remove_dir(&self.folder); // Fails if there are other files.
    }

    /// Erases all files and the folder.
    pub fn erase_all(&self) {
        // Another process may save or erase a file in it at the same time.
        for _ in 0..MAX_TRIES {
            if fs::remove_dir_all(&self.folder).is_ok() || !self.folder.exists() {
                return;
            }
        }
    }
}

fn write(mut file: File, bytes: &[u8]) -> io::Result<()> {
    file.write_all(&MARK)?;
    file.write_all(&(bytes.len() as u64).to_le_bytes())?;
    file.write_all(&checksum(bytes).to_le_bytes())?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn corrupt(name: &str) -> io::Error {
    let words = format!("the saved data {name} is not what was written");
    io::Error::new(io::ErrorKind::InvalidData, words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(saved: &DurableFiles, name: &str) -> io::Result<Vec<u8>> {
        saved.load(name, |bytes| Ok(vec![0; bytes]))
    }

    fn save(saved: &DurableFiles, name: &str, bytes: &[u8], own: Option<FileId>) -> Option<FileId> {
        let draft = saved.write(name, bytes).unwrap();
        saved.publish(name, draft, own).unwrap()
    }

    fn folder(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("marline-saved-{}-{name}", std::process::id()))
    }

    #[test]
    fn a_saved_file_is_read_until_it_is_erased() {
        let folder = folder("read");
        let saved = DurableFiles::new(folder.join("deep"));
        assert_eq!(load(&saved, "one").unwrap_err().kind(), io::ErrorKind::NotFound);
        save(&saved, "one", b"first", None);
        save(&saved, "one", b"again", None);
        save(&saved, "none", b"", None);
        assert_eq!(load(&saved, "one").unwrap(), b"again");
        assert_eq!(load(&saved, "none").unwrap(), b"");
        saved.erase("one");
        saved.erase("one");
        assert!(load(&saved, "one").is_err());
        assert_eq!(fs::read_dir(folder.join("deep")).unwrap().count(), 1, "no draft is left");
        saved.erase("none");
        assert!(!folder.join("deep").exists(), "an empty folder is removed");
        save(&saved, "one", b"once more", None);
        saved.erase_all();
        fs::remove_dir(folder).unwrap();
    }

    #[test]
    fn a_process_does_not_erase_a_file_that_another_process_saved() {
        let folder = folder("own");
        let saved = DurableFiles::new(&folder);
        let first = save(&saved, "one", b"first", None).expect("there was no file");
        let again = save(&saved, "one", b"again", Some(first)).expect("both files are its own");
        assert_eq!(save(&saved, "one", b"again", None), None, "another process made the old file");
        saved.erase_own("one", again);
        assert_eq!(load(&saved, "one").unwrap(), b"again", "it is another file");
        fs::write(folder.join("one"), b"nothing that was saved").unwrap();
        let last = save(&saved, "one", b"last", None).expect("no process relies on damaged data");
        saved.erase_own("one", last);
        assert!(!folder.exists(), "no file is left, and no draft");
    }

    #[test]
    fn an_unpublished_draft_leaves_no_file() {
        let folder = folder("draft");
        let saved = DurableFiles::new(&folder);
        save(&saved, "one", b"there", None);
        drop(saved.write("one", b"late").unwrap());
        assert_eq!(load(&saved, "one").unwrap(), b"there");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        saved.erase_all();
    }

    #[test]
    fn a_changed_or_truncated_file_is_an_error() {
        let folder = folder("corrupt");
        let saved = DurableFiles::new(&folder);
        save(&saved, "one", &[7; 1000], None);
        let whole = fs::read(folder.join("one")).unwrap();
        for at in [0, 9, 17, 30] {
            let mut other = whole.clone();
            other[at] ^= 1;
            fs::write(folder.join("one"), other).unwrap();
            assert_eq!(load(&saved, "one").unwrap_err().kind(), io::ErrorKind::InvalidData, "{at}");
        }
        for len in [0, 10, 500] {
            fs::write(folder.join("one"), &whole[..len]).unwrap();
            assert!(load(&saved, "one").is_err(), "cut at {len}");
        }
        saved.erase_all();
    }
}
