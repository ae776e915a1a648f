//! The executors of a worker: which executor runs which work, and when the worker starts one, uses
//! it again or kills it. The attempts in an executor that dies are lost.

use super::{Effect, Worker};
use crate::error::Error;
use crate::id::{ActorId, TaskId};
use crate::message::{FromWorker, Refusal, SystemLimit};
use crate::spec::{COMMAND_SCHEME, runtime_of};
use crate::time::Time;
use std::sync::Arc;

/// Names an executor of this worker. Ids are never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ExecutorId(pub u64);

#[derive(Debug)]
pub(super) struct Executor {
    /// The sort of program: the scheme of the names that it runs (`python`, `command`, or empty),
    /// with its environment if it has one (`python/1f0a`).
    pub runtime: Arc<str>,
    pub ready: bool,
    /// It was killed. Its messages are ignored until it is dead.
    pub doomed: bool,
    /// Why it was killed, if its death alone would not show that.
    pub cause: Option<Error>,
    /// It is killed when its work ends, since that work may leave something behind: processes of a
    /// command, memory on GPUs, or the selection of visible GPUs.
    pub once: bool,
    pub occupant: Occupant,
}

/// The work that an executor is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Occupant {
    None,
    Task(TaskId),
    Actor(ActorId),
}

impl Worker {
    /// Finds an executor for `occupant`: an idle one, a spare that is still starting, or a new one.
    /// Also returns whether it is ready.
    pub(super) fn occupy(
        &mut self,
        occupant: Occupant,
        name: &str,
        effects: &mut Vec<Effect>,
    ) -> (ExecutorId, bool) {
        let runtime = runtime_of(name);
        if let Some(index) =
            self.idle.iter().rposition(|id| &*self.executors[id].runtime == runtime)
        {
            let id = self.idle.remove(index);
            self.executors.get_mut(&id).expect("an idle executor exists").occupant = occupant;
            return (id, true);
        }
        if let Some(index) =
            self.spares.iter().position(|id| &*self.executors[id].runtime == runtime)
        {
            let id = self.spares.remove(index);
            self.executors.get_mut(&id).expect("a spare executor starts").occupant = occupant;
            return (id, false);
        }
        (self.spawn(runtime.into(), occupant, effects), false)
    }

    pub(super) fn spawn(
        &mut self,
        runtime: Arc<str>,
        occupant: Occupant,
        effects: &mut Vec<Effect>,
    ) -> ExecutorId {
        let id = ExecutorId(self.next_executor);
        self.next_executor += 1;
        effects.push(Effect::Spawn { executor: id, runtime: runtime.clone() });
        let once = &*runtime == COMMAND_SCHEME;
        let executor =
            Executor { runtime, ready: false, doomed: false, cause: None, once, occupant };
        self.executors.insert(id, executor);
        id
    }

    /// Starts the executors that are to be ready as soon as the worker has joined.
    pub(super) fn prestart(&mut self, effects: &mut Vec<Effect>) {
        let Some((runtime, count)) = self.config.prestarted.clone() else { return };
        for _ in 0..count {
            let id = self.spawn(runtime.clone(), Occupant::None, effects);
            self.spares.push(id);
        }
    }

    /// Starts a spare executor after an actor took `taken` for good, so that the next actor need
    /// not wait for one to start.
    pub(super) fn keep_spare(&mut self, taken: ExecutorId, effects: &mut Vec<Effect>) {
        let runtime = self.executors[&taken].runtime.clone();
        let same = |id: &&ExecutorId| self.executors[*id].runtime == runtime;
        let spare = self.idle.iter().chain(&self.spares).filter(same).count();
        if spare < self.config.spare_executors && !self.departure.has_begun() {
            let id = self.spawn(runtime, Occupant::None, effects);
            self.spares.push(id);
        }
    }

