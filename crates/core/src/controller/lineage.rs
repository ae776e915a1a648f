//! Lineage: which ended tasks can run again to recompute results whose data is lost.
//!
//! - The lineage keeps a function's task while one of its results has its data in stores and is
//!   held, or while another task in the lineage needs one of its results.
//! - The lineage keeps the small values that were sent along with a task. It does not keep the data
//!   in stores that the task needed: that is recomputed in its turn, as deep as it takes, up to a
//!   [limit](MAX_DEPTH).
//! - Each recomputation spends one of the task's retries.
//! - Results of actor calls cannot be recomputed, since the actor's state has changed.
//! - The lineage is bounded by `max_lineage_bytes`. The oldest tasks go first; the data of their
//!   results is then lost with its last copy.

use super::copies::lost_value_error;
use super::task::{CancelReason, PriorRun, Task, TaskPhase};
use super::{Controller, Effect, Owner};
use crate::error::Error;
use crate::hold::Holder;
use crate::id::{ObjectId, Referent, SessionId, TaskId};
use crate::map::Map;
use crate::message::CancelMode;
use crate::spec::{Target, TaskSpec};
use crate::time::Time;
use std::collections::VecDeque;
use std::sync::Arc;

/// The longest chain of lost values, each needed to recompute the one before, that is recomputed.
/// `plan` recurses once for each.
const MAX_DEPTH: usize = 100;
/// Roughly how many bytes a task in the lineage takes beyond its arguments.
const OVERHEAD: usize = 300;

/// An ended task that can run again.
#[derive(Debug)]
pub(super) struct LineageTask {
    spec: Arc<TaskSpec>,
    past: PriorRun,
    /// How many kept objects and other tasks of the lineage need this task.
    users: u32,
    /// The tasks whose results this task needs, if those can run again, each with the `number` of
    /// the entry that counts this task among its users.
    needs: Vec<(TaskId, u64)>,
    /// The small values that this task needs. The lineage holds them.
    small: Vec<ObjectId>,
    /// The number of this entry. A task that was forgotten may get another entry later, which has
    /// another number.
    number: u64,
}

impl LineageTask {
    fn bytes(&self) -> usize {
        self.spec.args.len() + OVERHEAD
    }
}

/// All ended tasks that can run again.
#[derive(Debug, Default)]
pub(super) struct Lineage {
    origins: Map<TaskId, LineageTask>,
    /// The tasks in the order in which they ended. May contain tasks that have left the lineage.
    order: VecDeque<TaskId>,
    /// The small values that the tasks need: how many tasks need each, and its bytes.
    small: Map<ObjectId, (u32, usize)>,
    bytes: usize,
    next_number: u64,
}

impl Lineage {
    /// Returns whether this task can run again.
    pub fn knows(&self, task: TaskId) -> bool {
        self.origins.contains_key(&task)
    }

    /// Counts one more task that needs a small value. The bytes of a value that several tasks need
    /// count once.
    fn keep_small(&mut self, id: ObjectId, bytes: usize) {
        let (users, _) = self.small.entry(id).or_insert((0, bytes));
        *users += 1;
        if *users == 1 {
            self.bytes += bytes;
        }
    }

    fn leave_small(&mut self, id: ObjectId) {
        let (users, bytes) = self.small.get_mut(&id).expect("a task needed it");
        *users -= 1;
        if *users == 0 {
            self.bytes -= *bytes;
            self.small.remove(&id);
        }
    }
}

impl Controller {
    /// Adds a task that finished to the lineage, if it is a function's and the data of one of its
    /// results is in a store. Drops the oldest tasks while the lineage is too large.
    pub(super) fn add_to_lineage(&mut self, task: &Task) {
        if !matches!(task.spec.target, Target::Function(_)) {
            return;
        }
        let is_new = |controller: &Controller, id: &ObjectId| {
            let object = controller.objects.get(id);
            object.is_some_and(|object| object.is_stored() && !object.in_lineage)
        };
        let kept: Vec<ObjectId> = task.output_objects().filter(|id| is_new(self, id)).collect();
        let id = task.spec.id;
        if kept.is_empty() && !self.lineage.knows(id) {
            return;
        }
        for object in &kept {
            self.objects.get_mut(object).expect("the object is kept").in_lineage = true;
        }
        if let Some(origin) = self.lineage.origins.get_mut(&id) {
            origin.users += kept.len() as u32;
            origin.past = task.past();
            return;
        }
        let (mut needs, mut small) = (Vec::new(), Vec::new());
        for need in &task.spec.needs {
            let Some(object) = self.objects.get(need) else { continue };
            let names_nothing =
                matches!(object.resolution(), Some(Ok(()))) && object.contains().is_empty();
            if let Some(origin) = self.lineage.origins.get_mut(&need.origin) {
                origin.users += 1;
                needs.push((need.origin, origin.number));
            } else if !object.is_stored() && names_nothing {
                self.lineage.keep_small(*need, object.bytes());
                self.holds.hold(Holder::Lineage(id), Referent::Object(*need));
                small.push(*need);
            }
        }
        let number = self.lineage.next_number;
        self.lineage.next_number += 1;
        let (spec, past, users) = (task.spec.clone(), task.past(), kept.len() as u32);
        let origin = LineageTask { spec, past, users, needs, small, number };
        self.lineage.bytes += origin.bytes();
        self.lineage.origins.insert(id, origin);
        self.lineage.order.push_back(id);
        while self.lineage.bytes > self.config.max_lineage_bytes {
            let oldest = self.lineage.order.pop_front().expect("a task takes the bytes");
            for need in self.forget_origin(oldest) {
                self.unneeded(need);
            }
        }
    }

