//! The records of the clusters that run on this machine for this user. With them, a client or
//! `marline status` needs no address.
//!
//! A cluster has up to three files in the runtime folder, named after the process id of its
//! controller. They are removed when the cluster ends:
//!
//! - `PID.cluster` says where the cluster is. The controller's process creates it before the other
//!   two, locks it before it gets this name, and keeps it locked while it lives. Before that, the
//!   file is called `PID.draft`.
//! - `PID.token` has the token, if Marline generated it for this cluster.
//! - `PID.sock` is the socket where processes of the same user can join without a port.
//!
//! If the controller's process was killed, the next [`list_clusters`] removes its files.

use crate::executor::lifeline;
use marline_core::error::{Error, Ran};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

const CLUSTER: &str = "cluster";
const DRAFT: &str = "draft";
const TOKEN: &str = "token";
const SOCKET: &str = "sock";

/// The record of a running cluster: the content of `PID.cluster`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ClusterRecord {
    /// The address at which the controller listens.
    pub address: String,
    /// The socket at which the controller also listens, for this user alone.
    pub socket: Option<String>,
    /// The file that has the cluster's token.
    pub token_file: PathBuf,
    /// The process id of the controller.
    pub pid: u32,
}

impl ClusterRecord {
    /// Reads the token that the cluster asks for.
    pub fn token(&self) -> Result<String, Error> {
        read_token(&self.token_file)
    }

    /// Returns the address for processes of this machine: the socket, if there is one.
    pub fn nearest(&self) -> &str {
        self.socket.as_deref().unwrap_or(&self.address)
    }
}

/// The files of this process's cluster. Dropping it removes them.
pub struct ClusterFiles {
    file: PathBuf,
    lock: fs::File,
}

/// A cluster's token, and the file that has it.
pub struct TokenFile {
    /// The token itself.
    pub secret: String,
    /// The file that has the token.
    pub file: PathBuf,
}

fn folder() -> Result<PathBuf, Error> {
    lifeline::folder().map_err(|error| {
        let hint = "set XDG_RUNTIME_DIR";
        Error::unsupported(format!("no folder for the files of running clusters ({hint}): {error}"))
    })
}

/// Returns a function that turns an I/O error into "cannot `verb` `file`".
fn cannot(verb: &str, file: &Path) -> impl Fn(std::io::Error) -> Error {
    move |error| Error::unsupported(format!("cannot {verb} {}: {error}", file.display()))
}

/// Removes all files of the cluster that `file` belongs to.
fn take_away(file: &Path) {
    for extension in [CLUSTER, DRAFT, TOKEN, SOCKET] {
        let _ = fs::remove_file(file.with_extension(extension));
    }
}

impl ClusterFiles {
    /// Creates and locks the draft of this process's record. Other processes see that this process
    /// lives, and nothing else until [`publish`](ClusterFiles::publish).
    pub fn begin() -> Result<ClusterFiles, Error> {
        list_clusters()?; // Removes the files of an earlier process with the same id.
        let (folder, pid) = (folder()?, std::process::id());
        // A process in another container that shares the folder may have the same id.
        let mut names = (1..).map(|n| if n == 1 { pid.to_string() } else { format!("{pid}-{n}") });
        let file = names
            .find_map(|name| {
                let file = folder.join(format!("{name}.{CLUSTER}"));
                (!file.exists()).then_some(file)
            })
            .expect("some name is free");
        let draft = file.with_extension(DRAFT);
        let cannot = cannot("write", &draft);
        loop {
            let mut options = fs::OpenOptions::new();
            let lock =
                options.write(true).create(true).mode(0o600).open(&draft).map_err(&cannot)?;
            lock.lock().map_err(&cannot)?;
            // Another process may have found the draft before it was locked, and removed it as a
            // leftover. Then the name does not lead to this file any more.
            let named = fs::metadata(&draft).map(|file| file.ino()).ok();
            if named == Some(lock.metadata().map_err(&cannot)?.ino()) {
                return Ok(ClusterFiles { file, lock });
            }
        }
    }

