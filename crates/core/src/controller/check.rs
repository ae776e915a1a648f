//! The invariants of a controller. They hold after every event.

use super::actor::ActorPhase;
use super::credit::UnusedCredit;
use super::task::{TaskPhase, TaskPlace};
use super::{Controller, Owner};
use crate::account::ResourceAccount;
use crate::hold::Holder;
use crate::id::Referent;

impl Controller {
    /// Panics if an invariant does not hold, with words that name it.
    pub fn check_invariants(&self) {
        self.holds.check_invariants();
        self.schedule.check_invariants();
        self.check_accounts();
        self.check_tasks();
        self.check_actors();
        self.check_holds();
        self.check_copies();
        self.check_lineage();
        self.check_bringing();
        self.check_credit();
        let enclosing = self.sessions.values().map(|member| member.enclosing.len()).sum::<usize>();
        let announced: usize = self.enclosed_answers.values().map(|by| by.len()).sum();
        assert_eq!(enclosing, announced, "announced answers, counted from both sides");
        let bytes: usize = self.objects.values().map(|object| object.bytes()).sum();
        assert_eq!(bytes, self.object_bytes, "bytes of objects");
        for (id, member) in &self.sessions {
            for host in &member.watchers {
                assert!(
                    self.sessions[host].watching.contains(id),
                    "a watch is not known from both sides"
                );
            }
            for (call, item) in &member.enclosing {
                let announced = self
                    .enclosed_answers
                    .get(call)
                    .is_some_and(|announced| announced.contains(&(*item, *id)));
                assert!(announced, "the answer {call:?} that {id} announced is not listed");
            }
            for actor in &member.actors {
                let driver = self.actors.get(actor).and_then(|actor| actor.driver);
                assert!(
                    self.is_living(*actor) && driver == Some(member.session),
                    "{actor}'s driver"
                );
            }
            for object in &member.announced {
                let by = self.objects.get(object).and_then(|object| object.boxed()?.announced_by);
                assert_eq!(by, Some(member.session), "the session that announced {object}");
            }
            for task in &member.tasks {
                assert!(self.tasks.contains_key(task), "{task} ended, and its owner lists it");
            }
        }
    }

    /// Checks that the totals of promises and of argument bytes are the sums over sessions, tasks
    /// and actors.
    fn check_credit(&self) {
        let members = || self.sessions.values().map(|member| &member.credit);
        let open = UnusedCredit {
            tasks: members().map(|credit| credit.tasks.open()).sum(),
            bytes: members().map(|credit| credit.bytes.open()).sum(),
        };
        assert_eq!(open, self.promised, "unused promises of all sessions");
        let tasks = self.tasks.values().map(|task| task.spec.args.len());
        let actors = self.actors.values().map(|actor| actor.spec.args.len());
        let kept: usize = tasks.chain(actors).sum();
        assert_eq!(kept as u64, self.pending_bytes, "bytes of arguments");
        for member in self.sessions.values() {
            let own = member.tasks.iter().map(|task| self.tasks[task].spec.args.len());
            let (own, counted) = (own.sum::<usize>() as u64, member.credit.pending_bytes);
            assert_eq!(own, counted, "bytes of arguments of {}", member.session.id);
        }
    }

    /// Checks that the free resources and the grants of every worker add up to what it offers.
    fn check_accounts(&self) {
        for (id, worker) in &self.workers {
            let mut account = ResourceAccount::new(worker.info.resources.clone());
            for task in &worker.attempts {
                let task =
                    self.tasks.get(task).unwrap_or_else(|| panic!("{task} ended, and {id} has it"));
                let TaskPhase::Placed { worker: at, place, .. } = &task.state else {
                    panic!("{:?} is at {id}, in state {:?}", task.spec.id, task.state)
                };
                assert_eq!(at, id, "the worker of {:?}", task.spec.id);
                if let TaskPlace::Slot { grant, lent, .. } = place {
                    account.charge(grant);
                    if *lent {
                        account.lend_cpu(grant);
                    }
                }
            }
            for hosted in worker.actors.values() {
                account.charge(&hosted.grant);
            }
            assert_eq!(&account, self.schedule.account(worker.index), "the account of {id}");
            let listed: usize = worker.backlog.values().map(|backlog| backlog.len()).sum();
            let backlog = worker.attempts.iter().filter(|task| {
                matches!(
                    self.tasks[task].state,
                    TaskPhase::Placed { place: TaskPlace::Backlog { .. }, .. }
                )
            });
            assert_eq!(listed, backlog.count(), "the backlog of {id}");
        }
    }

