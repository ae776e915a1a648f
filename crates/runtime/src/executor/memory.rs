//! How much memory this process and its executors may use: the limit of the control groups
//! (cgroups), or of the machine.
//!
//! Each worker checks the memory at intervals. When more is used than [`THRESHOLD`] allows, it
//! reports to its state machine how much each executor uses. The machine then ends one of them
//! before the kernel ends any.

use super::process::LaunchContext;
use crate::net::io;
use crate::node::Node;
use marline_core::worker::{Event, ExecutorId};
use rustix::process::Pid;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::Duration;

/// The environment variable with the fraction of the memory that may be used. With 1, no executor
/// is ended.
const THRESHOLD: &str = "MARLINE_MEMORY_THRESHOLD";
const DEFAULT_THRESHOLD: f64 = 0.95;
/// How often a worker checks.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// How much memory is used, and how much there is, in bytes.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Usage {
    used: u64,
    limit: u64,
}

impl Usage {
    fn part(self) -> f64 {
        self.used as f64 / self.limit.max(1) as f64
    }
}

/// Watches the memory of a worker's executors.
#[derive(Default)]
pub(crate) struct MemoryWatch {
    started: OnceLock<()>,
    pids: Mutex<BTreeMap<ExecutorId, i32>>,
    groups: OnceLock<Cgroups>,
    /// How many processes the kernel had killed for lack of memory at the last check.
    kills: AtomicU64,
}

impl MemoryWatch {
    fn pids(&self) -> MutexGuard<'_, BTreeMap<ExecutorId, i32>> {
        self.pids.lock().expect("nothing panics under it")
    }

    pub fn launched(&self, executor: ExecutorId, pid: Pid) {
        self.pids().insert(executor, pid.as_raw_pid());
    }

    pub fn died(&self, executor: ExecutorId) {
        self.pids().remove(&executor);
    }

    fn groups(&self) -> &Cgroups {
        self.groups.get_or_init(Cgroups::of_this_process)
    }

    /// Returns whether the kernel has killed a process for lack of memory since the last call.
    pub fn kernel_killed(&self) -> bool {
        let kills = self.groups().kills();
        self.kills.swap(kills, Ordering::Relaxed) < kills
    }
}

/// Starts to watch the memory for a worker whose executors are processes. Later calls do nothing.
pub(super) fn start(node: &Weak<Node>, worker: usize, launch: &Arc<LaunchContext>) {
    launch.memory_watch.started.get_or_init(|| {
        launch.memory_watch.kernel_killed(); // Ignores processes that were killed before.
        io().spawn(watch(node.clone(), worker, Arc::downgrade(launch)));
    });
}

/// Checks the memory as long as the worker exists.
async fn watch(node: Weak<Node>, worker: usize, launch: Weak<LaunchContext>) {
    let threshold = threshold(std::env::var(THRESHOLD).ok().as_deref());
    if threshold >= 1.0 {
        return;
    }
    let mut looks = tokio::time::interval(LOOK_EVERY);
    loop {
        looks.tick().await;
        let (Some(node), Some(launch)) = (node.upgrade(), launch.upgrade()) else { return };
        let memory = &launch.memory_watch;
        let usage = memory.groups().usage().filter(|usage| usage.part() >= threshold);
        let Some(Usage { used, limit }) = usage else { continue };
        let pids = memory.pids().clone();
        let taken = pids.into_iter().map(|(id, pid)| (id, resident(pid))).collect();
        node.deliver_executor_event(worker, Event::MemoryShort { used, limit, taken });
    }
}

/// Returns how much memory there is for this process and its executors, if that is known.
pub fn total() -> Option<u64> {
    let groups = Cgroups::of_this_process();
    let limits = [groups.first_usage(), groups.second_usage(), machine()];
    limits.into_iter().flatten().map(|usage| usage.limit).min()
}

/// Returns the threshold from the environment, or the default if the text is no positive number.
fn threshold(text: Option<&str>) -> f64 {
    let threshold = text.and_then(|text| text.trim().parse().ok());
    threshold.filter(|part| *part > 0.0).unwrap_or(DEFAULT_THRESHOLD)
}

/// Returns about how much memory a process has for itself (its proportional set size).
fn resident(pid: i32) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    field(&rollup, "Pss:").unwrap_or(0) * 1024
}

/// Returns the number after `name` at the beginning of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The folders in which the kernel reports what the control group of this process uses.
#[derive(Clone, Debug, Default)]
struct Cgroups {
    /// The folder of cgroup v1, and of v2.
    first: Option<PathBuf>,
    second: Option<PathBuf>,
}

impl Cgroups {
    fn of_this_process() -> Cgroups {
        let lines = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Cgroups::read(&lines, Path::new("/sys/fs/cgroup"))
    }

