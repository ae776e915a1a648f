//! Lineage: which tasks can run again to make results anew whose data is lost.
//!
//! A function's task is remembered as long as the data of one of its results is in stores and somebody holds it, or
//! another remembered task needs one of them. Not the data that it needed is kept for that, but what went along
//! with it; what was in stores is made anew in its turn, as deep as it takes, up to a limit. Running again is paid
//! from the task's retries. Results of calls cannot be made again: an actor is not what it was.
//!
//! What is remembered is bounded: the oldest go first, and what they made is then lost with its last copy.

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

/// So deep may what is lost depend on what is lost.
const MAX_DEPTH: usize = 100;
/// What a remembered task takes beyond its arguments, roughly.
const OVERHEAD: usize = 300;

/// A task that can run again.
#[derive(Debug)]
pub(super) struct LineageTask {
    spec: Arc<TaskSpec>,
    past: PriorRun,
    /// How many objects that are kept, and remembered tasks, need it.
    users: u32,
    /// The tasks whose results it needs, if those can run again, and which memory of them counts it.
    needs: Vec<(TaskId, u64)>,
    /// Small values that it needs, which are kept for that.
    small: Vec<ObjectId>,
    /// Which memory this is: a task that was forgotten may be remembered again.
    number: u64,
}

impl LineageTask {
    fn bytes(&self) -> usize {
        self.spec.args.len() + OVERHEAD
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Lineage {
    origins: Map<TaskId, LineageTask>,
    /// In the order in which they ended.
    order: VecDeque<TaskId>,
    /// Small values that are kept for them: how many need each, and what it takes.
    small: Map<ObjectId, (u32, usize)>,
    bytes: usize,
    next_number: u64,
}

impl Lineage {
    /// Whether this task can run again.
    pub fn knows(&self, task: TaskId) -> bool {
        self.origins.contains_key(&task)
    }

    /// One more needs a small value, which takes so many bytes. Those of one that many need count once.
    fn keep_small(&mut self, id: ObjectId, bytes: usize) {
        let (users, _) = self.small.entry(id).or_insert((0, bytes));
        *users += 1;
        if *users == 1 {
            self.bytes += bytes;
        }
    }

    fn leave_small(&mut self, id: ObjectId) {
        let (users, bytes) = self.small.get_mut(&id).expect("somebody needed it");
        *users -= 1;
        if *users == 0 {
            self.bytes -= *bytes;
            self.small.remove(&id);
        }
    }
}

impl Controller {
    /// A task has ended well: if the data of a result is in a store, it is remembered.
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
            self.objects.get_mut(object).expect("it is kept").in_lineage = true;
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
                matches!(object.ended(), Some(Ok(()))) && object.contains().is_empty();
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
            let oldest = self.lineage.order.pop_front().expect("something takes the bytes");
            for need in self.forget_origin(oldest) {
                self.unneeded(need);
            }
        }
    }

    /// A task that is remembered ran again, and has failed.
    pub(super) fn note_attempts(&mut self, task: &Task) {
        if let Some(origin) = self.lineage.origins.get_mut(&task.spec.id) {
            origin.past = task.past();
        }
    }

