//! A client's decisions: what it may submit, where its calls go, what it holds, when it gives up.
//!
//! Tasks go through the controller, which reports their ends. Calls go straight to the worker that
//! hosts the actor (the *host*). They are numbered per instance and sent in the order in which the
//! user made them. A call that was sent is settled when its host answers, or when the controller
//! says that the host's session is over. Until then no later call goes to another instance, so the
//! order holds across restarts. A call that certainly did not run is sent again. A call that may
//! have run is sent again only if the actor's options allow it.
//!
//! The order of use: [`Client::handle`] for each event, the other methods for the requests of the
//! user. The shell does the effects in order.
//!
//! - `inbox.rs`: passes each message to the file that decides about it
//! - `session.rs`: membership
//! - `task.rs`: tasks and values; `stream.rs`: yielded items
//! - `call.rs`: actors and calls
//! - `handle.rs`: handles

mod call;
mod check;
mod effect;
mod event;
mod handle;
mod inbox;
mod session;
mod stream;
mod task;
#[cfg(test)]
mod tests;

pub use effect::Effect;
pub use event::Event;

use crate::id::{ActorEpoch, ActorId, ControllerEpoch, ObjectId, Referent, Session, TaskId};
use crate::map::{Map, Set};
use crate::membership::Membership;
use crate::message::AttemptId;
use crate::recent_events::{EventSummary, RecentEvents};
use crate::time::Time;
use call::{ActorView, Call};
use std::collections::BTreeSet;
use std::sync::Arc;
use stream::StreamState;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Timer {
    /// The lease ends.
    Lease,
    /// The deadline of a call.
    Call(TaskId),
}

/// The state machine of a client. See the [module](self).
#[derive(Debug, Default)]
pub struct Client {
    /// The address of the cluster, for messages to the user. `None` for a cluster in this process.
    address: Option<Arc<str>>,
    membership: Membership,
    /// The epoch of the controller of the session before this one.
    former: Option<ControllerEpoch>,
    /// Whether the user is shown the output of the client's work, also in later sessions.
    shows_output: bool,
    /// How many submissions the controller has granted in all. `submitted` is how many were made.
    task_credit: u64,
    submitted: u64,
    /// How many bytes of arguments the controller has granted in all. `submitted_bytes` is how many
    /// were submitted.
    promised_bytes: u64,
    submitted_bytes: u64,
    /// The tasks that have not ended, and the calls that went through the controller and have not
    /// ended.
    tasks: Set<TaskId>,
    /// The streams of tasks and calls that have not ended.
    streams: Map<TaskId, StreamState>,
    /// The objects whose values were requested.
    fetching: Set<ObjectId>,
    /// The objects whose copies were requested.
    locating: Set<ObjectId>,
    /// The actors whose creation was requested. `finding` has the requests for actors by name.
    creating: Set<ActorId>,
    finding: BTreeSet<u64>,
    /// The actors for whose first instance the user waits.
    first_instance_waiters: Set<ActorId>,
    actors: Map<ActorId, ActorView>,
    calls: Map<TaskId, Call>,
    /// The epoch of each actor's latest instance, and the number of its next call.
    numbered: Map<ActorId, (ActorEpoch, u64)>,
    /// Calls that were given up while a worker had them. The answer may still name referents.
    abandoned: Map<AttemptId, Session>,
    /// Calls that were given up while the controller had them. They may still run until the
    /// controller reports their end, and direct calls must not overtake them.
    late: Map<TaskId, ActorId>,
    /// The workers to which this client has a link, and the addresses at which they listen.
    hosts: Map<Session, Arc<str>>,
    /// The number of handles to each referent.
    handles: Map<Referent, u32>,
    /// The number of calls and requests in progress that need each referent.
    in_use: Map<Referent, u32>,
    timers: BTreeSet<(Time, Timer)>,
    recent: RecentEvents,
}

impl Client {
    /// Creates a client that has not joined yet.
    pub fn new() -> Client {
        Client::default()
    }

    /// Creates a client that has not joined yet. Messages to the user name the cluster by this
    /// address.
    pub fn of(address: Arc<str>) -> Client {
        Client { address: Some(address), ..Client::default() }
    }

    /// Sets the address of the controller of the next session.
    pub fn set_address(&mut self, address: Arc<str>) {
        self.address = Some(address);
    }

    /// Handles an event. Appends its effects to `effects`.
    pub fn handle(&mut self, now: Time, event: Event, effects: &mut Vec<Effect>) {
        self.recent.note(now, event.summary());
        if self.membership.lease_is_over(now) {
            self.stop("cannot be reached any more: it was silent for too long", effects);
        }
        match event {
            Event::Joined { session, terms, asked_at } => {
                self.joined(now, session, terms, asked_at, effects)
            }
            Event::PingReceived { session, ping } => {
                let timers = &mut self.timers;
                let pong = self.membership.answer_ping(now, session, ping, timers, Timer::Lease);
                effects.extend(pong.map(Effect::Pong));
            }
            Event::Fenced { session } => {
                if self.membership.is_of(session) {
                    self.stop("has ended, or has ended the session of this client", effects);
                }
            }
            Event::ControllerMessageReceived { session, message } => {
                if self.membership.is_of(session) {
                    self.handle_controller_message(message, effects);
                }
            }
            Event::HostMessageReceived { host, message } => {
                if self.hosts.contains_key(&host) {
                    self.handle_host_message(host, message, effects);
                }
            }
            Event::HostClosed { host, unsent } => self.host_closed(host, &unsent, effects),
            Event::TimePassed => self.time_passed(now, effects),
        }
    }

    fn time_passed(&mut self, now: Time, effects: &mut Vec<Effect>) {
        while let Some((time, timer)) = self.timers.first().copied() {
            if time > now {
                return;
            }
            self.timers.pop_first();
            match timer {
                Timer::Lease => {} // `handle` checks the lease before anything else.
                Timer::Call(call) => self.call_is_late(now, call, effects),
            }
        }
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

    /// Returns how many tasks, calls and requests for values and copies have not ended.
    pub fn outstanding(&self) -> usize {
        self.tasks.len() + self.calls.len() + self.fetching.len() + self.locating.len()
    }
}
