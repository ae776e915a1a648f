//! Questions from outside, each answered under the lock: what the controller decides, what workers of
//! this process have.

use super::{Node, NodeState, Shell};
use crate::executor::log::Logs;
use crate::node::remote::Membership;
use crate::wire::convert::control::{Detail, encode_task};
use crate::wire::v1;
use crate::wire::wall_clock::WallClock;
use marline_core::Error;
use marline_core::controller::{Controller, Effect, Role, TaskFilter, WorkerInfo};
use marline_core::error::Ran;
use marline_core::id::{ActorId, ClusterId, IdPrefix, Session, TaskId};
use marline_core::resources::Resources;
use marline_core::time::Time;
use marline_core::worker::{WorkerActorStatus, WorkerTaskStatus};
use std::sync::Arc;
use std::time::Duration;

/// What a worker of this process says of itself.
pub(crate) struct Health {
    pub session: Option<Session>,
    pub tasks: usize,
    pub actors: usize,
    pub total: Resources,
    pub free: Resources,
    pub draining: bool,
}

impl Node {
    /// Asks the controller for something, and does what follows from it.
    pub fn with_controller_mut<R>(
        &self,
        ask: impl FnOnce(&mut Controller, Time, &mut Vec<Effect>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        self.with_state(|state, now| {
            let mut effects = Vec::new();
            let answer = ask(state.controller_mut()?, now, &mut effects);
            state.controller_effects(now, effects);
            answer
        })
    }

    /// Looks at the controller.
    pub fn with_controller<R>(&self, look: impl FnOnce(&Controller) -> R) -> Result<R, Error> {
        self.with_state(|state, _| state.controller_mut().map(|controller| look(controller)))
    }

    /// What is known of a task, as it is said to others.
    pub fn task_status(&self, task: TaskId) -> Result<v1::TaskStatus, Error> {
        let status = self.with_controller(|controller| controller.task_status(task))??;
        Ok(encode_task(status, Detail::Whole, WallClock::new(self.now())))
    }

    /// Whether a controller is here.
    pub fn has_controller(&self) -> bool {
        self.with_state(|state, _| state.controller.is_some())
    }

    /// The time on this node's clock.
    pub fn now(&self) -> Time {
        self.clock.now()
    }

    /// How long this node has been there.
    pub fn uptime(&self) -> Duration {
        self.now().since(self.began)
    }

    /// What executors of this node's workers print.
    pub fn logs(&self) -> Arc<Logs> {
        self.logs.clone()
    }

    /// Which cluster the controller here has.
    pub fn cluster_id(&self) -> ClusterId {
        self.with_state(|state, _| state.cluster)
    }

    /// A seat of this node belongs to a controller elsewhere.
    pub fn set_upstream(&self, membership: &Membership, at: &str) {
        self.with_state(|state, _| {
            state.upstream = Some(at.into());
            if let (Shell::Worker(index), Role::Worker(info)) = (membership.shell, &membership.role)
            {
                state.note_offer(index, info);
            }
        });
    }

    /// Tasks and calls that are with the workers here; at most `limit` of each.
    pub fn tasks_here(
        &self,
        limit: usize,
        filter: &TaskFilter,
    ) -> Vec<(Option<Session>, WorkerTaskStatus)> {
        self.with_state(|state, _| {
            let of_each = state.workers.iter().flat_map(|shell| {
                let tasks = shell.machine.list_tasks(limit, filter).into_iter();
                tasks.map(|task| (shell.machine.session(), task))
            });
            of_each.collect()
        })
    }

    /// Actors that are with the workers here; at most `limit` of each.
    pub fn actors_here(
        &self,
        limit: usize,
        prefix: IdPrefix,
    ) -> Vec<(Option<Session>, WorkerActorStatus)> {
        self.with_state(|state, _| {
            let of_each = state.workers.iter().flat_map(|shell| {
                let actors = shell.machine.list_actors(limit, prefix).into_iter();
                actors.map(|actor| (shell.machine.session(), actor))
            });
            of_each.collect()
        })
    }

    /// The actor with this id, if a worker of this process has it.
    pub fn actor_here(&self, id: ActorId) -> Option<(Option<Session>, WorkerActorStatus)> {
        self.with_state(|state, _| {
            let mut machines = state.workers.iter().map(|shell| &shell.machine);
            machines.find_map(|machine| Some((machine.session(), machine.actor_here(id)?)))
        })
    }

    /// How the workers here are.
    pub fn health(&self) -> Result<Vec<Health>, Error> {
        self.with_state(|state, _| {
            if state.closed {
                return Err(Error::unavailable(Ran::No, "this process is shutting down"));
            }
            if state.workers.is_empty() {
                return Err(Error::unsupported(
                    "no worker is here: ask one at its own address, as ListWorkers says it",
                ));
            }
            let healths = state.workers.iter().enumerate().map(|(index, shell)| {
                let total = state.offers.get(&index).cloned().unwrap_or_default();
                let (tasks, actors) = shell.machine.load();
                Health {
                    session: shell.machine.session(),
                    tasks,
                    actors,
                    free: shell.machine.free(&total),
                    total,
                    draining: shell.machine.is_draining(),
                }
            });
            Ok(healths.collect())
        })
    }
}

impl NodeState {
    /// The controller of this node, if it has one and goes on.
    pub(super) fn controller_mut(&mut self) -> Result<&mut Controller, Error> {
        if self.closed {
            return Err(Error::unavailable(Ran::Maybe, "this process is shutting down"));
        }
        let upstream = self.upstream.as_deref();
        self.controller.as_mut().ok_or_else(|| {
            let whom =
                upstream.map_or("its controller".into(), |at| format!("the controller at {at}"));
            Error::unsupported(format!("this node has only workers: ask {whom}"))
        })
    }

    pub(super) fn note_offer(&mut self, index: usize, info: &WorkerInfo) {
        self.offers.insert(index, info.resources.clone());
    }
}
