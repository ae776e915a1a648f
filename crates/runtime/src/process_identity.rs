//! Proof of death: whether a process of this machine is gone. A broken connection proves nothing by
//! itself; a process that the kernel does not know any more does. A worker whose executors are processes
//! is gone when they are: that is what its [lifeline](crate::executor::lifeline) says.

use crate::executor::lifeline;
use std::fs;
use std::path::Path;

/// A process, as the kernel of its machine knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ProcessIdentity {
    /// Names a running kernel and process namespace.
    pub kernel: String,
    pub pid: u32,
    /// When it started, in the kernel's ticks.
    pub started: u64,
    /// The file that it shares with its executors, if they are processes.
    pub lifeline: Option<String>,
}

impl ProcessIdentity {
    /// This process, if the kernel says enough about it.
    pub fn this() -> Option<ProcessIdentity> {
        let pid = std::process::id();
        let started = look_up(pid)?.started;
        Some(ProcessIdentity { kernel: this_kernel()?, pid, started, lifeline: None })
    }

    /// Whether it is certainly gone. `false` if it lives, or lives where this process cannot see.
    pub fn is_dead(&self) -> bool {
        if this_kernel().as_ref() != Some(&self.kernel) {
            return false;
        }
        let dead = match look_up(self.pid) {
            Some(found) => found.started != self.started || found.ended,
            None => !fs::exists(format!("/proc/{}", self.pid)).unwrap_or(true),
        };
        dead && self.executors_are_gone()
    }

    fn executors_are_gone(&self) -> bool {
        let lifeline = self.lifeline.as_deref().map(Path::new);
        lifeline.is_none_or(|path| lifeline::is_free(path) == Some(true))
    }

    /// Whether this process could see that it is gone; to be asked while it lives. One that cannot be seen
    /// now (`/proc` may hide others' processes, or belong to another namespace) would seem to be gone.
    pub fn can_be_seen(&self) -> bool {
        let lifeline = self.lifeline.as_deref().map(Path::new);
        this_kernel().as_ref() == Some(&self.kernel)
            && look_up(self.pid).is_some_and(|found| found.started == self.started && !found.ended)
            && lifeline.is_none_or(|path| lifeline::is_free(path) == Some(false))
    }
}

fn this_kernel() -> Option<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = fs::read_link("/proc/self/ns/pid").ok()?;
    Some(format!("{}/{}", boot.trim(), namespace.display()))
}

struct ProcStat {
    started: u64,
    /// It has ended and was not waited for.
    ended: bool,
}

/// What `/proc/PID/stat` says; the program's name, which may contain anything, ends at the last `)`.
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
        let this = ProcessIdentity::this().unwrap();
        assert!(this.can_be_seen() && !this.is_dead());
    }

    #[test]
    fn a_child_is_dead_when_it_was_killed_even_before_it_is_waited_for() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let this = ProcessIdentity::this().unwrap();
        let started = look_up(child.id()).unwrap().started;
        let process = ProcessIdentity { pid: child.id(), started, ..this };
        assert!(!process.is_dead());
        child.kill().unwrap();
        while !process.is_dead() {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(process.is_dead());
    }

    #[test]
    fn a_pid_that_is_used_again_is_another_process() {
        let this = ProcessIdentity::this().unwrap();
        assert!(ProcessIdentity { started: this.started + 1, ..this.clone() }.is_dead());
        let elsewhere = ProcessIdentity { kernel: "another".into(), ..this };
        assert!(!elsewhere.is_dead() && !elsewhere.can_be_seen(), "nothing is known of it here");
    }

    #[test]
    fn a_process_that_is_hidden_while_it_lives_cannot_be_seen_to_die() {
        // As `hidepid` makes those of other users look: no such process.
        let hidden = ProcessIdentity { pid: u32::MAX, ..ProcessIdentity::this().unwrap() };
        assert!(!hidden.can_be_seen());
    }
}
