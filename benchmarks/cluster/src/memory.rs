//! What the kernel knows of a process: memory, processor time, children.

use std::fs::read_to_string;

/// Returns the resident memory of a process, in MiB.
pub fn resident(pid: u32) -> Option<f64> {
    let status = read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: f64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kilobytes / 1024.0)
}

/// Returns the resident memory of this process, in MiB.
pub fn resident_here() -> f64 {
    resident(std::process::id()).expect("the kernel knows this process")
}

/// Returns the processor time that a process has used, in seconds, if it is alive.
pub fn processor_time(pid: u32) -> Option<f64> {
    let stat = read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split_whitespace().collect();
    let ticks: f64 = fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?;
    Some(ticks / TICKS_PER_SECOND)
}

/// The unit of processor time in `/proc`: Linux uses 100 ticks a second on every machine.
const TICKS_PER_SECOND: f64 = 100.0;

/// Returns a process and all its descendants.
pub fn family(pid: u32) -> Vec<u32> {
    let mut family = vec![pid];
    let mut next = 0;
    while let Some(parent) = family.get(next).copied() {
        next += 1;
        let path = format!("/proc/{parent}/task/{parent}/children");
        let children = read_to_string(path).unwrap_or_default();
        family.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
    }
    family
}
