//! The backoff of lookups: how long, and how often, the store looks for data that does not arrive.

use marline_core::time::Time;
use std::time::Duration;

/// The first pause before another lookup. It is short, because the node that had the data may have
/// passed it on. Each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause: a longer one would make no noticeable difference.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How long the store looks for data while none arrives. The controller treats a worker that was
/// killed on another machine as alive until its lease ends (30 s by default), and only then
/// recomputes the worker's data. This is several times as long.
pub(crate) const LOCATE_TIMEOUT: Duration = Duration::from_secs(120);

/// The lookups of one object so far. See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    /// The time of the first failure since some data arrived.
    failing_since: Option<Time>,
    pause: Duration,
}

impl Backoff {
    /// Records a failure. Returns the pause before the next attempt, or `None` if the attempts have
    /// failed for `at_most`.
    pub fn failed(&mut self, now: Time, at_most: Duration) -> Option<Duration> {
        let since = *self.failing_since.get_or_insert(now);
        self.pause = (self.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        (now.since(since) < at_most).then_some(self.pause)
    }

    /// Records that some data arrived, and starts over.
    pub fn progressed(&mut self) {
        *self = Backoff::default();
    }

    /// Returns for how long no data has arrived.
    pub fn failing_for(&self, now: Time) -> Duration {
        self.failing_since.map_or(Duration::ZERO, |since| now.since(since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use marline_core::lease::LeaseTerms;

    /// Returns how many attempts are made, and how long they take in all.
    fn tried(tries: &mut Backoff, mut now: Time) -> (u32, Duration) {
        let (began, mut times) = (now, 0);
        while let Some(pause) = tries.failed(now, LOCATE_TIMEOUT) {
            assert!((FIRST_PAUSE..=LONGEST_PAUSE).contains(&pause));
            now = now + pause;
            times += 1;
        }
        (times, now.since(began))
    }

    #[test]
    fn failures_are_retried_rarely_and_for_more_than_two_leases() {
        let mut tries = Backoff::default();
        let (times, time) = tried(&mut tries, Time::ZERO);
        assert!(time > 2 * LeaseTerms::default().lease, "{time:?}");
        assert!(times < 40, "{times} times");
        assert!(tries.failing_for(Time::ZERO + time) >= LOCATE_TIMEOUT);
    }

    #[test]
    fn progress_resets_the_backoff() {
        let mut tries = Backoff::default();
        let (_, time) = tried(&mut tries, Time::ZERO);
        tries.progressed();
        assert_eq!(tries.failed(Time::ZERO + time, LOCATE_TIMEOUT), Some(FIRST_PAUSE));
    }
}
