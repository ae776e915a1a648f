//! A worker's decisions: which executor runs what, which calls reach which actor, when to stop.
//!
//! A worker does what the controller says and keeps nothing to itself: every attempt it accepted it
//! ends, gives back, or takes with it when its session is over. Its own clock decides that: past its
//! lease it kills its executors and forgets everything, before the controller gives its work away.
//!
//! It is also the host of its actors' callers. Before a caller's first message counts, the controller
//! is asked whether that session lives; when it ends, all that it had here goes in one step.
//!
//! Where things are decided: membership and time in `session.rs`, tasks in `task.rs`, actors and calls
//! in `actor.rs` and `call.rs`, when their state is saved in `checkpoint.rs`, callers in `caller.rs`, executors
//! in `executor.rs`, those that do not start in `failed_start.rs`, what its store keeps in `stored.rs`, what user code gives while it runs in `stream.rs`, who goes when memory runs short in `memory.rs`. `query.rs` only reads.

mod actor;
mod blob;
mod call;
mod caller;
mod check;
mod checkpoint;
mod effect;
mod event;
mod executor;
mod failed_start;
mod memory;
mod query;
mod session;
mod stream;
mod task;
#[cfg(test)]
mod tests;

pub use effect::Effect;
pub use event::{Event, UserCodeResult};
pub use executor::ExecutorId;
pub use query::{WorkerActorStatus, WorkerTaskStatus};

use crate::id::{ActorId, Session, TaskId};
use crate::lease::HeldLease;
use crate::map::Map;
use crate::message::{AttemptId, CallReport, FromWorker, ShapeId};
use crate::time::Time;
use actor::HostedActor;
use caller::Caller;
use executor::Executor;
use failed_start::FailingRuntime;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use task::{LocalTask, Slots};

/// How a worker behaves.
#[derive(Clone, Debug)]
pub struct Config {
    /// How long a cancelled attempt may take to stop by itself.
    pub cancel_grace: Duration,
    /// How many idle executors are kept for the next task.
    pub max_idle_executors: usize,
    /// How many executors are kept ready for the next actor, once there was one.
    pub spare_executors: usize,
    /// Executors that are started as soon as the worker has joined: of which runtime, and how many.
    pub prestarted: Option<(Arc<str>, usize)>,
    /// How many executors may wait for other tasks at a time.
    pub max_blocked_executors: usize,
    /// How many messages of a caller are kept while it is asked whether its session lives.
    pub max_parked_messages: usize,
    /// Calls that went direct are reported to the controller after this long, or this many.
    pub report_interval: Duration,
    /// See `report_interval`.
    pub report_batch: usize,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            cancel_grace: Duration::from_secs(5),
            max_idle_executors: 8,
            spare_executors: 1,
            prestarted: None,
            max_blocked_executors: 1_000,
            max_parked_messages: 10_000,
            report_interval: Duration::from_millis(100),
            report_batch: 256,
        }
    }
}