    /// Returns the path of the socket where processes of the same user can join.
    pub fn socket(&self) -> PathBuf {
        self.file.with_extension(SOCKET)
    }

    /// Reads the token in `file`. If `file` does not exist, creates it with a new token. Without
    /// `file`, puts a new token into `PID.token`.
    pub fn token(&self, file: Option<&Path>) -> Result<TokenFile, Error> {
        if let Some(file) = file
            && file.exists()
        {
            return Ok(TokenFile { secret: read_token(file)?, file: file.into() });
        }
        let mut bytes = [0; 32];
        let random = Path::new("/dev/urandom");
        let read = fs::File::open(random).and_then(|mut file| file.read_exact(&mut bytes));
        read.map_err(cannot("read", random))?;
        let secret: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let file = file.map_or_else(|| self.file.with_extension(TOKEN), Path::to_owned);
        let mut options = fs::OpenOptions::new();
        let created = options.write(true).create_new(true).mode(0o600).open(&file);
        let written = created.and_then(|mut created| writeln!(created, "{secret}"));
        written.map_err(cannot("write", &file))?;
        Ok(TokenFile { secret, file })
    }

    /// Writes the record of this process's cluster, and gives the file the name by which other
    /// processes find it.
    pub fn publish(
        &mut self,
        address: &str,
        socket: Option<&str>,
        token: &TokenFile,
    ) -> Result<(), Error> {
        let token_file = std::path::absolute(&token.file).map_err(cannot("find", &token.file))?;
        let (address, socket) = (address.into(), socket.map(Into::into));
        let cluster = ClusterRecord { address, socket, token_file, pid: std::process::id() };
        let text = serde_json::to_string(&cluster).expect("a record can be written as JSON");
        let written = self.lock.write_all(text.as_bytes());
        let named = written.and_then(|()| fs::rename(self.file.with_extension(DRAFT), &self.file));
        named.map_err(cannot("write", &self.file))
    }
}

impl Drop for ClusterFiles {
    fn drop(&mut self) {
        take_away(&self.file);
    }
}

/// Reads the token in a file. Fails with `Denied` if other users could read the file.
pub fn read_token(file: &Path) -> Result<String, Error> {
    // `Invalid`, also if the file does not exist: the caller named a wrong file.
    let cannot = |error: std::io::Error| {
        Error::invalid(format!("cannot read the token file {}: {error}", file.display()))
    };
    let mode = fs::metadata(file).map_err(cannot)?.permissions().mode();
    if mode & 0o077 != 0 {
        return Err(Error::denied(format!(
            "others can read the token file {0}: type `chmod 600 {0}`",
            file.display()
        )));
    }
    let secret = fs::read_to_string(file).map_err(cannot)?.trim().to_owned();
    if secret.is_empty() {
        return Err(Error::invalid(format!("the token file {} is empty", file.display())));
    }
    Ok(secret)
}

/// The clusters of this user on this machine.
#[derive(Default, Debug)]
pub struct Clusters {
    /// The clusters that a process can join.
    pub running: Vec<ClusterRecord>,
    /// The clusters whose controller was killed. Their files were removed just now.
    pub killed: Vec<ClusterRecord>,
}

