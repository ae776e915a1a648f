//! Membership: the sessions of clients and workers, their pings and leases, and what ends with a
//! session.

use super::credit::Credit;
use super::task::CancelReason;
use super::{Controller, Effect, Role, SessionEndCause, Timer};
use crate::hold::Holder;
use crate::id::{ActorId, ObjectId, Session, SessionEpoch, SessionId, TaskId};
use crate::lease::{GrantedLease, Pong};
use crate::map::Set;
use crate::message::{AttemptId, CancelMode, ToClient, ToWorker};
use crate::spec::Target;
use crate::time::Time;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// The record of an open session.
#[derive(Debug)]
pub(super) struct SessionRecord {
    pub session: Session,
    /// The number of the process's join request that opened the session.
    request: u64,
    pub is_worker: bool,
    /// Whether the session has a link. The controller sends nothing to a session without a link,
    /// not even pings; it only answers its requests.
    pub is_linked: bool,
    pub lease: GrantedLease,
    next_ping: Time,
    /// The sessions that learn when this one ends: hosts of its calls, clients of its actors.
    pub watchers: Set<SessionId>,
    /// The sessions whose end this one learns.
    pub watching: Set<SessionId>,
    /// The session's tasks that have not ended.
    pub tasks: Set<TaskId>,
    /// Objects that the session announced, and whose values it has not sent.
    pub announced: Set<ObjectId>,
    /// Answers, or items of them, that the session has announced with `Enclose` and that have not
    /// come.
    pub enclosing: Set<(AttemptId, Option<u32>)>,
    /// Actors whose place the session watches.
    pub watched_actors: Set<ActorId>,
    /// How much the session may submit, and how much it has pending.
    pub credit: Credit,
    /// The warnings that the session got. It gets each only once.
    pub warned: BTreeSet<String>,
    /// The client that is shown what the session's work prints.
    pub audience: Option<Arc<Session>>,
    /// The driver that the session belongs to: itself, or the driver of the task or actor that it
    /// runs for. `None` for a session that runs for a detached actor.
    pub driver: Option<Session>,
    /// Living actors of which this session is the driver.
    pub actors: Set<ActorId>,
}

impl Controller {
    /// Returns whether this session is open.
    pub fn is_alive(&self, session: Session) -> bool {
        self.sessions.get(&session.id).is_some_and(|member| member.session == session)
    }

    /// Returns whether this session is open and has a link, so that messages can be sent to it.
    pub(super) fn is_reachable(&self, session: Session) -> bool {
        let member = self.sessions.get(&session.id);
        member.is_some_and(|member| member.session == session && member.is_linked)
    }

    /// Returns whether this session is open. If it is over, counts its message as fenced and tells
    /// the process.
    pub(super) fn fence_unless_alive(
        &mut self,
        session: Session,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let alive = self.is_alive(session);
        if !alive {
            self.counters.fenced += 1;
            effects.push(Effect::Fence(session));
        }
        alive
    }

    pub(super) fn open_session(
        &mut self,
        now: Time,
        id: SessionId,
        request: u64,
        local: bool,
        role: Role,
        effects: &mut Vec<Effect>,
    ) {
        if let Some(member) = self.sessions.get(&id) {
            if member.request >= request {
                self.counters.stale += 1;
                return;
            }
            self.end_session(now, id, SessionEndCause::Replaced, effects);
        }
        if !self.lets_in(&role) {
            return;
        }
        let session = self.add_member(now, id, request, matches!(role, Role::Worker(_)), true);
        if !local {
            let first_ping = self.sessions[&id].next_ping;
            self.timers.insert((first_ping, Timer::CheckSession(id, session.epoch)));
        }
        effects.push(Effect::OpenSession(session));
        match role {
            Role::Client => self.extend_credit(id, effects),
            Role::Worker(info) => self.worker_joined(now, session, info),
        }
    }

    pub(super) fn add_member(
        &mut self,
        now: Time,
        id: SessionId,
        request: u64,
        is_worker: bool,
        is_linked: bool,
    ) -> Session {
        self.last_epoch = self.last_epoch.next();
        let session = Session { id, epoch: self.last_epoch };
        let member = SessionRecord {
            session,
            request,
            is_worker,
            is_linked,
            lease: GrantedLease::new(now),
            next_ping: now + self.ping_interval(),
            watchers: Set::default(),
            watching: Set::default(),
            tasks: Set::default(),
            announced: Set::default(),
            enclosing: Set::default(),
            watched_actors: Set::default(),
            credit: Credit::default(),
            warned: BTreeSet::new(),
            audience: None,
            driver: Some(session),
            actors: Set::default(),
        };
        self.sessions.insert(id, member);
        session
    }

    fn ping_interval(&self) -> Duration {
        let terms = &self.config.terms;
        if crate::planted!(SparsePings) { terms.lease / 3 } else { terms.ping_interval }
    }

