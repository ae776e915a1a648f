//! The invariants of a worker, checked after every event.

use super::Worker;
use super::executor::Occupant;
use super::task::AttemptState;
use crate::map::Set;

impl Worker {
    /// Panics, naming the contradiction, if the state is inconsistent.
    pub fn check_invariants(&self) {
        if !self.membership.is_open() {
            assert!(
                self.executors.is_empty() && self.attempts.is_empty(),
                "work without a session"
            );
        }
        for (id, local) in &self.attempts {
            match &local.state {
                AttemptState::Backlog => {
                    assert!(self.slots[&local.shape].backlog.contains(id), "{id} is in no backlog");
                }
                AttemptState::Starting { executor, .. }
                | AttemptState::Running { executor, .. } => {
                    let occupant = self.executors[executor].occupant;
                    assert_eq!(occupant, Occupant::Task(*id), "the occupant of {executor:?}");
                }
            }
        }
        for (shape, slots) in &self.slots {
            let granted = self.attempts.values().filter(|local| {
                local.shape == *shape && !matches!(local.state, AttemptState::Backlog)
            });
            assert_eq!(granted.count(), slots.granted as usize, "grants of {shape:?}");
            assert!(
                slots.backlog.is_empty() || slots.granted > slots.blocked,
                "a backlog without an attempt that could leave it a grant"
            );
        }
        for (id, hosted) in &self.actors {
            let executor = self.executors.get(&hosted.executor);
            let occupant = executor.map(|executor| executor.occupant);
            assert_eq!(occupant, Some(Occupant::Actor(*id)), "the executor of {id}");
            let limit = hosted.spec.options.max_concurrency as usize;
            assert!(hosted.running.len() <= limit, "{id} runs more calls than it may");
            assert!(
                hosted.prefetched.is_empty() || (limit == 1 && hosted.running.len() == 1),
                "{id} has prefetched calls and no running call"
            );
            let calls =
                hosted.waiting().map(|call| call.spec.id).chain(hosted.running.keys().copied());
            assert_eq!(calls.collect::<Set<_>>(), hosted.ids, "the calls of {id}");
        }
        for id in &self.spares {
            let executor = &self.executors[id];
            assert!(
                !executor.ready && !executor.doomed && executor.occupant == Occupant::None,
                "{id:?} is not a spare"
            );
        }
        for id in &self.idle {
            let executor = &self.executors[id];
            assert!(
                executor.ready && !executor.doomed && executor.occupant == Occupant::None,
                "{id:?} is not idle"
            );
        }
    }
}