    /// Takes the occupant out of an executor. A ready executor is then idle, or is killed if it
    /// serves only once or if the worker is leaving. If too many are idle, kills the one that has
    /// been idle for longest: there may be no more work of its runtime.
    pub(super) fn vacate(&mut self, id: ExecutorId, effects: &mut Vec<Effect>) {
        let executor = self.executors.get_mut(&id).expect("it had an occupant");
        executor.occupant = Occupant::None;
        if !executor.ready || executor.doomed {
            return;
        }
        if self.departure.has_begun() || executor.once {
            return self.kill(id, effects);
        }
        self.idle.push(id);
        if self.idle.len() > self.config.max_idle_executors {
            self.kill(self.idle[0], effects);
        }
    }

    pub(super) fn kill(&mut self, id: ExecutorId, effects: &mut Vec<Effect>) {
        let executor = self.executors.get_mut(&id).expect("a killed executor exists");
        if !executor.doomed {
            executor.doomed = true;
            self.idle.retain(|idle| *idle != id);
            self.spares.retain(|spare| *spare != id);
            effects.push(Effect::Kill { executor: id });
        }
    }

    pub(super) fn executor_ready(&mut self, now: Time, id: ExecutorId, effects: &mut Vec<Effect>) {
        let Some(executor) =
            self.executors.get_mut(&id).filter(|executor| !executor.doomed && !executor.ready)
        else {
            return;
        };
        executor.ready = true;
        let (runtime, occupant) = (executor.runtime.clone(), executor.occupant);
        self.spares.retain(|spare| *spare != id);
        self.start_succeeded(&runtime, effects);
        match occupant {
            Occupant::None => self.vacate(id, effects),
            Occupant::Task(task) => self.run(now, task, id, effects),
            Occupant::Actor(actor) => self.construct(actor, id, effects),
        }
    }

    /// Removes an executor that could not be started for now, and refuses its work.
    pub(super) fn executor_refused(
        &mut self,
        id: ExecutorId,
        lack: Option<SystemLimit>,
        effects: &mut Vec<Effect>,
    ) {
        let reason = lack.map_or(Refusal::Full, Refusal::SystemLimit);
        let Some(executor) = self.executors.remove(&id) else { return };
        self.spares.retain(|spare| *spare != id);
        self.refuse_occupant(executor.occupant, reason, effects);
    }

    /// Refuses the work of an executor that has not started it.
    pub(super) fn refuse_occupant(
        &mut self,
        occupant: Occupant,
        reason: Refusal,
        effects: &mut Vec<Effect>,
    ) {
        match occupant {
            Occupant::None => {}
            Occupant::Task(task) => self.refuse_attempt(task, reason, effects),
            Occupant::Actor(actor) => {
                let hosted = self.actors.remove(&actor).expect("its executor was to start");
                let message = FromWorker::ActorRefused { instance: hosted.instance(), reason };
                effects.push(Effect::ToController(message));
            }
        }
    }

    pub(super) fn executor_died(
        &mut self,
        now: Time,
        id: ExecutorId,
        error: Error,
        effects: &mut Vec<Effect>,
    ) {
        let Some(executor) = self.executors.remove(&id) else {
            self.counters.stale += 1;
            return;
        };
        self.idle.retain(|idle| *idle != id);
        self.spares.retain(|spare| *spare != id);
        if !executor.ready && !executor.doomed {
            return self.start_failed(now, executor, error, effects);
        }
        let error = executor.cause.unwrap_or(error);
        match executor.occupant {
            Occupant::None => {}
            Occupant::Task(task) => self.run_died(now, task, error, effects),
            Occupant::Actor(actor) => {
                self.actor_executor_died(actor, error, executor.doomed, effects);
            }
        }
    }

    /// Returns the occupant of an executor. If the executor was killed or is gone, counts its
    /// message as stale and returns `None`.
    pub(super) fn occupant(&mut self, id: ExecutorId) -> Occupant {
        let executor = self.executors.get(&id).filter(|executor| !executor.doomed);
        self.counters.stale += u64::from(executor.is_none());
        executor.map_or(Occupant::None, |executor| executor.occupant)
    }
}
