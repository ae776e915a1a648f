//! Cycles. Work that waits for its own results would wait for ever, so the controller refuses the
//! submission that closes such a cycle.
//!
//! - A task waits for the values it needs. A call also waits for its actor. An actor waits for the
//!   values that its constructor needs.
//! - A client chooses ids itself. So it can announce a result of a task that it has not submitted
//!   yet, and submit other work that needs the result.
//! - Only two steps can close a cycle: a task is submitted whose results some work waits for
//!   already, or a call becomes ready whose actor waits for values. Any other step adds no way
//!   back.

use super::Controller;
use super::actor::ActorPhase;
use super::task::TaskPhase;
use crate::error::Error;
use crate::id::{ActorId, ObjectId, TaskId};
use crate::map::Set;
use crate::spec::TaskSpec;

/// The most objects that one check visits. A check that would visit more refuses the submission,
/// since the controller handles no other event during the check.
const MAX_OBJECTS_WALKED: usize = 10_000;
/// The most objects that an error names.
const MAX_NAMED: usize = 10;

impl Controller {
    /// Refuses a new task that would wait for its own results. Costs nothing for a task without
    /// needs, and one lookup for each result unless some work waits for one.
    pub(super) fn check_task_cycle(&self, spec: &TaskSpec) -> Result<(), Error> {
        if let Some(own) = spec.needs.iter().find(|need| need.origin == spec.id) {
            return Err(Error::invalid(format!(
                "task {} needs its own result {own}: it would wait for ever",
                spec.id
            )));
        }
        if spec.needs.is_empty() || !spec.results().any(|result| self.is_waited_for(result)) {
            return Ok(());
        }
        self.check_cycle(spec.id, spec.input_objects())
    }

    /// Refuses a call that has become ready if its actor waits for its results.
    pub(super) fn check_call_cycle(&self, call: TaskId, actor: ActorId) -> Result<(), Error> {
        match self.actors.get(&actor) {
            Some(actor) if matches!(actor.phase, ActorPhase::Waiting) => {
                self.check_cycle(call, actor.spec.input_objects())
            }
            Some(_) | None => Ok(()),
        }
    }

    fn is_waited_for(&self, object: ObjectId) -> bool {
        let boxed = self.objects.get(&object).and_then(|object| object.boxed());
        boxed.is_some_and(|boxed| !boxed.waiting_work.is_empty())
    }

    /// Refuses `task` if one of its results is among `objects`, or among the objects that those
    /// wait for.
    fn check_cycle(
        &self,
        task: TaskId,
        objects: impl Iterator<Item = ObjectId>,
    ) -> Result<(), Error> {
        // Each object, with the index in `walked` of the object that waits for it.
        let mut walked: Vec<(ObjectId, Option<usize>)> = Vec::new();
        let mut seen = Set::default();
        let mut at = 0;
        walked.extend(objects.filter(|object| seen.insert(*object)).map(|object| (object, None)));
        while let Some((object, _)) = walked.get(at).copied() {
            if object.origin == task && !self.has_value(object) {
                return Err(cycle(task, &walked, at));
            }
            if walked.len() > MAX_OBJECTS_WALKED {
                return Err(Error::invalid(format!(
                    "task {task} may wait for its own results: what it needs waits for more than \
                     {MAX_OBJECTS_WALKED} values (MAX_OBJECTS_WALKED); submit it before work needs its results"
                )));
            }
            if !self.has_value(object) {
                let next = self.waits_for(object.origin).filter(|object| seen.insert(*object));
                walked.extend(next.map(|object| (object, Some(at))));
            }
            at += 1;
        }
        Ok(())
    }

    fn has_value(&self, object: ObjectId) -> bool {
        self.objects.get(&object).is_some_and(|object| object.resolution().is_some())
    }

    /// Returns the objects that a task waits for: its own, and those of its actor.
    fn waits_for(&self, task: TaskId) -> impl Iterator<Item = ObjectId> {
        let task = self.tasks.get(&task);
        let own = task.filter(|task| matches!(task.state, TaskPhase::Waiting { .. }));
        let actor = task.and_then(|task| self.actors.get(&task.spec.target.actor()?));
        let actor = actor.filter(|actor| matches!(actor.phase, ActorPhase::Waiting));
        let own = own.into_iter().flat_map(|task| task.spec.input_objects());
        own.chain(actor.into_iter().flat_map(|actor| actor.spec.input_objects()))
    }
}

/// Returns the error that names each object that `task` waits for, up to its own result at `end`.
fn cycle(task: TaskId, walked: &[(ObjectId, Option<usize>)], end: usize) -> Error {
    let mut path = Vec::new();
    let mut next = Some(end);
    while let Some(at) = next {
        path.push(walked[at].0.to_string());
        next = walked[at].1;
    }
    let left_out = path.len().saturating_sub(MAX_NAMED);
    if left_out > 0 {
        // The task's own result stays: it is the far end of the path.
        path.splice(1..=left_out, [format!("({left_out} more)")]);
    }
    path.reverse();
    let path = path.join(", which waits for ");
    Error::invalid(format!(
        "task {task} would wait for ever for its own result: it waits for {path}"
    ))
}
