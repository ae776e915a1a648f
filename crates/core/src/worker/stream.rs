//! Streams at a worker. Items go from executors to the controller, also those of direct calls.
//! Counts of consumed items go to the executors. If the work has not started yet, its count is kept
//! until it starts.

use super::call::{Call, CallOrigin};
use super::executor::Occupant;
use super::{Effect, ExecutorId, Worker};
use crate::id::{Session, TaskId};
use crate::message::{AttemptId, FromWorker};
use crate::payload::Value;

/// The progress of a stream at this worker.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StreamProgress {
    /// How many items this attempt has yielded.
    pub yielded: u32,
    /// How many items were consumed, also of earlier attempts.
    pub consumed: u32,
}

impl StreamProgress {
    /// Returns the count of consumed items for the executor that gets the work, unless it is 0.
    pub fn tells(&self, executor: ExecutorId, task: TaskId) -> Option<Effect> {
        let count = self.consumed;
        (count > 0).then_some(Effect::ReportConsumed { executor, task, count })
    }
}

impl Worker {
    /// Forwards an item that user code yielded, even if its consumer is gone: the referents that it
    /// names are held until the controller has seen it.
    pub(super) fn yielded(
        &mut self,
        executor: ExecutorId,
        task: TaskId,
        index: u32,
        value: Value,
        effects: &mut Vec<Effect>,
    ) {
        let Some((attempt, to)) = self.gave(executor, task, index) else {
            self.counters.stale += 1;
            return;
        };
        super::blob::retain_blobs([&value], effects);
        let message = FromWorker::Yielded { attempt, to, index, value };
        effects.push(Effect::ToController(message));
    }

    /// Counts an item, if `executor` runs `task` and this is its next item. Returns the attempt,
    /// and the caller of a direct call.
    fn gave(
        &mut self,
        executor: ExecutorId,
        task: TaskId,
        index: u32,
    ) -> Option<(AttemptId, Option<Session>)> {
        let (stream, spec, attempt, to) = match self.occupant(executor) {
            Occupant::Task(id) if id == task => {
                let local = self.attempts.get_mut(&id).expect("its executor has it");
                (&mut local.stream, &local.spec, AttemptId { task, attempt: local.attempt }, None)
            }
            Occupant::Actor(actor) => {
                let hosted = self.actors.get_mut(&actor).expect("its executor has it");
                let call = hosted.running.get_mut(&task)?;
                let (attempt, to) = (call.attempt_id(), call.origin.caller());
                (&mut call.stream, &call.spec, attempt, to)
            }
            Occupant::Task(_) | Occupant::None => return None,
        };
        if spec.stream_window.is_none() || stream.yielded != index {
            return None;
        }
        stream.yielded += 1;
        Some((attempt, to))
    }

    /// Handles a count of consumed items of a task, or of a call through the controller.
    pub(super) fn task_items_consumed(
        &mut self,
        attempt: AttemptId,
        count: u32,
        effects: &mut Vec<Effect>,
    ) {
        let Some(local) = self.attempts.get_mut(&attempt.task) else {
            return self.call_items_consumed(CallOrigin::Controller, attempt.task, count, effects);
        };
        if local.attempt == attempt.attempt && count > local.stream.consumed {
            local.stream.consumed = count;
            if let super::task::AttemptState::Running { executor, .. } = local.state {
                effects.push(Effect::ReportConsumed { executor, task: attempt.task, count });
            }
        }
    }

    /// Handles a count of consumed items of a call.
    pub(super) fn call_items_consumed(
        &mut self,
        origin: CallOrigin,
        id: TaskId,
        count: u32,
        effects: &mut Vec<Effect>,
    ) {
        let Some(hosted) = self.actors.values_mut().find(|hosted| hosted.ids.contains(&id)) else {
            return; // The call has ended.
        };
        let executor = hosted.executor;
        let with_executor = hosted.running.values_mut().chain(&mut hosted.prefetched);
        let with_executor = with_executor.map(|call| (call, true));
        let waiting = hosted.mailbox.iter_mut().map(|call| (call, false));
        let is_it = |call: &Call| call.spec.id == id && call.origin == origin;
        if let Some((call, is_sent)) = with_executor.chain(waiting).find(|(call, _)| is_it(call))
            && count > call.stream.consumed
        {
            call.stream.consumed = count;
            effects.extend(call.stream.tells(executor, id).filter(|_| is_sent));
        }
    }
}
