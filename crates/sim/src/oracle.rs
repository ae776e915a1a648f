//! The oracle: sees all processes, and checks promises that no machine can see alone.

use crate::executor::made_by;
use crate::process::{ProcessId, ProcessShell};
use crate::world::World;
use marline_core::controller::{Effect, Event};
use marline_core::error::Error;
use marline_core::hold::Holder;
use marline_core::id::{ActorId, ObjectId, Referent, Session, TaskId};
use marline_core::message::{FromWorker, Instance, ToClient, ToWorker};
use marline_core::payload::Outcome;
use marline_core::spec::{ActorSpec, Budget, Target, TaskSpec};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

#[derive(Debug, Default)]
pub struct Oracle {
    pub next_id: u64,
    /// The latest ids that users made. The fuzz client picks from them.
    pub recent: VecDeque<u128>,
    /// Ids that the fuzz client has used. No promise is checked for these.
    pub fuzzed_ids: BTreeSet<TaskId>,
    /// The instances whose executor is alive.
    live: BTreeMap<ActorId, Instance>,
    /// Of each task: how often it started, its retry budget, and how often a worker refused it
    /// after it may have started.
    starts: BTreeMap<TaskId, u32>,
    budgets: BTreeMap<TaskId, Budget>,
    given_back: BTreeMap<TaskId, u32>,
    /// The session that made each call, and the number of the call, which grows with time.
    callers: BTreeMap<TaskId, (Session, u64)>,
    /// Calls that went through the controller, which ends them itself when their caller is gone.
    relayed: BTreeSet<TaskId>,
    /// The last call that each session started at each instance.
    last_call: BTreeMap<(Session, Instance), u64>,
    /// Sessions that are over, each with the hosts that were told of its end.
    over: BTreeMap<Session, BTreeSet<Session>>,
    /// The state of the latest instance of each actor: how many calls have changed it, including
    /// restored ones.
    done: BTreeMap<ActorId, u64>,
    /// Actors that failed to save their state. No promise is checked for their state.
    unsaved: BTreeSet<ActorId>,
    /// How many items of each stream its user has consumed.
    taken: BTreeMap<TaskId, u32>,
    /// Items that were yielded, and items that were yielded again when their task ran again.
    given: BTreeSet<ObjectId>,
    pub given_again: BTreeSet<ObjectId>,
    /// Whether the session that caused the current event is over.
    stale_speaker: bool,
}

impl Oracle {
    pub fn submitted(&mut self, spec: &TaskSpec) {
        // The fuzz client may have announced an object that the task needs, and never send its
        // value.
        if spec.needs.iter().any(|object| self.fuzzed_ids.contains(&object.origin)) {
            self.fuzzed_ids.insert(spec.id);
        }
        self.budgets.insert(spec.id, spec.options.max_retries);
    }

    pub fn called(&mut self, spec: &Arc<TaskSpec>, session: Session) {
        let number = self.callers.len() as u64;
        self.callers.insert(spec.id, (session, number));
    }

    fn may_start(&mut self, id: TaskId, budget: Budget) {
        let starts = self.starts.entry(id).or_default();
        *starts += 1;
        let free = self.given_back.get(&id).copied().unwrap_or_default();
        if let Budget::Times(times) = budget {
            assert!(
                *starts <= 1 + times + free,
                "{id} started {starts} times, its budget is {times}"
            );
        }
    }

    pub fn task_starts(&mut self, spec: &TaskSpec) {
        if !self.fuzzed_ids.contains(&spec.id) {
            let budget = self.budgets[&spec.id];
            self.may_start(spec.id, budget);
        }
    }

    /// Notes that a user has consumed one more item.
    pub fn takes(&mut self, task: TaskId) {
        *self.taken.entry(task).or_default() += 1;
    }

    /// Checks that there is room for an item that user code yields.
    pub fn gives(&mut self, spec: &TaskSpec, index: u32) {
        let taken = self.taken.get(&spec.id).copied().unwrap_or_default();
        let window = spec.stream_window.expect("it streams");
        let item = ObjectId::item(spec.id, index);
        if !self.given.insert(item) {
            self.given_again.insert(item);
        }
        assert!(
            index < taken + window,
            "{} yielded item {index}, but {taken} were consumed and only {window} may wait",
            spec.id
        );
    }

