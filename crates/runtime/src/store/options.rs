//! How much a node's store may take, as its environment or its user says.

use crate::executor::memory;
use marline_core::error::Error;
use std::path::PathBuf;
use std::time::Duration;

/// What a store may take.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreOptions {
    /// The most bytes of memory.
    pub limit: u64,
    /// Where what has no room in memory goes, and the most bytes there; nothing: nowhere.
    pub spill: Option<(PathBuf, u64)>,
    /// Who waits for room is refused when nobody was given any for this long.
    pub patience: Duration,
}

/// The most bytes of memory, if the environment says it.
pub const STORE_VARIABLE: &str = "MARLINE_STORE_MEMORY";
/// The folder for what has no room, if the environment says it; empty: there is none.
pub const SPILL_VARIABLE: &str = "MARLINE_SPILL_DIR";
/// After how many seconds in which nobody was given room those who wait are refused, if the environment says it.
pub const PATIENCE_VARIABLE: &str = "MARLINE_STORE_PATIENCE";
/// Otherwise after so long.
const PATIENCE: Duration = Duration::from_secs(30);
/// Of all memory, so much is for large values: 3 of 10.
const SHARE: (u64, u64) = (3, 10);
/// There is room for this much at least.
const LEAST_BYTES: u64 = 64 << 20;
/// If nobody knows how much memory there is.
const USUAL_BYTES: u64 = 1 << 30;

impl Default for StoreOptions {
    fn default() -> StoreOptions {
        let share = memory::total().map_or(USUAL_BYTES, |all| all / SHARE.1 * SHARE.0);
        StoreOptions {
            limit: share.max(LEAST_BYTES),
            spill: Some((std::env::temp_dir(), u64::MAX)),
            patience: PATIENCE,
        }
    }
}

impl StoreOptions {
    /// As the environment says, and as usual where it says nothing.
    pub fn from_environment() -> Result<StoreOptions, Error> {
        let said = |name| std::env::var(name).ok();
        let (limit, folder) = (said(STORE_VARIABLE), said(SPILL_VARIABLE));
        let patience = said(PATIENCE_VARIABLE);
        StoreOptions::said(limit.as_deref(), folder.as_deref(), patience.as_deref())
    }

    fn said(
        limit: Option<&str>,
        folder: Option<&str>,
        patience: Option<&str>,
    ) -> Result<StoreOptions, Error> {
        let mut options = StoreOptions::default();
        if let Some(limit) = limit {
            options.limit =
                limit.trim().parse().ok().filter(|limit| *limit > 0).ok_or_else(|| {
                    Error::invalid(format!(
                        "{STORE_VARIABLE} is {limit:?}: it is a number of bytes"
                    ))
                })?;
        }
        match folder {
            Some("") => options.spill = None,
            Some(folder) => options.spill = Some((folder.into(), u64::MAX)),
            None => {}
        }
        if let Some(patience) = patience {
            let seconds = patience.trim().parse().ok();
            options.patience = seconds
                .and_then(|seconds: f64| Duration::try_from_secs_f64(seconds).ok())
                .ok_or_else(|| {
                    Error::invalid(format!(
                        "{PATIENCE_VARIABLE} is {patience:?}: it is a number of seconds"
                    ))
                })?;
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_counts_and_the_rest_is_as_usual() {
        let usual = StoreOptions::said(None, None, None).unwrap();
        assert!(usual.limit >= LEAST_BYTES && usual.spill.is_some(), "{usual:?}");
        let said = StoreOptions::said(Some("1000000"), Some("/spill"), Some("1.5")).unwrap();
        assert_eq!(
            said,
            StoreOptions {
                limit: 1_000_000,
                spill: Some(("/spill".into(), u64::MAX)),
                patience: Duration::from_millis(1_500),
            }
        );
        assert_eq!(StoreOptions::said(None, Some(""), None).unwrap().spill, None);
        for nonsense in ["0", "much", "-1"] {
            assert!(StoreOptions::said(Some(nonsense), None, None).is_err());
        }
        for nonsense in ["-1", "long", "nan", "1e30"] {
            assert!(StoreOptions::said(None, None, Some(nonsense)).is_err());
        }
    }
}