    /// An object of this task is not kept any more, or a task that needed one is not remembered.
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
                continue; // It was forgotten, and with it who needed it.
            }
            origin.users -= 1;
            if origin.users == 0 {
                unused.extend(self.forget_origin(task));
            }
        }
        // What has gone is skipped when it is met, and there is not much more of it than of the others.
        if self.lineage.order.len() > 2 * self.lineage.origins.len() + 16 {
            let Lineage { order, origins, .. } = &mut self.lineage;
            order.retain(|task| origins.contains_key(task));
        }
    }

    /// Says which it needed.
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

    /// Has the data of an object that is lost brought from where it was saved, to `first` if that can, or made anew;
    /// what it takes for that, too. Says why that cannot be.
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
        if self.bring_saved(id, first, effects) {
            return Ok(());
        }
        self.recompute(now, id, effects)
    }

    /// Has the data of an object made anew that is lost; what it takes for that, too. Says why that cannot be.
    pub(super) fn recompute(
        &mut self,
        now: Time,
        id: ObjectId,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Error> {
        let mut plan = Vec::new();
        self.plan(id, 0, &mut plan)?;
        for task in plan {
            let origin = self.lineage.origins.get_mut(&task).expect("it was planned");
            origin.past.spent += 1;
            let (spec, past) = (origin.spec.clone(), origin.past);
            self.history.forget(task);
            self.admit(now, Owner::Recompute, spec, past, effects);
        }
        // It is waited for: whatever is known of it, its stream looks at it when it ends.
        if let Some(task) =
            self.tasks.get_mut(&id.origin).filter(|task| task.spec.stream_window.is_some())
        {
            task.stored_items_end = task.stored_items_end.max(id.index);
        }
        Ok(())
    }

    /// Nobody holds a result of this task any more, perhaps: if it runs only to make such anew, that is for nobody.
    pub(super) fn cancel_unneeded_recompute(
        &mut self,
        now: Time,
        id: TaskId,
        effects: &mut Vec<Effect>,
    ) {
        let Some(task) = self.tasks.get(&id) else { return };
        // What runs already is let run to its end: somebody may come to need it meanwhile, and it could not begin anew
        // before this has stopped.
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

    /// Which tasks have to run again, those first that others need.
    fn plan(&self, id: ObjectId, depth: usize, plan: &mut Vec<TaskId>) -> Result<(), Error> {
        let task = id.origin;
        if plan.contains(&task) {
            return Ok(());
        }
        let why = |words: &str| self.lost_data_error(id, words);
        if let Some(task) = self.tasks.get(&task) {
            // What a stream has given it does not give again while it runs.
            let given =
                if matches!(task.state, TaskPhase::Placed { .. }) { task.items_given } else { 0 };
            return match id.index < task.spec.returns || id.index > given {
                true => Ok(()),
                false => Err(why("its stream has given it and still runs")),
            };
        }
        let Some(origin) = self.lineage.origins.get(&task) else {
            return Err(why("it was put, or made by an actor, or what made it is not remembered"));
        };
        if depth >= MAX_DEPTH {
            return Err(why("what made it needs what is lost, too, deeper than is made anew"));
        }
        if !self.retry_budget(&origin.spec).allows(origin.past.spent) {
            return Err(why("its task may not run again (max_retries)"));
        }
        if origin.spec.referents.iter().any(|thing| !self.exists(*thing)) {
            return Err(why("something that its task's arguments name is gone"));
        }
        for need in origin.spec.input_objects() {
            match self.objects.get(&need) {
                Some(object) if object.is_lost() && object.is_durable() => {}
                Some(object) if object.is_lost() => self.plan(need, depth + 1, plan)?,
                Some(object) => {
                    if let Some(Err(error)) = object.ended() {
                        return Err(error.clone());
                    }
                }
                None => self.plan(need, depth + 1, plan)?,
            }
        }
        plan.push(task);
        Ok(())
    }

    /// Says that the data of an object is lost: which, where it was, what made it, and why that is not done again.
    pub(super) fn lost_data_error(&self, id: ObjectId, why_not: &str) -> Error {
        let object = self.objects.get(&id);
        let where_it_was = object
            .and_then(|object| object.pending()?.last_copy_error.as_ref())
            .map(|lost| lost.message());
        let remembered =
            self.lineage.origins.get(&id.origin).map(|origin| origin.spec.target.label());
        let made_by =
            remembered.or_else(|| self.history.get(id.origin).map(|status| &*status.name));
        lost_value_error(id, made_by, where_it_was, why_not)
    }

    /// What a task is remembered for: objects that are kept, also those of tasks that need its results.
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

    /// Panics if what is remembered does not add up.
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
            assert_eq!(users.remove(task), Some(origin.users), "what {task} is remembered for");
        }
        assert!(users.is_empty(), "what is not remembered is needed: {users:?}");
        let small: usize = self.lineage.small.values().map(|(_, bytes)| bytes).sum();
        let bytes = small + self.lineage.origins.values().map(LineageTask::bytes).sum::<usize>();
        assert_eq!(bytes, self.lineage.bytes, "bytes of what is remembered");
        let needed: usize = self.lineage.origins.values().map(|origin| origin.small.len()).sum();
        let counted: u32 = self.lineage.small.values().map(|(users, _)| users).sum();
        assert_eq!(needed, counted as usize, "small values that are needed");
        assert!(bytes <= self.config.max_lineage_bytes, "more is remembered than may be");
        for task in self.lineage.origins.keys() {
            assert!(self.lineage.order.contains(task), "{task} is remembered for ever");
        }
    }
}