    pub fn call_starts(
        &mut self,
        spec: &TaskSpec,
        actor: &ActorSpec,
        instance: Instance,
        host: Option<Session>,
    ) {
        if self.fuzzed_ids.contains(&spec.id) {
            return;
        }
        self.may_start(spec.id, actor.options.max_task_retries);
        let Target::Method { actor: target, .. } = spec.target else {
            panic!("{} is no call", spec.id)
        };
        assert_eq!(target, instance.actor, "a call reached another actor");
        let (caller, number) = self.callers[&spec.id];
        let last = self.last_call.insert((caller, instance), number);
        assert!(
            last.is_none_or(|last| last < number),
            "call {number} of {caller} was overtaken by {last:?}"
        );
        if let (Some(told), Some(host)) = (self.over.get(&caller), host)
            && !self.relayed.contains(&spec.id)
        {
            assert!(
                told.contains(&host),
                "{caller} was over before {host} watched it, and its call ran"
            );
        }
    }

    /// Checks that an instance that starts from this state has lost no more calls than its
    /// checkpoint policy allows.
    pub fn state_restored(&mut self, actor: &ActorSpec, state: u64) {
        let before = self.done.insert(actor.id, state).unwrap_or_default();
        if let Some(every) = actor.options.checkpoints.and_then(|terms| terms.every_calls)
            && !self.unsaved.contains(&actor.id)
        {
            let forgotten = before.saturating_sub(state);
            assert!(forgotten <= every.into(), "{} forgot {forgotten} calls", actor.id);
        }
    }

    pub fn save_failed(&mut self, actor: ActorId) {
        self.unsaved.insert(actor);
    }

    pub fn state_changed(&mut self, actor: ActorId, state: u64) {
        self.done.insert(actor, state);
    }

    pub fn instance_begins(&mut self, instance: Instance) {
        let other = self.live.insert(instance.actor, instance);
        assert_eq!(other, None, "two instances live: {instance:?} and {other:?}");
    }

    pub fn instance_ends(&mut self, instance: Instance) {
        let ended = self.live.remove(&instance.actor);
        assert_eq!(ended, Some(instance), "an instance ended that did not live");
    }

    /// Checks that a task whose error says that it did not run has never started.
    pub fn check_ran(&self, task: TaskId, error: &Error) {
        let odd = self.fuzzed_ids.contains(&task);
        let ran = !odd && self.starts.contains_key(&task) && !self.given_back.contains_key(&task);
        assert!(
            error.may_have_run() || !ran,
            "{task} ran, but its error says that it did not: {error}"
        );
    }

    /// Notes that a new controller starts, which knows no earlier session.
    pub fn controller_restarted(&mut self) {
        self.over.clear();
    }
}

impl World {
    pub fn oracle_before(&mut self, id: ProcessId, event: &Event) {
        let speaker = match event {
            Event::ClientMessageReceived { session, .. }
            | Event::WorkerMessageReceived { session, .. }
            | Event::PongReceived { session, .. }
            | Event::SessionClosed { session } => Some(*session),
            Event::JoinRequested { .. } | Event::ProcessDied { .. } | Event::TimePassed => None,
        };
        let machine = &self.controller_shell(id).machine;
        let stale = speaker.is_some_and(|session| !machine.is_alive(session));
        self.oracle.stale_speaker = stale;
        if let Event::WorkerMessageReceived { message: FromWorker::Refused { attempt, .. }, .. } =
            event
            && !stale
        {
            *self.oracle.given_back.entry(attempt.task).or_default() += 1;
        }
    }

    pub fn oracle_after(&mut self, id: ProcessId, event: &Event, effects: &[Effect]) {
        if self.oracle.stale_speaker {
            let fenced = matches!(effects, [Effect::Fence(_)]);
            assert!(fenced, "a session that is over said {event:?}, and caused {effects:?}");
        }
        for effect in effects {
            match effect {
                Effect::EndSession { session, .. } => {
                    let told = effects.iter().filter_map(|effect| match effect {
                        Effect::ToWorker {
                            to,
                            message: ToWorker::SessionEnded { session: over },
                        } => (over == session).then_some(*to),
                        _ => None,
                    });
                    self.oracle.over.insert(*session, told.collect());
                }
                Effect::ToWorker { message: ToWorker::Execute { spec, .. }, .. } => {
                    self.oracle.relayed.insert(spec.id);
                }
                Effect::ToClient { message: ToClient::TaskEnded { task, outcome }, .. } => {
                    self.check_result(id, *task, outcome);
                }
                _ => {}
            }
        }
    }

