//! The controller's decisions: who is here, what runs where, what happens when somebody goes.
//!
//! One plain state, one function per event, effects through one door. The shell gives it events with
//! the time, and does what it says, in order:
//!
//! 1. [`Controller::handle`] for everything that happens; [`Controller::submit_for`] and its siblings
//!    for callers that have no link and want an answer.
//! 2. [`Controller::next_wake`] says when to come back with [`Event::TimePassed`].
//!
//! Where things are decided: membership in `session.rs`, workers in `worker.rs`, tasks in `task.rs`,
//! calls and actors in `actor.rs`, values and holds in `object.rs` and `object_record.rs`, whose stores have the data of large ones in
//! `stored.rs`, who brings it without being asked in
//! `bring.rs`, what makes it anew when it is lost in `lineage.rs`, what tasks give while they run in
//! `stream.rs`, placement in
//! [`schedule`](crate::schedule), callers without a link in `control.rs`, the end of it all in
//! `shut_down.rs`; what no worker here can run in `unrunnable.rs`; who is shown what work prints in `output.rs`. `query.rs`, `list.rs` and `list_objects.rs` only read; `waiting.rs` warns.

mod actor;
mod attempt;
mod call;
mod check;
mod client;
mod control;
mod copies;
mod credit;
mod cycle;
mod driver;
mod effect;
mod event;
mod lineage;
mod list;
mod list_objects;
mod object;
mod object_record;
mod output;
mod pull;
mod query;
mod session;
mod shut_down;
mod stream;
mod task;
#[cfg(test)]
mod tests;
mod unrunnable;
mod wait_reasons;
mod worker;

pub use actor::{ActorState, DeathCause};
pub use effect::{Effect, SessionEndCause};
pub use event::{Event, Role, WorkerInfo};
pub use list::TaskFilter;
pub use list_objects::{ObjectState, ObjectStatus};
pub use query::{ActorStatus, TaskState, TaskStatus, WorkerState, WorkerStatus};
pub use task::Owner;

use crate::error::Error;
use crate::hold::Holds;
use crate::id::{
    ActorEpoch, ActorId, Attempt, ControllerEpoch, ObjectId, Referent, SessionEpoch, SessionId,
    TaskId,
};
use crate::lease::LeaseTerms;
use crate::map::{Map, Set};
use crate::message::AttemptId;
use crate::random::Random;
use crate::schedule::{Demand, Schedule, Work};
use crate::table::Table;
use crate::time::Time;
use actor::Actor;
use credit::UnusedCredit;
use lineage::Lineage;
use object_record::ObjectRecord;
use pull::PendingPull;
use query::History;
use session::SessionRecord;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use task::Task;
use worker::WorkerRecord;

/// How a controller behaves. Every limit has its name here.
#[derive(Clone, Debug)]
pub struct Config {
    /// Leases and pings.
    pub terms: LeaseTerms,
    /// A worker that has not answered a ping for this long gets no new work.
    pub suspect_after: Duration,
    /// The most tasks that have not ended; submitting more waits, or is refused as `Exhausted`. A session
    /// may always have a few.
    pub max_pending_tasks: usize,
    /// The most bytes of arguments of tasks that have not ended and of actors that live. What is in stores does not count.
    pub max_pending_bytes: u64,
    /// The most of those bytes that the tasks of one session may have.
    pub max_session_bytes: u64,
    /// The most kinds of work that wait for a worker, by function and resources; more are refused as `Exhausted`.
    pub max_waiting_shapes: usize,
    /// The most actors that live; more are refused as `Exhausted`.
    pub max_actors: usize,
    /// How many submissions a client may send ahead of the controller's word.
    pub submit_window: u64,
    /// How many bytes of arguments; the last submission may exceed it.
    pub submit_window_bytes: u64,
    /// The most sessions that are open without a link; opening more is refused as `Exhausted`.
    pub max_unlinked_sessions: usize,
    /// How long results are kept that no session holds.
    pub result_ttl: Duration,
    /// The most bytes of results and put values; beyond it the oldest that no session holds go, and
    /// submissions wait.
    pub max_result_bytes: usize,
    /// The largest arguments, result or put value, in bytes.
    pub max_payload_bytes: usize,
    /// The most that arguments and the values that go along with them may have together, in bytes: they
    /// travel in one message.
    pub max_input_bytes: usize,
    /// The most bytes of tasks that are remembered so that they can make results anew whose data is lost.
    pub max_lineage_bytes: usize,
    /// How many ended tasks, and how many dead actors, can still be asked about.
    pub history: usize,
    /// A worker that could not start an executor gets no work for this long.
    pub full_pause: Duration,
    /// How long work waits that no worker here can run (none provides it, has its Python, or starts its executors) before
    /// it fails. While there is no worker at all, it waits without end.
    pub unknown_task_wait: Duration,
    /// Whoever asked for what no worker could ever run is told after this long, and it goes on waiting.
    pub warn_after: Duration,
    /// Which start of the controller this is; higher than any before it, so that no session of an
    /// earlier one is ever taken for one of this.
    pub epoch: ControllerEpoch,
    /// Where jitter comes from.
    pub seed: u64,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            terms: LeaseTerms::default(),
            suspect_after: Duration::from_secs(5),
            max_pending_tasks: 1_000_000,
            max_pending_bytes: 1 << 30,
            max_session_bytes: 512 << 20,
            max_waiting_shapes: 50_000,
            max_actors: 100_000,
            submit_window: 4_096,
            submit_window_bytes: 64 << 20,
            max_unlinked_sessions: 10_000,
            result_ttl: Duration::from_secs(600),
            max_result_bytes: 1 << 30,
            max_payload_bytes: 64 << 20,
            max_input_bytes: 72 << 20,
            max_lineage_bytes: 64 << 20,
            history: 10_000,
            full_pause: Duration::from_secs(1),
            unknown_task_wait: Duration::from_secs(60),
            warn_after: Duration::from_secs(10),
            epoch: ControllerEpoch(1),
            seed: 0,
        }
    }
}