    fn check_tasks(&self) {
        let (mut queued, mut lacking) = (0, 0);
        for (id, task) in &self.tasks {
            match &task.state {
                TaskPhase::Placed { worker, place, .. } => {
                    let worker =
                        self.workers.get(worker).unwrap_or_else(|| panic!("{id} has no worker"));
                    assert!(worker.attempts.contains(id), "the worker of {id} does not list it");
                    if let TaskPlace::Mailbox { number, .. } = place {
                        let crate::spec::Target::Method { actor, .. } = task.spec.target else {
                            panic!("{id} is with an actor, and is no call")
                        };
                        assert_eq!(
                            self.actors[&actor].sent_calls.get(number),
                            Some(id),
                            "the actor of {id} does not list it among its sent calls"
                        );
                    }
                }
                TaskPhase::Queued(_) => queued += 1,
                TaskPhase::Waiting { missing } => {
                    lacking += 1;
                    assert!(*missing > 0, "{id} waits for nothing");
                }
                TaskPhase::AwaitingActor { number } => {
                    let crate::spec::Target::Method { actor, .. } = task.spec.target else {
                        panic!("{id} waits for an actor, and is no call")
                    };
                    assert_eq!(
                        self.actors[&actor].waiting_calls.get(number),
                        Some(id),
                        "the actor of {id} does not list it among its waiting calls"
                    );
                }
                TaskPhase::Delayed => {}
            }
            if let Owner::Session(session) = task.owner
                && self.is_alive(session)
            {
                let listed = self.sessions[&session.id].tasks.contains(id);
                assert!(listed, "{id} is not listed with its owner");
            }
            let budget = self.retry_budget(&task.spec);
            assert!(
                task.retries_spent == 0 || budget.allows(task.retries_spent - 1),
                "{id} has spent more retries than its budget"
            );
        }
        assert_eq!(self.tasks_missing_values, lacking, "tasks that wait for values");
        let actors = self
            .actors
            .values()
            .filter(|actor| matches!(actor.phase, ActorPhase::Queued(_)))
            .count();
        assert_eq!(self.schedule.queued(), queued + actors, "work that waits for a worker");
    }

    fn check_actors(&self) {
        for (id, actor) in &self.actors {
            if let Some(worker) = actor.worker() {
                let hosted = self.workers.get(&worker).and_then(|worker| worker.actors.get(id));
                assert_eq!(
                    hosted.map(|hosted| hosted.epoch),
                    Some(actor.epoch),
                    "the host of {id}"
                );
            }
            if let Some(name) = &actor.spec.name
                && self.is_living(*id)
            {
                let key = (actor.spec.namespace.clone(), name.clone());
                assert_eq!(self.names.get(&key), Some(id), "the name of {id}");
            }
            assert!(
                self.is_living(*id)
                    || actor.waiting_calls.is_empty() && actor.sent_calls.is_empty(),
                "{id} is dead and has calls"
            );
        }
        for id in self.names.values() {
            assert!(self.is_living(*id), "a dead actor has a name");
        }
    }

    /// Checks that every holder exists, that nothing is kept without a hold, and that work holds
    /// what it needs.
    fn check_holds(&self) {
        for holder in self.holds.all_holders() {
            let exists = match holder {
                Holder::Session(session) => self.sessions.contains_key(&session),
                Holder::Cluster => true,
                Holder::Lineage(task) => self.lineage.knows(task),
                Holder::Task(task) => self.tasks.contains_key(&task),
                Holder::Actor(actor) => self.is_living(actor),
                Holder::Instance(instance) => self.workers.values().any(|worker| {
                    worker
                        .actors
                        .get(&instance.actor)
                        .is_some_and(|hosted| hosted.epoch == instance.epoch)
                }),
                Holder::Object(object) => self.objects.contains_key(&object),
                Holder::Enclosed { call, item, by } => {
                    self.enclosed_answers.get(&call).is_some_and(|all| all.contains(&(item, by)))
                }
                Holder::Message { to, .. } => self.sessions.contains_key(&to),
            };
            assert!(exists, "{holder:?} is gone and holds something");
        }
        for (id, object) in self.objects.iter() {
            assert!(self.holds.is_held(Referent::Object(*id)), "{id} is kept without a hold");
            let announced_by = object.boxed().and_then(|boxed| boxed.announced_by);
            let announced = announced_by.is_some_and(|by| self.is_alive(by));
            assert!(
                object.resolution().is_some() || announced || self.tasks.contains_key(&id.origin),
                "{id} will never be resolved"
            );
        }
        for (id, task) in &self.tasks {
            for thing in task.spec.referents_to_hold() {
                assert!(
                    self.holds.holds(Holder::Task(*id), thing),
                    "{id} needs {thing:?} and does not hold it"
                );
            }
        }
        for (id, actor) in &self.actors {
            if self.is_living(*id)
                && actor.spec.options.lifetime == crate::spec::Lifetime::NonDetached
            {
                assert!(self.holds.is_held(Referent::Actor(*id)), "{id} lives without a hold");
            }
        }
    }
}
