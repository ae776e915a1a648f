//! Converts Rust's opaque instants into nanoseconds of C's CLOCK_MONOTONIC, the clock that they are
//! read from.

use std::{sync::OnceLock, time::Instant};

/// Converts an instant into nanoseconds of CLOCK_MONOTONIC.
pub(crate) fn nanoseconds(at: Instant) -> u64 {
    static BASE: OnceLock<(Instant, u64)> = OnceLock::new();
    let (base, nanoseconds) = *BASE.get_or_init(|| (Instant::now(), now()));
    match at.checked_duration_since(base) {
        Some(after) => nanoseconds.saturating_add(after.as_nanos() as u64),
        None => nanoseconds.saturating_sub(base.duration_since(at).as_nanos() as u64),
    }
}

fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` can be written to; the clock exists wherever Rust's instants do.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_are_on_the_monotonic_clock() {
        let before = now();
        let at = nanoseconds(Instant::now());
        // The base was taken in two steps: allow for being preempted between them.
        assert!(at + 1_000_000_000 > before && at < now() + 1_000_000_000);
    }
}
