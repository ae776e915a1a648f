//! The limits of a node's store. An option of the program comes first, then the environment, then
//! the default.

use crate::executor::memory;
use marline_core::error::Error;
use marline_core::label::format_bytes;
use marline_objects::SpillFiles;
use std::path::PathBuf;
use std::time::Duration;

/// The limits of a store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreOptions {
    /// The most bytes in memory.
    pub limit: u64,
    /// The folder for spill files, and the most bytes in it. `None`: the store does not spill.
    pub spill: Option<(PathBuf, u64)>,
    /// The place of durable values.
    pub durable: Durability,
    /// Requests for room are refused when no request was granted any for this long.
    pub patience: Duration,
}

/// The place of values that must outlive their node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Durability {
    /// They are rejected.
    Nowhere,
    /// They need not be saved: the cluster ends with this process.
    NotNeeded,
    /// They are saved in this folder, which all nodes see.
    In(PathBuf),
}

/// A setting and its name, which errors mention.
#[derive(Clone, Debug)]
pub struct Setting<T> {
    /// The name of the option, flag or variable.
    pub name: &'static str,
    /// Its value.
    pub value: T,
}

/// The environment variable for the most bytes in memory.
pub const STORE_VARIABLE: &str = "MARLINE_STORE_MEMORY";
/// The environment variable for the folder of spill files. Empty: no folder.
pub const SPILL_VARIABLE: &str = "MARLINE_SPILL_DIR";
/// The environment variable for the folder of durable values. Empty: no folder.
pub const DURABLE_VARIABLE: &str = "MARLINE_DURABLE_DIR";
/// The environment variable for `patience` in seconds: if no request was granted room for this
/// long, those that wait are refused.
pub const PATIENCE_VARIABLE: &str = "MARLINE_STORE_PATIENCE";
/// The default of [`PATIENCE_VARIABLE`].
const PATIENCE: Duration = Duration::from_secs(30);
/// The share of all memory that a store may take by default: 3 of 10.
const SHARE: (u64, u64) = (3, 10);
/// The least default limit, in bytes, on a machine with little memory.
const LEAST_BYTES: u64 = 64 << 20;
/// The least limit that can be set, in bytes: ten times the size from which values go to the store.
pub const MIN_STORE_BYTES: u64 = 1 << 20;
/// The default limit, in bytes, if the memory of the machine is not known.
const USUAL_BYTES: u64 = 1 << 30;

impl Default for StoreOptions {
    fn default() -> StoreOptions {
        let share = memory::total().map_or(USUAL_BYTES, |all| all / SHARE.1 * SHARE.0);
        StoreOptions {
            limit: share.max(LEAST_BYTES),
            spill: Some((std::env::temp_dir(), u64::MAX)),
            durable: Durability::Nowhere,
            patience: PATIENCE,
        }
    }
}

impl StoreOptions {
    /// Combines the options: a given one, else the environment's, else the default. A folder that
    /// is named must exist and take files. An empty name means no folder.
    pub fn new(
        limit: Option<Setting<u64>>,
        folder: Option<Setting<String>>,
        durable: Option<Setting<String>>,
    ) -> Result<StoreOptions, Error> {
        let variable = |name| Some(Setting { name, value: std::env::var(name).ok()? });
        let limit = match limit {
            Some(limit) => Some(limit),
            None => variable(STORE_VARIABLE).map(|limit| parsed(&limit)).transpose()?,
        };
        let folder = folder.or_else(|| variable(SPILL_VARIABLE));
        let mut options = StoreOptions::default();
        if let Some(limit) = limit {
            options.limit = checked(&limit)?;
        }
        if let Some(folder) = folder {
            options.spill = spilling_to(folder)?;
        }
        if let Some(durable) = durable.or_else(|| variable(DURABLE_VARIABLE)) {
            options.durable = saving_to(durable)?;
        }
        if let Some(patience) = variable(PATIENCE_VARIABLE) {
            options.patience = seconds(&patience)?;
        }
        Ok(options)
    }

    /// Returns the options of a cluster that ends with its process: no value can outlive it.
    pub fn of_one_process(mut self) -> StoreOptions {
        if self.durable == Durability::Nowhere {
            self.durable = Durability::NotNeeded;
        }
        self
    }

