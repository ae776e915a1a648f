//! Lineage: which tasks can run again to make results anew whose data is lost.
//!
//! A function's task is remembered as long as the data of one of its results is in stores and somebody holds it, or
//! another remembered task needs one of them. Not the data that it needed is kept for that, but what went along
//! with it; what was in stores is made anew in its turn, as deep as it takes, up to a limit. Running again is paid
//! from the task's retries. Results of calls cannot be made again: an actor is not what it was.
//!
//! What is remembered is bounded: the oldest go first, and what they made is then lost with its last copy.

use super::stored::lost;
use super::task::Task;
use super::{Controller, Effect, Owner};
use crate::error::Error;
use crate::hold::Holder;
use crate::id::{Attempt, ObjectId, SessionId, TaskId, Thing};
use crate::map::Map;
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
pub(super) struct Origin {
    spec: Arc<TaskSpec>,
    /// Its last attempt, and the retries that were paid for.
    attempt: Attempt,
    spent: u32,
    /// How many objects that are kept, and remembered tasks, need it.
    users: u32,
    /// The tasks whose results it needs, if those can run again.
    needs: Vec<TaskId>,
}

impl Origin {
    fn bytes(&self) -> usize {
        self.spec.args.len() + OVERHEAD
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Lineage {
    origins: Map<TaskId, Origin>,
    /// In the order in which they ended.
    order: VecDeque<TaskId>,
    bytes: usize,
}

impl Lineage {
    /// Whether this task can run again.
    pub fn knows(&self, task: TaskId) -> bool {
        self.origins.contains_key(&task)
    }
}

impl Controller {
    /// A task has ended well: if the data of a result is in a store, it is remembered.
    pub(super) fn remember(&mut self, task: &Task) {
        // Items of a stream go to one consumer, once: it is not run again for others.
        if !matches!(task.spec.target, Target::Function(_)) || task.spec.stream.is_some() {
            return;
        }
        let is_new = |controller: &Controller, id: &ObjectId| {
            let object = controller.objects.get(id);
            object.is_some_and(|object| object.is_stored() && !object.in_lineage)
        };
        let kept: Vec<ObjectId> = task.spec.results().filter(|id| is_new(self, id)).collect();
        let id = task.spec.id;
        if kept.is_empty() && !self.lineage.knows(id) {
            return;
        }
        for object in &kept {
            self.objects.get_mut(object).expect("it is kept").in_lineage = true;
        }
        if let Some(origin) = self.lineage.origins.get_mut(&id) {
            origin.users += kept.len() as u32;
            (origin.attempt, origin.spent) = (task.attempt, task.spent);
            return;
        }
        let mut needs = Vec::new();
        for need in &task.spec.needs {
            let Some(object) = self.objects.get(need) else { continue };
            let names_nothing =
                matches!(object.ended(), Some(Ok(()))) && object.contains().is_empty();
            if let Some(origin) = self.lineage.origins.get_mut(&need.origin) {
                origin.users += 1;
                needs.push(need.origin);
            } else if !object.is_stored() && names_nothing {
                self.holds.hold(Holder::Lineage(id), Thing::Object(*need));
            }
        }
        let (attempt, spent, users) = (task.attempt, task.spent, kept.len() as u32);
        let origin = Origin { spec: task.spec.clone(), attempt, spent, users, needs };
        self.lineage.bytes += origin.bytes();
        self.lineage.origins.insert(id, origin);
        self.lineage.order.push_back(id);
        while self.lineage.bytes > self.config.max_lineage_bytes {
            let oldest = self.lineage.order.pop_front().expect("something takes the bytes");
            for need in self.forget_origin(oldest) {
                self.unused(need);
            }
        }
    }

    /// A task that is remembered ran again, and has failed.
    pub(super) fn note_attempts(&mut self, task: &Task) {
        if let Some(origin) = self.lineage.origins.get_mut(&task.spec.id) {
            (origin.attempt, origin.spent) = (task.attempt, task.spent);
        }
    }

    /// An object of this task is not kept any more, or a task that needed one is not remembered.
    pub(super) fn unused(&mut self, task: TaskId) {
        let mut unused = vec![task];
        while let Some(task) = unused.pop() {
            let Some(origin) = self.lineage.origins.get_mut(&task) else { continue };
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
    fn forget_origin(&mut self, task: TaskId) -> Vec<TaskId> {
        let Some(origin) = self.lineage.origins.remove(&task) else { return Vec::new() };
        self.lineage.bytes -= origin.bytes();
        for result in origin.spec.results() {
            if let Some(object) = self.objects.get_mut(&result) {
                object.in_lineage = false;
            }
        }
        let free = self.holds.release_all(Holder::Lineage(task));
        self.free(free);
        origin.needs
    }

    /// Has the data of an object that is lost brought from where it was saved, to `first` if that can, or made anew;
    /// what it takes for that, too. Says why that cannot be.
    pub(super) fn restore(
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
        self.make_anew(now, id, effects)
    }

    /// Has the data of an object made anew that is lost; what it takes for that, too. Says why that cannot be.
    pub(super) fn make_anew(
        &mut self,
        now: Time,
        id: ObjectId,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Error> {
        let mut plan = Vec::new();
        self.plan(id, 0, &mut plan)?;
        for task in plan {
            let origin = self.lineage.origins.get_mut(&task).expect("it was planned");
            origin.spent += 1;
            let (spec, attempt, spent) = (origin.spec.clone(), origin.attempt, origin.spent);
            self.history.forget(task);
            self.admit(now, Owner::Restoring, spec, (attempt, spent), effects);
        }
        Ok(())
    }

    /// Which tasks have to run again, those first that others need.
    fn plan(&self, id: ObjectId, depth: usize, plan: &mut Vec<TaskId>) -> Result<(), Error> {
        let task = id.origin;
        // What a stream has given before it does not give again.
        let runs = self.tasks.get(&task).is_some_and(|task| id.index < task.spec.returns);
        if runs || plan.contains(&task) {
            return Ok(());
        }
        let why = |words: &str| self.lost(id, words);
        let Some(origin) = self.lineage.origins.get(&task) else {
            return Err(why(
                "it was put, or made by an actor, or is an item of a stream, or what made it is not remembered",
            ));
        };
        if depth >= MAX_DEPTH {
            return Err(why("what made it needs what is lost, too, deeper than is made anew"));
        }
        if !self.retry_budget(&origin.spec).allows(origin.spent) {
            return Err(why("its task may not run again (max_retries)"));
        }
        if origin.spec.holds.iter().any(|thing| !self.exists(*thing)) {
            return Err(why("something that its task's arguments name is gone"));
        }
        for need in origin.spec.data() {
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
    pub(super) fn lost(&self, id: ObjectId, why_not: &str) -> Error {
        let object = self.objects.get(&id);
        let where_it_was =
            object.and_then(|object| object.pending()?.lost.as_ref()).map(|lost| lost.message());
        let remembered =
            self.lineage.origins.get(&id.origin).map(|origin| origin.spec.target.label());
        let made_by =
            remembered.or_else(|| self.history.get(id.origin).map(|status| &*status.name));
        lost(id, made_by, where_it_was, why_not)
    }

    /// What a task is remembered for: objects that are kept, also those of tasks that need its results.
    pub fn remembered_for(&self, task: TaskId) -> Vec<ObjectId> {
        let kept =
            self.objects.iter().filter(|(id, object)| id.origin == task && object.in_lineage);
        let mut kept: Vec<ObjectId> = kept.map(|(id, _)| *id).collect();
        for (other, origin) in &self.lineage.origins {
            if origin.needs.contains(&task) {
                kept.extend(self.remembered_for(*other));
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
        for need in self.lineage.origins.values().flat_map(|origin| &origin.needs) {
            *users.entry(*need).or_default() += 1;
        }
        for (task, origin) in &self.lineage.origins {
            assert_eq!(users.remove(task), Some(origin.users), "what {task} is remembered for");
        }
        assert!(users.is_empty(), "what is not remembered is needed: {users:?}");
        let bytes: usize = self.lineage.origins.values().map(Origin::bytes).sum();
        assert_eq!(bytes, self.lineage.bytes, "bytes of what is remembered");
        assert!(bytes <= self.config.max_lineage_bytes, "more is remembered than may be");
        for task in self.lineage.origins.keys() {
            assert!(self.lineage.order.contains(task), "{task} is remembered for ever");
        }
    }
}
