//! Work that no worker here can run, however much room there is: no program provides it, its code needs another Python, or
//! no executor starts for it. A worker that can may be about to join, as during a deployment, so such work waits: without end
//! while there is no worker at all, otherwise for [`Config::unknown_task_wait`](super::Config), and at most a
//! [tenth](LOOKS_PER_WAIT) or a [second](SHORTEST_PAUSE) longer. Then it fails with the reason. An actor that was ready once
//! goes on waiting.

use super::actor::{ActorPhase, DeathCause};
use super::task::TaskPhase;
use super::{Controller, Effect, Timer};
use crate::error::{Error, Ran};
use crate::schedule::{Demand, UnrunnableReason, Work};
use crate::time::Time;
use std::time::Duration;

/// How often such work is looked at while it may wait.
const LOOKS_PER_WAIT: u32 = 10;
/// The shortest pause between two looks.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
/// How many workers are named that cannot run something.
const MAX_UNABLE_SHOWN: usize = 100;

impl Controller {
    /// Why no worker here can run work of this demand, if there are workers and none can.
    pub(super) fn why_unknown(&self, demand: &Demand) -> Option<Error> {
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

    /// Which workers cannot run what, in words; at most 100 of them.
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

    /// A worker came that can run some of this work: if that worker goes, the wait begins anew.
    pub(super) fn forget_unknown(&mut self) {
        let schedule = &self.schedule;
        self.unrunnable_since.retain(|demand, _| schedule.is_unknown(demand));
    }

    /// Something waits that no worker here could run: it is looked at again while it waits.
    pub(super) fn plan_to_fail(&mut self, now: Time, effects: &mut Vec<Effect>) {
        if !self.fail_planned && !self.shutting_down && self.schedule.infeasible_shapes() > 0 {
            self.fail_unknown(now, effects);
        }
    }

    /// Fails what has waited for too long for a worker that can run it.
    pub(super) fn fail_unknown(&mut self, now: Time, effects: &mut Vec<Effect>) {
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
                && let Some(error) = self.why_unknown(demand)
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
            false => format!("{why}; none that can came within {wait:?} (unknown_task_wait)"),
        };
        let error = Error::new(error.kind(), words).ran(Ran::No);
        match work {
            Work::Task(id) => {
                // An end may have taken others with it.
                let Some(TaskPhase::Queued(ticket)) = self.tasks.get(&id).map(|task| &task.state)
                else {
                    return;
                };
                self.schedule.withdraw(*ticket);
                self.end_task(now, id, Err(error), effects);
            }
            Work::Actor(id) => {
                let Some(actor) = self.actors.get(&id) else { return };
                // One that was ready once has state, or others who wait for it: it waits for its worker to come back.
                if !matches!(actor.phase, ActorPhase::Queued(_)) || actor.was_ready {
                    return;
                }
                let cause = DeathCause::ConstructorFailed;
                self.end_actor(now, id, cause, error, effects);
            }
        }
    }
}
