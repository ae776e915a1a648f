//! Lists of tasks and actors, newest first. A list visits every entry but sorts only as many as
//! were asked for, so a short list of a million tasks is cheap.

use super::query::status_of;
use super::{ActorStatus, Controller, TaskState, TaskStatus};
use crate::id::{ActorId, IdPrefix, TaskId};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The conditions that a listed task meets.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TaskFilter {
    /// The task is in one of these states. Empty: any state.
    pub states: Vec<TaskState>,
    /// The task is a call of this actor.
    pub actor: Option<ActorId>,
    /// The task's id begins with this prefix.
    pub prefix: IdPrefix,
}

impl TaskFilter {
    /// Returns whether this task, in this state, passes the filter.
    pub fn wants(&self, id: TaskId, state: TaskState, actor: Option<ActorId>) -> bool {
        self.wants_id(id) && self.wants_state(state) && self.wants_target(|| actor)
    }

    fn wants_id(&self, id: TaskId) -> bool {
        self.prefix.begins(id.as_u128())
    }

    fn wants_state(&self, state: TaskState) -> bool {
        self.states.is_empty() || self.states.contains(&state)
    }

    /// Calls `target` only if the filter names an actor: reading a million specifications is slow.
    fn wants_target(&self, target: impl FnOnce() -> Option<ActorId>) -> bool {
        self.actor.is_none() || self.actor == target()
    }

    fn wants_unended(&self) -> bool {
        let ended = [TaskState::Finished, TaskState::Failed, TaskState::Cancelled];
        self.states.is_empty() || self.states.iter().any(|state| !ended.contains(state))
    }
}

/// Returns the `limit` largest items, the largest first.
pub(crate) fn largest<T: Ord>(all: impl Iterator<Item = T>, limit: usize) -> Vec<T> {
    let mut kept = BinaryHeap::new();
    for one in all {
        if kept.len() < limit {
            kept.push(Reverse(one));
        } else if let Some(mut smallest) = kept.peek_mut()
            && smallest.0 < one
        {
            *smallest = Reverse(one);
        }
    }
    kept.into_sorted_vec().into_iter().map(|Reverse(one)| one).collect()
}

impl Controller {
    /// Returns at most `limit` tasks that pass the filter: first those that have not ended, then
    /// those that ended, each newest first.
    pub fn list_tasks(&self, limit: usize, filter: &TaskFilter) -> Vec<TaskStatus> {
        let mut listed = Vec::new();
        if filter.wants_unended() {
            let wanted = self.tasks.iter().filter(|(id, task)| {
                filter.wants_id(**id)
                    && filter.wants_state(task.state.public_state())
                    && filter.wants_target(|| task.spec.target.actor())
            });
            let ids = largest(wanted.map(|(id, _)| *id), limit);
            listed.extend(ids.into_iter().map(|id| {
                let task = &self.tasks[&id];
                TaskStatus { waits_for: self.why_waits(task), ..status_of(task) }
            }));
        }
        let ended =
            self.history.latest().filter(|task| filter.wants(task.id, task.state, task.actor));
        listed.extend(ended.take(limit - listed.len()).cloned());
        listed
    }

    /// Returns at most `limit` actors whose ids begin with `prefix`, newest first.
    pub fn list_actors(&self, limit: usize, prefix: IdPrefix) -> Vec<ActorStatus> {
        let known = self.actors.keys().copied().filter(|id| prefix.begins(id.as_u128()));
        let ids = largest(known, limit);
        ids.into_iter().map(|id| self.actor_status(id).expect("the actor is known")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn largest_returns_the_same_values_as_sorting() {
        let mut random = crate::random::Random::new(1);
        for limit in [0, 1, 2, 7, 50, 200] {
            let all: Vec<u64> = (0..100).map(|_| random.below(1_000)).collect();
            let mut sorted = all.clone();
            sorted.sort_unstable_by(|a, b| b.cmp(a));
            sorted.truncate(limit);
            assert_eq!(largest(all.into_iter(), limit), sorted);
        }
    }
}
