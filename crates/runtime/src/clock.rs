//! The machine's clock that never goes back and does not stand still while the machine sleeps, read here
//! and nowhere else. All processes of one machine read the same: a worker tells its executors by it when
//! to stop.

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

    /// How long until `time`; nothing if it has passed.
    pub fn until(&self, time: Time) -> Duration {
        time.since(self.now())
    }
}
