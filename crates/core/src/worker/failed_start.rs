//! Executors that do not start: they die before they are ready. The worker gives back the work of such an executor, which
//! spends no retry.
//!
//! After [`MAX_FAILED_STARTS`] in a row of one runtime, the worker tells the controller that it is *unable* to run it, and
//! gets no more work of that runtime. Then it tries by itself: it starts an executor for nobody after a pause, which doubles
//! each time, and says so when one is ready.

use super::executor::{Executor, Occupant};
use super::{Effect, ExecutorId, Timer, Worker};
use crate::error::Error;
use crate::message::{FromWorker, Refusal};
use crate::time::Time;
use std::sync::Arc;
use std::time::Duration;

/// After so many failed starts in a row, a worker is unable to run a runtime.
const MAX_FAILED_STARTS: u32 = 3;
/// The pause before it tries again; twice as long after each failure, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// How many runtimes are remembered that do not start: there is one for each environment.
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
    /// An executor died before it was ready.
    pub(super) fn start_failed(
        &mut self,
        now: Time,
        executor: Executor,
        error: Error,
        effects: &mut Vec<Effect>,
    ) {
        let runtime = executor.runtime;
        let runs = |one: &Executor| one.runtime == runtime && one.ready && !one.doomed;
        if self.executors.values().any(runs) {
            // Others run: it is for want of something that may come back, such as memory.
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

    /// The runtime among those that fail; of too many, the first is forgotten.
    fn failing_mut(&mut self, runtime: Arc<str>, effects: &mut Vec<Effect>) -> &mut FailingRuntime {
        let known = self.failing.iter().position(|one| one.runtime == runtime);
        let index = known.unwrap_or_else(|| {
            if self.failing.len() >= MAX_FAILING {
                let untold = self.failing.iter().position(|one| one.next_try.is_none());
                self.forget_failing(untold.unwrap_or(0), effects);
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

    /// An executor of this runtime is ready.
    pub(super) fn start_succeeded(&mut self, runtime: &str, effects: &mut Vec<Effect>) {
        if let Some(index) = self.failing.iter().position(|one| &*one.runtime == runtime) {
            self.forget_failing(index, effects);
        }
    }

    /// Tries again to start what did not.
    pub(super) fn try_to_start(&mut self, now: Time, effects: &mut Vec<Effect>) {
        if self.draining {
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
