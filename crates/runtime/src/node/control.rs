//! Answers requests of the control service under the node's lock, from the state of its controller
//! or of the workers of this process.

use super::{Node, NodeState, Shell};
use crate::executor::log::Logs;
use crate::node::remote::Membership;
use crate::runtime_log::{self, Machine};
use marline_core::Error;
use marline_core::controller::{Controller, Effect, Role, TaskFilter, WorkerInfo};
use marline_core::error::Ran;
use marline_core::id::{ActorId, ClusterId, IdPrefix, Session, TaskId};
use marline_core::recent_events::EventSummary;
use marline_core::resources::Resources;
use marline_core::time::Time;
use marline_core::worker::{WorkerActorStatus, WorkerTaskStatus};
use marline_wire::convert::control::{Detail, encode_task};
use marline_wire::v1;
use marline_wire::wall_clock::WallClock;
use std::sync::Arc;
use std::time::Duration;

/// How a worker of this process is doing.
pub(crate) struct Health {
    pub session: Option<Session>,
    pub tasks: usize,
    pub actors: usize,
    pub total: Resources,
    pub free: Resources,
    pub draining: bool,
}

impl Node {
    /// Logs and remembers a request, calls `ask` with the controller, and carries out the effects.
    pub fn with_controller_mut<R>(
        &self,
        request: EventSummary,
        ask: impl FnOnce(&mut Controller, Time, &mut Vec<Effect>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        self.with_state(|state, now| {
            let mut effects = Vec::new();
            let controller = state.controller_mut()?;
            runtime_log::event(Machine::Controller, || request);
            controller.note_request(now, request);
            let answer = ask(controller, now, &mut effects);
            state.controller_effects(now, effects);
            answer
        })
    }

    /// Calls `look` with the controller.
    pub fn with_controller<R>(&self, look: impl FnOnce(&Controller) -> R) -> Result<R, Error> {
        self.with_state(|state, _| state.controller_mut().map(|controller| look(controller)))
    }

    /// Returns the status of a task in its wire form.
    pub fn task_status(&self, task: TaskId) -> Result<v1::TaskStatus, Error> {
        let status = self.with_controller(|controller| controller.task_status(task))??;
        Ok(encode_task(status, Detail::Whole, WallClock::new(self.now())))
    }

    /// Returns whether this node hosts a controller.
    pub fn has_controller(&self) -> bool {
        self.with_state(|state, _| state.controller.is_some())
    }

    /// Returns the time on this node's clock.
    pub fn now(&self) -> Time {
        self.clock.now()
    }

    /// Returns how long this node has existed.
    pub fn uptime(&self) -> Duration {
        self.now().since(self.began)
    }

    /// Returns the logs of this node's executors.
    pub fn logs(&self) -> Arc<Logs> {
        self.logs.clone()
    }

    /// Returns the cluster of this node's controller.
    pub fn cluster_id(&self) -> ClusterId {
        self.with_state(|state, _| state.cluster)
    }

    /// Records the address of the controller that a worker or client of this node belongs to. For a
    /// worker, also records the resources that it offers.
    pub fn set_upstream(&self, membership: &Membership, address: &str) {
        self.with_state(|state, _| {
            state.upstream = Some(address.into());
            if let (Shell::Worker(index), Role::Worker(info)) = (membership.shell, &membership.role)
            {
                state.note_offer(index, info);
            }
        });
    }

    /// Returns the tasks and calls of each worker in this process, at most `limit` of each worker.
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

    /// Returns the actors of each worker in this process, at most `limit` of each worker.
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

    /// Returns the actor with this id, if a worker of this process hosts it.
    pub fn actor_here(&self, id: ActorId) -> Option<(Option<Session>, WorkerActorStatus)> {
        self.with_state(|state, _| {
            let mut machines = state.workers.iter().map(|shell| &shell.machine);
            machines.find_map(|machine| Some((machine.session(), machine.actor_here(id)?)))
        })
    }

    /// Returns how each worker of this process is doing.
    pub fn health(&self) -> Result<Vec<Health>, Error> {
        self.with_state(|state, _| {
            if state.closed {
                return Err(Error::unavailable(Ran::No, "this process is shutting down"));
            }
            if state.workers.is_empty() {
                return Err(Error::unsupported(
                    "this process has no worker: ask a worker at its own address, which ListWorkers returns",
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
    /// Returns the controller of this node. Fails if there is none, or if the node is closed.
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
