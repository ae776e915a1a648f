//! A pool: workers that provide the same things, sorted by their free resources.

use super::shape::Demand;
use super::{PoolMember, WorkerIndex};
use crate::map::Map;
use crate::message::ShapeId;
use crate::resources::{Amount, Resources};
use crate::spec::runtime_of;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The functions and classes that a worker can run.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct WorkerCapabilities {
    /// The names of functions, `actor:NAME` for classes, and `scheme:*` for everything under a
    /// scheme (`command:*`, `python:*`) and its environments (`python/1f0a:…`).
    pub names: BTreeSet<Arc<str>>,
    /// Whether the worker may be taken away at any time.
    pub preemptible: bool,
    /// The minor version of the Python that runs code at the worker. 0 if there is no Python, or
    /// its version is unknown.
    pub code_version: u32,
    /// Runtimes (`python`, `python/1f0a`) of which no executor starts at the worker at the moment.
    pub unable: BTreeSet<Arc<str>>,
}

impl WorkerCapabilities {
    /// Returns whether the worker provides the function or class that work requires.
    pub fn provides(&self, requires: &str) -> bool {
        self.names.contains(requires)
            || requires.split_once(':').is_some_and(|(runtime, _)| {
                let scheme = runtime.split_once('/').map_or(runtime, |(scheme, _)| scheme);
                self.names.contains(format!("{scheme}:*").as_str())
            })
    }

    /// Returns whether executors start for the runtime that this name belongs to. If the executors
    /// of a scheme do not start at all, they start in no environment of it either.
    fn can_start_runtime(&self, requires: &str) -> bool {
        let runtime = runtime_of(requires);
        let scheme = runtime.split_once('/').map_or(runtime, |(scheme, _)| scheme);
        !self.unable.contains(runtime) && !self.unable.contains(scheme)
    }

    /// Returns whether code that was made with this version of Python runs at the worker.
    pub(super) fn runs_code_version(&self, code_version: u32) -> bool {
        code_version == 0 || self.code_version == 0 || self.code_version == code_version
    }

    /// Returns whether the worker can run work of this demand, regardless of resources and of
    /// preemption.
    pub(super) fn can_run(&self, key: &Demand) -> bool {
        self.provides(&key.requires)
            && self.runs_code_version(key.code_version)
            && self.can_start_runtime(&key.requires)
    }

    /// Returns whether the worker can run work of this demand, regardless of resources.
    pub(super) fn serves(&self, key: &Demand) -> bool {
        (key.preemptible || !self.preemptible) && self.can_run(key)
    }
}

/// Workers sorted by their free amount of one resource, then by load (descending), then by index.
/// The best worker comes last.
type Sorted = BTreeSet<(Amount, Reverse<u32>, WorkerIndex)>;

#[derive(Debug)]
pub(super) struct Pool {
    pub provides: Arc<WorkerCapabilities>,
    /// How many workers are in the pool, open or not.
    pub members: usize,
    /// The open workers, by free CPUs.
    by_cpu: Sorted,
    /// The open workers that have GPUs, by free GPUs.
    by_gpu: Sorted,
    /// For each of the user's own resources: the open workers that have it, by what is free.
    by_custom: BTreeMap<Arc<str>, Sorted>,
    /// For each shape that runs in the pool: its workers by the length of their backlog.
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

    pub fn insert(&mut self, worker_index: WorkerIndex, worker: &PoolMember) {
        let load = Reverse(worker.load);
        self.by_cpu.insert((worker.account.free_cpu(), load, worker_index));
        if worker.account.capacity().gpu > Amount::ZERO {
            self.by_gpu.insert((worker.account.free_gpu(), load, worker_index));
        }
        for (name, _) in worker.account.capacity().custom() {
            let free = worker.account.free_custom(name);
            self.by_custom.entry(name.clone()).or_default().insert((free, load, worker_index));
        }
    }

    pub fn remove(&mut self, worker_index: WorkerIndex, worker: &PoolMember) {
        let load = Reverse(worker.load);
        self.by_cpu.remove(&(worker.account.free_cpu(), load, worker_index));
        if worker.account.capacity().gpu > Amount::ZERO {
            self.by_gpu.remove(&(worker.account.free_gpu(), load, worker_index));
        }
        for (name, _) in worker.account.capacity().custom() {
            let free = worker.account.free_custom(name);
            self.by_custom.get_mut(name).expect("the worker was listed").remove(&(
                free,
                load,
                worker_index,
            ));
        }
    }

    /// Changes the listed length of a worker's backlog of a shape. `None`: the worker is not listed
    /// for the shape.
    pub fn move_backlog(
        &mut self,
        worker_index: WorkerIndex,
        shape: ShapeId,
        from: Option<u32>,
        to: Option<u32>,
    ) {
        if from == to {
            return;
        }
        let workers = self.backlogs.entry(shape).or_default();
        if let Some(from) = from {
            workers.remove(&(from, worker_index));
        }
        if let Some(to) = to {
            workers.insert((to, worker_index));
        } else if workers.is_empty() {
            self.backlogs.remove(&shape);
        }
    }

    /// Returns the worker with most room among those that fit, and how much room that is. The
    /// rarest resource that the demand asks for decides the order. The search ends at the first
    /// worker that has too little of it.
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
        enough
            .map(|(free, load, worker_index)| ((*free, *load), *worker_index))
            .find(|(_, worker_index)| fits(*worker_index))
    }

    /// Returns the worker that runs this shape and has the shortest backlog of it.
    pub fn shortest_backlog(&self, shape: ShapeId) -> Option<(u32, WorkerIndex)> {
        self.backlogs.get(&shape)?.first().copied()
    }

    /// Returns the worker that has the longest backlog of this shape.
    pub fn longest_backlog(&self, shape: ShapeId) -> Option<(u32, WorkerIndex)> {
        self.backlogs.get(&shape)?.last().copied()
    }

    pub fn check_invariants<'a>(&self, worker: impl Fn(WorkerIndex) -> &'a PoolMember) {
        for (free, load, worker_index) in &self.by_cpu {
            let worker = worker(*worker_index);
            assert_eq!(
                (worker.account.free_cpu(), Reverse(worker.load)),
                (*free, *load),
                "{worker_index:?} sorted"
            );
        }
        for (shape, workers) in &self.backlogs {
            for (backlog, worker_index) in workers {
                assert_eq!(
                    worker(*worker_index).shapes[shape].backlog,
                    *backlog,
                    "backlog of {shape:?} at {worker_index:?}"
                );
            }
        }
    }
}
