//! Membership and time: joining, stopping before the lease ends, draining and leaving.

use super::{AfterDrain, Departure, Effect, Timer, Worker};
use crate::id::Session;
use crate::lease::LeaseTerms;
use crate::message::FromWorker;
use crate::time::Time;
use std::time::Duration;

/// The longest time that a worker without work stays for the data that only it has to be copied
/// elsewhere.
const MOVE_TIME: Duration = Duration::from_secs(60);

impl Worker {
    pub(super) fn joined(
        &mut self,
        now: Time,
        session: Session,
        terms: LeaseTerms,
        asked_at: Time,
        effects: &mut Vec<Effect>,
    ) {
        let timers = &mut self.timers;
        if !self.membership.begin(now, session, terms, asked_at, timers, Timer::Lease) {
            return effects.push(Effect::Stopped(session));
        }
        self.departure = Departure::Staying;
        effects.push(Effect::ToController(FromWorker::Joined));
        self.prestart(effects);
    }

    /// Ends the session: kills every executor and forgets everything.
    pub(super) fn stop(&mut self, effects: &mut Vec<Effect>) {
        let Some(session) = self.membership.end() else { return };
        let mut executors: Vec<_> = self.executors.drain().map(|(id, _)| id).collect();
        executors.sort_unstable();
        effects.extend(executors.into_iter().map(|executor| Effect::Kill { executor }));
        let mut callers: Vec<Session> = self.callers.drain().map(|(session, _)| session).collect();
        callers.sort_unstable();
        effects.extend(callers.into_iter().map(Effect::FenceCaller));
        self.idle.clear();
        self.spares.clear();
        self.failing.clear();
        self.attempts.clear();
        self.slots.clear();
        self.actors.clear();
        self.answers_awaiting_holds.clear();
        self.reports.clear();
        self.timers.clear();
        self.blocked = 0;
        match std::mem::take(&mut self.departure) {
            // The worker was draining, and now nothing is left to finish.
            Departure::Draining(AfterDrain::Leave) | Departure::Emptied(AfterDrain::Leave) => {
                effects.push(Effect::Drained);
            }
            Departure::Staying
            | Departure::Draining(AfterDrain::Rejoin)
            | Departure::Emptied(AfterDrain::Rejoin)
            | Departure::Left(_) => {}
        }
        effects.push(Effect::Stopped(session));
    }

    pub(super) fn time_passed(&mut self, now: Time, effects: &mut Vec<Effect>) {
        while let Some((time, timer)) = self.timers.first().copied() {
            if time > now {
                return;
            }
            self.timers.pop_first();
            match timer {
                Timer::Lease => {} // `handle` checks the lease before anything else.
                Timer::Timeout(attempt) => self.attempt_timed_out(now, attempt, effects),
                Timer::Grace(attempt) => self.attempt_did_not_stop(attempt, effects),
                Timer::Call(actor, call) => self.call_timed_out(now, actor, call, effects),
                Timer::CallGrace(actor, call) => self.call_did_not_stop(now, actor, call, effects),
                Timer::Idle(actor) => self.check_idle(now, actor, effects),
                Timer::Save(actor) => self.save_timer_fired(now, actor, effects),
                Timer::Report => self.report(effects),
                Timer::DrainGrace => self.give_up(effects),
                Timer::Moved => self.leave(effects),
                Timer::Start => self.try_to_start(now, effects),
            }
        }
    }

    /// Drains the worker. It takes no new work, and running work may finish until `grace` is over.
    pub(super) fn drain(
        &mut self,
        now: Time,
        grace: Duration,
        then: AfterDrain,
        effects: &mut Vec<Effect>,
    ) {
        if !self.membership.is_open() {
            return effects.push(Effect::Drained);
        }
        self.timers.insert((now + grace, Timer::DrainGrace));
        let before = self.departure;
        self.departure = before.drain(then);
        if !before.has_begun() {
            effects.push(Effect::ToController(FromWorker::Draining));
            self.give_back_backlogs(effects);
            self.actors_leave(now, effects);
        } else if self.departure != before && matches!(before, Departure::Left(_)) {
            effects.push(Effect::Drained); // It would have joined again, and now leaves for good.
        }
    }

    /// Gives up the work that still runs when the grace of a drain is over.
    fn give_up(&mut self, effects: &mut Vec<Effect>) {
        if self.departure.has_begun() {
            self.give_back_everything(effects);
            self.actors_are_killed(effects);
        }
    }

    /// Asks the controller when the worker may leave, once a draining worker has no work left. It
    /// may leave when the data that only this object store has is elsewhere.
    pub(super) fn ask_to_leave(&mut self, now: Time, effects: &mut Vec<Effect>) {
        if let Departure::Draining(then) = self.departure
            && self.attempts.is_empty()
            && self.actors.is_empty()
            && self.answers_awaiting_holds.is_empty()
        {
            self.departure = Departure::Emptied(then);
            self.report(effects);
            effects.push(Effect::ToController(FromWorker::Emptied));
            self.timers.insert((now + MOVE_TIME, Timer::Moved));
        }
    }

    /// Leaves. The controller allowed it, or [`MOVE_TIME`] is over.
    pub(super) fn leave(&mut self, effects: &mut Vec<Effect>) {
        if let Departure::Emptied(then) = self.departure {
            self.departure = Departure::Left(then);
            effects.push(Effect::ToController(FromWorker::Leaving));
            if then == AfterDrain::Leave {
                effects.push(Effect::Drained);
            }
        }
    }
}
