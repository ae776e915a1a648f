//! The shapes that have waiting work.
//!
//! - *Feasible* shapes, which some worker here could run, are sorted by the age of their first
//!   work. The list contains a summary of what each needs, so that a worker with little room passes
//!   over thousands of shapes without looking at the shapes themselves.
//! - *Infeasible* shapes are in a list of their own, and cost nothing until a worker opens.
//!
//! A feasible shape has a *witness*: an open worker that could run it if nothing else ran there.
//! Whether a shape is feasible is looked up when its first work arrives, when a worker opens (for
//! infeasible shapes), and when its witness closes.

use super::{Schedule, Shape, WorkerIndex};
use crate::account::ResourceAccount;
use crate::message::ShapeId;
use crate::resources::{Amount, Resources};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

/// A rough summary of the resources that work needs, or that a worker has free. Comparing two
/// summaries is cheap. A summary never rejects work that the account would accept.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResourceSummary {
    cpu: Amount,
    gpu: Amount,
    memory: u64,
    /// One bit for each of the user's own resources. Several resources may share a bit.
    custom: u64,
}

impl ResourceSummary {
    fn of(needs: &Resources) -> ResourceSummary {
        let custom = needs.custom().filter(|(_, amount)| *amount > Amount::ZERO);
        ResourceSummary {
            cpu: needs.cpu.max(Amount::ZERO),
            gpu: needs.gpu,
            memory: needs.memory,
            custom: custom.fold(0, |bits, (name, _)| bits | bit(name)),
        }
    }

    /// Returns the summary of a worker's free resources.
    pub fn of_room(account: &ResourceAccount) -> ResourceSummary {
        let free = account.free();
        // `free_cpu` may be negative. A worker whose CPUs are overdrawn accepts nothing, not even
        // work that needs no CPU.
        ResourceSummary { cpu: account.free_cpu(), ..ResourceSummary::of(&free) }
    }

    /// Returns whether work with these needs may fit into `room`. If not, it certainly does not
    /// fit.
    pub fn may_fit(&self, room: &ResourceSummary) -> bool {
        self.cpu <= room.cpu
            && self.gpu <= room.gpu
            && self.memory <= room.memory
            && self.custom & !room.custom == 0
    }
}

/// Returns one of 64 bits for a name. The bit is the same in every run.
fn bit(name: &str) -> u64 {
    1 << (BuildHasherDefault::<DefaultHasher>::default().hash_one(name) % 64)
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct WaitingShapes {
    /// The feasible shapes by the number of their first work, with their needs.
    pub feasible: BTreeMap<(i64, ShapeId), ResourceSummary>,
    /// The infeasible shapes by the number of their first work.
    pub infeasible: BTreeSet<(i64, ShapeId)>,
    /// How many times a worker opened. An infeasible shape stays infeasible until a worker opens.
    openings: u64,
}

impl WaitingShapes {
    /// Returns all shapes that have waiting work, the infeasible ones first.
    pub fn shapes(&self) -> impl Iterator<Item = ShapeId> {
        self.infeasible.iter().chain(self.feasible.keys()).map(|(_, id)| *id)
    }

    /// Returns how many shapes have waiting work.
    pub fn len(&self) -> usize {
        self.feasible.len() + self.infeasible.len()
    }
}

impl Schedule {
    /// Lists a shape whose first work has come.
    pub(super) fn begin_waiting(&mut self, id: ShapeId) {
        self.find_witness(id);
        self.list_waiting(id);
    }

    pub(super) fn list_waiting(&mut self, id: ShapeId) {
        let shape = self.shapes[id.0 as usize].as_ref().expect("a shape in use exists");
        let Some(first) = shape.queue.front() else { return };
        let at = (first.number, id);
        if shape.witness.is_some() {
            let summary = ResourceSummary::of(&shape.demand.resources);
            self.waiting.feasible.insert(at, summary);
        } else {
            self.waiting.infeasible.insert(at);
        }
    }

    pub(super) fn unlist_waiting(&mut self, id: ShapeId) {
        let shape = self.shapes[id.0 as usize].as_ref().expect("a shape in use exists");
        let Some(first) = shape.queue.front() else { return };
        let at = (first.number, id);
        match shape.witness {
            Some(_) => drop(self.waiting.feasible.remove(&at)),
            None => drop(self.waiting.infeasible.remove(&at)),
        }
    }

    /// Makes infeasible shapes feasible that a worker which has just opened could run.
    pub(super) fn worker_opened(&mut self, worker_index: WorkerIndex) {
        self.waiting.openings += 1;
        let ids: Vec<ShapeId> = self.waiting.infeasible.iter().map(|(_, id)| *id).collect();
        for id in ids {
            self.pools_of(id); // Fills in `pools`, which `could_run` reads.
            if self.could_run(self.shape(id), worker_index) {
                self.unlist_waiting(id);
                self.shape_mut(id).witness = Some(worker_index);
                self.list_waiting(id);
            }
        }
    }

    /// Looks for another witness for the shapes whose witness has closed.
    pub(super) fn worker_closed(&mut self, worker_index: WorkerIndex) {
        let ids = self.waiting.feasible.keys().map(|(_, id)| *id);
        let ids: Vec<ShapeId> =
            ids.filter(|id| self.shape(*id).witness == Some(worker_index)).collect();
        for id in ids {
            self.unlist_waiting(id);
            self.find_witness(id);
            self.list_waiting(id);
        }
    }

    fn find_witness(&mut self, id: ShapeId) {
        self.pools_of(id); // Fills in `pools`, which `could_run` reads.
        let openings = self.waiting.openings;
        let shape = self.shape(id);
        if shape.infeasible_at == Some(openings)
            || shape.witness.is_some_and(|worker_index| self.could_run(shape, worker_index))
        {
            return;
        }
        let mut slots = (0..self.workers.len()).map(|index| WorkerIndex(index as u32));
        let witness = slots.find(|worker_index| self.could_run(shape, *worker_index));
        let shape = self.shape_mut(id);
        shape.witness = witness;
        shape.infeasible_at = witness.is_none().then_some(openings);
    }

    /// Returns whether work of this shape could run at a worker if nothing else ran there.
    pub(super) fn could_run(&self, shape: &Shape, worker_index: WorkerIndex) -> bool {
        self.workers[worker_index.0 as usize].as_ref().is_some_and(|worker| {
            worker.open
                && self.serves(worker.pool, shape)
                && worker.account.could_ever_fit(&shape.demand.resources)
        })
    }

    /// Returns whether the workers of a pool can run work of this shape, regardless of resources.
    pub(super) fn serves(&self, pool: usize, shape: &Shape) -> bool {
        match &shape.pools {
            Some(pools) => pools.binary_search(&pool).is_ok(),
            None => self.pools[pool].provides.serves(&shape.demand),
        }
    }
}
