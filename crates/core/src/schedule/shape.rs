//! A shape: work that waits in one queue because it asks for the same.

use super::{Work, WorkerIndex};
use crate::resources::Resources;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// What work asks of a worker.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Demand {
    /// The function or class that the worker must provide.
    pub requires: Arc<str>,
    /// What must be free there.
    pub resources: Resources,
    /// What it takes, if that is not the same (an actor takes less than it needs to be placed).
    pub takes: Option<Resources>,
    /// Whether the worker may be one that can be taken away at any time.
    pub preemptible: bool,
    /// The minor version of Python that its code was made with; 0 for any.
    pub code_version: u32,
}

/// One piece of work that waits.
#[derive(Debug)]
pub(super) struct Queued {
    pub number: i64,
    pub work: Work,
    /// The worker that has most of its arguments; that may be gone, and another have its number.
    pub preferred_worker: Option<WorkerIndex>,
}

/// Work of one shape.
#[derive(Debug)]
pub(super) struct Shape {
    pub demand: Demand,
    /// What waits, oldest first.
    pub queue: VecDeque<Queued>,
    /// How many went ahead of the first, since they had their arguments where there was room.
    pub overtaken: u32,
    /// How many of those have left.
    pub left: usize,
    /// Pieces that run with a grant, and pieces in backlogs, on all workers.
    pub slots: u32,
    pub backlog: u32,
    /// Which pools serve it; unknown when pools changed.
    pub pools: Option<Arc<[usize]>>,
    /// An open worker that could run it if nothing else ran there; looked up while work of it waits.
    pub witness: Option<WorkerIndex>,
    /// After how many openings of workers there was none.
    pub infeasible_at: Option<u64>,
    /// How long its tasks take, on average over about the last eight.
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

    /// How many tasks per slot fill `time`, up to `most`; none as long as it is unknown how long they take.
    pub fn backlog_depth(&self, time: Duration, most: u32) -> u32 {
        let Some(mean) = self.mean else { return 0 };
        let fit = time.as_nanos() / mean.as_nanos().max(1);
        u32::try_from(fit).unwrap_or(most).min(most)
    }
}
