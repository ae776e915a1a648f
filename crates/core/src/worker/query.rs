//! Queries about a worker: its tasks, its actors and its free resources. Nothing in this file
//! changes state.

use super::Worker;
use super::actor::{HostedActor, InstancePhase};
use super::task::AttemptState;
use crate::account::ResourceAccount;
use crate::controller::{TaskFilter, TaskState};
use crate::id::{ActorEpoch, ActorId, Attempt, IdPrefix};
use crate::resources::Resources;
use crate::spec::{ActorSpec, TaskSpec};
use crate::time::Time;
use std::cmp::Reverse;
use std::sync::Arc;

/// A task or call that is at a worker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WorkerTaskStatus {
    /// The specification of the task.
    pub spec: Arc<TaskSpec>,
    /// The number of the attempt.
    pub attempt: Attempt,
    /// Whether user code runs, or has not started.
    pub state: TaskState,
    /// When it started, or when it arrived if it is a call that waits.
    pub since: Option<Time>,
}

/// An actor instance that a worker hosts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WorkerActorStatus {
    /// The specification of the actor.
    pub spec: Arc<ActorSpec>,
    /// Which of the actor's instances this is.
    pub epoch: ActorEpoch,
    /// Whether the constructor has returned.
    pub ready: bool,
    /// When the actor was last called.
    pub last_used: Time,
    /// How many calls wait or run.
    pub pending_calls: usize,
}

impl Worker {
    /// Returns the tasks and calls at this worker that `filter` selects, newest first, at most
    /// `limit`.
    pub fn list_tasks(&self, limit: usize, filter: &TaskFilter) -> Vec<WorkerTaskStatus> {
        let tasks = self.attempts.values().map(|local| {
            let (state, since) = match &local.state {
                AttemptState::Backlog | AttemptState::Starting { .. } => {
                    (TaskState::Assigned, None)
                }
                AttemptState::Running { since, .. } => (TaskState::Running, Some(*since)),
            };
            WorkerTaskStatus { spec: local.spec.clone(), attempt: local.attempt, state, since }
        });
        let calls = self.actors.values().flat_map(|hosted| {
            let waiting = hosted.waiting().map(|call| (call, TaskState::Assigned));
            waiting.chain(hosted.running.values().map(|call| (call, TaskState::Running)))
        });
        let calls = calls.map(|(call, state)| {
            let (spec, attempt) = (call.spec.clone(), call.attempt_id().attempt);
            WorkerTaskStatus { spec, attempt, state, since: Some(call.since) }
        });
        let wanted = tasks
            .chain(calls)
            .filter(|task| filter.wants(task.spec.id, task.state, task.spec.target.actor()));
        let mut listed: Vec<WorkerTaskStatus> = wanted.collect();
        listed.sort_unstable_by_key(|here| Reverse(here.spec.id));
        listed.truncate(limit);
        listed
    }

    /// Returns the status of this actor, if the worker hosts it.
    pub fn actor_here(&self, id: ActorId) -> Option<WorkerActorStatus> {
        self.actors.get(&id).map(here)
    }

    /// Returns the actors at this worker whose ids begin with `prefix`, newest first, at most
    /// `limit`.
    pub fn list_actors(&self, limit: usize, prefix: IdPrefix) -> Vec<WorkerActorStatus> {
        let all = self.actors.values().map(here);
        let mut listed: Vec<WorkerActorStatus> =
            all.filter(|here| prefix.begins(here.spec.id.as_u128())).collect();
        listed.sort_unstable_by_key(|here| Reverse(here.spec.id));
        listed.truncate(limit);
        listed
    }

    /// Returns how much of `offers` is free, as far as this worker knows. Work that is still on its
    /// way here counts as free.
    pub fn free(&self, offers: &Resources) -> Resources {
        let mut account = ResourceAccount::new(offers.clone());
        for local in self.attempts.values() {
            match &local.state {
                AttemptState::Backlog => {}
                AttemptState::Starting { grant, .. } => account.charge(grant),
                AttemptState::Running { grant, blocked, .. } => {
                    account.charge(grant);
                    if *blocked {
                        account.lend_cpu(grant);
                    }
                }
            }
        }
        for hosted in self.actors.values() {
            account.charge(&hosted.grant);
        }
        account.free()
    }

    /// Returns whether the worker drains, so that it takes no new work.
    pub fn is_draining(&self) -> bool {
        self.departure.has_begun()
    }
}

fn here(hosted: &HostedActor) -> WorkerActorStatus {
    WorkerActorStatus {
        spec: hosted.spec.clone(),
        epoch: hosted.epoch,
        ready: hosted.life != InstancePhase::Constructing,
        last_used: hosted.last_used,
        pending_calls: hosted.ids.len(),
    }
}
