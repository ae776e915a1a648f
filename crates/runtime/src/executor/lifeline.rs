//! The file that a worker shares with its executor processes. Its content says until when executors
//! may act. It is locked as long as any of them lives.
//!
//! *Until when.* The worker writes the end of its lease, on the clock of the machine. Every
//! executor has a thread that reads it, and that ends the executor after that time. So when the
//! lease of a frozen worker ends, its executors end too.
//!
//! *As long as any lives.* A `flock` lock belongs to the open file, which the worker passes to its
//! executors. The lock is free when the last of them is gone. A process that can take it, such as a
//! controller on the same machine, knows that nothing of that worker acts any more.

use crate::clock::Clock;
use marline_core::id::SessionId;
use marline_core::time::Time;
use rustix::fs::OFlags;
use std::fs::{DirBuilder, File, Metadata, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

const EXTENSION: &str = "life";
/// The extension of a lifeline that is being created. No other kind of file that processes look for
/// has it.
const DRAFT: &str = "life-draft";
/// How often creation is retried when another process removed the new file as a leftover.
const MAX_TRIES: usize = 100;

/// The worker's end. Dropping it removes the file.
pub(crate) struct Lifeline {
    file: File,
    path: String,
    written: AtomicU64,
}

impl Lifeline {
    /// Creates a lifeline. Removes those of workers that are gone.
    pub fn create() -> io::Result<Lifeline> {
        let folder = folder()?;
        sweep(&folder);
        let mut tries = 1;
        loop {
            match Lifeline::create_in(&folder) {
                // Another process swept between the creation and the lock.
                Err(error) if error.kind() == io::ErrorKind::NotFound && tries < MAX_TRIES => {
                    tries += 1;
                }
                result => return result,
            }
        }
    }

    fn create_in(folder: &Path) -> io::Result<Lifeline> {
        // The file gets its name after it is locked, so no process finds it unlocked.
        let (file, draft) = draft(folder)?;
        // Written once now, so that a full disk shows before the lifeline is needed.
        file.write_all_at(&twice(0), 0)?;
        let path = draft.with_extension(EXTENSION);
        std::fs::rename(&draft, &path)?;
        let path = path.to_str().ok_or(io::ErrorKind::InvalidFilename)?.to_owned();
        Ok(Lifeline { file, path, written: AtomicU64::new(0) })
    }

    pub fn path(&self) -> &str {
        &self.path
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    /// Lets executors act until `until`.
    pub fn renew(&self, until: Time) {
        let until = until.as_nanos();
        if self.written.swap(until, Ordering::Relaxed) != until {
            // If the write fails, executors stop too early, which is safe.
            let _ = self.file.write_all_at(&twice(until), 0);
        }
    }
}

impl Lifeline {
    /// Removes the file. Call this when every executor is dead.
    pub fn remove(&self) {
        take_away(Path::new(&self.path));
    }
}

impl Drop for Lifeline {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Returns the path of the socket where processes of this machine reach the object store of the
/// worker with this lifeline.
pub(crate) fn store_path(lifeline: &Path) -> PathBuf {
    lifeline.with_extension("store")
}

/// Removes a worker's lifeline and socket.
fn take_away(path: &Path) {
    let _ = std::fs::remove_file(path);
    let _ = std::fs::remove_file(store_path(path));
}

/// Creates and locks a file under a name that no other process looks for.
fn draft(folder: &Path) -> io::Result<(File, PathBuf)> {
    let draft = folder.join(format!("{}.{DRAFT}", crate::new_session_id()));
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create_new(true).mode(0o600).open(&draft)?;
    file.lock_shared()?;
    Ok((file, draft))
}

/// Encodes a time: twice, the second time inverted, so that a reader can detect a torn write.
fn twice(until: u64) -> [u8; 16] {
    let mut both = [0; 16];
    both[..8].copy_from_slice(&until.to_ne_bytes());
    both[8..].copy_from_slice(&(!until).to_ne_bytes());
    both
}

/// Reads until when an executor may act.
pub(crate) fn read_lease_end(file: &File) -> Option<Time> {
    loop {
        let mut both = [0; 16];
        file.read_exact_at(&mut both, 0).ok()?;
        let [first, second] = [0, 8].map(|at| {
            u64::from_ne_bytes(both[at..at + 8].try_into().expect("eight bytes are eight"))
        });
        if first == !second {
            return Some(Time::from_nanos(first));
        }
    }
}

/// Returns whether that time is over.
pub(crate) fn is_over(file: &File, clock: &Clock) -> bool {
    read_lease_end(file).is_none_or(|until| clock.now() >= until)
}

/// Returns whether all processes that shared the file at `path` are gone. Then removes it, if it is
/// in this user's own folder. Returns `None` if this cannot be known here.
///
/// A peer that joins sends the path, so it may be any path. A file elsewhere is only checked, not
/// removed: a worker of this machine may have another folder (`TMPDIR`, another user), and the next
/// worker there removes leftovers.
pub(crate) fn is_free(path: &Path) -> Option<bool> {
    let file = match open(path) {
        Ok(file) => file,
        // Only its own worker removes the file when it ends in good order, or a process that finds
        // it free. A missing folder proves nothing: it goes when its user logs out.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return path.parent().is_some_and(Path::is_dir).then_some(true);
        }
        Err(_) => return None,
    };
    match file.try_lock() {
        Ok(()) => {
            if is_own(path, &file) {
                take_away(path);
            }
            Some(true)
        }
        Err(TryLockError::WouldBlock) => Some(false),
        Err(TryLockError::Error(_)) => None,
    }
}

/// Returns whether this is a file that [`Lifeline::create`] made for this user. Checks its folder,
/// its name and its owner.
fn is_own(path: &Path, file: &File) -> bool {
    let user = rustix::process::getuid().as_raw();
    let folder = folder_of(user);
    let is_id = |name: &str| name.parse::<SessionId>().is_ok_and(|id| id.to_string() == name);
    // Compares the text of the path, so that it has no `..` and leads through no other folder.
    path.parent().is_some_and(|parent| parent.as_os_str() == folder.as_os_str())
        && path.file_stem().and_then(|name| name.to_str()).is_some_and(is_id)
        && check_own(&folder, user).is_ok()
        && file.metadata().is_ok_and(|found| found.uid() == user)
}

/// Opens the lifeline of a worker. A peer that joins sends the path, so it may be anything. A file
/// that is no lifeline is neither waited for nor removed.
fn open(path: &Path) -> io::Result<File> {
    if !path.is_absolute() || path.extension().is_none_or(|extension| extension != EXTENSION) {
        return Err(io::ErrorKind::InvalidFilename.into());
    }
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::ErrorKind::InvalidFilename.into());
    }
    Ok(file)
}

