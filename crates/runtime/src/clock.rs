//! The clock of the machine (`CLOCK_BOOTTIME`). It never goes back, and it also counts while the
//! machine sleeps. No other file of the runtime reads it.
//!
//! All processes of one machine read the same time. A worker relies on this: it gives its executors
//! the time at which they must stop.

use marline_core::time::Time;
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock;

impl Clock {
    pub fn new() -> Clock {
        Clock
    }

    pub fn now(&self) -> Time {
        let now = clock_gettime(ClockId::Boottime);
        Time::from_nanos(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
    }

    /// Returns how long it is until `time`, or zero if `time` has passed.
    pub fn until(&self, time: Time) -> Duration {
        time.since(self.now())
    }
}