    fn read(lines: &str, root: &Path) -> Cgroups {
        let mut groups = Cgroups::default();
        for line in lines.lines() {
            let mut parts = line.splitn(3, ':');
            let (Some(_), Some(kinds), Some(path)) = (parts.next(), parts.next(), parts.next())
            else {
                continue;
            };
            let below = |root: PathBuf| {
                // In a container the group's own path may not exist: there, the root is the group.
                let own = root.join(path.trim_start_matches('/'));
                if own.is_dir() { own } else { root }
            };
            if kinds.split(',').any(|kind| kind == "memory") {
                groups.first = Some(below(root.join("memory")));
            } else if kinds.is_empty() {
                groups.second = Some(below(root.to_owned()));
            }
        }
        groups
    }

    /// Returns the tightest limit of the groups and the machine.
    fn usage(&self) -> Option<Usage> {
        let usages = [self.first_usage(), self.second_usage(), machine()];
        usages.into_iter().flatten().max_by(|a, b| a.part().total_cmp(&b.part()))
    }

    fn first_usage(&self) -> Option<Usage> {
        let folder = self.first.as_ref()?;
        let stat = fs::read_to_string(folder.join("memory.stat")).ok()?;
        let limit = field(&stat, "hierarchical_memory_limit ")?;
        let used = number(&folder.join("memory.usage_in_bytes"))?;
        bounded(used, field(&stat, "total_inactive_file ").unwrap_or(0), limit)
    }

    fn second_usage(&self) -> Option<Usage> {
        let folder = self.second.as_ref()?;
        let limit = number(&folder.join("memory.max"))?;
        let used = number(&folder.join("memory.current"))?;
        let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
        bounded(used, field(&stat, "inactive_file ").unwrap_or(0), limit)
    }

    /// Returns how many processes the kernel has killed for lack of memory.
    fn kills(&self) -> u64 {
        let first = self.first.as_ref().map(|folder| folder.join("memory.oom_control"));
        let second = self.second.as_ref().map(|folder| folder.join("memory.events"));
        let in_groups = [first, second].into_iter().flatten().map(|file| {
            let text = fs::read_to_string(file).unwrap_or_default();
            field(&text, "oom_kill ").unwrap_or(0)
        });
        let machine = fs::read_to_string("/proc/vmstat").unwrap_or_default();
        in_groups.sum::<u64>() + field(&machine, "oom_kill ").unwrap_or(0)
    }
}

fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Returns the usage of a group, if it has a limit. A group without one reports a number larger
/// than any memory.
fn bounded(used: u64, can_go: u64, limit: u64) -> Option<Usage> {
    (limit < 1 << 60).then(|| Usage { used: used.saturating_sub(can_go), limit })
}

fn machine() -> Option<Usage> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let (total, free) = (field(&text, "MemTotal:")?, field(&text, "MemAvailable:")?);
    Some(Usage { used: total.saturating_sub(free) * 1024, limit: total * 1024 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_threshold_falls_back_to_the_default() {
        assert_eq!([Some("0.5"), Some("2")].map(threshold), [0.5, 2.0]);
        assert_eq!([None, Some("half"), Some("-1"), Some("0")].map(threshold), [0.95; 4]);
    }

    #[test]
    fn both_versions_of_cgroups_are_read() {
        let root = std::env::temp_dir().join(format!("marline-groups-{}", std::process::id()));
        let (first, second) = (root.join("memory/jobs"), root.clone());
        fs::create_dir_all(&first).unwrap();
        let write = |folder: &Path, name: &str, text: &str| {
            fs::write(folder.join(name), text).unwrap();
        };
        write(&first, "memory.stat", "hierarchical_memory_limit 1000\ntotal_inactive_file 100\n");
        write(&first, "memory.usage_in_bytes", "900\n");
        write(&first, "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n");
        write(&second, "memory.max", "max\n");
        write(&second, "memory.current", "500\n");
        let groups = Cgroups::read("4:memory:/jobs\n0::/nowhere\n", &root);
        assert_eq!(groups.first_usage(), Some(Usage { used: 800, limit: 1000 }));
        assert_eq!(groups.second_usage(), None, "it has no limit");
        assert!(groups.kills() >= 3);
        write(&second, "memory.max", "505\n");
        assert_eq!(groups.second_usage(), Some(Usage { used: 500, limit: 505 }));
        let tightest = groups.usage().unwrap();
        assert!(tightest.part() >= 500.0 / 505.0, "{tightest:?}");
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn the_memory_of_this_machine_and_process_is_read() {
        assert!(machine().is_some_and(|usage| usage.used > 0 && usage.used < usage.limit));
        assert!(resident(std::process::id() as i32) > 0);
    }
}