    /// Returns the options of the environment, with defaults.
    pub fn from_environment() -> Result<StoreOptions, Error> {
        StoreOptions::new(None, None, None)
    }
}

fn parsed(setting: &Setting<String>) -> Result<Setting<u64>, Error> {
    let Setting { name, value } = setting;
    match value.trim().parse() {
        Ok(value) => Ok(Setting { name, value }),
        Err(_) => Err(Error::invalid(format!("{name} is {value:?}: it is a number of bytes"))),
    }
}

fn seconds(Setting { name, value }: &Setting<String>) -> Result<Duration, Error> {
    let secs = value.trim().parse().ok();
    secs.and_then(|seconds: f64| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| Error::invalid(format!("{name} is {value:?}: it is a number of seconds")))
}

fn checked(Setting { name, value }: &Setting<u64>) -> Result<u64, Error> {
    if *value >= MIN_STORE_BYTES {
        return Ok(*value);
    }
    Err(Error::invalid(format!(
        "{name} is {value}: a store of large values takes {MIN_STORE_BYTES} bytes ({}) at least",
        format_bytes(MIN_STORE_BYTES)
    )))
}

fn spilling_to(
    Setting { name, value: folder }: Setting<String>,
) -> Result<Option<(PathBuf, u64)>, Error> {
    if folder.is_empty() {
        return Ok(None);
    }
    match SpillFiles::new(&folder, u64::MAX).check() {
        Ok(()) => Ok(Some((folder.into(), u64::MAX))),
        Err(error) => Err(Error::invalid(format!(
            "{name} is {folder:?}, where no file can be made: {error}; it is a folder for what has no room in memory, \
             or empty: then nothing goes to the disk"
        ))),
    }
}

fn saving_to(Setting { name, value: folder }: Setting<String>) -> Result<Durability, Error> {
    if folder.is_empty() {
        return Ok(Durability::Nowhere);
    }
    match SpillFiles::new(&folder, u64::MAX).check() {
        Ok(()) => Ok(Durability::In(folder.into())),
        Err(error) => Err(Error::invalid(format!(
            "{name} is {folder:?}, where no file can be made: {error}; it is a folder for durable values, the same for \
             all nodes"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(limit: Option<u64>, folder: Option<&str>) -> Result<StoreOptions, Error> {
        let limit = limit.map(|value| Setting { name: "the limit", value });
        let folder = folder.map(|value| Setting { name: "the folder", value: value.into() });
        StoreOptions::new(limit, folder, None)
    }

    #[test]
    fn given_options_are_used_and_the_others_have_defaults() {
        let usual = StoreOptions::default();
        assert!(usual.limit >= LEAST_BYTES && usual.spill.is_some(), "{usual:?}");
        let folder = std::env::temp_dir();
        let chosen = options(Some(2_000_000), folder.to_str()).unwrap();
        let durable = Durability::Nowhere;
        let spill = Some((folder, u64::MAX));
        assert_eq!(chosen, StoreOptions { limit: 2_000_000, spill, durable, patience: PATIENCE });
        assert_eq!(options(Some(2_000_000), Some("")).unwrap().spill, None);
    }

    #[test]
    fn invalid_options_are_rejected_by_name() {
        let error = options(Some(MIN_STORE_BYTES - 1), Some("")).unwrap_err();
        let words =
            "the limit is 1048575: a store of large values takes 1048576 bytes (1 MiB) at least";
        assert_eq!(error.message(), words);
        let nowhere = options(None, Some("/no/such/folder")).unwrap_err();
        let words = "the folder is \"/no/such/folder\", where no file can be made: No such file";
        assert!(nowhere.message().starts_with(words), "{nowhere}");
        for nonsense in ["much", "-1", ""] {
            let setting = Setting { name: STORE_VARIABLE, value: nonsense.to_owned() };
            assert!(parsed(&setting).unwrap_err().message().contains("it is a number of bytes"));
        }
        for nonsense in ["-1", "long", "nan", "1e30"] {
            let setting = Setting { name: PATIENCE_VARIABLE, value: nonsense.to_owned() };
            assert!(seconds(&setting).unwrap_err().message().contains("it is a number of seconds"));
        }
    }
}
