//! Data that is to outlive its node: a file each, in a folder that all nodes see.
//!
//! A file is written under another name first, and has its own when it is on the disk as a whole: what is found
//! under a name is what was written, or the checksum in front of it says that the disk made something else of it.

use crate::checksum;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// What a file begins with: what it is, how many bytes follow, and their checksum.
const MARK: [u8; 8] = *b"marline1";
const HEAD_BYTES: usize = 24;
/// So often a folder is made anew that somebody removes at the same time.
const MAX_TRIES: u32 = 100;

/// See the [module](self).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Saved {
    folder: PathBuf,
}

impl Saved {
    /// In this folder, which is made when something is saved.
    pub fn new(folder: impl AsRef<Path>) -> Saved {
        Saved { folder: folder.as_ref().to_path_buf() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Saves data under a name. It is on the disk when this returns.
    pub fn save(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        static DRAFTS: AtomicU64 = AtomicU64::new(0);
        let number = DRAFTS.fetch_add(1, Ordering::Relaxed);
        let draft = self.path(&format!(".{name}.{}.{number}", std::process::id()));
        let written = self.draft(&draft).and_then(|file| write(file, bytes));
        let saved = written.and_then(|()| fs::rename(&draft, self.path(name)));
        if saved.is_err() {
            let _ = fs::remove_file(&draft);
        }
        saved?;
        File::open(&self.folder)?.sync_all()
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
        let mut file = File::open(self.path(name))?;
        let mut head = [0; HEAD_BYTES];
        file.read_exact(&mut head)?;
        let number = |at: usize| {
            u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes are eight bytes"))
        };
        let bytes = number(8);
        let there = file.metadata()?.len();
        if head[..8] != MARK || there != bytes + HEAD_BYTES as u64 {
            return Err(corrupt(name).into());
        }
        let mut room = room(bytes as usize)?;
        file.read_exact(room.as_mut())?;
        if checksum(room.as_mut()) != number(16) {
            return Err(corrupt(name).into());
        }
        Ok(room)
    }

    /// Erases what was saved under a name, if anything was.
    pub fn erase(&self, name: &str) {
        let _ = fs::remove_file(self.path(name));
        let _ = fs::remove_dir(&self.folder); // If that was the last.
    }

    /// Erases everything.
    pub fn erase_all(&self) {
        let _ = fs::remove_dir_all(&self.folder);
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

    fn load(saved: &Saved, name: &str) -> io::Result<Vec<u8>> {
        saved.load(name, |bytes| Ok(vec![0; bytes]))
    }

    fn folder(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("marline-saved-{}-{name}", std::process::id()))
    }

    #[test]
    fn what_was_saved_is_read_until_it_is_erased() {
        let folder = folder("read");
        let saved = Saved::new(folder.join("deep"));
        assert_eq!(load(&saved, "one").unwrap_err().kind(), io::ErrorKind::NotFound);
        saved.save("one", b"first").unwrap();
        saved.save("one", b"again").unwrap();
        saved.save("none", b"").unwrap();
        assert_eq!(load(&saved, "one").unwrap(), b"again");
        assert_eq!(load(&saved, "none").unwrap(), b"");
        saved.erase("one");
        saved.erase("one");
        assert!(load(&saved, "one").is_err());
        assert_eq!(fs::read_dir(folder.join("deep")).unwrap().count(), 1, "no draft is left");
        saved.erase("none");
        assert!(!folder.join("deep").exists(), "it is empty");
        saved.save("one", b"once more").unwrap();
        saved.erase_all();
        fs::remove_dir(folder).unwrap();
    }

    #[test]
    fn what_a_disk_made_of_it_is_noticed() {
        let folder = folder("corrupt");
        let saved = Saved::new(&folder);
        saved.save("one", &[7; 1000]).unwrap();
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