    /// Checks that a result is of the current attempt.
    fn check_result(&mut self, id: ProcessId, task: TaskId, outcome: &Outcome) {
        if self.oracle.fuzzed_ids.contains(&task) {
            return;
        }
        let Ok(status) = self.controller_shell(id).machine.task_status(task) else { return };
        for value in outcome.iter().flatten() {
            let (made_for, attempt) = made_by(value);
            assert_eq!(
                (made_for, attempt),
                (task, status.attempts),
                "a result of another attempt counted"
            );
        }
    }

    /// Checks, long after the faults have stopped, that all submitted work has ended.
    pub fn check_all_ended(&mut self) {
        self.check_copies();
        self.check_forgotten();
        let controller = self.controller;
        let odd = self.oracle.fuzzed_ids.clone();
        let machine = &self.controller_shell(controller).machine;
        let waiting = machine
            .list_tasks(10_000, &Default::default())
            .into_iter()
            .filter(|task| task.finished.is_none());
        let waiting: Vec<String> = waiting
            .filter(|task| !odd.contains(&task.id))
            .map(|task| format!("{task:?}"))
            .collect();
        assert!(waiting.is_empty(), "tasks never ended: {waiting:#?}");
        for id in self.living(|role| matches!(role, ProcessShell::Client(_))) {
            let trace = self.trace;
            if self.client_shell(id).is_fuzz_client {
                continue;
            }
            let shell = self.client_shell(id);
            assert!(shell.machine.session().is_some(), "{id:?} did not come back");
            if trace {
                eprintln!("{id:?} at the end: {:?}", shell.machine);
            }
            let odd = self.oracle.fuzzed_ids.clone();
            let shell = self.client_shell(id);
            let at_odds = shell.user.check_nothing_pending(id, &odd);
            assert_eq!(shell.machine.outstanding(), at_odds, "{id:?} still waits");
        }
        self.check_handles();
    }

    /// Checks that the controller holds for each client every object that the client has handles
    /// to.
    fn check_handles(&mut self) {
        for id in self.living(|role| matches!(role, ProcessShell::Client(_))) {
            let shell = self.client_shell(id);
            let session = shell.id;
            let objects = shell.user.objects.clone();
            let controller = self.controller;
            let odd = self.oracle.fuzzed_ids.clone();
            let holds = self.controller_shell(controller).machine.holds();
            for object in objects.into_iter().filter(|object| !odd.contains(&object.origin)) {
                let held = holds.holds(Holder::Session(session), Referent::Object(object));
                assert!(
                    held,
                    "{id:?} has a handle to {object}, but the controller does not hold it"
                );
            }
        }
    }

    /// Checks that no hold is left after all users have released everything, except by actors that
    /// live.
    pub fn check_nothing_left(&mut self) {
        self.check_forgotten();
        let controller = self.controller;
        let machine = &self.controller_shell(controller).machine;
        for holder in machine.holds().all_holders() {
            let things = machine.holds().all_things();
            let held: Vec<Referent> =
                things.filter(|thing| machine.holds().holds(holder, *thing)).collect();
            assert!(
                matches!(
                    holder,
                    Holder::Actor(_) | Holder::Instance(_) | Holder::Object(_) | Holder::Lineage(_)
                ),
                "{holder:?} holds {held:?} after all users released everything"
            );
        }
        let things: Vec<Referent> = machine.holds().all_things().collect();
        for thing in things {
            let mut seen = BTreeSet::new();
            assert!(
                self.is_rooted(thing, &mut seen),
                "no live actor holds {thing:?}, not even through others"
            );
        }
        let machine = &self.controller_shell(controller).machine;
        for worker in machine.list_workers() {
            assert_eq!(worker.tasks, 0, "a worker has tasks after all ended");
        }
    }

    /// Whether an actor that lives holds this referent, perhaps through other referents.
    fn is_rooted(&self, thing: Referent, seen: &mut BTreeSet<Referent>) -> bool {
        let ProcessShell::Controller(shell) = &self.processes[self.controller.0].role else {
            return false;
        };
        seen.insert(thing)
            && shell.machine.holds().holders(thing).into_iter().any(|holder| match holder {
                Holder::Actor(_) | Holder::Instance(_) => true,
                Holder::Object(object) => self.is_rooted(Referent::Object(object), seen),
                Holder::Lineage(task) => {
                    let kept = shell.machine.lineage_users(task);
                    kept.into_iter().any(|object| self.is_rooted(Referent::Object(object), seen))
                }
                _ => false,
            })
    }
}
