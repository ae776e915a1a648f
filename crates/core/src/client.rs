//! A client's decisions: what it may submit, which calls go where, what is held, when to give up.
//!
//! Tasks go through the controller, which answers for them. Calls go straight to the worker that hosts
//! the actor, numbered per instance and sent in the order in which they were made. A call that was sent
//! is settled by that host's word, or by the controller's word that the host's session is over; until
//! then no later call goes to another instance, so the order holds across restarts. A call that
//! certainly never ran is sent again; one that may have run only if the actor allows it.
//!
//! The order of use: [`Client::handle`] for what happens, the other methods for what the user wants;
//! effects are done in order. Where things are decided: `session.rs` membership, `task.rs` tasks and
//! values, `stream.rs` what they give while they run, `call.rs` actors and calls, `handle.rs` handles.

mod call;
mod check;
mod effect;
mod event;
mod handle;
mod session;
mod stream;
mod task;
#[cfg(test)]
mod tests;

pub use effect::Effect;
pub use event::Event;

use crate::id::{ActorEpoch, ActorId, ControllerEpoch, ObjectId, Referent, Session, TaskId};
use crate::lease::HeldLease;
use crate::map::{Map, Set};
use crate::message::{AttemptId, ToClient};
use crate::time::Time;
use call::{ActorView, Call};
use std::collections::BTreeSet;
use std::sync::Arc;
use stream::StreamState;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Timer {
    /// The lease is over.
    Lease,
    /// A call's deadline.
    Call(TaskId),
}

/// See the [module](self).
#[derive(Debug, Default)]
pub struct Client {
    /// Where its cluster is, if that is elsewhere: for what its user is told.
    address: Option<Arc<str>>,
    session: Option<Session>,
    /// The controller of the session before this one.
    former: Option<ControllerEpoch>,
    lease: Option<HeldLease>,
    /// Whether its user looks at what its work prints: in the sessions that follow, too.
    shows_output: bool,
    /// How many submissions were promised room, and how many were made.
    task_credit: u64,
    submitted: u64,
    /// How many bytes of arguments were promised room, and how many were submitted.
    promised_bytes: u64,
    submitted_bytes: u64,
    /// Tasks that have not ended.
    tasks: Set<TaskId>,
    /// Those tasks and calls among them that give items while they run.
    streams: Map<TaskId, StreamState>,
    /// Objects that were asked for.
    fetching: Set<ObjectId>,
    /// Objects whose data is looked for.
    locating: Set<ObjectId>,
    /// Actors asked for by name or to be created.
    creating: Set<ActorId>,
    finding: BTreeSet<u64>,
    /// Actors whose first instance its user waits for: it is ready, or there will be none.
    births: Set<ActorId>,
    actors: Map<ActorId, ActorView>,
    calls: Map<TaskId, Call>,
    /// The number of the next call to each actor's instance.
    numbered: Map<ActorId, (ActorEpoch, u64)>,
    /// Calls that were given up while a worker had them: its answer may still name things.
    abandoned: Map<AttemptId, Session>,
    /// Calls that were given up while the controller saw to them: until it has said how they ended, they may
    /// still run, and those that go direct must not overtake them.
    late: Map<TaskId, ActorId>,
    /// Workers that were spoken to, and where they listen.
    hosts: Map<Session, Arc<str>>,
    /// How many handles there are to each thing.
    handles: Map<Referent, u32>,
    /// How many calls and fetches that have not ended need each thing.
    in_use: Map<Referent, u32>,
    timers: BTreeSet<(Time, Timer)>,
}

impl Client {
    /// A client that has not joined yet.
    pub fn new() -> Client {
        Client::default()
    }

    /// The same; its user is told of the cluster by this address.
    pub fn of(address: Arc<str>) -> Client {
        Client { address: Some(address), ..Client::default() }
    }

    /// Its next session is of a controller at this address.
    pub fn set_address(&mut self, address: Arc<str>) {
        self.address = Some(address);
    }

    /// Something happened.
    pub fn handle(&mut self, now: Time, event: Event, effects: &mut Vec<Effect>) {
        if self.lease.as_ref().is_some_and(|lease| lease.is_over(now)) {
            self.stop("cannot be reached any more: it was not heard for too long", effects);
        }
        match event {
            Event::Joined { session, terms, asked_at } => {
                self.joined(now, session, terms, asked_at, effects)
            }
            Event::PingReceived { session, ping } => self.pinged(now, session, ping, effects),
            Event::Fenced { session } => {
                if self.session == Some(session) {
                    self.stop("has ended, or has ended the session of this client", effects);
                }
            }
            Event::ControllerSaid { session, message } => {
                if self.session == Some(session) {
                    self.controller_said(message, effects);
                }
            }
            Event::HostMessageReceived { host, message } => {
                if self.hosts.contains_key(&host) {
                    self.host_said(host, message, effects);
                }
            }
            Event::HostClosed { host, unsent } => self.host_closed(host, &unsent, effects),
            Event::TimePassed => self.time_passed(now, effects),
        }
    }

    fn controller_said(&mut self, message: ToClient, effects: &mut Vec<Effect>) {
        match message {
            ToClient::Credit { tasks, bytes } => {
                self.task_credit = self.task_credit.max(tasks);
                self.promised_bytes = self.promised_bytes.max(bytes);
                effects.push(Effect::CreditGranted);
            }
            ToClient::TaskEnded { task, outcome } => self.task_ended(task, outcome, effects),
            ToClient::Yielded { task, index, value } => self.yielded(task, index, value, effects),
            ToClient::ObjectReady { object, value } => {
                if self.fetching.remove(&object) {
                    effects.push(Effect::ObjectReady { object, value });
                    self.end_use(Referent::Object(object), effects);
                }
            }
            ToClient::Located { object, copies } => {
                if self.locating.remove(&object) {
                    effects.push(Effect::Located { object, copies });
                    self.end_use(Referent::Object(object), effects);
                }
            }
            ToClient::ActorCreated { requested, actor } => {
                self.actor_created(requested, actor, effects);
            }
            ToClient::ActorFound { request, actor } => self.actor_found(request, actor, effects),
            ToClient::ActorChanged { actor, place } => self.actor_changed(actor, place, effects),
            ToClient::SessionEnded { session } => {
                if self.hosts.contains_key(&session) {
                    effects.push(Effect::CloseHost { host: session });
                }
            }
            ToClient::Synced { request } => effects.push(Effect::Synced { request }),
            ToClient::Warning { words } => effects.push(Effect::Warn(words)),
            ToClient::Printed(shown) => effects.push(Effect::Show(shown)),
        }
    }

    fn time_passed(&mut self, now: Time, effects: &mut Vec<Effect>) {
        while let Some((time, timer)) = self.timers.first().copied() {
            if time > now {
                return;
            }
            self.timers.pop_first();
            match timer {
                Timer::Lease => {} // `handle` looks at the lease before anything else.
                Timer::Call(call) => self.call_is_late(now, call, effects),
            }
        }
    }

    /// When [`Event::TimePassed`] is due.
    pub fn next_wake(&self) -> Option<Time> {
        self.timers.first().map(|(time, _)| *time)
    }

    /// The session it speaks under.
    pub fn session(&self) -> Option<Session> {
        self.session
    }

    /// How much has not ended: tasks, calls, fetches.
    pub fn outstanding(&self) -> usize {
        self.tasks.len() + self.calls.len() + self.fetching.len() + self.locating.len()
    }
}