    /// Notes the attempts of a task of the lineage that ran again and failed.
    pub(super) fn note_attempts(&mut self, task: &Task) {
        if let Some(origin) = self.lineage.origins.get_mut(&task.spec.id) {
            origin.past = task.past();
        }
    }

    /// Counts one user of this task less: one of its objects is not kept any more.
    pub(super) fn unused(&mut self, task: TaskId) {
        if let Some(origin) = self.lineage.origins.get(&task) {
            self.unneeded((task, origin.number));
        }
    }

    fn unneeded(&mut self, need: (TaskId, u64)) {
        let mut unused = vec![need];
        while let Some((task, number)) = unused.pop() {
            let Some(origin) = self.lineage.origins.get_mut(&task) else { continue };
            if origin.number != number {
                continue; // That entry was forgotten, and the count of its users with it.
            }
            origin.users -= 1;
            if origin.users == 0 {
                unused.extend(self.forget_origin(task));
            }
        }
        // Tasks that have left the lineage stay in `order` until they come to its front. This keeps
        // them from becoming many more than the others.
        if self.lineage.order.len() > 2 * self.lineage.origins.len() + 16 {
            let Lineage { order, origins, .. } = &mut self.lineage;
            order.retain(|task| origins.contains_key(task));
        }
    }

    /// Removes a task from the lineage. Returns the entries that it needed.
    fn forget_origin(&mut self, task: TaskId) -> Vec<(TaskId, u64)> {
        let Some(origin) = self.lineage.origins.remove(&task) else { return Vec::new() };
        self.lineage.bytes -= origin.bytes();
        for result in origin.spec.results_and_items(origin.past.items) {
            if let Some(object) = self.objects.get_mut(&result) {
                object.in_lineage = false;
            }
        }
        for small in &origin.small {
            self.lineage.leave_small(*small);
        }
        let free = self.holds.release_all(Holder::Lineage(task));
        self.queue_freed(free);
        origin.needs
    }

