//! Which shapes have waiting work. *Feasible* shapes, which some worker here could run, are sorted by age; each has what it
//! needs beside it, so that a worker with little room passes over thousands of shapes without a look at them. *Infeasible*
//! shapes stand apart and cost nothing until a worker opens.
//!
//! A feasible shape has a *witness*: an open worker that could run it if nothing else ran there. Whether a shape is feasible
//! is looked up when its first work arrives, when a worker opens (for the infeasible ones) and when its witness closes.

use super::{Schedule, Shape, WorkerIndex};
use crate::account::ResourceAccount;
use crate::message::ShapeId;
use crate::resources::{Amount, Resources};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

/// A rough summary of the resources that work needs, or that a worker has free. Comparing two is cheap. A summary never
/// rejects work that the account would accept.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResourceSummary {
    cpu: Amount,
    gpu: Amount,
    memory: u64,
    /// A bit for each resource of the user's own; several may share one.
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

    /// The free resources of a worker.
    pub fn of_room(account: &ResourceAccount) -> ResourceSummary {
        let free = account.free();
        // What is overdrawn takes nothing, not even work that needs no CPU.
        ResourceSummary { cpu: account.free_cpu(), ..ResourceSummary::of(&free) }
    }

    /// Whether work with these needs may fit into `room`. If not, it certainly does not fit.
    pub fn may_fit(&self, room: &ResourceSummary) -> bool {
        self.cpu <= room.cpu
            && self.gpu <= room.gpu
            && self.memory <= room.memory
            && self.custom & !room.custom == 0
    }
}

/// One of 64 bits for a name; the same in every run.
fn bit(name: &str) -> u64 {
    1 << (BuildHasherDefault::<DefaultHasher>::default().hash_one(name) % 64)
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct WaitingShapes {
    /// By the age of their first work.
    pub feasible: BTreeMap<(i64, ShapeId), ResourceSummary>,
    pub infeasible: BTreeSet<(i64, ShapeId)>,
    /// How often a worker opened: an infeasible shape stays so until one does.
    openings: u64,
}

impl WaitingShapes {
    /// All shapes that wait, the infeasible ones first.
    pub fn shapes(&self) -> impl Iterator<Item = ShapeId> {
        self.infeasible.iter().chain(self.feasible.keys()).map(|(_, id)| *id)
    }

    /// How many shapes wait.
    pub fn len(&self) -> usize {
        self.feasible.len() + self.infeasible.len()
    }
}

impl Schedule {
    /// The first work of a shape has come.
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

    /// A worker takes work from now on: what waits may be feasible there.
    pub(super) fn worker_opened(&mut self, slot: WorkerIndex) {
        self.waiting.openings += 1;
        let ids: Vec<ShapeId> = self.waiting.infeasible.iter().map(|(_, id)| *id).collect();
        for id in ids {
            self.pools_of(id); // So that they are known.
            if self.could_run(self.shape(id), slot) {
                self.unlist_waiting(id);
                self.shape_mut(id).witness = Some(slot);
                self.list_waiting(id);
            }
        }
    }

    /// A worker takes no more work: what waits needs another witness.
    pub(super) fn worker_closed(&mut self, slot: WorkerIndex) {
        let ids = self.waiting.feasible.keys().map(|(_, id)| *id);
        let ids: Vec<ShapeId> = ids.filter(|id| self.shape(*id).witness == Some(slot)).collect();
        for id in ids {
            self.unlist_waiting(id);
            self.find_witness(id);
            self.list_waiting(id);
        }
    }

    fn find_witness(&mut self, id: ShapeId) {
        self.pools_of(id); // So that they are known.
        let openings = self.waiting.openings;
        let shape = self.shape(id);
        if shape.infeasible_at == Some(openings)
            || shape.witness.is_some_and(|slot| self.could_run(shape, slot))
        {
            return;
        }
        let mut slots = (0..self.workers.len()).map(|index| WorkerIndex(index as u32));
        let witness = slots.find(|slot| self.could_run(shape, *slot));
        let shape = self.shape_mut(id);
        shape.witness = witness;
        shape.infeasible_at = witness.is_none().then_some(openings);
    }

    /// Whether work of this shape could run at a worker, if nothing else ran there.
    pub(super) fn could_run(&self, shape: &Shape, slot: WorkerIndex) -> bool {
        self.workers[slot.0 as usize].as_ref().is_some_and(|worker| {
            worker.open
                && self.serves(worker.pool, shape)
                && worker.account.could_ever_fit(&shape.demand.resources)
        })
    }

    /// Whether the workers of a pool provide what work of this shape requires.
    pub(super) fn serves(&self, pool: usize, shape: &Shape) -> bool {
        match &shape.pools {
            Some(pools) => pools.binary_search(&pool).is_ok(),
            None => self.pools[pool].provides.serves(&shape.demand),
        }
    }
}