/// Returns the folder of this user's files for running processes. It is private to the user, and
/// gone after the machine restarts.
pub fn folder() -> io::Result<PathBuf> {
    let user = rustix::process::getuid().as_raw();
    let folder = folder_of(user);
    DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(|error| {
        io::Error::new(error.kind(), format!("{} cannot be created: {error}", folder.display()))
    })?;
    make_private(&folder, user)?;
    Ok(folder)
}

fn folder_of(user: u32) -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(runtime) if Path::new(&runtime).is_absolute() => Path::new(&runtime).join("marline"),
        _ => std::env::temp_dir().join(format!("marline-{user}")),
    }
}

/// Makes sure that only this user can use a folder. Where everybody may create files, another user
/// could create the folder first, or a link in its place that can be redirected later.
fn make_private(folder: &Path, user: u32) -> io::Result<()> {
    if check_own(folder, user)?.mode() & 0o077 != 0 {
        std::fs::set_permissions(folder, Permissions::from_mode(0o700))?;
    }
    Ok(())
}

/// Fails if the folder is a link, or belongs to another user.
fn check_own(folder: &Path, user: u32) -> io::Result<Metadata> {
    let found = std::fs::symlink_metadata(folder)?;
    if !found.is_dir() || found.uid() != user {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("{} is not this user's own folder", folder.display()),
        ));
    }
    Ok(found)
}

