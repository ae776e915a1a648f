//! The machine and the build that the numbers of a benchmark are from: processor, kernel, load,
//! compiler, commit, and the versions of the rivals. The benchmarks of channels and of the cluster
//! are two packages, so each includes this file.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

pub const RUSTC: &str = env!("BENCH_RUSTC");
pub const COMMIT: &str = env!("BENCH_COMMIT");

pub fn describe() -> String {
    let information = read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = information
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or("unknown processor", |(_, model)| model);
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let number = kernel.split('-').next().unwrap_or_default().trim();
    format!("{model}, {cores} cores, {} {number}", std::env::consts::OS)
}

pub fn load() -> String {
    let load = read_to_string("/proc/loadavg").unwrap_or_default();
    load.split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}

/// Processor time since boot, in ticks: all of it, the part that was used, and the part of that
/// which this process and its ended children used.
#[derive(Clone, Copy)]
struct Ticks {
    offered: u64,
    used: u64,
    ours: u64,
}

impl Ticks {
    fn now() -> Option<Ticks> {
        // Parsed as signed: the terminal of a process without one is -1.
        let numbers = |text: &str| -> Vec<u64> {
            let words = text.split_whitespace();
            words.map(|word| word.parse().unwrap_or(0_i64).max(0) as u64).collect()
        };
        let stat = read_to_string("/proc/stat").ok()?;
        // The words: user nice system idle iowait irq softirq steal. Guests are in user.
        let all = numbers(stat.lines().next()?.strip_prefix("cpu")?);
        let idle = all.get(3)? + all.get(4)?;
        let offered = all.iter().take(8).sum();
        let own = read_to_string("/proc/self/stat").ok()?;
        // After the name in brackets and the state, words 11 to 14 are utime and stime, of the
        // process and of its children.
        let own = numbers(own.rsplit_once(") ")?.1.split_once(' ')?.1);
        Some(Ticks { offered, used: offered - idle, ours: own.get(10..14)?.iter().sum() })
    }
}

/// Measures how much of the machine other processes use.
pub struct Watch(Option<Ticks>);

impl Watch {
    pub fn start() -> Watch {
        Watch(Ticks::now())
    }

    /// Returns the part of the machine's processor time that other processes used since the start:
    /// 0 to 1.
    pub fn others(&self) -> f64 {
        let (Some(before), Some(after)) = (self.0, Ticks::now()) else { return 0.0 };
        let used = after.used.saturating_sub(before.used);
        let ours = after.ours.saturating_sub(before.ours);
        used.saturating_sub(ours) as f64
            / after.offered.saturating_sub(before.offered).max(1) as f64
    }
}

pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the names of these crates with their versions, from the lock file of this build.
pub fn versions(lock: &str, crates: &[&str]) -> String {
    let version = |name: &str| {
        let entry = lock.split_once(&format!("name = \"{name}\"\nversion = \""));
        entry.map_or("?", |(_, rest)| rest.split('"').next().unwrap_or("?"))
    };
    crates.iter().map(|name| format!("{name} {}", version(name))).collect::<Vec<_>>().join(", ")
}
