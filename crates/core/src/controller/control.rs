//! What callers without a link ask for: each asks once and is answered at once.
//!
//! Such a caller may have a session. Nothing is sent to it, so nothing is pinged: its lease counts here
//! from when its last request for it arrived, and at the caller from when it sent that. It ends when
//! that lease is over, and everything that it held goes with it. Without a session, what is asked for
//! belongs to the cluster.

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
    /// Opens a session without a link. Opening one that is open is asking for it again, and renews it.
    pub fn open_unlinked(
        &mut self,
        now: Time,
        id: SessionId,
        effects: &mut Vec<Effect>,
    ) -> Result<Session, Error> {
        if let Some(member) = self.sessions.get(&id) {
            if member.is_linked {
                return Err(Error::already_exists(format!(
                    "session {id} is of a process that joined: open one with another id, or without one"
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

    /// Renews a session without a link. Says for how long.
    pub fn keep_alive(
        &mut self,
        now: Time,
        session: Session,
        effects: &mut Vec<Effect>,
    ) -> Result<Duration, Error> {
        self.check_unlinked(now, session, effects)?;
        self.sessions.get_mut(&session.id).expect("it lives").lease.renew(now);
        Ok(self.config.terms.lease)
    }

    /// Ends a session without a link, with all that it held.
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

    /// Takes a task on, or a call, for a session without a link or for the cluster. What was submitted
    /// before is not run again; a session holds its results from now on.
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

    /// Creates an actor for a session without a link or for the cluster, or finds the one that has its
    /// name. Says which, and whether it is new.
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

    /// Stops a task. Says whether it had not ended.
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

    /// Has the end of a task told with [`Effect::Ended`]. Says whether it has not ended yet; one that
    /// has is not told of again.
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

    /// Whose is what is asked for.
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

    /// Says why a session may not be spoken for here. One whose lease is over at this moment ends now.
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
                    "session {session} has a link, and speaks only there: open a session of your own"
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
            "session {session} is over, and what it held is gone: open another"
        )))
    }

    /// Says why a call to this actor would fail at once, if it would.
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
