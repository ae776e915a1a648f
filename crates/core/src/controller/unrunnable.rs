//! Work that no worker here can run, however much room there is: no worker provides it, its code
//! needs another version of Python, or no executor starts for it.
//!
//! A worker that can run the work may be about to join, for example during a deployment. So the
//! work waits:
//!
//! - While there is no worker at all, it waits without end.
//! - Otherwise it waits for [`Config::unknown_task_wait`](super::Config), and until the next check.
//!   The checks are a [tenth](LOOKS_PER_WAIT) of that time apart, but at least a
//!   [second](SHORTEST_PAUSE). Then the work fails with the reason.
//! - An actor that was ready once goes on waiting.

use super::actor::{ActorPhase, DeathCause};
use super::task::TaskPhase;
use super::{Controller, Effect, Timer};
use crate::error::{Error, Ran};
use crate::schedule::{Demand, UnrunnableReason, Work};
use crate::time::Time;
use std::time::Duration;

/// How many times the controller checks unrunnable work during `unknown_task_wait`.
const LOOKS_PER_WAIT: u32 = 10;
/// The shortest pause between two checks.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
/// The most entries of `unable`, each a worker and a runtime that it cannot run.
const MAX_UNABLE_SHOWN: usize = 100;

impl Controller {
    /// Returns why no worker here can run work of this demand, if there are workers and none can.
    pub(super) fn why_unrunnable(&self, demand: &Demand) -> Option<Error> {
        Some(match self.schedule.why_unknown(demand)? {
            UnrunnableReason::Name(words) => Error::not_found(words),
            UnrunnableReason::Version(words) => Error::incompatible(words),
            UnrunnableReason::Start { runtime, words } => {
                let scheme = runtime.split_once('/').map_or(&*runtime, |(scheme, _)| scheme);
                let failed = self.workers.values().filter_map(|worker| {
                    let why = worker.unable.get(&*runtime).or_else(|| worker.unable.get(scheme))?;
                    Some((worker.session.id, &worker.info.hostname, why))
                });
                let words = match failed.min_by_key(|(id, _, _)| *id) {
                    Some((_, host, why)) => format!("{words}: at {host:?}, {}", why.message()),
                    None => words,
                };
                Error::unavailable(Ran::No, words)
            }
        })
    }

    /// Returns, in words, which workers cannot run which runtimes, and why. At most 100 entries.
    pub fn unable(&self) -> Vec<String> {
        let mut all: Vec<String> = Vec::new();
        for worker in self.workers.values() {
            let words = worker.unable.iter().map(|(runtime, why)| {
                let (id, host) = (worker.session.id, &worker.info.hostname);
                format!("worker {id} at {host:?} cannot run {runtime:?}: {}", why.message())
            });
            all.extend(words);
        }
        all.sort_unstable();
        all.truncate(MAX_UNABLE_SHOWN);
        all
    }

    /// Forgets the demands that a worker can run now. If that worker goes, their wait begins again.
    pub(super) fn forget_unknown(&mut self) {
        let schedule = &self.schedule;
        self.unrunnable_since.retain(|demand, _| schedule.is_unknown(demand));
    }

    /// Starts the checks of [`fail_unrunnable`](Controller::fail_unrunnable) if work waits that no
    /// worker here could run, unless the checks run already.
    pub(super) fn plan_to_fail(&mut self, now: Time, effects: &mut Vec<Effect>) {
        if !self.fail_planned && !self.shutting_down && self.schedule.infeasible_shapes() > 0 {
            self.fail_unrunnable(now, effects);
        }
    }

    /// Fails the work that has waited for too long for a worker that can run it. Sets the timer for
    /// the next check while any work waits that no worker here could run.
    pub(super) fn fail_unrunnable(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let before = std::mem::take(&mut self.unrunnable_since);
        let wait = self.config.unknown_task_wait;
        let mut late: Vec<(Work, Error)> = Vec::new();
        for (demand, work) in self.schedule.infeasible_work() {
            if !self.schedule.is_unknown(demand) {
                continue;
            }
            let since = before.get(demand).copied().unwrap_or(now);
            self.unrunnable_since.insert(demand.clone(), since);
            let waits_since = |work: &Work| self.waits_since(*work).map(|at| at.max(since));
            let mut due =
                work.filter(|work| waits_since(work).is_some_and(|at| at + wait <= now)).peekable();
            if due.peek().is_some()
                && let Some(error) = self.why_unrunnable(demand)
            {
                late.extend(due.map(|work| (work, error.clone())));
            }
        }
        for (work, error) in late {
            self.fail_waiting(now, work, error, effects);
        }
        self.fail_planned = self.schedule.infeasible_shapes() > 0;
        if self.fail_planned {
            let pause = (wait / LOOKS_PER_WAIT).max(SHORTEST_PAUSE);
            self.timers.insert((now + pause, Timer::FailUnrunnable));
        }
    }

    fn fail_waiting(&mut self, now: Time, work: Work, error: Error, effects: &mut Vec<Effect>) {
        let (why, wait) = (error.message(), self.config.unknown_task_wait);
        let words = match wait.is_zero() {
            true => why.to_owned(),
            false => format!(
                "{why}; no worker that can run it joined within {wait:?} (unknown_task_wait)"
            ),
        };
        let error = Error::new(error.kind(), words).ran(Ran::No);
        match work {
            Work::Task(id) => {
                // The end of earlier work may have ended this task, too.
                let Some(TaskPhase::Queued(ticket)) = self.tasks.get(&id).map(|task| &task.state)
                else {
                    return;
                };
                self.schedule.withdraw(*ticket);
                self.end_task(now, id, Err(error), effects);
            }
            Work::Actor(id) => {
                let Some(actor) = self.actors.get(&id) else { return };
                // An actor that was ready once has state, or callers that wait for it. It waits for
                // its worker to come back.
                if !matches!(actor.phase, ActorPhase::Queued(_)) || actor.was_ready {
                    return;
                }
                let cause = DeathCause::ConstructorFailed;
                self.end_actor(now, id, cause, error, effects);
            }
        }
    }
}