    pub(super) fn heard(&mut self, now: Time, session: Session, pong: Pong) {
        let member = self.sessions.get_mut(&session.id).expect("the session is open");
        member.lease.pong(now, pong);
        if member.is_worker && member.lease.silent_since().is_none() {
            self.trust(session.id);
        }
    }

    /// Pings a session, suspects its worker, or ends it, as is due. Then sets the timer for the
    /// next check.
    pub(super) fn check_session(
        &mut self,
        now: Time,
        id: SessionId,
        epoch: SessionEpoch,
        effects: &mut Vec<Effect>,
    ) {
        let (terms, ping_interval) = (self.config.terms, self.ping_interval());
        let Some(member) =
            self.sessions.get_mut(&id).filter(|member| member.session.epoch == epoch)
        else {
            return;
        };
        let ends_at = member.lease.ends_at(&terms);
        if now >= ends_at {
            return self.end_session(now, id, SessionEndCause::LeaseOver, effects);
        }
        if !member.is_linked {
            self.timers.insert((ends_at, Timer::CheckSession(id, epoch)));
            return;
        }
        if now >= member.next_ping {
            member.next_ping = now + ping_interval;
            let ping = member.lease.new_ping(now);
            effects.push(Effect::Ping { to: member.session, ping });
        }
        let mut next = member.next_ping.min(ends_at);
        if let Some(since) = member.lease.silent_since() {
            let suspect_at = since + self.config.suspect_after;
            if now >= suspect_at {
                self.suspect(now, id, effects);
            } else {
                next = next.min(suspect_at);
            }
        }
        self.timers.insert((next, Timer::CheckSession(id, epoch)));
    }

    /// Ends a session. In this one step, its holds are released, its work as a worker is lost, and
    /// its tasks are stopped.
    pub(super) fn end_session(
        &mut self,
        now: Time,
        id: SessionId,
        cause: SessionEndCause,
        effects: &mut Vec<Effect>,
    ) {
        let member = self.sessions.remove(&id).expect("a session ends once");
        self.end_promises(&member.credit);
        self.sessions_awaiting_credit.retain(|starved| *starved != id);
        effects.push(Effect::EndSession { session: member.session, cause: cause.clone() });
        for host in &member.watchers {
            let watcher = self.sessions.get_mut(host).expect("an ended session watches nothing");
            watcher.watching.remove(&id);
            let (to, session) = (watcher.session, member.session);
            effects.push(if watcher.is_worker {
                Effect::ToWorker { to, message: ToWorker::SessionEnded { session } }
            } else {
                Effect::ToClient { to, message: ToClient::SessionEnded { session } }
            });
        }
        for watched in &member.watching {
            let watched = self.sessions.get_mut(watched).expect("an ended session is not watched");
            watched.watchers.remove(&id);
        }
        for actor in &member.watched_actors {
            if let Some(actor) = self.actors.get_mut(actor) {
                actor.watchers.remove(&member.session);
            }
        }
        if member.is_worker {
            self.worker_gone(now, id, &cause, effects);
        }
        let mut tasks: Vec<TaskId> = member.tasks.into_iter().collect();
        tasks.sort_unstable();
        for task in tasks {
            // A call is only asked to stop, not killed: its actor may belong to another session.
            let force = matches!(self.tasks[&task].spec.target, Target::Function(_));
            let mode = CancelMode::from_force(force);
            self.stop_task(now, task, CancelReason::ClientEnded, mode, effects);
        }
        let mut announced: Vec<ObjectId> = member.announced.into_iter().collect();
        announced.sort_unstable();
        for object in announced {
            self.never_resolved(now, object, effects);
        }
        for (call, item) in member.enclosing {
            let announcers =
                self.enclosed_answers.get_mut(&call).expect("the answer was announced");
            announcers.remove(&(item, id));
            if announcers.is_empty() {
                self.enclosed_answers.remove(&call);
            }
            let free = self.holds.release_all(Holder::Enclosed { call, item, by: id });
            self.queue_freed(free);
        }
        let free = self.holds.release_all(Holder::Session(id));
        self.queue_freed(free);
        self.freed_by = Some(cause);
        self.end_actors_of_driver(now, member.session, member.actors, effects);
        self.extend_credit_of_waiting(effects);
    }

    /// Returns whether a session is open. If it is, `watcher` learns when it ends.
    pub(super) fn watch(&mut self, watcher: Session, session: Session) -> bool {
        let alive = self.is_alive(session);
        if alive && watcher != session {
            self.sessions
                .get_mut(&session.id)
                .expect("the session is open")
                .watchers
                .insert(watcher.id);
            self.sessions
                .get_mut(&watcher.id)
                .expect("the session is open")
                .watching
                .insert(session.id);
        }
        alive
    }
}
