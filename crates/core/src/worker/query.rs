//! What can be asked of a worker: what is here. Nothing in this file changes anything.

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

/// A task or a call that is with a worker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WorkerTaskStatus {
    /// What was asked for.
    pub spec: Arc<TaskSpec>,
    /// Which try at it.
    pub attempt: Attempt,
    /// Whether user code runs, or it waits for that.
    pub state: TaskState,
    /// Since when it runs, or since when it is here if it is a call that waits.
    pub since: Option<Time>,
}

/// An instance of an actor that is with a worker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WorkerActorStatus {
    /// What was asked for.
    pub spec: Arc<ActorSpec>,
    /// Which of its lives.
    pub epoch: ActorEpoch,
    /// Whether its constructor returned.
    pub ready: bool,
    /// When it was last called.
    pub last_used: Time,
    /// Calls that wait or run.
    pub pending_calls: usize,
}

impl Worker {
    /// The tasks and calls that are here, newest first; at most `limit`.
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

    /// The actor with this id, if it is here.
    pub fn actor_here(&self, id: ActorId) -> Option<WorkerActorStatus> {
        self.actors.get(&id).map(here)
    }

    /// The actors that are here and whose ids begin so, newest first; at most `limit`.
    pub fn list_actors(&self, limit: usize, prefix: IdPrefix) -> Vec<WorkerActorStatus> {
        let all = self.actors.values().map(here);
        let mut listed: Vec<WorkerActorStatus> =
            all.filter(|here| prefix.begins(here.spec.id.as_u128())).collect();
        listed.sort_unstable_by_key(|here| Reverse(here.spec.id));
        listed.truncate(limit);
        listed
    }

    /// What is free of what this worker offers, as far as it knows: what is on its way here is not.
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

    /// Whether it takes no new work and is about to leave.
    pub fn is_draining(&self) -> bool {
        self.draining
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
