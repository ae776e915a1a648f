//! Locality: work preferably runs at the worker that has the most bytes of its arguments.
//!
//! The preference has limits:
//!
//! - No work waits for its preferred worker. When only another worker has room, the work goes
//!   there, and its arguments are pulled.
//! - A preferred worker is passed over if it is busier than the best one by more than
//!   [`LOAD_SLACK`].
//! - At most [`MAX_OVERTAKEN`] pieces of work go ahead of the first one because the worker that has
//!   room has their arguments.

use super::{Schedule, Ticket, WorkerIndex};
use crate::message::ShapeId;

/// How much busier a preferred worker may be: in pieces of work, than the worker with most room, or
/// in tasks of its backlog, than the worker with the shortest backlog.
pub(super) const LOAD_SLACK: u32 = 8;
/// How many pieces of waiting work are examined for one whose arguments are at the worker that has
/// room.
const LOOK_AHEAD: usize = 16;
/// How many pieces of work may go ahead of the first one for the sake of locality.
pub(super) const MAX_OVERTAKEN: u32 = 16;

impl Schedule {
    /// Returns where the first work of a shape, which fits at `best`, is to run: at its preferred
    /// worker if that has room, too.
    pub(super) fn worker_for_first(&self, id: ShapeId, best: WorkerIndex) -> WorkerIndex {
        let shape = self.shape(id);
        let near = shape.queue.front().and_then(|first| first.preferred_worker);
        let chosen = near.filter(|worker_index| {
            let Some(worker) =
                self.workers[worker_index.0 as usize].as_ref().filter(|one| one.open)
            else {
                return false;
            };
            self.pools[worker.pool].provides.serves(&shape.demand)
                && worker.account.fits(&shape.demand.resources)
                && worker.load <= self.worker(best).load + LOAD_SLACK
        });
        chosen.unwrap_or(best)
    }

    /// Returns the worker into whose backlog the first work of a shape goes: its preferred worker,
    /// if that backlog is not much longer than the shortest, which is at `best`.
    pub(super) fn backlog_for_first(
        &self,
        id: ShapeId,
        best: WorkerIndex,
        depth: u32,
    ) -> WorkerIndex {
        let most = self.worker(best).shapes[&id].backlog + LOAD_SLACK;
        let near = self.shape(id).queue.front().and_then(|first| first.preferred_worker);
        let chosen = near.filter(|worker_index| {
            let worker = self.workers[worker_index.0 as usize].as_ref().filter(|one| one.open);
            let here = worker.and_then(|worker| worker.shapes.get(&id));
            here.is_some_and(|here| here.has_room(depth) && here.backlog <= most)
        });
        chosen.unwrap_or(best)
    }

    /// Returns the queue index of the work that is to run at a worker that has room: the first one,
    /// or one that prefers that worker.
    pub(super) fn index_to_run_at(&self, id: ShapeId, worker_index: WorkerIndex) -> usize {
        let shape = self.shape(id);
        let first = shape.queue.front().and_then(|first| first.preferred_worker);
        if first.is_none() || first == Some(worker_index) || shape.overtaken >= MAX_OVERTAKEN {
            return 0;
        }
        let waits = |number| !self.withdrawn.contains(&Ticket { shape: id, number });
        let ahead = shape.queue.iter().take(LOOK_AHEAD);
        let mut near =
            ahead.enumerate().filter(|(_, one)| one.preferred_worker == Some(worker_index));
        near.find(|(_, one)| waits(one.number)).map_or(0, |(index, _)| index)
    }
}
