//! Times as people read them. Inside, time is the process's monotonic clock; here, at the edge, a point
//! on it becomes milliseconds since 1970. The two clocks are compared once, so that times of one
//! process stay in order whatever becomes of the wall clock.

use marline_core::time::Time;
use std::time::{SystemTime, UNIX_EPOCH};

#[derive(Clone, Copy, Debug)]
pub(crate) struct WallClock {
    /// When the monotonic clock began, in milliseconds since 1970.
    began: i64,
}

impl WallClock {
    /// Compares the clocks; `now` is the monotonic one.
    pub(crate) fn new(now: Time) -> WallClock {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        WallClock { began: since_1970.as_millis() as i64 - millis(now) }
    }

    pub(crate) fn unix_millis(&self, time: Time) -> i64 {
        self.began + millis(time)
    }
}

fn millis(time: Time) -> i64 {
    (time.as_nanos() / 1_000_000) as i64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn later_is_later_by_as_much() {
        let now = Time::ZERO + Duration::from_secs(7);
        let wall = WallClock::new(now);
        let later = now + Duration::from_millis(1_500);
        assert_eq!(wall.unix_millis(later) - wall.unix_millis(now), 1_500);
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        assert!(wall.unix_millis(now) <= since_1970.as_millis() as i64);
    }
}
