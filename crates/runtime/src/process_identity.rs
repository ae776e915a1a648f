//! Proof of death: whether a process of this machine is gone.
//!
//! A broken connection proves nothing. A process id that the kernel no longer knows proves that the
//! process is gone. A worker whose executors are processes counts as gone only when its executors
//! are gone too, which its [lifeline] shows.

use crate::executor::lifeline;
use marline_wire::join::ProcessIdentity;
use std::fs;
use std::path::Path;

/// Returns the identity of this process, if `/proc` tells enough.
pub(crate) fn this_process() -> Option<ProcessIdentity> {
    let pid = std::process::id();
    let started = look_up(pid)?.started;
    Some(ProcessIdentity { kernel: this_kernel()?, pid, started, lifeline: None })
}

/// Returns whether the process is certainly gone. `false` if it lives, or if this process could not
/// see it (another machine or namespace).
pub(crate) fn is_dead(process: &ProcessIdentity) -> bool {
    if this_kernel().as_ref() != Some(&process.kernel) {
        return false;
    }
    let dead = match look_up(process.pid) {
        Some(found) => found.started != process.started || found.ended,
        None => !fs::exists(format!("/proc/{}", process.pid)).unwrap_or(true),
    };
    dead && executors_are_gone(process)
}

fn executors_are_gone(process: &ProcessIdentity) -> bool {
    let lifeline = process.lifeline.as_deref().map(Path::new);
    lifeline.is_none_or(|path| lifeline::is_free(path) == Some(true))
}

/// Returns whether this process could see the other one die. Only a call while the other process
/// lives has a meaning: a process that cannot be seen now would seem to be dead. `/proc` may hide
/// the processes of other users, or belong to another namespace.
pub(crate) fn can_be_seen(process: &ProcessIdentity) -> bool {
    let lifeline = process.lifeline.as_deref().map(Path::new);
    this_kernel().as_ref() == Some(&process.kernel)
        && look_up(process.pid)
            .is_some_and(|found| found.started == process.started && !found.ended)
        && lifeline.is_none_or(|path| lifeline::is_free(path) == Some(false))
}

fn this_kernel() -> Option<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = fs::read_link("/proc/self/ns/pid").ok()?;
    Some(format!("{}/{}", boot.trim(), namespace.display()))
}

struct ProcStat {
    started: u64,
    /// The process has ended, and its parent has not waited for it.
    ended: bool,
}

/// Reads `/proc/PID/stat`. The program's name may contain anything, so the fields begin after the
/// last `)`.
fn look_up(pid: u32) -> Option<ProcStat> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?;
    let started = fields.nth(18)?.parse().ok()?;
    Some(ProcStat { started, ended: matches!(state, "Z" | "X" | "x") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn this_process_lives() {
        let this = this_process().unwrap();
        assert!(can_be_seen(&this) && !is_dead(&this));
    }

    #[test]
    fn a_killed_child_is_dead_before_its_parent_waits_for_it() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let this = this_process().unwrap();
        let started = look_up(child.id()).unwrap().started;
        let process = ProcessIdentity { pid: child.id(), started, ..this };
        assert!(!is_dead(&process));
        child.kill().unwrap();
        while !is_dead(&process) {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(is_dead(&process));
    }

    #[test]
    fn a_reused_pid_is_another_process() {
        let this = this_process().unwrap();
        assert!(is_dead(&ProcessIdentity { started: this.started + 1, ..this.clone() }));
        let elsewhere = ProcessIdentity { kernel: "another".into(), ..this };
        assert!(!is_dead(&elsewhere) && !can_be_seen(&elsewhere), "it is unknown on this kernel");
    }

    #[test]
    fn a_hidden_process_cannot_be_seen() {
        // With `hidepid`, processes of other users look like this: no such process.
        let hidden = ProcessIdentity { pid: u32::MAX, ..this_process().unwrap() };
        assert!(!can_be_seen(&hidden));
    }
}
