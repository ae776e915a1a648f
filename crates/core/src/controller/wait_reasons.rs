//! Why work waits, with counts, and warnings to sessions whose work no worker could ever run.
//!
//! Each reason is looked up once for all work of the same demand, so the cost is the same with ten
//! waiting tasks or a million.

use super::actor::ActorPhase;
use super::task::TaskPhase;
use super::{Controller, Effect, Owner, Timer};
use crate::id::Session;
use crate::label::label_of;
use crate::message::ToClient;
use crate::schedule::{Demand, Work};
use crate::time::Time;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// The most demands that are told apart. Work of further demands is counted together.
const MAX_REASONS: usize = 100;
/// The most pieces of waiting work of each demand that are examined for sessions to warn.
const MAX_LOOKED_AT: usize = 1_000;
/// The most different warnings that one session gets.
const MAX_WARNINGS: usize = 100;

impl Controller {
    /// Returns why tasks and actors wait, and how many wait for each reason, the most frequent
    /// first.
    pub fn waiting(&self) -> Vec<(String, usize)> {
        let mut shapes: Vec<_> = self.schedule.waiting().collect();
        shapes.sort_unstable_by_key(|(_, count)| Reverse(*count));
        let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
        let mut queued = 0;
        for (demand, count) in shapes.into_iter().take(MAX_REASONS) {
            *reasons.entry(self.why_queued(demand)).or_default() += count;
            queued += count;
        }
        let mut others = |reason: &str, count: usize| {
            if count > 0 {
                *reasons.entry(reason.into()).or_default() += count;
            }
        };
        others("other reasons", self.schedule.queued() - queued);
        let (mut lacking, mut delayed, mut calls, mut queued_actors) = (0, 0, 0, 0);
        for actor in self.actors.values() {
            calls += actor.waiting_calls.len();
            match actor.phase {
                ActorPhase::Waiting => lacking += 1,
                ActorPhase::Delayed => delayed += 1,
                ActorPhase::Queued(_) => queued_actors += 1,
                ActorPhase::Instantiating { .. }
                | ActorPhase::Ready { .. }
                | ActorPhase::Dead { .. } => {}
            }
        }
        let with_workers: usize = self.workers.values().map(|worker| worker.attempts.len()).sum();
        let backlogs = self.workers.values().flat_map(|worker| worker.backlog.values());
        let queued_tasks = self.schedule.queued() - queued_actors;
        // Each task is queued, is with a worker, waits for its actor, waits for values, or is
        // delayed.
        delayed +=
            self.tasks.len() - queued_tasks - with_workers - calls - self.tasks_missing_values;
        others("values that it needs", lacking + self.tasks_missing_values);
        others("the delay before its next attempt", delayed);
        others("its actor to be ready", calls);
        others("a slot at its worker", backlogs.map(|backlog| backlog.len()).sum());
        let mut reasons: Vec<(String, usize)> = reasons.into_iter().collect();
        reasons.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        reasons
    }

    /// Returns why work of this demand does not run now, unless it only lacks room: no worker here
    /// could ever run it, or the workers cannot start executors.
    pub(super) fn why_not_placed(&self, demand: &Demand) -> Option<String> {
        if let Some(unknown) = self.why_unrunnable(demand) {
            return Some(unknown.message().to_owned());
        }
        let infeasible = self.schedule.why_infeasible(demand);
        // Workers that cannot start anything take no work for a while, and then try again.
        if infeasible.is_none() || self.schedule.is_closed() {
            return self.why_nothing_starts().or(infeasible);
        }
        infeasible
    }

    /// Sets the timer for [`warn`](Controller::warn) if work waits for a worker and no timer is
    /// set. Work that comes later is examined no later than it is due, since `warn` sets a timer
    /// for work that is too young.
    pub(super) fn plan_to_warn(&mut self, now: Time) {
        if self.schedule.queued() > 0 && !self.warn_planned && !self.shutting_down {
            self.warn_planned = true;
            self.timers.insert((now + self.config.warn_after, Timer::WarnUnplaced));
        }
    }

    /// Warns the sessions whose work has waited for `warn_after` and could run on no worker. If
    /// there is such work that has not waited for so long, sets the timer for when the oldest of it
    /// is due. That happens at most once for each warning, since a session that was warned needs no
    /// timer.
    pub(super) fn warn(&mut self, now: Time, effects: &mut Vec<Effect>) {
        self.warn_planned = false;
        if self.shutting_down {
            return; // No user could do anything about it any more.
        }
        let mut warnings: BTreeSet<(Session, String)> = BTreeSet::new();
        let mut next: Option<Time> = None;
        for (demand, work) in self.schedule.waiting_work().take(MAX_REASONS) {
            let Some(why) = self.why_not_placed(demand) else { continue };
            let words = format!("{:?} waits: {why}", label_of(&demand.requires));
            for work in work.take(MAX_LOOKED_AT) {
                let Some(since) = self.waits_since(work) else { continue };
                let askers = self.askers(work).into_iter();
                let mut askers = askers.filter(|asker| self.is_to_be_warned(*asker, &words));
                let due = since + self.config.warn_after;
                if now >= due {
                    warnings.extend(askers.map(|session| (session, words.clone())));
                } else if askers.next().is_some() {
                    next = Some(next.map_or(due, |next| next.min(due)));
                }
            }
        }
        for (to, words) in warnings {
            let member = self.sessions.get_mut(&to.id).expect("the session is open");
            member.warned.insert(words.clone());
            effects.push(Effect::ToClient { to, message: ToClient::Warning { words } });
        }
        if let Some(next) = next {
            self.warn_planned = true;
            self.timers.insert((next, Timer::WarnUnplaced));
        }
    }

    /// Returns whether a session is to get this warning: it has a link, did not get the same
    /// warning before, and did not get too many others.
    fn is_to_be_warned(&self, session: Session, words: &str) -> bool {
        let member = self.sessions.get(&session.id).filter(|member| member.session == session);
        member.is_some_and(|member| {
            let warned = &member.warned;
            member.is_linked && warned.len() < MAX_WARNINGS && !warned.contains(words)
        })
    }

    /// Returns when a piece of work was submitted, if it waits for a worker.
    pub(super) fn waits_since(&self, work: Work) -> Option<Time> {
        match work {
            Work::Task(id) => {
                let task = self.tasks.get(&id)?;
                matches!(task.state, TaskPhase::Queued(_)).then_some(task.created)
            }
            Work::Actor(id) => {
                let actor = self.actors.get(&id)?;
                matches!(actor.phase, ActorPhase::Queued(_)).then_some(actor.created)
            }
        }
    }

    /// Returns the sessions that submitted a task, or that watch an actor to call it.
    fn askers(&self, work: Work) -> Vec<Session> {
        match work {
            Work::Task(id) => {
                let Some(task) = self.tasks.get(&id) else { return Vec::new() };
                let owner = match task.owner {
                    Owner::Session(session) => Some(session),
                    Owner::Cluster | Owner::Recompute => None,
                };
                owner.into_iter().chain(task.other_submitters.iter().copied()).collect()
            }
            Work::Actor(id) => {
                let watchers = self.actors.get(&id).map(|actor| actor.watchers.iter().copied());
                watchers.into_iter().flatten().collect()
            }
        }
    }
}
