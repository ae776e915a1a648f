//! What goes when memory runs short: never the worker, and one executor at a time.
//!
//! Work is taken together by what it runs: all tasks of one function are one consumer. The largest consumer that
//! has a task which may be tried again loses its newest one. If there is none, tasks go that may not be tried
//! again, then actors that may be restarted, then others: what keeps a state goes last.

use super::executor::Occupant;
use super::task::AttemptState;
use super::{Effect, ExecutorId, Worker};
use crate::error::{Error, Ran};
use crate::label::{format_bytes, label_of};
use crate::map::Map;
use crate::time::Time;
use std::cmp::Reverse;
use std::sync::Arc;

/// Who takes less than this part of what all take is not worth its end, while there are others.
const WORTH_IT: u64 = 20;

/// Something that could go.
struct Candidate {
    executor: ExecutorId,
    consumer: Arc<str>,
    bytes: u64,
    /// What goes first is lowest.
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
    /// So much of what there is is used; executors take so much of it.
    pub(super) fn memory_short(
        &mut self,
        used: u64,
        limit: u64,
        taken: &[(ExecutorId, u64)],
        effects: &mut Vec<Effect>,
    ) {
        if self.executors.values().any(|executor| executor.doomed) {
            return; // What one leaves behind may be enough.
        }
        let candidates: Vec<Candidate> =
            taken.iter().filter_map(|one| self.candidate(one)).collect();
        let Some(victim) = choose(&candidates) else { return };
        let words = format!(
            "out of memory: {} of {} are used here; {:?} was ended to make room, its executor had {}. Ask for \
             `memory`, or for fewer CPUs' worth of it at a time",
            format_bytes(used),
            format_bytes(limit),
            label_of(&victim.consumer),
            format_bytes(victim.bytes),
        );
        let executor = self.executors.get_mut(&victim.executor).expect("it was looked at");
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
    fn the_newest_task_of_the_largest_consumer_that_may_be_tried_again_goes() {
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
    fn who_takes_next_to_nothing_is_spared_while_there_are_others() {
        let both = [candidate(1, "tiny", 1, Price::Retry), candidate(2, "hog", 999, Price::Actor)];
        assert_eq!(chosen(&both), Some(2));
        assert_eq!(chosen(&both[..1]), Some(1));
        assert_eq!(chosen(&[]), None);
    }
}
