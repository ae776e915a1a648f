//! The process's monotonic clock, read here and nowhere else.

use marline_core::time::Time;
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    began: Instant,
}

impl Clock {
    pub fn new() -> Clock {
        Clock { began: Instant::now() }
    }

    pub fn now(&self) -> Time {
        Time::ZERO + self.began.elapsed()
    }

    /// How long until `time`; nothing if it has passed.
    pub fn until(&self, time: Time) -> Duration {
        time.since(self.now())
    }
}
