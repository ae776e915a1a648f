//! Book-keeping for the fuzz tests: every value must end up in exactly one of three places
//! (received, returned to its sender, handed to `on_drop`), and each receiver must see each
//! sender's values in order.

use std::collections::{HashMap, HashSet};

/// A value that names its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Message {
    pub sender: u32,
    pub number: u64,
}

/// The operations and values of one party.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    pub made: u64,
    pub operations: u64,
    pub received: Vec<Message>,
    pub returned: Vec<Message>,
    pub dropped: Vec<Message>,
}

impl Ledger {
    pub fn make(&mut self, sender: u32) -> Message {
        self.made += 1;
        Message { sender, number: self.made }
    }

    /// Asserts that this receiver saw every sender's values in the order in which they were made.
    pub fn assert_in_order(&self) {
        let mut last = HashMap::new();
        for message in &self.received {
            if let Some(before) = last.insert(message.sender, message.number) {
                assert!(before < message.number, "out of order: {message:?} after {before}");
            }
        }
    }
}

/// Asserts that the ledgers of all parties add up: no value is lost, and none is in two places.
pub fn assert_adds_up(ledgers: &[Ledger]) {
    let made: u64 = ledgers.iter().map(|ledger| ledger.made).sum();
    let places = |place: fn(&Ledger) -> &Vec<Message>| ledgers.iter().flat_map(place);
    let mut seen = HashSet::new();
    for (place, messages) in [
        ("received", places(|ledger| &ledger.received).collect::<Vec<_>>()),
        ("returned", places(|ledger| &ledger.returned).collect()),
        ("dropped", places(|ledger| &ledger.dropped).collect()),
    ] {
        for message in messages {
            assert!(seen.insert(*message), "{message:?} appears twice, the second time as {place}");
        }
    }
    assert_eq!(seen.len() as u64, made, "{} messages lost", made - seen.len() as u64);
}

/// A small random generator, with the same numbers on every machine.
#[derive(Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % n
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// Returns the seeds to run: one with `MARLINE_SEED`, n times as many with `MARLINE_FUZZ=n`.
pub fn seeds(usual: u64) -> std::ops::Range<u64> {
    if let Ok(seed) = std::env::var("MARLINE_SEED") {
        let seed = seed.parse().expect("MARLINE_SEED is a number");
        return seed..seed + 1;
    }
    let times: u64 = std::env::var("MARLINE_FUZZ")
        .map(|times| times.parse().expect("MARLINE_FUZZ is a number"))
        .unwrap_or(1);
    0..usual * times
}

/// Runs `run` for each seed, and prints the seed that fails.
pub fn for_each_seed(usual: u64, run: impl Fn(u64) + std::panic::RefUnwindSafe) {
    for seed in seeds(usual) {
        if let Err(panic) = std::panic::catch_unwind(|| run(seed)) {
            eprintln!("failed: replay with MARLINE_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}
