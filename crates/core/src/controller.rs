//! The controller's decisions: which sessions are open, which worker runs which work, and what
//! happens to that work when a session ends.
//!
//! The controller is one plain state with one function per event. The shell passes each event and
//! the current time in, and carries out the effects in their order:
//!
//! 1. [`Controller::handle`] takes everything that happens. [`Controller::submit_for`] and its
//!    siblings serve callers that have no link and want an answer.
//! 2. [`Controller::next_wake`] returns when the shell must pass [`Event::TimePassed`].
//!
//! The modules, in reading order:
//!
//! - `event.rs`: what happens to the controller.
//! - `effect.rs`: what the controller asks of its shell.
//! - `session.rs`: membership: opening, pinging and ending sessions.
//! - `inbox.rs`: passes each message of a client or a worker to the module that decides about it.
//! - `unlinked.rs`: requests of callers that have no link.
//! - `worker.rs`: workers: joining, suspicion, draining, loss.
//! - `task.rs`: tasks: submission, dispatch, cancellation, and their one end.
//! - `attempt.rs`: attempts: assignment, start, end, refusal, loss, retries.
//! - `cycle.rs`: refuses a submission that would wait for its own results.
//! - `credit.rs`: back-pressure: how much each client may submit.
//! - `actor.rs`: actors and their instances: creation, restarts, checkpoints, death.
//! - `call.rs`: calls that go through the controller: their numbers, their order, their loss.
//! - `object.rs`: values and holds: put, fetch, hold, release, expire.
//! - `object_record.rs`: the record that the controller keeps of one object.
//! - `copies.rs`: which workers' stores have the data of which objects.
//! - `pull.rs`: pulls that the controller starts itself: away from draining workers, and of durable
//!   data that is in no store.
//! - `lineage.rs`: which tasks can run again to recompute results whose data is lost.
//! - `stream.rs`: the items that tasks and calls yield while they run.
//! - `driver.rs`: which driver work belongs to, and which actors end with it.
//! - `output.rs`: which client is shown what work prints.
//! - `wait_reasons.rs`: why work waits, and warnings about work that no worker could ever run.
//! - `unrunnable.rs`: fails work that no worker here can run.
//! - `shut_down.rs`: the orderly end of the controller.
//! - `query.rs`: the status of tasks, actors and workers, and the history of ended tasks.
//! - `list.rs`: lists of tasks and actors, newest first.
//! - `list_objects.rs`: the list of objects, largest first.
//! - `check.rs`: the invariants that hold after every event.
//!
//! Placement is decided in [`schedule`](crate::schedule).

mod actor;
mod attempt;
mod call;
mod check;
mod copies;
mod credit;
mod cycle;
mod driver;
mod effect;
mod event;
mod inbox;
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
mod unlinked;
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
use crate::recent_events::{EventSummary, RecentEvents};
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

/// The settings of a controller. Every limit is named here.
#[derive(Clone, Debug)]
pub struct Config {
    /// The lengths of leases and the intervals of pings.
    pub terms: LeaseTerms,
    /// A worker that has not answered a ping for this long gets no new work.
    pub suspect_after: Duration,
    /// The most tasks that have not ended. A further submission waits, or fails as `Exhausted`.
    /// Each session may have a few tasks pending even beyond the limit.
    pub max_pending_tasks: usize,
    /// The most bytes of arguments of tasks that have not ended and of living actors. Data in
    /// stores does not count.
    pub max_pending_bytes: u64,
    /// The most bytes of arguments of the tasks of one session that have not ended.
    pub max_session_bytes: u64,
    /// The most kinds of work, by function and resources, that wait for a worker. Work of a further
    /// kind fails as `Exhausted`.
    pub max_waiting_shapes: usize,
    /// The most living actors. Creating more fails as `Exhausted`.
    pub max_actors: usize,
    /// The most submissions that a client may send before the controller promises room for more.
    pub submit_window: u64,
    /// The most bytes of arguments that a client may send before the controller promises room for
    /// more. The last submission may exceed it.
    pub submit_window_bytes: u64,
    /// The most open sessions without a link. Opening more fails as `Exhausted`.
    pub max_unlinked_sessions: usize,
    /// How long the controller keeps results that no session holds.
    pub result_ttl: Duration,
    /// The most bytes of results and put values. Beyond it, the oldest results that no session
    /// holds are dropped, and submissions wait.
    pub max_result_bytes: usize,
    /// The largest arguments, result or put value, in bytes.
    pub max_payload_bytes: usize,
    /// The most bytes of arguments together with the values that are sent along with them. They
    /// travel in one message.
    pub max_input_bytes: usize,
    /// The most bytes of ended tasks in the lineage, which can run again to recompute lost results.
    pub max_lineage_bytes: usize,
    /// How many ended tasks, and how many dead actors, can still be queried.
    pub history: usize,
    /// How long a worker that could not start an executor gets no work.
    pub full_pause: Duration,
    /// How long work waits that no worker here can run before it fails. No worker can run work if
    /// none provides it, none has its Python version, or none can start its executors. While there
    /// is no worker at all, work waits without end.
    pub unknown_task_wait: Duration,
    /// How long work that no worker could ever run waits before the controller warns the sessions
    /// that asked for it. The work goes on waiting.
    pub warn_after: Duration,
    /// The number of this start of the controller. It is higher than that of any earlier start, so
    /// that a session of an earlier start never passes for one of this start.
    pub epoch: ControllerEpoch,
    /// The seed of all jitter.
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

/// Counts of events since the controller started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Tasks that were admitted.
    pub submitted: u64,
    /// Tasks that finished.
    pub finished: u64,
    /// Tasks that failed.
    pub failed: u64,
    /// Tasks that were cancelled.
    pub cancelled: u64,
    /// Attempts that were lost with their executor or worker.
    pub lost: u64,
    /// Attempts that workers refused.
    pub refused: u64,
    /// Messages from sessions that were over.
    pub fenced: u64,
    /// Reports about attempts or instances that were not current, and join requests that were
    /// overtaken.
    pub stale: u64,
}

