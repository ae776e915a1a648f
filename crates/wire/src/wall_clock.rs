//! Wall-clock times for the answers of unary operations. Inside a process, time is its monotonic
//! clock; here a point on that clock becomes milliseconds since 1970. The two clocks are compared
//! once, so that the times of one process stay in order even if the wall clock jumps.

use marline_core::time::Time;
use std::time::{SystemTime, UNIX_EPOCH};

/// Converts times of this process to wall-clock times.
#[derive(Clone, Copy, Debug)]
pub struct WallClock {
    /// The start of the monotonic clock, in milliseconds since 1970.
    began: i64,
}

impl WallClock {
    /// Compares the clocks. `now` is the time of the monotonic clock.
    pub fn new(now: Time) -> WallClock {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        WallClock { began: since_1970.as_millis() as i64 - millis(now) }
    }

    /// Returns a time as milliseconds since 1970.
    pub fn unix_millis(&self, time: Time) -> i64 {
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
    fn the_wall_clock_advances_by_the_time_that_passed() {
        let now = Time::ZERO + Duration::from_secs(7);
        let wall = WallClock::new(now);
        let later = now + Duration::from_millis(1_500);
        assert_eq!(wall.unix_millis(later) - wall.unix_millis(now), 1_500);
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        assert!(wall.unix_millis(now) <= since_1970.as_millis() as i64);
    }
}
