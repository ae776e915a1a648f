//! The membership of a worker or a client in the cluster: its session, and the lease that it holds.
//!
//! The machine calls [`begin`](Membership::begin) when a session was opened for it, passes on the
//! pings, and checks [`lease_is_over`](Membership::lease_is_over) before it handles anything else.
//! Its timers have one for the end of the lease, which moves with every ping.

use crate::id::Session;
use crate::lease::{HeldLease, LeaseTerms, Ping, Pong};
use crate::time::Time;
use std::collections::BTreeSet;

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Membership(Option<(Session, HeldLease)>);

impl Membership {
    /// Begins a session, which was requested at `asked_at`. Sets `timer` to the end of its lease.
    /// Returns `false` if the session does not begin: the request outlived the lease.
    pub fn begin<T: Ord>(
        &mut self,
        now: Time,
        session: Session,
        terms: LeaseTerms,
        asked_at: Time,
        timers: &mut BTreeSet<(Time, T)>,
        timer: T,
    ) -> bool {
        assert!(self.0.is_none(), "a session ends before the next one begins");
        let lease = HeldLease::new(terms, asked_at);
        if lease.is_over(now) {
            return false;
        }
        timers.insert((lease.ends_at(), timer));
        self.0 = Some((session, lease));
        true
    }

    /// Answers a ping to this session, and moves `timer` to the new end of the lease.
    pub fn answer_ping<T: Ord + Copy>(
        &mut self,
        now: Time,
        session: Session,
        ping: Ping,
        timers: &mut BTreeSet<(Time, T)>,
        timer: T,
    ) -> Option<Pong> {
        let (_, lease) = self.0.as_mut().filter(|(current, _)| *current == session)?;
        let before = lease.ends_at();
        let pong = lease.answer_ping(now, ping)?;
        if lease.ends_at() != before {
            timers.remove(&(before, timer));
            timers.insert((lease.ends_at(), timer));
        }
        Some(pong)
    }

    /// Ends the session and returns it, if there is one.
    pub fn end(&mut self) -> Option<Session> {
        self.0.take().map(|(session, _)| session)
    }

    /// Returns the session.
    pub fn session(&self) -> Option<Session> {
        self.0.as_ref().map(|(session, _)| *session)
    }

    /// Returns whether there is a session.
    pub fn is_open(&self) -> bool {
        self.0.is_some()
    }

    /// Returns whether this is the session.
    pub fn is_of(&self, session: Session) -> bool {
        self.session() == Some(session)
    }

    /// Returns whether the lease of the session has ended, so that everything must have stopped.
    pub fn lease_is_over(&self, now: Time) -> bool {
        self.0.as_ref().is_some_and(|(_, lease)| lease.is_over(now))
    }

    /// Returns when the lease of the session ends.
    pub fn lease_ends_at(&self) -> Option<Time> {
        self.0.as_ref().map(|(_, lease)| lease.ends_at())
    }
}
