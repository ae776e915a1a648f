//! Data that is to outlive its node: a file each, in a folder that all nodes see.
//!
//! A file is written under another name first, and has its own when it is on the disk as a whole: what is found
//! under a name is what was written, or the checksum in front of it says that the disk made something else of it.
//!
//! Several nodes may save under one name, one after the other or at the same time: the last one counts, and none knows what
//! became of the others'. So nobody erases what another may count on: who saves is told whether the file is its own
//! alone ([`FileId`]), and only that is [erased](Saved::erase_own), as long as it is there.

use crate::checksum;
use std::collections::hash_map::RandomState;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::hash::BuildHasher;
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a file begins with: what it is, how many bytes follow, and their checksum.
const MARK: [u8; 8] = *b"marline1";
const HEAD_BYTES: usize = 24;
/// So often a folder is made anew that somebody removes at the same time, or removed that somebody uses.
const MAX_TRIES: u32 = 100;
/// Which file it is, whatever its name.
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

/// Data that is on the disk, and has no name yet. Dropped, it is erased.
pub struct Draft {
    path: PathBuf,
    file: FileId,
}

impl Drop for Draft {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path); // Unless it was renamed.
    }
}

/// See the [module](self).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DurableFiles {
    folder: PathBuf,
}

impl DurableFiles {
    /// In this folder, which is made when something is saved.
    pub fn new(folder: impl AsRef<Path>) -> DurableFiles {
        DurableFiles { folder: folder.as_ref().to_path_buf() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Where something is that is to have this name, or had it: nobody else's.
    fn unnamed(&self, name: &str) -> PathBuf {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        /// Processes of two machines may have the same id.
        static PROCESS: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(0));
        let (process, number) = (*PROCESS, NUMBERS.fetch_add(1, Ordering::Relaxed));
        self.path(&format!(".{name}.{}.{process:x}.{number}", std::process::id()))
    }

    /// Writes data that is to have this name. It is on the disk when this returns.
    pub fn write(&self, name: &str, bytes: &[u8]) -> io::Result<Draft> {
        let path = self.unnamed(name);
        let file = self.draft(&path)?;
        let draft = Draft { path, file: file.metadata()?.into() };
        write(file, bytes)?;
        Ok(draft)
    }

    /// Gives it its name, also on the disk. Says which file it is, if it is this one's to erase: no other had saved
    /// anything under the name. `own` is what was said of it before.
    pub fn publish(
        &self,
        name: &str,
        draft: Draft,
        own: Option<FileId>,
    ) -> io::Result<Option<FileId>> {
        let path = self.path(name);
        // A link replaces nothing: so it is known what is.
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

    /// A new file; the folder is made if it is not there. Whoever erases the last file of it removes it: then it is
    /// made again.
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

    /// Reads what was saved under a name into the room that is made for it.
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

    /// A file that is whole as far as its head tells, after that; how many bytes follow, and their checksum.
    fn open(&self, name: &str) -> io::Result<(File, u64, u64)> {
        let mut file = File::open(self.path(name))?;
        let mut head = [0; HEAD_BYTES];
        file.read_exact(&mut head)?;
        let number = |at: usize| {
            u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes are eight bytes"))
        };
        let bytes = number(8);
        let there = file.metadata()?.len();
        if head[..8] != MARK || Some(there) != bytes.checked_add(HEAD_BYTES as u64) {
            return Err(corrupt(name));
        }
        Ok((file, bytes, number(16)))
    }

    /// Erases what was saved under a name, if anything was.
    pub fn erase(&self, name: &str) {
        let _ = fs::remove_file(self.path(name));
        let _ = fs::remove_dir(&self.folder); // If that was the last.
    }

    /// The same, if that is still this file.
    pub fn erase_own(&self, name: &str, own: FileId) {
        let is_own = |path: &Path| fs::metadata(path).is_ok_and(|there| FileId::from(there) == own);
        let (path, aside) = (self.path(name), self.unnamed(name));
        if !is_own(&path) || fs::rename(&path, &aside).is_err() {
            return;
        }
        // Another may have put its own there just then: that goes back, unless there is a newer one.
        let is_back = is_own(&aside) || fs::hard_link(&aside, &path).is_ok() || path.exists();
        if is_back || fs::rename(&aside, &path).is_err() {
            let _ = fs::remove_file(&aside);
        }
        let _ = fs::remove_dir(&self.folder); // If that was the last.
    }

    /// Erases everything.
    pub fn erase_all(&self) {
        // Somebody may save or erase something in it at the same time.
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
    let words = format!("what was saved as {name} is not what was written");
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
    fn what_was_saved_is_read_until_it_is_erased() {
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
        assert!(!folder.join("deep").exists(), "it is empty");
        save(&saved, "one", b"once more", None);
        saved.erase_all();
        fs::remove_dir(folder).unwrap();
    }

    #[test]
    fn what_another_saved_is_not_ones_own_to_erase() {
        let folder = folder("own");
        let saved = DurableFiles::new(&folder);
        let first = save(&saved, "one", b"first", None).expect("nobody else's was there");
        let again = save(&saved, "one", b"again", Some(first)).expect("both are its own");
        assert_eq!(save(&saved, "one", b"again", None), None, "another has made what was there");
        saved.erase_own("one", again);
        assert_eq!(load(&saved, "one").unwrap(), b"again", "it is not the file that was meant");
        fs::write(folder.join("one"), b"nothing that was saved").unwrap();
        let last = save(&saved, "one", b"last", None).expect("nobody could count on that");
        saved.erase_own("one", last);
        assert!(!folder.exists(), "nothing is left, and no draft");
    }

    #[test]
    fn what_is_written_and_given_no_name_is_gone() {
        let folder = folder("draft");
        let saved = DurableFiles::new(&folder);
        save(&saved, "one", b"there", None);
        drop(saved.write("one", b"late").unwrap());
        assert_eq!(load(&saved, "one").unwrap(), b"there");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        saved.erase_all();
    }

    #[test]
    fn what_a_disk_made_of_it_is_noticed() {
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
