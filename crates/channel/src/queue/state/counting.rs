//! The counters of a queue channel. A value that goes through the buffer is not counted one by one:
//! the buffer's positions tell how many came and went. `State::direct` counts the hand-offs past
//! it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{Effects, State};
use crate::metrics::{Totals, count};

impl<T> State<T> {
    /// Returns the bytes of a value, on a channel whose values differ in size.
    #[cold]
    pub(super) fn measured(measure: fn(&T) -> usize, value: &T) -> u64 {
        // A measure that panics must not leave a claimed peer behind: the value counts as 0 bytes.
        catch_unwind(AssertUnwindSafe(|| measure(value))).unwrap_or(0) as u64
    }

    /// Counts the bytes of a send, and decides whether to sample the send. `number` is its position
    /// in the buffer, or its number among the hand-offs. The number of sends is not counted here:
    /// it is the buffer's tail plus `direct`.
    pub(super) fn count_sent(&mut self, number: u64, value: &T, effects: &mut Effects<T>) {
        if let Some(measure) = self.measure {
            count!(self.counters, bytes_sent += Self::measured(measure, value));
        }
        if self.counters.is_send_sampled(number) {
            effects.sample();
        }
    }

    pub(super) fn count_received(&mut self, number: u64, value: &T, effects: &mut Effects<T>) {
        if let Some(measure) = self.measure {
            count!(self.counters, bytes_received += Self::measured(measure, value));
        }
        if self.counters.is_recv_sampled(number) {
            effects.sample();
        }
    }

    /// Corrects the number of receives by `more`, where the buffer's head and `direct` do not tell
    /// it: a value came back, or left without a receive.
    pub(super) fn adjust_recvs(&mut self, more: i64) {
        if cfg!(feature = "metrics") {
            let recvs = &mut self.counters.totals.recvs;
            *recvs = recvs.wrapping_add_signed(more);
        }
    }

    /// Returns the totals, completed by what the buffer's positions tell.
    pub(in super::super) fn totals(&self) -> Totals {
        let mut totals = self.counters.totals;
        if !cfg!(feature = "metrics") {
            return totals;
        }
        totals.sends = self.buffer.tail() + self.direct;
        totals.recvs = totals.recvs.wrapping_add(self.buffer.head() + self.direct);
        if self.measure.is_none() {
            totals.bytes_sent = totals.sends * size_of::<T>() as u64;
            totals.bytes_received = totals.recvs * size_of::<T>() as u64;
        }
        totals
    }
}

#[cfg(all(test, not(feature = "metrics")))]
#[test]
fn without_the_metrics_feature_all_totals_stay_zero() {
    let (tx, rx) = crate::conflated();
    (0..3).for_each(|value| assert!(tx.try_send(value).is_ok()));
    rx.try_recv().unwrap();
    assert_eq!(rx.snapshot().totals, Totals::default());
}
