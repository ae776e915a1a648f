//! The invariants of a schedule: its accounts add up, and no work waits that could run.

use super::{Schedule, Ticket, WorkerIndex, locality};
use crate::message::ShapeId;

impl Schedule {
    /// Panics if the accounts do not add up, or if work waits that could run. The latter is checked
    /// only when [`step`](Schedule::step) has nothing more to do.
    pub fn check_invariants(&self) {
        let (mut queued, mut waiting) = (0, 0);
        for (index, shape) in self.shapes.iter().enumerate() {
            let Some(shape) = shape else { continue };
            let id = ShapeId(index as u32);
            let live = shape
                .queue
                .iter()
                .filter(|one| !self.withdrawn.contains(&Ticket { shape: id, number: one.number }));
            queued += live.count();
            let here = self.workers.iter().flatten().filter_map(|worker| worker.shapes.get(&id));
            let (slots, backlog) = here.fold((0, 0), |(s, b), o| (s + o.slots, b + o.backlog));
            assert_eq!((shape.slots, shape.backlog), (slots, backlog), "occupancy of {id:?}");
            assert_eq!(
                self.backlogged.contains(&id),
                backlog > 0,
                "{id:?} is listed as backlogged"
            );
            let front = shape.queue.front().map(|first| (first.number, id));
            let slots = (0..self.workers.len()).map(|index| WorkerIndex(index as u32));
            let could_run: Vec<_> =
                slots.filter(|worker_index| self.could_run(shape, *worker_index)).collect();
            if let Some(at) = &front {
                let is_feasible = !could_run.is_empty();
                let listed =
                    (self.waiting.feasible.contains_key(at), self.waiting.infeasible.contains(at));
                assert_eq!(
                    listed,
                    (is_feasible, !is_feasible),
                    "{id:?} listed as feasible, infeasible"
                );
                let witnessed =
                    shape.witness.is_some_and(|worker_index| could_run.contains(&worker_index));
                assert_eq!(witnessed, is_feasible, "{id:?} has a witness");
            }
            waiting += usize::from(front.is_some());
            assert!(
                shape.overtaken <= locality::MAX_OVERTAKEN,
                "the first work of {id:?} was passed over too often"
            );
            if front.is_some() && self.shapes_to_place.is_empty() && self.workers_to_fill.is_empty()
            {
                for worker in self.workers.iter().flatten().filter(|worker| worker.open) {
                    let serves = self.pools[worker.pool].provides.serves(&shape.demand);
                    assert!(
                        !serves || !worker.account.fits(&shape.demand.resources),
                        "{:?} waits though a worker has room: {:?}",
                        shape.demand,
                        worker.account
                    );
                }
            }
        }
        assert_eq!(queued, self.queued, "queued work");
        assert_eq!(waiting, self.waiting.len(), "shapes that wait");
        for pool in &self.pools {
            pool.check_invariants(|worker_index| self.worker(worker_index));
        }
    }
}