/// Lists the clusters of this user on this machine. Removes the files of clusters and workers that
/// were killed.
pub fn list_clusters() -> Result<Clusters, Error> {
    let folder = folder()?;
    let mut clusters = Clusters::default();
    let entries = fs::read_dir(&folder).map_err(cannot("read", &folder))?;
    for entry in entries.flatten() {
        let path = entry.path();
        let extension = path.extension().and_then(|extension| extension.to_str());
        if !matches!(extension, Some(CLUSTER | DRAFT)) {
            continue;
        }
        let Ok(mut file) = fs::File::open(&path) else { continue };
        // A shared lock, so that two processes that look at the same time do not take each other
        // for the controller.
        let lives = file.try_lock_shared().is_err();
        let mut text = String::new();
        let cluster = file.read_to_string(&mut text).ok();
        let cluster = cluster.and_then(|_| serde_json::from_str::<ClusterRecord>(&text).ok());
        if lives {
            clusters.running.extend(cluster.filter(|_| extension == Some(CLUSTER)));
        } else {
            take_away(&path);
            clusters.killed.extend(cluster);
        }
    }
    lifeline::sweep(&folder);
    clusters.running.sort_by(|a, b| a.address.cmp(&b.address));
    Ok(clusters)
}

/// Removes the files of workers of this user that were killed.
pub fn sweep() {
    if let Ok(folder) = lifeline::folder() {
        lifeline::sweep(&folder);
    }
}

/// Returns the only cluster that runs here. Fails if there is none, or more than one.
pub fn only_cluster() -> Result<ClusterRecord, Error> {
    list_clusters()?.only_cluster(None)
}

impl Clusters {
    /// Returns the cluster with this address, or the one whose port this address names on this
    /// machine.
    pub fn at(mut self, address: &str) -> Option<ClusterRecord> {
        let running = &mut self.running;
        let exact = running.iter().position(|cluster| cluster.address == address);
        let port = |address: &str| address.rsplit_once(':')?.1.parse::<u16>().ok();
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let here = port(address).filter(|_| ["localhost", "127.0.0.1", "[::1]"].contains(&host));
        let near =
            || running.iter().position(|cluster| here.is_some() && port(&cluster.address) == here);
        let found = exact.or_else(near)?;
        Some(running.swap_remove(found))
    }

    /// Returns `before`, if it still runs, and otherwise the only cluster.
    pub(crate) fn only_cluster(
        self,
        before: Option<&ClusterRecord>,
    ) -> Result<ClusterRecord, Error> {
        let Clusters { mut running, killed } = self;
        if let Some(same) = before.filter(|before| running.contains(before)) {
            return Ok(same.clone());
        }
        if running.len() > 1 {
            let addresses: Vec<&str> =
                running.iter().map(|cluster| cluster.address.as_str()).collect();
            let addresses = addresses.join(", ");
            let problem = "several clusters run here: name one by its address";
            return Err(Error::invalid(format!("{problem}: {addresses}")));
        }
        running.pop().ok_or_else(|| {
            let lost = killed.last().map_or(String::new(), |killed| {
                let ClusterRecord { address, pid, .. } = killed;
                format!(
                    " any more: the one at {address} (process {pid}) was killed, and its files are removed"
                )
            });
            let next = "start one with `marline up`, or name one by its address";
            Error::unavailable(Ran::No, format!("no cluster runs here{lost}: {next}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(pid: u32) -> ClusterRecord {
        let address = format!("127.0.0.1:{pid}");
        ClusterRecord { address, socket: None, token_file: PathBuf::new(), pid }
    }

    fn running(pids: &[u32]) -> Clusters {
        Clusters { running: pids.iter().copied().map(cluster).collect(), killed: Vec::new() }
    }

    #[test]
    fn a_process_stays_in_its_cluster_when_several_run() {
        assert_eq!(running(&[1, 2]).only_cluster(Some(&cluster(2))).unwrap(), cluster(2));
        assert!(running(&[1, 2]).only_cluster(None).is_err());
    }

    #[test]
    fn the_only_running_cluster_replaces_one_that_has_ended() {
        assert_eq!(running(&[2]).only_cluster(Some(&cluster(1))).unwrap(), cluster(2));
        assert!(running(&[2, 3]).only_cluster(Some(&cluster(1))).is_err());
        assert!(running(&[]).only_cluster(Some(&cluster(1))).is_err());
    }
}
