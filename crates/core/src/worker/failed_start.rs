//! Executors that fail to start: they die before they are ready. The worker refuses the work of
//! such an executor, which costs the work no retry.
//!
//! After [`MAX_FAILED_STARTS`] failures in a row of one runtime, the worker tells the controller
//! that it is *unable* to run it, and gets no more work of that runtime. Then the worker tries by
//! itself. After a pause, which doubles each time, it starts an executor without work. When one is
//! ready, it tells the controller that it is able again.

use super::executor::{Executor, Occupant};
use super::{Effect, ExecutorId, Timer, Worker};
use crate::error::Error;
use crate::message::{FromWorker, Refusal};
use crate::time::Time;
use std::sync::Arc;
use std::time::Duration;

/// After how many failed starts in a row a worker is unable to run a runtime.
const MAX_FAILED_STARTS: u32 = 3;
/// The pause before the first new try. It doubles after each failure, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// How many failing runtimes are remembered. Each environment is a runtime of its own, so there may
/// be many.
const MAX_FAILING: usize = 1_000;

/// A runtime whose last executor did not start.
#[derive(Debug)]
pub(super) struct FailingRuntime {
    runtime: Arc<str>,
    in_a_row: u32,
    pause: Duration,
    /// When the worker tries again. Set once the worker has told the controller that it is unable.
    next_try: Option<Time>,
}

impl Worker {
    /// Handles the death of an executor that was not ready yet.
    pub(super) fn start_failed(
        &mut self,
        now: Time,
        executor: Executor,
        error: Error,
        effects: &mut Vec<Effect>,
    ) {
        let runtime = executor.runtime;
        let runs = |other: &Executor| other.runtime == runtime && other.ready && !other.doomed;
        if self.executors.values().any(runs) {
            // Other executors of this runtime run, so the cause is a shortage that may end, such as
            // of memory.
            return self.refuse_occupant(executor.occupant, Refusal::Full, effects);
        }
        self.refuse_occupant(executor.occupant, Refusal::NotStarted, effects);
        let failing = self.failing_mut(runtime.clone(), effects);
        failing.in_a_row += 1;
        if failing.in_a_row < MAX_FAILED_STARTS || failing.next_try.is_some() {
            return;
        }
        let at = now + failing.pause;
        failing.next_try = Some(at);
        self.timers.insert((at, Timer::Start));
        effects.push(Effect::ToController(FromWorker::Unable { runtime, error }));
    }

    /// Returns the entry of a failing runtime. If there are too many, it forgets the oldest one
    /// that the controller does not know, or else the oldest.
    fn failing_mut(&mut self, runtime: Arc<str>, effects: &mut Vec<Effect>) -> &mut FailingRuntime {
        let known = self.failing.iter().position(|failing| failing.runtime == runtime);
        let index = known.unwrap_or_else(|| {
            if self.failing.len() >= MAX_FAILING {
                let unreported = self.failing.iter().position(|failing| failing.next_try.is_none());
                self.forget_failing(unreported.unwrap_or(0), effects);
            }
            let (in_a_row, pause, next_try) = (0, FIRST_PAUSE, None);
            self.failing.push(FailingRuntime { runtime, in_a_row, pause, next_try });
            self.failing.len() - 1
        });
        &mut self.failing[index]
    }

    fn forget_failing(&mut self, index: usize, effects: &mut Vec<Effect>) {
        let FailingRuntime { runtime, next_try, .. } = self.failing.remove(index);
        if next_try.is_some() {
            effects.push(Effect::ToController(FromWorker::Able { runtime }));
        }
    }

    /// Forgets the failures of a runtime of which an executor is ready.
    pub(super) fn start_succeeded(&mut self, runtime: &str, effects: &mut Vec<Effect>) {
        if let Some(index) = self.failing.iter().position(|failing| &*failing.runtime == runtime) {
            self.forget_failing(index, effects);
        }
    }

    /// Starts an executor of each failing runtime whose pause is over.
    pub(super) fn try_to_start(&mut self, now: Time, effects: &mut Vec<Effect>) {
        if self.departure.has_begun() {
            return;
        }
        let mut due = Vec::new();
        for failing in &mut self.failing {
            if failing.next_try.is_some_and(|at| at <= now) {
                failing.pause = (failing.pause * 2).min(LONGEST_PAUSE);
                let at = now + failing.pause;
                failing.next_try = Some(at);
                self.timers.insert((at, Timer::Start));
                due.push(failing.runtime.clone());
            }
        }
        for runtime in due {
            let is_starting = |id: &ExecutorId| self.executors[id].runtime == runtime;
            if !self.spares.iter().any(is_starting) {
                let id = self.spawn(runtime, Occupant::None, effects);
                self.spares.push(id);
            }
        }
    }
}
