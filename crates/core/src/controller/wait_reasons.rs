//! Why work waits, counted: each reason is found once for all work that asks for the same, so that it
//! costs the same with ten tasks waiting or a million. Who waits for long, for what no worker could ever
//! run, is told.

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

/// The most reasons that are told apart; what waits for others is counted together.
const MAX_REASONS: usize = 100;
/// For each reason, so many that wait are looked at to see who is to be warned.
const MAX_LOOKED_AT: usize = 1_000;
/// A session is warned of so many different things.
const MAX_WARNINGS: usize = 100;

impl Controller {
    /// Why tasks and actors wait, and how many do for each reason; the most frequent first.
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
        // Every task is queued, with a worker, waits for its actor or for values, or is delayed.
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

    /// Why work of this demand does not run now, if it is not for want of room: nothing here could ever run
    /// it, or workers cannot start what could.
    pub(super) fn why_not_placed(&self, demand: &Demand) -> Option<String> {
        if let Some(unknown) = self.why_unknown(demand) {
            return Some(unknown.message().to_owned());
        }
        let infeasible = self.schedule.why_infeasible(demand);
        // Workers that cannot start anything take no work for a while, and then try again.
        if infeasible.is_none() || self.schedule.is_closed() {
            return self.why_nothing_starts().or(infeasible);
        }
        infeasible
    }

    /// Something waits for a worker: it is looked at again when it has waited for long. What comes after
    /// it is looked at no later than it is due, since `warn` plans for what is too young.
    pub(super) fn plan_to_warn(&mut self, now: Time) {
        if self.schedule.queued() > 0 && !self.warn_planned && !self.shutting_down {
            self.warn_planned = true;
            self.timers.insert((now + self.config.warn_after, Timer::WarnUnplaced));
        }
    }

    /// Tells whoever asked for something that no worker could run, and has waited for long. If there is
    /// something of that sort that has not, it looks again when the oldest is due. That happens at most
    /// once for each warning that is given, since who was told is not waited for.
    pub(super) fn warn(&mut self, now: Time, effects: &mut Vec<Effect>) {
        self.warn_planned = false;
        if self.shutting_down {
            return; // Nothing that anybody could do about it.
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
            let member = self.sessions.get_mut(&to.id).expect("it is to be warned");
            member.warned.insert(words.clone());
            effects.push(Effect::ToClient { to, message: ToClient::Warning { words } });
        }
        if let Some(next) = next {
            self.warn_planned = true;
            self.timers.insert((next, Timer::WarnUnplaced));
        }
    }

    /// Whether a session listens, was not told this yet, and not too much else.
    fn is_to_be_warned(&self, session: Session, words: &str) -> bool {
        let member = self.sessions.get(&session.id).filter(|member| member.session == session);
        member.is_some_and(|member| {
            let warned = &member.warned;
            member.is_linked && warned.len() < MAX_WARNINGS && !warned.contains(words)
        })
    }

    /// Since when a piece of work is asked for, if it waits for a worker.
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

    /// The sessions that asked for a piece of work, or wait to call it.
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