/// Counts of what happened since the controller started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Tasks taken on.
    pub submitted: u64,
    /// Tasks that finished.
    pub finished: u64,
    /// Tasks that failed.
    pub failed: u64,
    /// Tasks that were cancelled.
    pub cancelled: u64,
    /// Attempts that were lost with their executor or worker.
    pub lost: u64,
    /// Attempts that workers gave back.
    pub refused: u64,
    /// Messages of sessions that were over.
    pub fenced: u64,
    /// Reports of attempts or instances that were not current.
    pub stale: u64,
}

/// When to do what.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Timer {
    /// Ping a session, suspect it, or end it.
    CheckSession(SessionId, SessionEpoch),
    /// Queue a task again.
    Retry(TaskId, Attempt),
    /// Queue an actor again.
    Restart(ActorId, ActorEpoch),
    /// Give a worker work again that could not start an executor.
    Reopen(SessionId, SessionEpoch),
    /// Drop results that nobody holds.
    ExpireResults,
    /// Warn of what cannot be placed.
    WarnUnplaced,
    /// Fail what no worker here can run.
    FailUnrunnable,
    /// Wait for workers no longer.
    ShutdownDeadline,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Controller {
    config: Config,
    random: Random,
    sessions: Map<SessionId, SessionRecord>,
    last_epoch: SessionEpoch,
    workers: Map<SessionId, WorkerRecord>,
    /// Whose slot it is in the schedule.
    session_by_index: Vec<SessionId>,
    schedule: Schedule,
    /// Boxed: a table of a million has room for two, and what is empty should be small.
    tasks: Map<TaskId, Box<Task>>,
    /// How many of them wait for values.
    tasks_missing_values: usize,
    history: History,
    objects: Table<ObjectId, ObjectRecord>,
    object_bytes: usize,
    holds: Holds,
    /// Tasks that can run again.
    lineage: Lineage,
    /// Data that somebody brings who was told to.
    pulls: Map<ObjectId, PendingPull>,
    /// What was saved and is to be read, when there is a worker that can.
    saved_to_pull: Set<ObjectId>,
    /// What was saved and is to be erased, when there is a worker that can.
    to_erase: Vec<ObjectId>,
    /// Answers that are about to come, and which sessions said so.
    enclosed_answers: Map<AttemptId, BTreeSet<(Option<u32>, SessionId)>>,
    /// Results that only the cluster holds, oldest first, with when they go.
    expiring_results: VecDeque<(Time, ObjectId)>,
    actors: Map<ActorId, Actor>,
    dead_actors: VecDeque<ActorId>,
    /// Things that nobody holds any more, and work whose values came or never will, to be seen to before
    /// an event is done with. Lists, so that a long chain does not take a deep stack.
    freed_referents: Vec<Referent>,
    /// Why that is, if a session has ended with them.
    freed_by: Option<SessionEndCause>,
    resolved_work: VecDeque<(Work, Result<(), Error>)>,
    names: BTreeMap<(Arc<str>, Arc<str>), ActorId>,
    timers: BTreeSet<(Time, Timer)>,
    /// Bytes of arguments of tasks that have not ended and of actors that live.
    pending_bytes: u64,
    /// The unused promises of all clients.
    promised: UnusedCredit,
    /// Clients that were promised less than they may have.
    sessions_awaiting_credit: VecDeque<SessionId>,
    /// Whether it is planned to look for what cannot be placed.
    warn_planned: bool,
    /// Demands that no worker here can run, each with the time since when; `fail_planned` while a look at them is planned.
    unrunnable_since: Map<Demand, Time>,
    fail_planned: bool,
    /// Whether it is about to end, and whether it said that it may.
    shutting_down: bool,
    exit_allowed: bool,
    counters: Counters,
}

