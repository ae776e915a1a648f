//! A shape: the queue of all work that has the same demand.

use super::{Work, WorkerIndex};
use crate::resources::Resources;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// The demand of work on a worker.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Demand {
    /// The function or class that the worker must provide.
    pub requires: Arc<str>,
    /// The resources that must be free at the worker.
    pub resources: Resources,
    /// The resources that the work takes, if they differ from `resources`. An actor may take less
    /// than it needs to be placed.
    pub takes: Option<Resources>,
    /// Whether the work may run at a worker that can be taken away at any time.
    pub preemptible: bool,
    /// The minor version of Python that made the code. 0: any version.
    pub code_version: u32,
}

/// One piece of waiting work.
#[derive(Debug)]
pub(super) struct Queued {
    pub number: i64,
    pub work: Work,
    /// The worker that has the most bytes of its arguments. That worker may be gone, and another
    /// one may have its index.
    pub preferred_worker: Option<WorkerIndex>,
}

/// The work of one shape, waiting and placed.
#[derive(Debug)]
pub(super) struct Shape {
    pub demand: Demand,
    /// The waiting work, oldest first. Some of it may be withdrawn.
    pub queue: VecDeque<Queued>,
    /// How many pieces of work went ahead of the first one, since their arguments were at the
    /// worker that had room.
    pub overtaken: u32,
    /// How much work in `queue` is withdrawn.
    pub left: usize,
    /// Pieces of work that have a grant, at all workers.
    pub slots: u32,
    /// Tasks in backlogs, at all workers.
    pub backlog: u32,
    /// The pools that serve the demand, by index. `None` after pools changed.
    pub pools: Option<Arc<[usize]>>,
    /// An open worker that could run the work if nothing else ran there. Kept up to date while work
    /// of the shape waits.
    pub witness: Option<WorkerIndex>,
    /// The number of worker openings after which no witness was found.
    pub infeasible_at: Option<u64>,
    /// How long tasks of the shape run, as a moving average over about the last eight.
    mean: Option<Duration>,
}

impl Shape {
    pub fn new(key: Demand) -> Shape {
        Shape {
            demand: key,
            queue: VecDeque::new(),
            overtaken: 0,
            left: 0,
            slots: 0,
            backlog: 0,
            pools: None,
            witness: None,
            infeasible_at: None,
            mean: None,
        }
    }

    pub fn is_unused(&self) -> bool {
        self.queue.is_empty() && self.slots == 0 && self.backlog == 0
    }

    pub fn note_time(&mut self, took: Duration) {
        let took = took.min(Duration::from_secs(24 * 3600));
        self.mean = Some(self.mean.map_or(took, |mean| (mean * 7 + took) / 8));
    }

    /// Returns how many tasks per slot fill `time`, at most `most`. Returns 0 while it is unknown
    /// how long the tasks run.
    pub fn backlog_depth(&self, time: Duration, most: u32) -> u32 {
        let Some(mean) = self.mean else { return 0 };
        let fit = time.as_nanos() / mean.as_nanos().max(1);
        u32::try_from(fit).unwrap_or(most).min(most)
    }
}
