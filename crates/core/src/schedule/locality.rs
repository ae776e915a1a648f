//! Where work would rather run: at the worker that has most bytes of its arguments.
//!
//! That is a wish, and has limits. Nothing waits for it: when there is room only elsewhere, work goes there and
//! its arguments follow. A worker that has them is passed over if it is busier than the best by more than a
//! [slack](LOAD_SLACK); and of what waits, no more than [so many](MAX_OVERTAKEN) go ahead of the first
//! because their arguments are where there is room.

use super::{Schedule, Ticket, WorkerIndex};
use crate::message::ShapeId;

/// A worker may have this many pieces of work more than the one with most room, or tasks in its backlog more than the
/// one with the shortest, and is still preferred.
pub(super) const LOAD_SLACK: u32 = 8;
/// How many that wait are looked at for one whose arguments are where there is room.
const LOOK_AHEAD: usize = 16;
/// How many may go ahead of the first for that.
pub(super) const MAX_OVERTAKEN: u32 = 16;

impl Schedule {
    /// Where the first of a shape, which fits at `best`, is run: at the worker near it, if that has room, too.
    pub(super) fn worker_for_first(&self, id: ShapeId, best: WorkerIndex) -> WorkerIndex {
        let shape = self.shape(id);
        let near = shape.queue.front().and_then(|first| first.preferred_worker);
        let chosen = near.filter(|slot| {
            let Some(worker) = self.workers[slot.0 as usize].as_ref().filter(|one| one.open) else {
                return false;
            };
            self.pools[worker.pool].provides.serves(&shape.demand)
                && worker.account.fits(&shape.demand.resources)
                && worker.load <= self.worker(best).load + LOAD_SLACK
        });
        chosen.unwrap_or(best)
    }

    /// In whose backlog the first of a shape goes: in that of the worker near it, if it is not much longer
    /// than the shortest.
    pub(super) fn backlog_for_first(
        &self,
        id: ShapeId,
        best: WorkerIndex,
        depth: u32,
    ) -> WorkerIndex {
        let most = self.worker(best).shapes[&id].backlog + LOAD_SLACK;
        let near = self.shape(id).queue.front().and_then(|first| first.preferred_worker);
        let chosen = near.filter(|slot| {
            let worker = self.workers[slot.0 as usize].as_ref().filter(|one| one.open);
            let here = worker.and_then(|worker| worker.shapes.get(&id));
            here.is_some_and(|here| here.has_room(depth) && here.backlog <= most)
        });
        chosen.unwrap_or(best)
    }

    /// Which of those that wait is run at a worker that has room: the first, or one near that worker.
    pub(super) fn index_to_run_at(&self, id: ShapeId, slot: WorkerIndex) -> usize {
        let shape = self.shape(id);
        let first = shape.queue.front().and_then(|first| first.preferred_worker);
        if first.is_none() || first == Some(slot) || shape.overtaken >= MAX_OVERTAKEN {
            return 0;
        }
        let waits = |number| !self.withdrawn.contains(&Ticket { shape: id, number });
        let ahead = shape.queue.iter().take(LOOK_AHEAD);
        let mut near = ahead.enumerate().filter(|(_, one)| one.preferred_worker == Some(slot));
        near.find(|(_, one)| waits(one.number)).map_or(0, |(index, _)| index)
    }
}
