//! Tasks, from submission to exactly one end.
//!
//! A task is in `tasks` until it ends, and in the history after that. `end_task` removes it from
//! `tasks`, so a task cannot end twice.
//!
//! `attempt.rs` decides about a task while a worker has it. Calls are in `call.rs`, and
//! placement is in [`schedule`](crate::schedule).

use super::object::missing_referent_error;
use super::query::TaskState;
use super::{Controller, Effect};
use crate::account::Grant;
use crate::error::{Error, ErrorKind, Ran};
use crate::hold::Holder;
use crate::id::{ActorEpoch, Attempt, ObjectId, Referent, Session, SessionId, TaskId};
use crate::message::{AttemptId, CancelMode, ShapeId, ToClient, ToWorker};
use crate::payload::{Outcome, Payload, Value};
use crate::schedule::{Demand, Step, Ticket, Work, WorkerIndex};
use crate::spec::{MAX_RETURNS, Target, TaskSpec};
use crate::time::Time;
use std::sync::Arc;

/// The owner of a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// A session. It learns of the end, and holds the results.
    Session(Session),
    /// No session. The cluster holds the results for a while.
    Cluster,
    /// No session. The task ended before, and runs again to recompute results that are still held.
    Recompute,
}

#[derive(Debug)]
pub(super) struct Task {
    pub spec: Arc<TaskSpec>,
    pub owner: Owner,
    /// Other sessions that submitted the same task, and also learn of its end.
    pub other_submitters: Vec<Session>,
    pub state: TaskPhase,
    /// The current attempt, or the last one. 0 before the first.
    pub attempt: Attempt,
    /// The worker that has the task, or had it last.
    pub worker: Option<SessionId>,
    /// How many retries are spent.
    pub retries_spent: u32,
    /// How many items the consumer took, if the task streams.
    pub items_taken: u32,
    /// How many items the current attempt yielded.
    pub items_given: u32,
    /// The end of the range of item indexes in which there were items whose data is in a store.
    pub stored_items_end: u32,
    /// Why the task is to stop, if it is.
    pub cancel_reason: Option<CancelReason>,
    /// Whether the shell gets [`Effect::WakeTaskWaiters`] when the task ends.
    pub awaited: bool,
    /// The client that is shown what the task prints. In an `Arc`, since a million tasks may share
    /// it.
    pub audience: Option<Arc<Session>>,
    pub created: Time,
    pub started: Option<Time>,
}

/// The past of a task that runs again after its end.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PriorRun {
    /// The last attempt.
    pub attempt: Attempt,
    /// How many retries are spent.
    pub spent: u32,
    /// The end of the range of item indexes in which there were items whose data is in a store.
    pub items: u32,
}

impl Task {
    pub fn past(&self) -> PriorRun {
        PriorRun { attempt: self.attempt, spent: self.retries_spent, items: self.stored_items_end }
    }

    /// Returns the objects that the task makes: its results, and its items up to
    /// `stored_items_end`.
    pub fn output_objects(&self) -> impl Iterator<Item = ObjectId> + use<> {
        self.spec.results_and_items(self.stored_items_end)
    }
}

/// Why a task is to stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CancelReason {
    /// A client or a caller without a link asked for it.
    Asked,
    /// The session that submitted the task is over.
    ClientEnded,
    /// The task recomputed results that nothing holds any more.
    Unwanted,
}

#[derive(Debug)]
pub(super) enum TaskPhase {
    /// The task waits for `missing` of the values that it needs.
    Waiting { missing: u32 },
    /// The task waits for the delay before its next attempt.
    Delayed,
    /// The task waits for a worker.
    Queued(Ticket),
    /// The call waits for its actor. `number` is its place among the calls through the controller.
    AwaitingActor { number: u64 },
    /// A worker has the task.
    Placed { worker: SessionId, place: TaskPlace, running: bool },
}

impl TaskPhase {
    /// Returns the state that users see.
    pub fn public_state(&self) -> TaskState {
        match self {
            TaskPhase::Placed { running: true, .. } => TaskState::Running,
            TaskPhase::Placed { running: false, .. } => TaskState::Assigned,
            TaskPhase::Waiting { .. }
            | TaskPhase::Delayed
            | TaskPhase::Queued(_)
            | TaskPhase::AwaitingActor { .. } => TaskState::Pending,
        }
    }
}

