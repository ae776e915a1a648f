//! Why work waits, counted: each reason is found once for all work that asks for the same, so that it
//! costs the same with ten tasks waiting or a million.

use super::Controller;
use super::actor::Life;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// The most reasons that are told apart; what waits for others is counted together.
const MAX_REASONS: usize = 100;

impl Controller {
    /// Why tasks and actors wait, and how many do for each reason; the most frequent first.
    pub fn waiting(&self) -> Vec<(String, usize)> {
        let mut shapes: Vec<_> = self.schedule.waiting().collect();
        shapes.sort_unstable_by_key(|(_, count)| Reverse(*count));
        let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
        let mut queued = 0;
        for (demand, count) in shapes.into_iter().take(MAX_REASONS) {
            *reasons.entry(self.why_queued(demand)).or_default() += count;
            queued += count;
        }
        let mut others = |reason: &str, count: usize| {
            if count > 0 {
                *reasons.entry(reason.into()).or_default() += count;
            }
        };
        others("other reasons", self.schedule.queued() - queued);
        let (mut lacking, mut delayed, mut calls, mut queued_actors) = (0, 0, 0, 0);
        for actor in self.actors.values() {
            calls += actor.calls.len();
            match actor.life {
                Life::Waiting => lacking += 1,
                Life::Delayed => delayed += 1,
                Life::Queued(_) => queued_actors += 1,
                Life::Instantiating { .. } | Life::Ready { .. } | Life::Dead { .. } => {}
            }
        }
        let with_workers: usize = self.workers.values().map(|worker| worker.attempts.len()).sum();
        let backlogs = self.workers.values().flat_map(|worker| worker.backlog.values());
        let queued_tasks = self.schedule.queued() - queued_actors;
        // Every task is queued, with a worker, waits for its actor or for values, or is delayed.
        delayed += self.tasks.len() - queued_tasks - with_workers - calls - self.lacking;
        others("values that it needs", lacking + self.lacking);
        others("the delay before its next attempt", delayed);
        others("its actor to be ready", calls);
        others("a slot at its worker", backlogs.map(|backlog| backlog.len()).sum());
        let mut reasons: Vec<(String, usize)> = reasons.into_iter().collect();
        reasons.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        reasons
    }
}
