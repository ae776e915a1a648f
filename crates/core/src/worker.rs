//! A worker's decisions: which executor runs which task, which calls reach which actor, when to
//! stop.
//!
//! A worker does what the controller says, and everything it has belongs to its session. It ends
//! every attempt that it accepted, gives it back, or drops it with the session. The worker's own
//! clock decides when that is: when its lease ends, it kills its executors and forgets everything,
//! before the controller gives its work away.
//!
//! A worker is also the host of its actors' callers. Before a caller's first message counts, the
//! worker asks the controller whether the caller's session is alive. When that session ends,
//! everything of the caller goes in one step.
//!
//! - `inbox.rs`: passes each message to the file that decides about it
//! - `session.rs`: membership and time; `departure.rs`: how far the worker is with leaving
//! - `task.rs`: tasks; `actor.rs` and `call.rs`: actors and calls; `stream.rs`: yielded items
//! - `checkpoint.rs`: when an actor's state is saved
//! - `caller.rs`: callers and whether their sessions are alive
//! - `executor.rs`: executors; `failed_start.rs`: executors that do not start
//! - `blob.rs`: which blobs the object store retains
//! - `memory.rs`: which executor is killed when memory runs short
//! - `query.rs`: queries, which change nothing

mod actor;
mod blob;
mod call;
mod caller;
mod check;
mod checkpoint;
mod departure;
mod effect;
mod event;
mod executor;
mod failed_start;
mod inbox;
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
use crate::map::Map;
use crate::membership::Membership;
use crate::message::{AttemptId, CallReport, FromWorker, ShapeId};
use crate::recent_events::{EventSummary, RecentEvents};
use crate::time::Time;
use actor::HostedActor;
use caller::Caller;
use departure::{AfterDrain, Departure};
use executor::Executor;
use failed_start::FailingRuntime;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use task::{LocalTask, Slots};

/// The settings of a worker.
#[derive(Clone, Debug)]
pub struct Config {
    /// How long a cancelled attempt may take to stop by itself.
    pub cancel_grace: Duration,
    /// How many idle executors wait for the next task.
    pub max_idle_executors: usize,
    /// How many executors are kept ready for the next actor, once the worker has hosted one.
    pub spare_executors: usize,
    /// The executors that start as soon as the worker has joined: their runtime, and how many.
    pub prestarted: Option<(Arc<str>, usize)>,
    /// How many executors may wait for other tasks at the same time.
    pub max_blocked_executors: usize,
    /// How many calls of a caller wait until the controller confirms that the caller's session is
    /// alive.
    pub max_parked_messages: usize,
    /// The longest time until direct calls are reported to the controller.
    pub report_interval: Duration,
    /// The most direct calls in one report to the controller.
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

/// Counts messages that were ignored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Messages of callers whose session was over.
    pub fenced: u64,
    /// Messages about attempts, instances or executors that the worker does not have.
    pub stale: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Timer {
    /// The lease ends.
    Lease,
    /// The timeout of an attempt.
    Timeout(AttemptId),
    /// The end of the grace of an attempt that was asked to stop.
    Grace(AttemptId),
    /// The timeout of a call.
    Call(ActorId, TaskId),
    /// The end of the grace of a call that was asked to stop.
    CallGrace(ActorId, TaskId),
    /// The time at which an actor has been idle for its `idle_ttl`, unless it was called since.
    Idle(ActorId),
    /// The next checkpoint of an actor.
    Save(ActorId),
    /// The next report of direct calls.
    Report,
    /// The end of a drain's grace: the worker gives up work that still runs.
    DrainGrace,
    /// The end of the time for moving data that only this worker has.
    Moved,
    /// The next attempt to start an executor of a runtime that fails to start.
    Start,
}

/// The state machine of a worker. See the [module](self).
#[derive(Debug)]
pub struct Worker {
    config: Config,
    membership: Membership,
    departure: Departure,
    attempts: Map<TaskId, LocalTask>,
    slots: Map<ShapeId, Slots>,
    executors: Map<ExecutorId, Executor>,
    idle: Vec<ExecutorId>,
    /// Executors that start before there is work for them.
    spares: Vec<ExecutorId>,
    /// Runtimes whose last executor did not start.
    failing: Vec<FailingRuntime>,
    next_executor: u64,
    blocked: usize,
    actors: Map<ActorId, HostedActor>,
    callers: Map<Session, Caller>,
    /// Answers that leave when the controller holds the referents that they name, with their
    /// callers.
    answers_awaiting_holds: BTreeMap<AttemptId, (Session, crate::message::FromHost)>,
    reports: Vec<CallReport>,
    timers: BTreeSet<(Time, Timer)>,
    counters: Counters,
    recent: RecentEvents,
}

impl Worker {
    /// Creates a worker that has not joined yet.
    pub fn new(config: Config) -> Worker {
        Worker {
            config,
            membership: Membership::default(),
            departure: Departure::default(),
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
            recent: RecentEvents::default(),
        }
    }

    /// Handles an event. Appends its effects to `effects`.
    pub fn handle(&mut self, now: Time, event: Event, effects: &mut Vec<Effect>) {
        self.recent.note(now, event.summary());
        if self.membership.lease_is_over(now) {
            self.stop(effects);
        }
        match event {
            Event::Joined { session, terms, asked_at } => {
                self.joined(now, session, terms, asked_at, effects);
            }
            Event::PingReceived { session, ping } => {
                let timers = &mut self.timers;
                let pong = self.membership.answer_ping(now, session, ping, timers, Timer::Lease);
                effects.extend(pong.map(Effect::Pong));
            }
            Event::Fenced { session } => {
                if self.membership.is_of(session) {
                    self.stop(effects);
                }
            }
            Event::ControllerMessageReceived { session, message } => {
                if self.membership.is_of(session) {
                    self.handle_controller_message(now, message, effects);
                }
            }
            Event::CallerMessageReceived { session, message } => {
                if self.membership.is_open() {
                    self.receive_from_caller(now, session, message, effects);
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
                self.task_ended(now, executor, task, end, effects)
            }
            Event::InputsUnavailable { executor, task, error } => {
                self.inputs_unavailable(now, executor, task, error, effects)
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
                self.references_released(executor, things, effects)
            }
            Event::ActorExited { executor } => self.actor_exited(executor, effects),
            Event::MemoryShort { used, limit, taken } => {
                self.memory_short(used, limit, &taken, effects);
            }
            Event::Printed { source, output } => {
                if self.membership.is_open() {
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
            Event::DrainRequested { grace } => self.drain(now, grace, AfterDrain::Leave, effects),
            Event::TimePassed => self.time_passed(now, effects),
        }
        self.ask_to_leave(now, effects);
    }

    /// Returns the last events that this machine handled, oldest first.
    pub fn recent_events(&self) -> impl Iterator<Item = (Time, EventSummary)> {
        self.recent.iter()
    }

    /// Returns when [`Event::TimePassed`] is due.
    pub fn next_wake(&self) -> Option<Time> {
        self.timers.first().map(|(time, _)| *time)
    }

    /// Returns the current session.
    pub fn session(&self) -> Option<Session> {
        self.membership.session()
    }

    /// Returns when the executors must have stopped, even if this process hangs or dies.
    pub fn lease_ends_at(&self) -> Option<Time> {
        self.membership.lease_ends_at()
    }

    /// Returns the counts of ignored messages.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns how many attempts and how many actors the worker has.
    pub fn load(&self) -> (usize, usize) {
        (self.attempts.len(), self.actors.len())
    }
}