/// An action that is due at a certain time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Timer {
    /// Ping a session, suspect it, or end it.
    CheckSession(SessionId, SessionEpoch),
    /// Queue a task again.
    Retry(TaskId, Attempt),
    /// Queue an actor again.
    Restart(ActorId, ActorEpoch),
    /// Give work again to a worker that could not start an executor.
    Reopen(SessionId, SessionEpoch),
    /// Drop results that only the cluster holds and whose time is over.
    ExpireResults,
    /// Warn of work that cannot be placed.
    WarnUnplaced,
    /// Fail work that no worker here can run.
    FailUnrunnable,
    /// Shut down without waiting for workers any longer.
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
    /// The worker that has each index in the schedule.
    session_by_index: Vec<SessionId>,
    schedule: Schedule,
    /// Boxed, since a map of a million entries has room for two million and its empty places should
    /// be small.
    tasks: Map<TaskId, Box<Task>>,
    /// How many of `tasks` wait for values.
    tasks_missing_values: usize,
    history: History,
    objects: Table<ObjectId, ObjectRecord>,
    object_bytes: usize,
    holds: Holds,
    /// Ended tasks that can run again.
    lineage: Lineage,
    /// Data that a worker pulls because the controller told it to.
    pulls: Map<ObjectId, PendingPull>,
    /// Objects whose data was saved and is to be pulled, as soon as a worker can.
    saved_to_pull: Set<ObjectId>,
    /// Objects whose saved data is to be erased, as soon as a worker can.
    to_erase: Vec<ObjectId>,
    /// Attempts whose answer, or one of its items (by index), is on its way, and the sessions that
    /// announced it with `Enclose`.
    enclosed_answers: Map<AttemptId, BTreeSet<(Option<u32>, SessionId)>>,
    /// Results that only the cluster holds, oldest first, each with the time at which it is
    /// dropped.
    expiring_results: VecDeque<(Time, ObjectId)>,
    actors: Map<ActorId, Actor>,
    dead_actors: VecDeque<ActorId>,
    /// Objects and actors whose last hold went. Like `resolved_work`, this list is emptied before
    /// the controller is done with an event. A list, so that a long chain does not take a deep
    /// stack.
    freed_referents: Vec<Referent>,
    /// Why the session ended whose end freed them, if it was the end of a session.
    freed_by: Option<SessionEndCause>,
    /// Work one of whose values was resolved, each with whether there is a value.
    resolved_work: VecDeque<(Work, Result<(), Error>)>,
    names: BTreeMap<(Arc<str>, Arc<str>), ActorId>,
    timers: BTreeSet<(Time, Timer)>,
    /// Bytes of arguments of tasks that have not ended and of living actors.
    pending_bytes: u64,
    /// The unused promises to all clients.
    promised: UnusedCredit,
    /// Clients that were promised less than they may have.
    sessions_awaiting_credit: VecDeque<SessionId>,
    /// Whether a [`Timer::WarnUnplaced`] is set.
    warn_planned: bool,
    /// Demands that no worker here can run, each with the time since which that is so.
    unrunnable_since: Map<Demand, Time>,
    /// Whether a [`Timer::FailUnrunnable`] is set.
    fail_planned: bool,
    /// Whether the controller is about to end.
    shutting_down: bool,
    /// Whether the controller has pushed [`Effect::AllowExit`].
    exit_allowed: bool,
    counters: Counters,
    recent: RecentEvents,
}

impl Controller {
    /// Returns a controller without sessions.
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
            recent: RecentEvents::default(),
        }
    }

    /// Handles one event, and pushes the effects that the shell is to carry out.
    pub fn handle(&mut self, now: Time, event: Event, effects: &mut Vec<Effect>) {
        self.recent.note(now, event.summary());
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

    /// Adds a request of a caller without a link to the last events.
    pub fn note_request(&mut self, now: Time, request: EventSummary) {
        self.recent.note(now, request);
    }

    /// Returns the last events that this machine handled, oldest first.
    pub fn recent_events(&self) -> impl Iterator<Item = (Time, EventSummary)> {
        self.recent.iter()
    }

    /// Returns when [`Event::TimePassed`] is due.
    pub fn next_wake(&self) -> Option<Time> {
        self.timers.first().map(|(time, _)| *time)
    }

    /// Returns the counts of events so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns the settings.
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
                Timer::Restart(actor, epoch) => self.restart_delay_over(actor, epoch),
                Timer::Reopen(id, epoch) => self.reopen(now, id, epoch),
                Timer::ExpireResults => self.expire_results(now),
                Timer::WarnUnplaced => self.warn(now, effects),
                Timer::FailUnrunnable => self.fail_unrunnable(now, effects),
                Timer::ShutdownDeadline => self.allow_exit(effects),
            }
        }
    }
}
