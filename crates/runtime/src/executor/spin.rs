//! Polls for a short while before sleeping.
//!
//! Waking a thread on another core takes longer than a short task does. A thread that still polls
//! need not be woken.
//!
//! The cost is bounded. A thread that polled in vain does not poll again for [`FIRST_PAUSE`], and
//! for twice as long after each further time in vain, up to [`LAST_PAUSE`]. So at most 1/20 of the
//! time is spent in vain, and 1/1000 if polling is always in vain. Polling that is not in vain
//! takes less time than sleeping and waking would have.

use std::hint::spin_loop;
use std::sync::LazyLock;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

/// How long to poll at most: about as long as it takes to fall asleep, be woken on another core,
/// and run something short there.
const LOOK: Duration = Duration::from_micros(50);
/// How long not to poll after the first time in vain.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// The longest time not to poll.
const LAST_PAUSE: Duration = Duration::from_millis(50);

/// With a single core, no other thread could bring the result while this one polls.
static HAS_CORES: LazyLock<bool> =
    LazyLock::new(|| available_parallelism().is_ok_and(|cores| cores.get() > 1));

/// See the [module](self). Each place that waits has its own.
#[derive(Debug)]
pub(crate) struct Spin {
    /// How long not to poll after the next time in vain.
    pause: Duration,
    /// Until when not to poll.
    paused: Option<Instant>,
}

impl Default for Spin {
    fn default() -> Spin {
        Spin { pause: FIRST_PAUSE, paused: None }
    }
}

impl Spin {
    /// Polls for a while, if that is worthwhile. Without a result, the caller must sleep.
    pub fn look<R>(&mut self, look: impl FnMut() -> Option<R>) -> Option<R> {
        match *HAS_CORES {
            true => self.look_with(Instant::now, look),
            false => None,
        }
    }

    fn look_with<R>(
        &mut self,
        mut now: impl FnMut() -> Instant,
        mut look: impl FnMut() -> Option<R>,
    ) -> Option<R> {
        let begin = now();
        if self.paused.is_some_and(|until| begin < until) {
            return None;
        }
        loop {
            if let Some(found) = look() {
                self.pause = FIRST_PAUSE;
                return Some(found);
            }
            let time = now();
            if time - begin >= LOOK {
                self.paused = Some(time + self.pause);
                self.pause = (2 * self.pause).min(LAST_PAUSE);
                return None;
            }
            spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A clock that advances by one microsecond each time it is read.
    struct Ticks(Instant);

    impl Ticks {
        fn now(&mut self) -> Instant {
            self.0 += Duration::from_micros(1);
            self.0
        }
    }

    /// Polls for something that comes after `after` polls. Returns how many polls there were, and
    /// whether it came.
    fn look(spin: &mut Spin, ticks: &mut Ticks, after: usize) -> (usize, bool) {
        let mut looks = 0;
        let found = spin.look_with(
            || ticks.now(),
            || {
                looks += 1;
                (looks > after).then_some(())
            },
        );
        (looks, found.is_some())
    }

    const NEVER: usize = usize::MAX;

    #[test]
    fn a_poll_finds_a_result_that_comes_soon_every_time() {
        let (mut spin, mut ticks) = (Spin::default(), Ticks(Instant::now()));
        for _ in 0..100 {
            assert_eq!(look(&mut spin, &mut ticks, 20), (21, true));
        }
    }

    #[test]
    fn the_pause_after_a_vain_poll_doubles_up_to_a_limit() {
        let (mut spin, mut ticks) = (Spin::default(), Ticks(Instant::now()));
        let mut pause = FIRST_PAUSE;
        for _ in 0..10 {
            let (looks, found) = look(&mut spin, &mut ticks, NEVER);
            assert!(!found && looks <= LOOK.as_micros() as usize);
            let end = ticks.0;
            while look(&mut spin, &mut ticks, NEVER).0 == 0 {}
            assert!(ticks.0 - end >= pause, "{:?} after {pause:?}", ticks.0 - end);
            pause = (2 * pause).min(LAST_PAUSE);
            // The poll that ended the loop was the next one in vain.
            pause = (2 * pause).min(LAST_PAUSE);
            ticks.0 += LAST_PAUSE;
        }
        assert_eq!(spin.pause, LAST_PAUSE);
    }

    #[test]
    fn a_successful_poll_resets_the_pause() {
        let (mut spin, mut ticks) = (Spin::default(), Ticks(Instant::now()));
        for _ in 0..5 {
            look(&mut spin, &mut ticks, NEVER);
            ticks.0 += LAST_PAUSE;
        }
        assert!(look(&mut spin, &mut ticks, 10).1);
        assert!(!look(&mut spin, &mut ticks, NEVER).1);
        ticks.0 += FIRST_PAUSE;
        assert!(look(&mut spin, &mut ticks, 10).1);
    }
}
