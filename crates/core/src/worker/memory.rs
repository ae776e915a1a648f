//! Which executor is killed when memory runs short. The worker itself never is, and executors are
//! killed one at a time.
//!
//! Memory is counted by consumer: all tasks of one function are one consumer. The first of these
//! that exists is killed:
//!
//! 1. a task that may be retried
//! 2. a task that may not be retried
//! 3. an actor that may restart
//! 4. another actor
//!
//! Actors come last, since they have state. Of several candidates, the largest consumer loses its
//! newest task, or the actor that was used last.

use super::executor::Occupant;
use super::task::AttemptState;
use super::{Effect, ExecutorId, Worker};
use crate::error::{Error, Ran};
use crate::label::{format_bytes, label_of};
use crate::map::Map;
use crate::time::Time;
use std::cmp::Reverse;
use std::sync::Arc;

/// A consumer with less than this fraction (one in `WORTH_IT`) of all executors' memory is spared,
/// while there are others: its end would free too little.
const WORTH_IT: u64 = 20;

/// An executor that could be killed.
struct Candidate {
    executor: ExecutorId,
    consumer: Arc<str>,
    bytes: u64,
    /// The loss if it is killed. The lowest price goes first.
    price: Price,
    since: Time,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Price {
    Retry,
    Task,
    Restart,
    Actor,
}

impl Worker {
    /// Kills one executor when memory runs short. `used` of `limit` bytes are in use, `taken` are
    /// the bytes of each executor.
    pub(super) fn memory_short(
        &mut self,
        used: u64,
        limit: u64,
        taken: &[(ExecutorId, u64)],
        effects: &mut Vec<Effect>,
    ) {
        if self.executors.values().any(|executor| executor.doomed) {
            return; // The memory of the dying one may be enough.
        }
        let candidates: Vec<Candidate> =
            taken.iter().filter_map(|entry| self.candidate(entry)).collect();
        let Some(victim) = choose(&candidates) else { return };
        let words = format!(
            "out of memory: {} of {} are in use at its worker. {:?} was killed to make room, its executor used {}. \
             Ask for `memory`, so that fewer of them run at the same time",
            format_bytes(used),
            format_bytes(limit),
            label_of(&victim.consumer),
            format_bytes(victim.bytes),
        );
        let executor = self.executors.get_mut(&victim.executor).expect("a candidate exists");
        executor.cause = Some(Error::out_of_memory(words).ran(Ran::Maybe));
        self.kill(victim.executor, effects);
    }

    fn candidate(&self, (executor, bytes): &(ExecutorId, u64)) -> Option<Candidate> {
        let (price, consumer, since) = match self.executors.get(executor)?.occupant {
            Occupant::None => return None,
            Occupant::Task(id) => {
                let local = &self.attempts[&id];
                let AttemptState::Running { since, .. } = local.state else { return None };
                let again = local.spec.options.max_retries.allows(0);
                let price = if again { Price::Retry } else { Price::Task };
                (price, local.spec.target.name().clone(), since)
            }
            Occupant::Actor(id) => {
                let hosted = &self.actors[&id];
                let again = hosted.spec.options.max_restarts.allows(0);
                let price = if again { Price::Restart } else { Price::Actor };
                (price, hosted.spec.class.clone(), hosted.last_used)
            }
        };
        Some(Candidate { executor: *executor, consumer, bytes: *bytes, price, since })
    }
}

fn choose(candidates: &[Candidate]) -> Option<&Candidate> {
    let mut totals: Map<&Arc<str>, u64> = Map::default();
    for candidate in candidates {
        *totals.entry(&candidate.consumer).or_default() += candidate.bytes;
    }
    let all: u64 = totals.values().sum();
    let worth_it = |candidate: &&Candidate| totals[&candidate.consumer] >= all / WORTH_IT;
    candidates.iter().filter(worth_it).min_by_key(|candidate| {
        let total = totals[&candidate.consumer];
        (candidate.price, Reverse(total), Reverse(candidate.since), Reverse(candidate.executor))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(executor: u64, consumer: &str, bytes: u64, price: Price) -> Candidate {
        let since = Time::ZERO + std::time::Duration::from_secs(executor);
        Candidate { executor: ExecutorId(executor), consumer: consumer.into(), bytes, price, since }
    }

    fn chosen(candidates: &[Candidate]) -> Option<u64> {
        choose(candidates).map(|candidate| candidate.executor.0)
    }

    #[test]
    fn the_newest_retriable_task_of_the_largest_consumer_is_chosen() {
        let tasks = [
            candidate(1, "small", 60, Price::Retry),
            candidate(2, "large", 50, Price::Retry),
            candidate(3, "large", 40, Price::Retry),
            candidate(4, "once", 500, Price::Task),
            candidate(5, "actor", 900, Price::Restart),
        ];
        assert_eq!(chosen(&tasks), Some(3));
    }

    #[test]
    fn a_consumer_of_little_memory_is_spared_while_there_are_others() {
        let both = [candidate(1, "tiny", 1, Price::Retry), candidate(2, "hog", 999, Price::Actor)];
        assert_eq!(chosen(&both), Some(2));
        assert_eq!(chosen(&both[..1]), Some(1));
        assert_eq!(chosen(&[]), None);
    }
}