    /// Starts to recover the lost data of an object. If the data was saved, a worker pulls it,
    /// `first` if that worker can. Otherwise the tasks that it takes run again. Fails if neither is
    /// possible.
    pub(super) fn recover_data(
        &mut self,
        now: Time,
        id: ObjectId,
        first: Option<SessionId>,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Error> {
        let durable = self.objects.get(&id).is_some_and(|object| object.is_durable());
        if crate::planted!(SavedErasedEarly) && durable {
            self.erase(id, effects);
        }
        if self.pull_saved(id, first, effects) {
            return Ok(());
        }
        self.recompute(now, id, effects)
    }

    /// Starts to recompute the lost data of an object, and any lost data that its task needs. Fails
    /// if that is not possible.
    pub(super) fn recompute(
        &mut self,
        now: Time,
        id: ObjectId,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Error> {
        let mut plan = Vec::new();
        self.plan(id, 0, &mut plan)?;
        for task in plan {
            let origin = self.lineage.origins.get_mut(&task).expect("a planned task is known");
            origin.past.spent += 1;
            let (spec, past) = (origin.spec.clone(), origin.past);
            self.history.forget(task);
            self.admit(now, Owner::Recompute, spec, past, effects);
        }
        // `fail_missing_items` looks at the items before `stored_items_end` when the stream ends.
        // Work waits for this item, so it must be one of them.
        if let Some(task) =
            self.tasks.get_mut(&id.origin).filter(|task| task.spec.stream_window.is_some())
        {
            task.stored_items_end = task.stored_items_end.max(id.index);
        }
        Ok(())
    }

    /// Stops a task that only recomputes results, if nothing holds any of its results any more.
    pub(super) fn cancel_unneeded_recompute(
        &mut self,
        now: Time,
        id: TaskId,
        effects: &mut Vec<Effect>,
    ) {
        let Some(task) = self.tasks.get(&id) else { return };
        // A task that a worker has goes on to its end: the results may be needed again meanwhile,
        // and the task could not begin again before this attempt has stopped.
        let has_begun = matches!(task.state, TaskPhase::Placed { .. });
        let is_asked_for =
            task.owner != Owner::Recompute || !task.other_submitters.is_empty() || task.awaited;
        if has_begun || is_asked_for {
            return;
        }
        let is_held = |result| self.holds.is_held(Referent::Object(result));
        if !task.output_objects().any(is_held) {
            self.stop_task(now, id, CancelReason::Unwanted, CancelMode::Graceful, effects);
        }
    }

    /// Adds to `plan` the tasks that must run again to recompute an object, each after the tasks
    /// whose results it needs. Fails if one of them cannot run again.
    fn plan(&self, id: ObjectId, depth: usize, plan: &mut Vec<TaskId>) -> Result<(), Error> {
        let task = id.origin;
        if plan.contains(&task) {
            return Ok(());
        }
        let why = |words: &str| self.lost_data_error(id, words);
        if let Some(task) = self.tasks.get(&task) {
            // An attempt that runs does not yield again an item that it has yielded.
            let given =
                if matches!(task.state, TaskPhase::Placed { .. }) { task.items_given } else { 0 };
            return match id.index < task.spec.returns || id.index > given {
                true => Ok(()),
                false => Err(why("its stream has yielded it and still runs")),
            };
        }
        let Some(origin) = self.lineage.origins.get(&task) else {
            return Err(why("it was put, or made by an actor, or its task is not remembered"));
        };
        if depth >= MAX_DEPTH {
            return Err(why("its task needs other lost values, deeper than are recomputed"));
        }
        if !self.retry_budget(&origin.spec).allows(origin.past.spent) {
            return Err(why("its task may not run again (max_retries)"));
        }
        if origin.spec.referents.iter().any(|thing| !self.exists(*thing)) {
            return Err(why("an object or actor that its task's arguments refer to is gone"));
        }
        for need in origin.spec.input_objects() {
            match self.objects.get(&need) {
                Some(object) if object.is_lost() && object.is_durable() => {}
                Some(object) if object.is_lost() => self.plan(need, depth + 1, plan)?,
                Some(object) => {
                    if let Some(Err(error)) = object.resolution() {
                        return Err(error.clone());
                    }
                }
                None => self.plan(need, depth + 1, plan)?,
            }
        }
        plan.push(task);
        Ok(())
    }

    /// Returns the error for an object whose data is lost: where the data was, which function made
    /// it, and why it is not recomputed.
    pub(super) fn lost_data_error(&self, id: ObjectId, why_not: &str) -> Error {
        let object = self.objects.get(&id);
        let where_it_was = object
            .and_then(|object| object.boxed()?.last_copy_error.as_ref())
            .map(|lost| lost.message());
        let remembered =
            self.lineage.origins.get(&id.origin).map(|origin| origin.spec.target.label());
        let made_by =
            remembered.or_else(|| self.history.get(id.origin).map(|status| &*status.name));
        lost_value_error(id, made_by, where_it_was, why_not)
    }

    /// Returns the objects for which a task stays in the lineage: its own kept objects, and those
    /// of the tasks that need its results.
    pub fn lineage_users(&self, task: TaskId) -> Vec<ObjectId> {
        let kept =
            self.objects.iter().filter(|(id, object)| id.origin == task && object.in_lineage);
        let mut kept: Vec<ObjectId> = kept.map(|(id, _)| *id).collect();
        for (other, origin) in &self.lineage.origins {
            if origin.needs.iter().any(|(need, _)| *need == task) {
                kept.extend(self.lineage_users(*other));
            }
        }
        kept
    }

    /// Panics if the counts of the lineage do not add up.
    pub(super) fn check_lineage(&self) {
        let mut users: Map<TaskId, u32> = Map::default();
        for (id, _) in self.objects.iter().filter(|(_, object)| object.in_lineage) {
            *users.entry(id.origin).or_default() += 1;
        }
        for (need, number) in self.lineage.origins.values().flat_map(|origin| &origin.needs) {
            if self.lineage.origins.get(need).is_some_and(|origin| origin.number == *number) {
                *users.entry(*need).or_default() += 1;
            }
        }
        for (task, origin) in &self.lineage.origins {
            assert_eq!(users.remove(task), Some(origin.users), "users of {task} in the lineage");
        }
        assert!(users.is_empty(), "tasks outside the lineage have users: {users:?}");
        let small: usize = self.lineage.small.values().map(|(_, bytes)| bytes).sum();
        let bytes = small + self.lineage.origins.values().map(LineageTask::bytes).sum::<usize>();
        assert_eq!(bytes, self.lineage.bytes, "bytes of the lineage");
        let needed: usize = self.lineage.origins.values().map(|origin| origin.small.len()).sum();
        let counted: u32 = self.lineage.small.values().map(|(users, _)| users).sum();
        assert_eq!(needed, counted as usize, "small values that are needed");
        assert!(bytes <= self.config.max_lineage_bytes, "the lineage exceeds its limit");
        for task in self.lineage.origins.keys() {
            assert!(self.lineage.order.contains(task), "{task} would never leave the lineage");
        }
    }
}
