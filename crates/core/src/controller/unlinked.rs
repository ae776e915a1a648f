//! Requests of callers without a link. Each request is answered at once.
//!
//! Such a caller may open a session. The controller sends nothing to that session, and does not
//! ping it. The lease runs, at the controller, from the arrival of the last request that renewed
//! it, and, at the caller, from the moment at which it sent that request. When the lease is over,
//! the session ends and all its holds are released. Tasks and actors of a caller without a session
//! belong to the cluster.

use super::{Controller, Effect, Owner, SessionEndCause, Timer};
use crate::error::Error;
use crate::hold::Holder;
use crate::id::{ActorId, Referent, Session, SessionId, TaskId};
use crate::message::CancelMode;
use crate::spec::{ActorSpec, Target, TaskSpec};
use crate::time::Time;
use std::sync::Arc;
use std::time::Duration;

impl Controller {
    /// Opens a session without a link. Opening a session that is open already renews it.
    pub fn open_unlinked(
        &mut self,
        now: Time,
        id: SessionId,
        effects: &mut Vec<Effect>,
    ) -> Result<Session, Error> {
        if let Some(member) = self.sessions.get(&id) {
            if member.is_linked {
                return Err(Error::already_exists(format!(
                    "session {id} belongs to a process that joined: open one with another id, or without one"
                )));
            }
            let session = member.session;
            if self.keep_alive(now, session, effects).is_ok() {
                return Ok(session);
            }
        }
        let open = self.sessions.values().filter(|member| !member.is_linked).count();
        let limit = self.config.max_unlinked_sessions;
        if open >= limit {
            return Err(Error::exhausted(format!(
                "{open} sessions without a link are open, the limit is {limit} \
                 (max_unlinked_sessions): close some, or wait for their leases"
            )));
        }
        let session = self.add_member(now, id, 0, false, false);
        let ends_at = now + self.config.terms.lease;
        self.timers.insert((ends_at, Timer::CheckSession(id, session.epoch)));
        Ok(session)
    }

    /// Renews a session without a link. Returns for how long.
    pub fn keep_alive(
        &mut self,
        now: Time,
        session: Session,
        effects: &mut Vec<Effect>,
    ) -> Result<Duration, Error> {
        self.check_unlinked(now, session, effects)?;
        self.sessions.get_mut(&session.id).expect("the session is open").lease.renew(now);
        Ok(self.config.terms.lease)
    }

    /// Ends a session without a link, and releases all its holds.
    pub fn close_unlinked(
        &mut self,
        now: Time,
        session: Session,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Error> {
        self.check_unlinked(now, session, effects)?;
        self.end_session(now, session.id, SessionEndCause::Closed, effects);
        self.dispatch(now, effects);
        Ok(())
    }

    /// Submits a task or a call for a session without a link, or for the cluster. A task that was
    /// submitted before does not run again; the session holds its results from now on.
    pub fn submit_for(
        &mut self,
        now: Time,
        session: Option<Session>,
        spec: Arc<TaskSpec>,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Error> {
        let owner = self.owner_for(now, session, effects)?;
        if self.tasks.contains_key(&spec.id) || self.has_ended(spec.id) {
            if let Owner::Session(session) = owner {
                let known = self.tasks.get(&spec.id).map(|task| task.spec.clone());
                let results = known.unwrap_or(spec).results_to_hold();
                self.hold_all(Holder::Session(session.id), results);
            }
            return Ok(());
        }
        spec.validate()?;
        self.check_room(owner, spec.args.len())?;
        if let Target::Method { actor, .. } = spec.target {
            self.check_takes_calls(actor)?;
        }
        self.submit(now, owner, spec, effects)
    }

    /// Creates an actor for a session without a link or for the cluster, or finds the one that has
    /// its name. Returns the actor, and whether it is new.
    pub fn create_for(
        &mut self,
        now: Time,
        session: Option<Session>,
        spec: Arc<ActorSpec>,
        effects: &mut Vec<Effect>,
    ) -> Result<(ActorId, bool), Error> {
        let owner = self.owner_for(now, session, effects)?;
        let (id, was_known) = (spec.id, self.actors.contains_key(&spec.id));
        let actor = self.create_actor(now, owner, spec, effects)?;
        Ok((actor, actor == id && !was_known))
    }

    /// Cancels a task. Returns `false` if the task had ended already.
    pub fn cancel_for(
        &mut self,
        now: Time,
        id: TaskId,
        force: bool,
        effects: &mut Vec<Effect>,
    ) -> Result<bool, Error> {
        if !self.tasks.contains_key(&id) && !self.has_ended(id) {
            self.task_status(id)?;
        }
        let had_not_ended = self.cancel(now, id, CancelMode::from_force(force), effects);
        self.dispatch(now, effects);
        Ok(had_not_ended)
    }

    /// Asks for [`Effect::WakeTaskWaiters`] when a task ends. Returns `false`, and pushes no
    /// effect, if the task has ended already.
    pub fn await_task(&mut self, id: TaskId) -> Result<bool, Error> {
        if let Some(task) = self.tasks.get_mut(&id) {
            task.awaited = true;
            return Ok(true);
        }
        if !self.has_ended(id) {
            self.task_status(id)?;
        }
        Ok(false)
    }

    /// Returns the owner of new work: the session, or else the cluster.
    fn owner_for(
        &mut self,
        now: Time,
        session: Option<Session>,
        effects: &mut Vec<Effect>,
    ) -> Result<Owner, Error> {
        let Some(session) = session else { return Ok(Owner::Cluster) };
        self.check_unlinked(now, session, effects)?;
        Ok(Owner::Session(session))
    }

    /// Fails if a request may not use this session: it has a link, or it is over. A session whose
    /// lease is over at this moment ends now.
    fn check_unlinked(
        &mut self,
        now: Time,
        session: Session,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Error> {
        let member = self.sessions.get(&session.id).filter(|member| member.session == session);
        if let Some(member) = member {
            if member.is_linked {
                return Err(Error::invalid(format!(
                    "session {session} has a link, and may only use that: open a session of your own"
                )));
            }
            if now < member.lease.ends_at(&self.config.terms) {
                return Ok(());
            }
            self.end_session(now, session.id, SessionEndCause::LeaseOver, effects);
            self.dispatch(now, effects);
        }
        self.counters.fenced += 1;
        Err(Error::fenced(format!(
            "session {session} is over, and its holds are released: open another"
        )))
    }

    /// Fails if a call to this actor would fail at once.
    fn check_takes_calls(&self, id: ActorId) -> Result<(), Error> {
        let Some(actor) = self.actors.get(&id) else {
            return Err(Error::not_found(format!("no actor {id} is known")));
        };
        if let Some(error) = actor.death() {
            let message = format!("actor {id} is gone: {}", error.message());
            return Err(Error::gone(Referent::Actor(id), message).caused_by(error.clone()));
        }
        self.check_pending_calls(id)
    }
}
