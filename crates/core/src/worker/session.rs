//! Membership and time: joining, pings, stopping before the lease ends, draining and leaving.

use super::{Effect, Timer, Worker};
use crate::id::Session;
use crate::lease::{HeldLease, LeaseTerms, Ping};
use crate::message::{FromWorker, ToWorker};
use crate::time::Time;
use std::time::Duration;

/// The longest time that a worker without work stays for the data that only it has to be copied
/// elsewhere.
const MOVE_TIME: Duration = Duration::from_secs(60);

impl Worker {
    pub(super) fn lease_is_over(&self, now: Time) -> bool {
        self.lease.as_ref().is_some_and(|lease| lease.is_over(now))
    }

    pub(super) fn joined(
        &mut self,
        now: Time,
        session: Session,
        terms: LeaseTerms,
        asked_at: Time,
        effects: &mut Vec<Effect>,
    ) {
        assert!(self.session.is_none(), "a worker stops before it joins again");
        let lease = HeldLease::new(terms, asked_at);
        if lease.is_over(now) {
            return effects.push(Effect::Stopped(session)); // The request outlived the lease.
        }
        self.timers.insert((lease.ends_at(), Timer::Lease));
        self.session = Some(session);
        self.lease = Some(lease);
        (self.draining, self.rejoins_after_drain, self.emptied, self.left) =
            (false, false, false, false);
        effects.push(Effect::ToController(FromWorker::Joined));
        self.prestart(effects);
    }

    pub(super) fn pinged(
        &mut self,
        now: Time,
        session: Session,
        ping: Ping,
        effects: &mut Vec<Effect>,
    ) {
        if self.session != Some(session) {
            return;
        }
        let lease = self.lease.as_mut().expect("a session has a lease");
        let pong = lease.renew(now, ping, &mut self.timers, Timer::Lease);
        effects.extend(pong.map(Effect::Pong));
    }

    /// Ends the session: kills every executor and forgets everything.
    pub(super) fn stop(&mut self, effects: &mut Vec<Effect>) {
        let Some(session) = self.session.take() else { return };
        self.lease = None;
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
        if self.draining && !self.left && !self.rejoins_after_drain {
            effects.push(Effect::Drained); // It was draining, and now nothing is left to finish.
        }
        (self.draining, self.rejoins_after_drain, self.emptied, self.left) =
            (false, false, false, false);
        effects.push(Effect::Stopped(session));
    }

    pub(super) fn handle_controller_message(
        &mut self,
        now: Time,
        message: ToWorker,
        effects: &mut Vec<Effect>,
    ) {
        match message {
            ToWorker::Assign { spec, attempt, values, shape, grant } => {
                self.assigned(now, spec, attempt, values, shape, grant, effects);
            }
            ToWorker::Execute { spec, attempt, epoch, values } => {
                self.relayed_call_arrived(now, spec, attempt, epoch, values, effects);
            }
            ToWorker::TakeBack(attempt) => self.taken_back(attempt, effects),
            ToWorker::CancelAttempt { attempt, mode } => self.cancel(now, attempt, mode, effects),
            ToWorker::Took { attempt, count } => self.task_items_consumed(attempt, count, effects),
            ToWorker::Instantiate { spec, epoch, values, grant, checkpoints } => {
                self.instantiate(now, spec, epoch, values, grant, checkpoints, effects);
            }
            ToWorker::Destroy(instance) => self.destroy(instance, effects),
            ToWorker::Kill(instance) => self.kill_instance(instance, effects),
            ToWorker::Checkpointed { instance, sequence } => {
                self.checkpoint_stored(now, instance, sequence, effects);
            }
            ToWorker::Watched { session, alive } => self.watched(now, session, alive, effects),
            ToWorker::SessionEnded { session } => self.caller_ended(now, session, effects),
            ToWorker::Entrusted { call } => {
                if let Some((to, message)) = self.answers_awaiting_holds.remove(&call) {
                    self.send_to_caller(to, message, effects);
                }
            }
            ToWorker::Keep { object } => effects.push(Effect::Retain { object }),
            ToWorker::Forget { object } => self.forget(object, effects),
            ToWorker::Located { object, copies } => {
                effects.push(Effect::Located { object, copies });
            }
            ToWorker::Bring { object, from } => effects.push(Effect::Pull { object, from }),
            ToWorker::Erase { object } => effects.push(Effect::Erase { object }),
            ToWorker::Leave => self.leave(effects),
            ToWorker::Drain { grace } => self.drain(now, grace, false, effects),
            ToWorker::WindUp { grace } => self.drain(now, grace, true, effects),
        }
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
    /// Then the worker leaves for good, or joins the next controller if `returns`. If both were
    /// asked for, it leaves for good.
    pub(super) fn drain(
        &mut self,
        now: Time,
        grace: Duration,
        returns: bool,
        effects: &mut Vec<Effect>,
    ) {
        if self.session.is_none() {
            return effects.push(Effect::Drained);
        }
        self.timers.insert((now + grace, Timer::DrainGrace));
        if self.draining {
            if self.rejoins_after_drain && !returns && self.left {
                effects.push(Effect::Drained);
            }
            self.rejoins_after_drain &= returns;
            return;
        }
        (self.draining, self.rejoins_after_drain) = (true, returns);
        effects.push(Effect::ToController(FromWorker::Draining));
        self.give_back_backlogs(effects);
        self.actors_leave(now, effects);
    }

    /// Gives up the work that still runs when the grace of a drain is over.
    fn give_up(&mut self, effects: &mut Vec<Effect>) {
        if self.draining {
            self.give_back_everything(effects);
            self.actors_are_killed(effects);
        }
    }

    /// Asks the controller when the worker may leave, once a draining worker has no work left. It
    /// may leave when the data that only this object store has is elsewhere.
    pub(super) fn ask_to_leave(&mut self, now: Time, effects: &mut Vec<Effect>) {
        if self.draining
            && !self.emptied
            && self.attempts.is_empty()
            && self.actors.is_empty()
            && self.answers_awaiting_holds.is_empty()
        {
            self.emptied = true;
            self.report(effects);
            effects.push(Effect::ToController(FromWorker::Emptied));
            self.timers.insert((now + MOVE_TIME, Timer::Moved));
        }
    }

    /// Leaves. The controller allowed it, or [`MOVE_TIME`] is over.
    fn leave(&mut self, effects: &mut Vec<Effect>) {
        if self.emptied && !self.left {
            self.left = true;
            effects.push(Effect::ToController(FromWorker::Leaving));
            if !self.rejoins_after_drain {
                effects.push(Effect::Drained);
            }
        }
    }
}
