//! Clusters that run on this machine for this user, so that a client, or `marline status`, needs no
//! address. Each has a few files in the runtime folder, named after its process, and gone when it ends:
//!
//! - `PID.cluster` says where it is. Its process keeps it locked as long as it lives; it is locked before
//!   it has its name, and made before the others.
//! - `PID.token`, if the token was made for it.
//! - `PID.sock`, where others of the same user can join without a port.
//!
//! What is left of a cluster whose process was killed is taken away when somebody looks.

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

/// What is written down of a running cluster.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ClusterRecord {
    /// Where its controller listens.
    pub address: String,
    /// Where it also listens, for this user alone.
    pub socket: Option<String>,
    /// Where its token is.
    pub token_file: PathBuf,
    /// The process of its controller.
    pub pid: u32,
}

impl ClusterRecord {
    /// The token that it asks for.
    pub fn token(&self) -> Result<String, Error> {
        read_token(&self.token_file)
    }

    /// The quickest way to it from here.
    pub fn nearest(&self) -> &str {
        self.socket.as_deref().unwrap_or(&self.address)
    }
}

/// The files of this process's cluster. They go with it.
pub struct ClusterFiles {
    file: PathBuf,
    lock: fs::File,
}

/// A cluster's token, and the file it is in.
pub struct TokenFile {
    /// What is said.
    pub secret: String,
    /// Where it is kept.
    pub file: PathBuf,
}

fn folder() -> Result<PathBuf, Error> {
    lifeline::folder().map_err(|error| {
        let hint = "set XDG_RUNTIME_DIR";
        Error::unsupported(format!("no folder for what runs here ({hint}): {error}"))
    })
}

/// What could not be done with a file.
fn cannot(verb: &str, file: &Path) -> impl Fn(std::io::Error) -> Error {
    move |error| Error::unsupported(format!("cannot {verb} {}: {error}", file.display()))
}

fn take_away(file: &Path) {
    for extension in [CLUSTER, DRAFT, TOKEN, SOCKET] {
        let _ = fs::remove_file(file.with_extension(extension));
    }
}

impl ClusterFiles {
    /// Begins one: others see that this process lives, and nothing else yet.
    pub fn begin() -> Result<ClusterFiles, Error> {
        list_clusters()?; // What an earlier process with the same id left is taken away.
        let (folder, pid) = (folder()?, std::process::id());
        // A process of another container that shares the folder may have the same id.
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
            // Somebody may have looked before it was locked, and taken it for one that was left.
            let named = fs::metadata(&draft).map(|file| file.ino()).ok();
            if named == Some(lock.metadata().map_err(&cannot)?.ino()) {
                return Ok(ClusterFiles { file, lock });
            }
        }
    }

    /// Where others of the same user can join.
    pub fn socket(&self) -> PathBuf {
        self.file.with_extension(SOCKET)
    }

    /// The token in this file, or a new one, in this file if it is named.
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
        let made = options.write(true).create_new(true).mode(0o600).open(&file);
        let written = made.and_then(|mut made| writeln!(made, "{secret}"));
        written.map_err(cannot("write", &file))?;
        Ok(TokenFile { secret, file })
    }

    /// Writes down where this process's cluster is.
    pub fn publish(
        &mut self,
        address: &str,
        socket: Option<&str>,
        token: &TokenFile,
    ) -> Result<(), Error> {
        let token_file = std::path::absolute(&token.file).map_err(cannot("find", &token.file))?;
        let (address, socket) = (address.into(), socket.map(Into::into));
        let cluster = ClusterRecord { address, socket, token_file, pid: std::process::id() };
        let text = serde_json::to_string(&cluster).expect("it can be written");
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

/// The token in a file that nobody else can read.
pub fn read_token(file: &Path) -> Result<String, Error> {
    // Whoever names a file is wrong about it, whether it is not there or makes no sense.
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
    /// They can be joined.
    pub running: Vec<ClusterRecord>,
    /// They did not end in good order; what they left was taken away just now.
    pub killed: Vec<ClusterRecord>,
}

/// Looks who is here. What is left of others is taken away.
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
        // Shared, so that two who look at the same time do not take each other for its process.
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

/// Takes away what workers of this user left that were killed.
pub fn sweep() {
    if let Ok(folder) = lifeline::folder() {
        lifeline::sweep(&folder);
    }
}

/// The one cluster that runs here.
pub fn only_cluster() -> Result<ClusterRecord, Error> {
    list_clusters()?.only_cluster(None)
}

impl Clusters {
    /// The one that this address names: as it says itself, or by its port on this machine.
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

    /// The one that was meant `before`, if it still runs; otherwise the only one.
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
            let what = killed.last().map_or(String::new(), |killed| {
                let ClusterRecord { address, pid, .. } = killed;
                format!(
                    " any more: the one at {address} (process {pid}) was killed, and what it left is taken away"
                )
            });
            let next = "start one with `marline up`, or name one by its address";
            Error::unavailable(Ran::No, format!("no cluster runs here{what}: {next}"))
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
    fn whoever_belonged_to_one_of_several_clusters_still_does() {
        assert_eq!(running(&[1, 2]).only_cluster(Some(&cluster(2))).unwrap(), cluster(2));
        assert!(running(&[1, 2]).only_cluster(None).is_err());
    }

    #[test]
    fn the_next_cluster_is_meant_when_the_one_before_has_ended() {
        assert_eq!(running(&[2]).only_cluster(Some(&cluster(1))).unwrap(), cluster(2));
        assert!(running(&[2, 3]).only_cluster(Some(&cluster(1))).is_err());
        assert!(running(&[]).only_cluster(Some(&cluster(1))).is_err());
    }
}
