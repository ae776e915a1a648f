//! Executors: idle ones are used again, dead ones take what they ran with them.

use super::{Effect, Worker};
use crate::error::Error;
use crate::id::{ActorId, TaskId};
use crate::message::{FromWorker, Refusal, SystemLimit};
use crate::spec::{COMMAND_SCHEME, runtime_of};
use crate::time::Time;
use std::sync::Arc;

/// An executor of this worker; never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ExecutorId(pub u64);

#[derive(Debug)]
pub(super) struct Executor {
    /// Which sort of program it is: the scheme of the names it runs (`python`, `command`, or none), with
    /// the environment it runs them in, if they have one (`python/1f0a`).
    pub runtime: Arc<str>,
    pub ready: bool,
    /// It was told to die; whatever it says now is not heard.
    pub doomed: bool,
    /// Why it was, where its death would not tell.
    pub cause: Option<Error>,
    /// It goes with what it runs: that may leave something behind, such as processes of a command, or
    /// memory of GPUs, and which of them are seen.
    pub once: bool,
    pub occupant: Occupant,
}

/// What an executor is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Occupant {
    None,
    Task(TaskId),
    Actor(ActorId),
}

impl Worker {
    /// Finds an executor for `occupant`: an idle one, ready at once, or a new one.
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

    /// The worker has joined: what is to be ready is started.
    pub(super) fn prestart(&mut self, effects: &mut Vec<Effect>) {
        let Some((runtime, count)) = self.config.prestarted.clone() else { return };
        for _ in 0..count {
            let id = self.spawn(runtime.clone(), Occupant::None, effects);
            self.spares.push(id);
        }
    }

    /// An actor took this executor for good: the next is started ahead, so that who comes next need not
    /// wait for it.
    pub(super) fn keep_spare(&mut self, taken: ExecutorId, effects: &mut Vec<Effect>) {
        let runtime = self.executors[&taken].runtime.clone();
        let same = |id: &&ExecutorId| self.executors[*id].runtime == runtime;
        let spare = self.idle.iter().chain(&self.spares).filter(same).count();
        if spare < self.config.spare_executors && !self.draining {
            let id = self.spawn(runtime, Occupant::None, effects);
            self.spares.push(id);
        }
    }

    /// An executor has nothing to do: it waits for the next. Of too many that wait, the one goes that has
    /// waited for longest: it may be of a runtime that nobody asks for any more.
    pub(super) fn vacate(&mut self, id: ExecutorId, effects: &mut Vec<Effect>) {
        let executor = self.executors.get_mut(&id).expect("it had an occupant");
        executor.occupant = Occupant::None;
        if !executor.ready || executor.doomed {
            return;
        }
        if self.draining || executor.once {
            return self.kill(id, effects);
        }
        self.idle.push(id);
        if self.idle.len() > self.config.max_idle_executors {
            self.kill(self.idle[0], effects);
        }
    }

    pub(super) fn kill(&mut self, id: ExecutorId, effects: &mut Vec<Effect>) {
        let executor = self.executors.get_mut(&id).expect("only what lives is killed");
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

    /// It could not be started for now: what it was for goes back.
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

    /// Gives back the work of an executor that has not begun it.
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

    /// What runs in an executor, if it may be heard.
    pub(super) fn occupant(&mut self, id: ExecutorId) -> Occupant {
        let executor = self.executors.get(&id).filter(|executor| !executor.doomed);
        self.counters.stale += u64::from(executor.is_none());
        executor.map_or(Occupant::None, |executor| executor.occupant)
    }
}
