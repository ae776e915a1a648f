//! The accounts of a select run. The values of a channel are numbered. So a gap is a
//! loss, and a repeat is a send that took place although the selecting side was told
//! that it did not.

use crate::contestant::Outcome;

/// The numbers that arrived on one channel.
#[derive(Clone, Copy, Default)]
pub struct Tally {
    next: u64,
    lost: u64,
    doubled: u64,
}

impl Tally {
    pub fn take(&mut self, number: u64) {
        if number >= self.next {
            self.lost += number - self.next;
            self.next = number + 1;
        } else {
            self.doubled += 1;
        }
    }

    /// Compares with the number of sends that were reported as done.
    pub fn settle(self, sent: u64) -> Outcome {
        Outcome {
            lost: self.lost + sent.saturating_sub(self.next),
            doubled: self.doubled + self.next.saturating_sub(sent),
            ..Outcome::default()
        }
    }
}

/// What the selecting side has received and sent.
#[derive(Default)]
pub struct Ledger {
    tallies: [Tally; 4],
    sends: [u64; 2],
}

impl Ledger {
    pub fn received(&mut self, from: usize, value: Option<u64>) {
        self.tallies[from].take(value.expect("the channel stays open"));
    }

    /// Returns the value that a send clause offers next: the number of its sends so
    /// far.
    pub fn next(&self, to: usize) -> u64 {
        self.sends[to]
    }

    pub fn sent(&mut self, to: usize, accepted: bool) {
        assert!(accepted, "the channel stays open");
        self.sends[to] += 1;
    }

    pub fn settle(&self, from: usize, sent: u64) -> Outcome {
        self.tallies[from].settle(sent)
    }
}

#[cfg(test)]
mod tests {
    use super::Tally;

    #[test]
    fn gaps_are_losses_and_repeats_are_doubles() {
        let mut tally = Tally::default();
        [0, 1, 3, 3, 4].into_iter().for_each(|number| tally.take(number));
        let outcome = tally.settle(7);
        assert_eq!((outcome.lost, outcome.doubled), (3, 1));
    }

    #[test]
    fn a_value_delivered_but_not_reported_is_a_double() {
        let mut tally = Tally::default();
        tally.take(0);
        assert_eq!(tally.settle(0).doubled, 1);
    }
}