/// The place of a task at its worker.
#[derive(Debug)]
pub(super) enum TaskPlace {
    /// The task has a grant. Its CPUs are `lent` while the task waits for other work.
    Slot { shape: ShapeId, grant: Grant, lent: bool },
    /// The task waits in the worker's backlog.
    Backlog { shape: ShapeId },
    /// The controller asked for the task back from the backlog, since `idle` has room for it.
    Returning { shape: ShapeId, idle: WorkerIndex },
    /// The call is with its actor. `number` is its place among the calls through the controller.
    Mailbox { epoch: ActorEpoch, number: u64 },
}

impl Controller {
    /// Admits a task. Submitting the same id again is no error and changes nothing.
    pub fn submit(
        &mut self,
        now: Time,
        owner: Owner,
        spec: Arc<TaskSpec>,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Error> {
        if self.was_submitted(&spec) {
            return Ok(());
        }
        self.check_takes_work()?;
        spec.validate()?;
        self.check_consumer(owner, &spec)?;
        self.check_task_cycle(&spec)?;
        self.check_size("the arguments", spec.args.len())?;
        if owner == Owner::Cluster {
            self.check_room(owner, spec.args.len())?;
        }
        self.admit(now, owner, spec, PriorRun::default(), effects);
        self.dispatch(now, effects);
        Ok(())
    }

    /// Submits a task for a client. An error becomes the outcome of the task.
    pub(super) fn client_submits(
        &mut self,
        now: Time,
        session: Session,
        spec: Arc<TaskSpec>,
        effects: &mut Vec<Effect>,
    ) {
        let id = spec.id;
        if self.was_submitted(&spec) {
            return self.submitted_again(session, &spec, effects);
        }
        let (owner, bytes) = (Owner::Session(session), spec.args.len());
        let room = match spec.target {
            // The number of calls is bounded by `max_pending_calls` of their actor.
            Target::Method { .. } => self.check_arguments(owner, bytes),
            Target::Function(_) if self.use_promise(session.id, bytes) => Ok(()),
            Target::Function(_) => self.check_room(owner, bytes),
        };
        if let Err(error) = room.and_then(|()| self.submit(now, owner, spec.clone(), effects)) {
            let returns = if spec.returns > MAX_RETURNS { 0 } else { spec.returns };
            for object in (0..returns).map(|index| ObjectId::of(id, index)) {
                self.holds.hold(Holder::Session(session.id), Referent::Object(object));
                self.object_resolved(now, object, returns, Err(error.clone()), None, effects);
            }
            let message = ToClient::TaskEnded { task: id, outcome: Err(error) };
            effects.push(Effect::ToClient { to: session, message });
        }
        self.extend_credit(session.id, effects);
    }

    /// Adds a session to the submitters of a task that was submitted before. The session holds the
    /// results too, and learns how the task ends or has ended.
    fn submitted_again(&mut self, session: Session, spec: &TaskSpec, effects: &mut Vec<Effect>) {
        if matches!(spec.target, Target::Function(_)) {
            self.use_promise(session.id, spec.args.len());
            self.extend_credit(session.id, effects);
        }
        self.hold_all(Holder::Session(session.id), spec.results_to_hold());
        if let Some(task) = self.tasks.get_mut(&spec.id) {
            if task.owner != Owner::Session(session) && !task.other_submitters.contains(&session) {
                task.other_submitters.push(session);
            }
            return;
        }
        let outcome = self
            .task_result(spec.id)
            .map_err(|error| error.ran(Ran::Maybe))
            .and_then(|outcome| outcome);
        let message = ToClient::TaskEnded { task: spec.id, outcome };
        effects.push(Effect::ToClient { to: session, message });
    }

    pub(super) fn check_size(&self, what: &str, bytes: usize) -> Result<(), Error> {
        let limit = self.config.max_payload_bytes;
        if bytes <= limit {
            return Ok(());
        }
        Err(Error::too_large(format!(
            "{what} are {bytes} bytes, the limit is {limit} (max_payload_bytes)"
        )))
    }

    /// Admits a task, with its past if it runs again after its end.
    pub(super) fn admit(
        &mut self,
        now: Time,
        owner: Owner,
        spec: Arc<TaskSpec>,
        PriorRun { attempt, spent, items }: PriorRun,
        effects: &mut Vec<Effect>,
    ) {
        self.counters.submitted += 1;
        let id = spec.id;
        let results = match owner {
            Owner::Session(session) => {
                self.sessions.get_mut(&session.id).expect("the session is open").tasks.insert(id);
                Some(Holder::Session(session.id))
            }
            Owner::Cluster => Some(Holder::Cluster),
            Owner::Recompute => None,
        };
        for (object, holder) in spec.results().zip(std::iter::repeat(results)) {
            if let Some(holder) = holder {
                self.holds.hold(holder, Referent::Object(object));
            }
        }
        let missing_thing = spec.referents_to_hold().find(|thing| !self.exists(*thing));
        let waits = self.wait_for(now, Work::Task(id), spec.input_objects(), effects);
        let task = Task {
            spec: spec.clone(),
            owner,
            other_submitters: Vec::new(),
            state: TaskPhase::Waiting { missing: *waits.as_ref().unwrap_or(&0) },
            attempt,
            worker: None,
            retries_spent: spent,
            items_taken: 0,
            items_given: 0,
            stored_items_end: items,
            cancel_reason: None,
            awaited: false,
            audience: self.audience_of(owner),
            created: now,
            started: None,
        };
        self.tasks.insert(id, Box::new(task));
        self.count_arguments(owner, spec.args.len(), true);
        self.tasks_missing_values += 1;
        self.hold_all(Holder::Task(id), spec.referents_to_hold());
        if let Some(thing) = missing_thing {
            let error = missing_referent_error(thing, ", which the task needs,");
            self.end_task(now, id, Err(error), effects);
        } else if let Err(cause) = waits {
            self.end_task(now, id, Err(cause.passed_on()), effects);
        } else if let Ok(0) = waits {
            self.make_ready(now, id, effects);
        }
    }

    /// Makes a waiting task ready if the value that was just resolved was the last one missing.
    pub(super) fn task_value_ready(&mut self, now: Time, id: TaskId, effects: &mut Vec<Effect>) {
        let Some(task) = self.tasks.get(&id) else { return };
        if !matches!(task.state, TaskPhase::Waiting { .. }) {
            return;
        }
        // Another value that was there may have been lost since.
        let spec = task.spec.clone();
        let missing = match self.wait_for(now, Work::Task(id), spec.input_objects(), effects) {
            Ok(missing) => missing,
            Err(error) => return self.task_value_failed(now, id, &error, effects),
        };
        self.tasks.get_mut(&id).expect("the task has not ended").state =
            TaskPhase::Waiting { missing };
        if missing == 0 && !crate::planted!(WaitingTaskNeverWoken) {
            self.make_ready(now, id, effects);
        }
    }

    /// Ends a waiting task: a value that it needs will never exist.
    pub(super) fn task_value_failed(
        &mut self,
        now: Time,
        id: TaskId,
        cause: &Error,
        effects: &mut Vec<Effect>,
    ) {
        if self.tasks.get(&id).is_some_and(|task| matches!(task.state, TaskPhase::Waiting { .. })) {
            self.end_task(now, id, Err(cause.passed_on()), effects);
        }
    }

    /// Checks that arguments and the values that are sent along with them fit into one message.
    pub(super) fn check_input(&self, args: &Payload, needs: &[ObjectId]) -> Result<(), Error> {
        if needs.is_empty() {
            return Ok(());
        }
        let values = self.values_of(needs);
        let bytes = args.len() + values.iter().map(|value| value.payload.len()).sum::<usize>();
        let limit = self.config.max_input_bytes;
        if bytes <= limit {
            return Ok(());
        }
        Err(Error::too_large(format!(
            "the arguments and the values that are sent along with them are {bytes} bytes, the limit is \
             {limit} (max_input_bytes): pass fewer at a time"
        )))
    }

    /// Queues a task that has all its values for a worker, or a call for its actor.
    fn make_ready(&mut self, now: Time, id: TaskId, effects: &mut Vec<Effect>) {
        let spec = &self.tasks[&id].spec;
        if let Err(error) = self.check_input(&spec.args, &spec.needs) {
            return self.end_task(now, id, Err(error), effects);
        }
        let task = self.tasks.get_mut(&id).expect("a ready task exists");
        task.state = TaskPhase::Delayed;
        self.tasks_missing_values -= 1;
        match &task.spec.target {
            Target::Function(_) => {
                if let Err(error) = self.check_shape(|| self.demand_of(id)) {
                    return self.end_task(now, id, Err(error), effects);
                }
                self.queue(id, false);
            }
            Target::Method { actor, .. } => {
                let actor = *actor;
                self.enqueue_call(now, actor, id, effects);
            }
        }
    }

    pub(super) fn queue(&mut self, id: TaskId, again: bool) {
        let near = self.preferred_worker(self.tasks[&id].spec.input_objects());
        let demand = self.demand_of(id);
        let task = self.tasks.get_mut(&id).expect("a queued task exists");
        task.state = TaskPhase::Queued(self.schedule.enqueue(Work::Task(id), demand, near, again));
    }

    fn demand_of(&self, id: TaskId) -> Demand {
        self.demand(&self.tasks[&id].spec)
    }

    /// Returns the demand of a task on a worker.
    pub(super) fn demand(&self, spec: &TaskSpec) -> Demand {
        Demand {
            requires: spec.target.name().clone(),
            resources: spec.options.resources.clone(),
            takes: None,
            preemptible: spec.options.preemptible,
            code_version: self.code_version(&spec.args, &spec.needs),
        }
    }

    /// Returns the version of Python that made the code in these arguments, or in the values that
    /// are sent along with them. Returns 0 if they contain no code.
    pub(super) fn code_version(&self, args: &Payload, needs: &[ObjectId]) -> u32 {
        let values = needs.iter().filter_map(|need| self.objects.get(need));
        let mut versions = values.map(|object| object.code_version());
        if args.code_version != 0 {
            return args.code_version;
        }
        versions.find(|version| *version != 0).unwrap_or(0)
    }

    /// Fails with `Exhausted` if too many kinds of work wait already, and this is a further kind.
    pub(super) fn check_shape(&self, demand: impl FnOnce() -> Demand) -> Result<(), Error> {
        let limit = self.config.max_waiting_shapes;
        if self.schedule.waiting_shape_count() < limit || self.schedule.is_waited_for(&demand()) {
            return Ok(());
        }
        Err(Error::exhausted(format!(
            "{limit} kinds of work wait for a worker, by function and resources, which is the limit \
             (max_waiting_shapes): submit again when some have started"
        )))
    }

    /// Carries out the steps of the schedule until there are no more.
    pub(super) fn dispatch(&mut self, now: Time, effects: &mut Vec<Effect>) {
        self.process_freed_and_resolved(now, effects);
        while let Some(step) = self.schedule.step() {
            match step {
                Step::Place { work, shape, worker, grant } if self.lacks_data(work) => {
                    self.schedule.undo_placement(worker, shape, grant.as_ref());
                    self.wait_again(now, work, effects);
                    self.process_freed_and_resolved(now, effects);
                }
                Step::Place { work: Work::Task(id), shape, worker, grant } => {
                    self.assign(id, shape, worker, grant, effects);
                }
                Step::Place { work: Work::Actor(id), shape, worker, grant } => {
                    let grant = grant.expect("an actor is never put in a backlog");
                    self.instantiate(now, id, shape, worker, grant, effects);
                }
                Step::TakeBack { from, shape, idle } => self.take_back(from, shape, idle, effects),
            }
        }
        self.plan_to_warn(now);
        self.plan_to_fail(now, effects);
    }

    /// Makes `work` wait for its values again: data that it reads was lost after it had become
    /// ready.
    fn wait_again(&mut self, now: Time, work: Work, effects: &mut Vec<Effect>) {
        match work {
            Work::Task(id) => {
                let task = self.tasks.get_mut(&id).expect("placed work exists");
                task.state = TaskPhase::Waiting { missing: 0 };
                self.tasks_missing_values += 1;
                self.task_value_ready(now, id, effects);
            }
            Work::Actor(id) => self.actor_waits_again(now, id, effects),
        }
    }

    /// Cancels a task. Returns `false` if the task had ended already.
    pub fn cancel(
        &mut self,
        now: Time,
        id: TaskId,
        mode: CancelMode,
        effects: &mut Vec<Effect>,
    ) -> bool {
        self.stop_task(now, id, CancelReason::Asked, mode, effects)
    }

    /// Stops a task for the given reason. A task that no worker has ends at once; for any other,
    /// the worker is told. Returns `false` if the task had ended already.
    pub(super) fn stop_task(
        &mut self,
        now: Time,
        id: TaskId,
        why: CancelReason,
        mode: CancelMode,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let Some(task) = self.tasks.get_mut(&id) else { return false };
        task.cancel_reason.get_or_insert(why);
        match &task.state {
            TaskPhase::Placed { worker, .. } => {
                let to = self.workers[worker].session;
                let attempt = AttemptId { task: id, attempt: task.attempt };
                effects.push(Effect::ToWorker {
                    to,
                    message: ToWorker::CancelAttempt { attempt, mode },
                });
            }
            TaskPhase::Queued(ticket) => {
                let ticket = *ticket;
                self.schedule.withdraw(ticket);
                self.end_cancelled(now, id, effects);
            }
            TaskPhase::AwaitingActor { number } => {
                let number = *number;
                self.call_left(id, number);
                self.end_cancelled(now, id, effects);
            }
            TaskPhase::Waiting { .. } | TaskPhase::Delayed => self.end_cancelled(now, id, effects),
        }
        true
    }

    fn end_cancelled(&mut self, now: Time, id: TaskId, effects: &mut Vec<Effect>) {
        let error = cancelled(&self.tasks[&id]);
        self.end_task(now, id, Err(error), effects);
    }

    /// Ends a task. This is the one place where a task ends: results are kept if anything holds
    /// them, the holds of the task are released, and every session that waits for the end is told.
    pub(super) fn end_task(
        &mut self,
        now: Time,
        id: TaskId,
        outcome: Outcome,
        effects: &mut Vec<Effect>,
    ) {
        let task = self.tasks.remove(&id).expect("a task ends once");
        self.count_arguments(task.owner, task.spec.args.len(), false);
        if matches!(task.state, TaskPhase::Waiting { .. }) {
            self.tasks_missing_values -= 1;
            self.stop_waiting(Work::Task(id), task.spec.input_objects());
        }
        let at = task.worker.and_then(|worker| self.workers.get(&worker)).map(|one| one.session);
        let stored = outcome.iter().flatten().filter(|value| value.payload.stored.is_some());
        let stored: Vec<Value> = stored.cloned().collect();
        let outcome =
            outcome.and_then(|values| task.spec.check_results(values)).map_err(Error::bounded);
        // An earlier attempt that was lost may have run user code, however the last attempt ended.
        let outcome = outcome
            .map_err(|error| if task.retries_spent > 0 { error.ran(Ran::Maybe) } else { error });
        let outcome = outcome.and_then(|values| {
            let bytes = values.iter().map(|value| value.payload.len()).sum();
            let size = self.check_size("the results", bytes).map(|()| values);
            size.map_err(|error| error.ran(Ran::Maybe))
        });
        if outcome.is_err() {
            self.discard(&stored, at, effects);
            self.erase_earlier(&task, effects);
        }
        let (state, count) = match &outcome {
            Ok(_) => (TaskState::Finished, &mut self.counters.finished),
            Err(error) if error.kind() == ErrorKind::Cancelled => {
                (TaskState::Cancelled, &mut self.counters.cancelled)
            }
            Err(_) => (TaskState::Failed, &mut self.counters.failed),
        };
        *count += 1;
        self.history.push(now, &task, state, outcome.as_ref().err());
        if let Owner::Session(owner) = task.owner
            && self.is_alive(owner)
        {
            self.sessions.get_mut(&owner.id).expect("the session is open").tasks.remove(&id);
        }
        if task.awaited {
            effects.push(Effect::WakeTaskWaiters(id));
        }
        let owner = match task.owner {
            Owner::Session(owner) => Some(owner),
            Owner::Cluster | Owner::Recompute => None,
        };
        for to in owner.into_iter().chain(task.other_submitters.iter().copied()) {
            if self.is_reachable(to) {
                let message = ToClient::TaskEnded { task: id, outcome: outcome.clone() };
                effects.push(Effect::ToClient { to, message });
            }
        }
        for object in task.spec.results() {
            let value = outcome.as_ref().map(|values| values[object.index as usize].clone());
            let value = value.map_err(Clone::clone);
            self.object_resolved(now, object, task.spec.returns, value, at, effects);
        }
        match &outcome {
            Ok(_) => self.add_to_lineage(&task),
            Err(_) => self.note_attempts(&task),
        }
        self.fail_missing_items(&task, &outcome, effects);
        if !crate::planted!(HoldNotReleased) {
            let free = self.holds.release_all(Holder::Task(id));
            self.queue_freed(free);
        }
        if let Some(owner) = owner {
            self.promise_owner(owner.id, effects);
        }
        self.extend_credit_of_waiting(effects);
    }
}

pub(super) fn cancelled(task: &Task) -> Error {
    let (id, name) = (task.spec.id, task.spec.target.label());
    let mode = match task.cancel_reason {
        Some(CancelReason::ClientEnded) => "was stopped: its client ended",
        Some(CancelReason::Unwanted) => "was stopped: nothing needs the results it recomputed",
        Some(CancelReason::Asked) | None => "was cancelled",
    };
    Error::cancelled(format!("task {id} ({name}) {mode}")).ran(Ran::Maybe)
}
