//! Clusters that run on this machine for this user, so that `marline status` needs no arguments. One
//! file for each, gone when the cluster ends; those of clusters that were killed are taken away when
//! somebody looks.

use crate::exit::Failure;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// What is written down of a running cluster.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Cluster {
    pub address: String,
    pub token_file: PathBuf,
    pub pid: u32,
}

/// The record of this process's cluster. It goes with it, and the token that was made for it.
pub struct Record {
    file: PathBuf,
    made_token: Option<PathBuf>,
    lock: fs::File,
}

/// A cluster's token, and the file it is in.
pub struct Token {
    pub secret: String,
    pub file: PathBuf,
    made: bool,
}

fn folder() -> Result<PathBuf, Failure> {
    marline_runtime::runtime_folder().map_err(|error| {
        Failure::failed(format!("no folder for what runs (set XDG_RUNTIME_DIR): {error}"))
    })
}

impl Token {
    /// The one in this file, or a new one.
    pub fn of(file: Option<&Path>) -> Result<Token, Failure> {
        if let Some(file) = file
            && file.exists()
        {
            return Ok(Token { secret: read_token(file)?, file: file.into(), made: false });
        }
        let mut bytes = [0; 32];
        fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        let secret: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let own = folder()?.join(format!("{}.token", std::process::id()));
        let kept = file.is_some();
        let file = file.map_or(own, Path::to_owned);
        let _ = fs::remove_file(&file);
        let mut options = fs::OpenOptions::new();
        let made = options.write(true).create_new(true).mode(0o600).open(&file);
        let cannot = |error| Failure::failed(format!("cannot write {}: {error}", file.display()));
        writeln!(made.map_err(cannot)?, "{secret}")?;
        Ok(Token { secret, file, made: !kept })
    }
}

/// The token in a file that nobody else can read.
pub fn read_token(file: &Path) -> Result<String, Failure> {
    let cannot = |error: std::io::Error| {
        Failure::failed(format!("cannot read the token file {}: {error}", file.display()))
    };
    let mode = fs::metadata(file).map_err(cannot)?.permissions().mode();
    if mode & 0o077 != 0 {
        return Err(Failure::failed(format!(
            "others can read the token file {0}: type `chmod 600 {0}`",
            file.display()
        )));
    }
    let secret = fs::read_to_string(file).map_err(cannot)?.trim().to_owned();
    if secret.is_empty() {
        return Err(Failure::failed(format!("the token file {} is empty", file.display())));
    }
    Ok(secret)
}

impl Record {
    /// Writes down that this process's cluster runs.
    pub fn write(address: &str, token: &Token) -> Result<Record, Failure> {
        let pid = std::process::id();
        let file = folder()?.join(format!("{pid}.cluster"));
        let cluster = Cluster { address: address.into(), token_file: token.file.clone(), pid };
        let draft = file.with_extension("cluster-draft");
        let mut lock = fs::File::create(&draft)?;
        lock.lock()?;
        lock.write_all(serde_json::to_string(&cluster).expect("it can be written").as_bytes())?;
        fs::rename(&draft, &file)?;
        Ok(Record { file, made_token: token.made.then(|| token.file.clone()), lock })
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.file);
        if let Some(token) = &self.made_token {
            let _ = fs::remove_file(token);
        }
        let _ = self.lock.unlock();
    }
}

/// The clusters that run here. What is left of others is taken away.
pub fn running() -> Result<Vec<Cluster>, Failure> {
    let mut clusters = Vec::new();
    for entry in fs::read_dir(folder()?)?.flatten() {
        let path = entry.path();
        if path.extension().is_none_or(|extension| extension != "cluster") {
            continue;
        }
        let Ok(file) = fs::File::open(&path) else { continue };
        let cluster = fs::read_to_string(&path).ok();
        let cluster = cluster.and_then(|text| serde_json::from_str::<Cluster>(&text).ok());
        // Its process keeps it locked as long as it lives.
        if file.try_lock().is_ok() {
            let _ = fs::remove_file(&path);
            let made = path.with_extension("token");
            let _ = fs::remove_file(made);
        } else {
            clusters.extend(cluster);
        }
    }
    clusters.sort_by(|a, b| a.address.cmp(&b.address));
    Ok(clusters)
}
