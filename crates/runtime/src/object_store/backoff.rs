//! How long it is looked for the data of a value that does not come, and how often.

use marline_core::time::Time;
use std::time::Duration;

/// The pauses before it is asked anew who has it: the first is short, since whoever had it may have passed it on, and
/// each is twice as long as the one before, up to where nobody would notice the difference.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// So long it is looked for while nothing comes. A worker that was killed on another machine is taken for alive until its
/// lease is over, which is 30 s unless said otherwise; only then is made anew what it had. This is several times that.
pub(crate) const LOCATE_TIMEOUT: Duration = Duration::from_secs(120);

/// What came of it so far. See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    /// When it failed for the first time since some of it came.
    failing_since: Option<Time>,
    pause: Duration,
}

impl Backoff {
    /// It did not come. Says after which pause it is tried again; nothing if that was done for so long.
    pub fn failed(&mut self, now: Time, at_most: Duration) -> Option<Duration> {
        let since = *self.failing_since.get_or_insert(now);
        self.pause = (self.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        (now.since(since) < at_most).then_some(self.pause)
    }

    /// Some of it came.
    pub fn progressed(&mut self) {
        *self = Backoff::default();
    }

    /// For how long nothing has come.
    pub fn failing_for(&self, now: Time) -> Duration {
        self.failing_since.map_or(Duration::ZERO, |since| now.since(since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use marline_core::lease::LeaseTerms;

    /// How often it is tried, and for how long in all.
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
    fn what_does_not_come_is_tried_for_longer_than_a_lease_and_not_often() {
        let mut tries = Backoff::default();
        let (times, time) = tried(&mut tries, Time::ZERO);
        assert!(time > 2 * LeaseTerms::default().lease, "{time:?}");
        assert!(times < 40, "{times} times");
        assert!(tries.failing_for(Time::ZERO + time) >= LOCATE_TIMEOUT);
    }

    #[test]
    fn whoever_gets_some_of_it_begins_to_count_anew() {
        let mut tries = Backoff::default();
        let (_, time) = tried(&mut tries, Time::ZERO);
        tries.progressed();
        assert_eq!(tries.failed(Time::ZERO + time, LOCATE_TIMEOUT), Some(FIRST_PAUSE));
    }
}