impl Controller {
    /// A controller that knows nobody yet.
    pub fn new(config: Config) -> Controller {
        let last_epoch = SessionEpoch::first_of(config.epoch);
        Controller {
            random: Random::new(config.seed),
            history: History::new(config.history),
            config,
            sessions: Map::default(),
            last_epoch,
            workers: Map::default(),
            session_by_index: Vec::new(),
            schedule: Schedule::default(),
            tasks: Map::default(),
            tasks_missing_values: 0,
            objects: Table::default(),
            object_bytes: 0,
            holds: Holds::default(),
            lineage: Lineage::default(),
            pulls: Map::default(),
            saved_to_pull: Set::default(),
            to_erase: Vec::new(),
            enclosed_answers: Map::default(),
            expiring_results: VecDeque::new(),
            actors: Map::default(),
            dead_actors: VecDeque::new(),
            freed_referents: Vec::new(),
            freed_by: None,
            resolved_work: VecDeque::new(),
            names: BTreeMap::new(),
            timers: BTreeSet::new(),
            pending_bytes: 0,
            promised: UnusedCredit::default(),
            sessions_awaiting_credit: VecDeque::new(),
            warn_planned: false,
            unrunnable_since: Map::default(),
            fail_planned: false,
            shutting_down: false,
            exit_allowed: false,
            counters: Counters::default(),
        }
    }

    /// Something happened.
    pub fn handle(&mut self, now: Time, event: Event, effects: &mut Vec<Effect>) {
        match event {
            Event::JoinRequested { id, request, local, role } => {
                self.open_session(now, id, request, local, role, effects);
            }
            Event::SessionClosed { session } => {
                if self.fence_unless_alive(session, effects) {
                    self.end_session(now, session.id, SessionEndCause::Closed, effects);
                }
            }
            Event::ProcessDied { session, how } => {
                if self.is_alive(session) {
                    self.end_session(now, session.id, SessionEndCause::Died(how), effects);
                }
            }
            Event::PongReceived { session, pong } => {
                if self.fence_unless_alive(session, effects) {
                    self.heard(now, session, pong);
                }
            }
            Event::ClientMessageReceived { session, message } => {
                if self.fence_unless_alive(session, effects) {
                    self.handle_client_message(now, session, message, effects);
                }
            }
            Event::WorkerMessageReceived { session, message } => {
                let stale = crate::planted!(StaleResultAccepted);
                if stale && self.accept_stale(now, session, &message, effects) {
                    return;
                }
                if self.fence_unless_alive(session, effects) {
                    self.handle_worker_message(now, session, message, effects);
                }
            }
            Event::TimePassed => self.time_passed(now, effects),
        }
        self.dispatch(now, effects);
        self.exit_if_no_workers(effects);
    }

    /// When [`Event::TimePassed`] is due.
    pub fn next_wake(&self) -> Option<Time> {
        self.timers.first().map(|(time, _)| *time)
    }

    /// What happened so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// How it behaves.
    pub fn config(&self) -> &Config {
        &self.config
    }

    fn time_passed(&mut self, now: Time, effects: &mut Vec<Effect>) {
        while let Some((time, timer)) = self.timers.first().copied() {
            if time > now {
                return;
            }
            self.timers.pop_first();
            match timer {
                Timer::CheckSession(id, epoch) => self.check_session(now, id, epoch, effects),
                Timer::Retry(task, attempt) => self.retry(now, task, attempt, effects),
                Timer::Restart(actor, epoch) => self.restart_is_due(actor, epoch),
                Timer::Reopen(id, epoch) => self.reopen(now, id, epoch),
                Timer::ExpireResults => self.expire_results(now),
                Timer::WarnUnplaced => self.warn(now, effects),
                Timer::FailUnrunnable => self.fail_unknown(now, effects),
                Timer::ShutdownDeadline => self.allow_exit(effects),
            }
        }
    }
}
