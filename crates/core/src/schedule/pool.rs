//! A pool: workers that provide the same things, sorted by what they have free.

use super::shape::Demand;
use super::{PoolMember, WorkerIndex};
use crate::map::Map;
use crate::message::ShapeId;
use crate::resources::{Amount, Resources};
use crate::spec::runtime_of;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What a worker can run: names of functions, `actor:NAME` for classes, and `scheme:*` for everything
/// under a scheme (`command:*`, `python:*`) and its environments (`python/1f0a:…`).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct WorkerCapabilities {
    /// The names.
    pub names: BTreeSet<Arc<str>>,
    /// Whether the worker may be taken away at any time.
    pub preemptible: bool,
    /// The minor version of the Python that runs code here; 0 if there is none, or it is not known.
    pub code_version: u32,
    /// Runtimes (`python`, `python/1f0a`) of which no executor starts here at the moment.
    pub unable: BTreeSet<Arc<str>>,
}

impl WorkerCapabilities {
    /// Whether work that requires this can run here.
    pub fn provides(&self, requires: &str) -> bool {
        self.names.contains(requires)
            || requires.split_once(':').is_some_and(|(runtime, _)| {
                let scheme = runtime.split_once('/').map_or(runtime, |(scheme, _)| scheme);
                self.names.contains(format!("{scheme}:*").as_str())
            })
    }

    /// Whether executors of the runtime that this name belongs to start here. One that does not start at all does not
    /// start in any environment.
    fn can_start_runtime(&self, requires: &str) -> bool {
        let runtime = runtime_of(requires);
        let scheme = runtime.split_once('/').map_or(runtime, |(scheme, _)| scheme);
        !self.unable.contains(runtime) && !self.unable.contains(scheme)
    }

    /// Whether code of this version runs here.
    pub(super) fn runs_code_version(&self, code_version: u32) -> bool {
        code_version == 0 || self.code_version == 0 || self.code_version == code_version
    }

    /// Whether work of this demand can run here at all, whatever it takes and whether or not it may be preempted.
    pub(super) fn can_run(&self, key: &Demand) -> bool {
        self.provides(&key.requires)
            && self.runs_code_version(key.code_version)
            && self.can_start_runtime(&key.requires)
    }

    pub(super) fn serves(&self, key: &Demand) -> bool {
        (key.preemptible || !self.preemptible) && self.can_run(key)
    }
}

/// By free amount, then by load (least first), then by slot.
type Sorted = BTreeSet<(Amount, Reverse<u32>, WorkerIndex)>;

#[derive(Debug)]
pub(super) struct Pool {
    pub provides: Arc<WorkerCapabilities>,
    /// How many workers are in it, open or not.
    pub members: usize,
    by_cpu: Sorted,
    /// Only workers that have any.
    by_gpu: Sorted,
    by_custom: BTreeMap<Arc<str>, Sorted>,
    /// For each shape that runs here: its workers by the length of their backlog.
    backlogs: Map<ShapeId, BTreeSet<(u32, WorkerIndex)>>,
}

impl Pool {
    pub fn new(provides: Arc<WorkerCapabilities>) -> Pool {
        Pool {
            provides,
            members: 0,
            by_cpu: Sorted::new(),
            by_gpu: Sorted::new(),
            by_custom: BTreeMap::new(),
            backlogs: Map::default(),
        }
    }

    pub fn insert(&mut self, slot: WorkerIndex, worker: &PoolMember) {
        let load = Reverse(worker.load);
        self.by_cpu.insert((worker.account.free_cpu(), load, slot));
        if worker.account.capacity().gpu > Amount::ZERO {
            self.by_gpu.insert((worker.account.free_gpu(), load, slot));
        }
        for (name, _) in worker.account.capacity().custom() {
            let free = worker.account.free_custom(name);
            self.by_custom.entry(name.clone()).or_default().insert((free, load, slot));
        }
    }

    pub fn remove(&mut self, slot: WorkerIndex, worker: &PoolMember) {
        let load = Reverse(worker.load);
        self.by_cpu.remove(&(worker.account.free_cpu(), load, slot));
        if worker.account.capacity().gpu > Amount::ZERO {
            self.by_gpu.remove(&(worker.account.free_gpu(), load, slot));
        }
        for (name, _) in worker.account.capacity().custom() {
            let free = worker.account.free_custom(name);
            self.by_custom.get_mut(name).expect("it was listed").remove(&(free, load, slot));
        }
    }

    /// A worker's backlog of a shape was, and is now, so long; nothing if it has none of the shape.
    pub fn move_backlog(
        &mut self,
        slot: WorkerIndex,
        shape: ShapeId,
        from: Option<u32>,
        to: Option<u32>,
    ) {
        if from == to {
            return;
        }
        let workers = self.backlogs.entry(shape).or_default();
        if let Some(from) = from {
            workers.remove(&(from, slot));
        }
        if let Some(to) = to {
            workers.insert((to, slot));
        } else if workers.is_empty() {
            self.backlogs.remove(&shape);
        }
    }

    /// The worker with most room among those that fit, and how much that is. The rarest resource asked
    /// for decides the order; the search ends where that one is too little.
    pub fn roomiest(
        &self,
        demand: &Resources,
        fits: impl Fn(WorkerIndex) -> bool,
    ) -> Option<((Amount, Reverse<u32>), WorkerIndex)> {
        let rarest = demand.custom().map(|(name, amount)| (self.by_custom.get(name), amount));
        let (sorted, least) = match rarest.min_by_key(|(sorted, _)| sorted.map_or(0, BTreeSet::len))
        {
            Some((sorted, amount)) => (sorted?, amount),
            None if demand.gpu > Amount::ZERO => (&self.by_gpu, demand.gpu),
            None => (&self.by_cpu, demand.cpu),
        };
        let enough = sorted.iter().rev().take_while(|(free, _, _)| *free >= least);
        enough.map(|(free, load, slot)| ((*free, *load), *slot)).find(|(_, slot)| fits(*slot))
    }

    /// The worker that runs this shape and has the shortest backlog of it.
    pub fn shortest_backlog(&self, shape: ShapeId) -> Option<(u32, WorkerIndex)> {
        self.backlogs.get(&shape)?.first().copied()
    }

    /// The worker that has the longest backlog of this shape.
    pub fn longest_backlog(&self, shape: ShapeId) -> Option<(u32, WorkerIndex)> {
        self.backlogs.get(&shape)?.last().copied()
    }

    pub fn check_invariants<'a>(&self, worker: impl Fn(WorkerIndex) -> &'a PoolMember) {
        for (free, load, slot) in &self.by_cpu {
            let worker = worker(*slot);
            assert_eq!(
                (worker.account.free_cpu(), Reverse(worker.load)),
                (*free, *load),
                "{slot:?} sorted"
            );
        }
        for (shape, workers) in &self.backlogs {
            for (backlog, slot) in workers {
                assert_eq!(
                    worker(*slot).shapes[shape].backlog,
                    *backlog,
                    "backlog of {shape:?} at {slot:?}"
                );
            }
        }
    }
}
