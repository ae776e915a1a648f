//! Time as an argument. A [`Time`] is a point on one process's monotonic clock; the shells read the
//! clock, the machines never do. Times of two processes are never compared: a lease counts, on each
//! side, from something that side saw itself (see [`lease`](crate::lease)).

use std::ops::{Add, Sub};
use std::time::Duration;

/// A point on a process's own monotonic clock, in nanoseconds from wherever that clock began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// Where the clock began.
    pub const ZERO: Time = Time(0);

    /// The point `nanos` after the clock began.
    pub const fn from_nanos(nanos: u64) -> Time {
        Time(nanos)
    }

    /// Nanoseconds since the clock began.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// How long after `earlier` this is; zero if it is before it.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Time;
    fn add(self, duration: Duration) -> Time {
        Time(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Duration> for Time {
    type Output = Time;
    fn sub(self, duration: Duration) -> Time {
        Time(self.0.saturating_sub(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }
}