/// Removes the files that killed workers left in this folder.
pub fn sweep(folder: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        match path.extension().and_then(|extension| extension.to_str()) {
            Some(EXTENSION) => drop(is_free(&path)),
            Some(DRAFT) => {
                if File::open(&path).is_ok_and(|file| file.try_lock().is_ok()) {
                    let _ = std::fs::remove_file(&path);
                }
            }
            Some(_) | None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_removes_an_abandoned_draft_and_not_one_in_the_making() {
        let folder = folder().unwrap();
        let (file, draft) = draft(&folder).unwrap();
        crate::cluster_record::list_clusters().unwrap();
        sweep(&folder);
        assert!(draft.exists());
        drop(file);
        sweep(&folder);
        assert!(!draft.exists(), "its creator is gone");
    }

    #[test]
    fn a_lifeline_is_free_when_the_last_process_that_shares_it_is_gone() {
        let lifeline = Lifeline::create().unwrap();
        let path = Path::new(lifeline.path()).to_owned();
        assert_eq!(is_free(&path), Some(false));
        let shared = lifeline.file().try_clone().unwrap();
        // As if the worker was killed: the file stays, and one process still shares it.
        let name = path.with_file_name(format!("{}.life", crate::new_session_id()));
        std::fs::rename(&path, &name).unwrap();
        drop(lifeline);
        assert_eq!(is_free(&name), Some(false));
        drop(shared);
        assert_eq!(is_free(&name), Some(true));
        assert!(!name.exists(), "the process that finds it free removes it");
    }

    /// Creates a file that no process locks, and one beside it with the name of a store's socket.
    fn bait(folder: &Path, name: &str) -> [PathBuf; 2] {
        let file = folder.join(name);
        let both = [store_path(&file), file];
        for path in &both {
            std::fs::write(path, "precious").unwrap();
        }
        both
    }

    #[test]
    fn files_outside_of_this_users_own_folder_are_not_removed() {
        let (own, elsewhere) = (folder().unwrap(), tempfile::tempdir_in("/tmp").unwrap());
        let name = format!("{}.life", crate::new_session_id());
        let precious = bait(elsewhere.path(), &name);
        let dots = Path::new("..").join(elsewhere.path().file_name().unwrap()).join(&name);
        // A link in the user's own folder that leads elsewhere.
        let link = own.join(format!("{}.link", crate::new_session_id()));
        std::os::unix::fs::symlink(elsewhere.path(), &link).unwrap();
        let paths = [
            precious[1].clone(),
            own.join(dots),
            link.join(&name),
            own.join("../x/../").join(&name),
        ];
        for path in paths {
            is_free(&path);
            assert!(precious.iter().all(|file| file.exists()), "{}", path.display());
        }
        std::fs::remove_file(&link).unwrap();
    }

    #[test]
    fn a_file_that_is_not_named_as_a_lifeline_is_not_removed() {
        let own = folder().unwrap();
        let kept = bait(&own, &format!("precious-{}.life", crate::new_session_id()));
        assert_eq!(is_free(&kept[1]), Some(true));
        sweep(&own);
        let are_there = kept.iter().all(|file| file.exists());
        kept.iter().for_each(|file| drop(std::fs::remove_file(file)));
        assert!(are_there);
    }

    #[test]
    fn a_path_that_is_no_lifeline_proves_nothing_and_is_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("diary"), "dear diary").unwrap();
        std::os::unix::fs::symlink(at("diary"), at("link.life")).unwrap();
        let made = std::process::Command::new("mkfifo").arg(at("pipe.life")).status().unwrap();
        assert!(made.success());
        for name in ["diary", "link.life", "pipe.life"] {
            assert_eq!(is_free(&at(name)), None, "{name}");
            assert!(std::fs::symlink_metadata(at(name)).is_ok(), "{name} is still there");
        }
        assert_eq!(is_free(Path::new("relative.life")), None);
        assert_eq!(is_free(&at("gone.life")), Some(true));
        assert_eq!(is_free(&at("no folder/gone.life")), None, "a missing folder proves nothing");
    }

    #[test]
    fn a_folder_is_made_private_or_rejected() {
        let user = rustix::process::getuid().as_raw();
        let outer = tempfile::tempdir().unwrap();
        let folder = outer.path().join("wide");
        std::fs::create_dir(&folder).unwrap();
        std::fs::set_permissions(&folder, Permissions::from_mode(0o777)).unwrap();
        make_private(&folder, user).unwrap();
        assert_eq!(std::fs::metadata(&folder).unwrap().mode() & 0o777, 0o700);
        let link = outer.path().join("link");
        std::os::unix::fs::symlink(&folder, &link).unwrap();
        assert!(make_private(&link, user).is_err(), "the owner of a link decides where it leads");
        assert!(make_private(&folder, user + 1).is_err());
    }

    #[test]
    fn a_new_lifeline_contains_a_lease_that_is_over() {
        let lifeline = Lifeline::create().unwrap();
        assert_eq!(read_lease_end(lifeline.file()), Some(Time::ZERO));
    }

    #[test]
    fn executors_read_the_lease_that_the_worker_renews() {
        let (lifeline, clock) = (Lifeline::create().unwrap(), Clock::new());
        assert!(is_over(lifeline.file(), &clock), "no lease was granted yet");
        let later = clock.now() + std::time::Duration::from_secs(60);
        lifeline.renew(later);
        let shared = lifeline.file().try_clone().unwrap();
        assert_eq!(read_lease_end(&shared), Some(later));
        assert!(!is_over(&shared, &clock));
        lifeline.renew(clock.now());
        assert!(is_over(&shared, &clock));
    }
}