/// Counts of what was refused because it came too late or from nobody.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Messages of callers whose session was over.
    pub fenced: u64,
    /// Messages about attempts, instances or executors that were not here.
    pub stale: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Timer {
    /// The lease is over.
    Lease,
    /// An attempt takes too long.
    Timeout(AttemptId),
    /// An attempt did not stop by itself.
    Grace(AttemptId),
    /// A call takes too long.
    Call(ActorId, TaskId),
    /// A call did not stop by itself.
    CallGrace(ActorId, TaskId),
    /// An actor may have been idle for too long.
    Idle(ActorId),
    /// An actor's state is to be saved.
    Save(ActorId),
    /// Report calls.
    Report,
    /// Give up what still runs.
    DrainGrace,
    /// Data that only this worker has took too long to be brought elsewhere.
    Moved,
    /// Start an executor of a runtime that did not start.
    Start,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Worker {
    config: Config,
    session: Option<Session>,
    lease: Option<HeldLease>,
    draining: bool,
    /// It drains because its controller is about to end: it joins the next one.
    rejoins_after_drain: bool,
    /// It has nothing more to do, and said so.
    emptied: bool,
    /// It goes, and said so.
    left: bool,
    attempts: Map<TaskId, LocalTask>,
    slots: Map<ShapeId, Slots>,
    executors: Map<ExecutorId, Executor>,
    idle: Vec<ExecutorId>,
    /// Those that start ahead of what they will be for.
    spares: Vec<ExecutorId>,
    /// Runtimes whose last executor did not start.
    failing: Vec<FailingRuntime>,
    next_executor: u64,
    blocked: usize,
    actors: Map<ActorId, HostedActor>,
    callers: Map<Session, Caller>,
    /// Answers that leave when the controller has what they name: whose, and what.
    answers_awaiting_holds: BTreeMap<AttemptId, (Session, crate::message::FromHost)>,
    reports: Vec<CallReport>,
    timers: BTreeSet<(Time, Timer)>,
    counters: Counters,
}

impl Worker {
    /// A worker that has not joined yet.
    pub fn new(config: Config) -> Worker {
        Worker {
            config,
            session: None,
            lease: None,
            draining: false,
            emptied: false,
            rejoins_after_drain: false,
            left: false,
            attempts: Map::default(),
            slots: Map::default(),
            executors: Map::default(),
            idle: Vec::new(),
            spares: Vec::new(),
            failing: Vec::new(),
            next_executor: 0,
            blocked: 0,
            actors: Map::default(),
            callers: Map::default(),
            answers_awaiting_holds: BTreeMap::new(),
            reports: Vec::new(),
            timers: BTreeSet::new(),
            counters: Counters::default(),
        }
    }

    /// Something happened.
    pub fn handle(&mut self, now: Time, event: Event, effects: &mut Vec<Effect>) {
        if self.lease_is_over(now) {
            self.stop(effects);
        }
        match event {
            Event::Joined { session, terms, asked_at } => {
                self.joined(now, session, terms, asked_at, effects);
            }
            Event::PingReceived { session, ping } => self.pinged(now, session, ping, effects),
            Event::Fenced { session } => {
                if self.session == Some(session) {
                    self.stop(effects);
                }
            }
            Event::ControllerMessageReceived { session, message } => {
                if self.session == Some(session) {
                    self.controller_said(now, message, effects);
                }
            }
            Event::CallerMessageReceived { session, message } => {
                if self.session.is_some() {
                    self.caller_said(now, session, message, effects);
                }
            }
            Event::ExecutorReady { executor } => self.executor_ready(now, executor, effects),
            Event::ExecutorRefused { executor, lack } => {
                self.executor_refused(executor, lack, effects)
            }
            Event::ExecutorDied { executor, error } => {
                self.executor_died(now, executor, error, effects)
            }
            Event::TaskEnded { executor, task, end } => {
                self.run_ended(now, executor, task, end, effects)
            }
            Event::InputsUnavailable { executor, task, error } => {
                self.not_begun(now, executor, task, error, effects)
            }
            Event::Yielded { executor, task, index, value } => {
                self.yielded(executor, task, index, value, effects);
            }
            Event::Constructed { executor, result } => {
                self.constructed(now, executor, result, effects)
            }
            Event::CallEnded { executor, call, end } => {
                self.call_finished(now, executor, call, end, effects);
            }
            Event::Blocked { executor } => self.run_blocked(executor, true, effects),
            Event::Resumed { executor } => self.run_blocked(executor, false, effects),
            Event::ReferencesReleased { executor, things } => {
                self.dropped(executor, things, effects)
            }
            Event::ActorExited { executor } => self.actor_exited(executor, effects),
            Event::MemoryShort { used, limit, taken } => {
                self.memory_short(used, limit, &taken, effects);
            }
            Event::Printed { source, output } => {
                if self.session.is_some() {
                    let message = FromWorker::Printed { source, output };
                    effects.push(Effect::ToController(message));
                }
            }
            Event::DataMissing { object } => self.data_missing(object, effects),
            Event::DataCopied { object } => {
                self.tell_controller(FromWorker::Copied { object }, effects);
            }
            Event::DataPullFailed { object, error } => {
                self.tell_controller(FromWorker::NotBrought { object, error }, effects);
            }
            Event::DataLost { object, error } => {
                self.tell_controller(FromWorker::CopyLost { object, error }, effects);
            }
            Event::DrainRequested { grace } => self.drain(now, grace, false, effects),
            Event::TimePassed => self.time_passed(now, effects),
        }
        self.ask_to_leave(now, effects);
    }

    /// When [`Event::TimePassed`] is due.
    pub fn next_wake(&self) -> Option<Time> {
        self.timers.first().map(|(time, _)| *time)
    }

    /// The session it works under.
    pub fn session(&self) -> Option<Session> {
        self.session
    }

    /// When its executors must have stopped, whatever becomes of this process.
    pub fn lease_ends_at(&self) -> Option<Time> {
        self.lease.as_ref().map(HeldLease::ends_at)
    }

    /// What was refused.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Tasks that are here, and actors.
    pub fn load(&self) -> (usize, usize) {
        (self.attempts.len(), self.actors.len())
    }
}
