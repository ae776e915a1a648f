//! Streams at a worker: items go from executors to the controller, also those of direct calls, and how many were
//! taken goes to the executor. What is taken of something that has not begun is remembered until it does.

use super::call::{Call, CallOrigin};
use super::executor::Occupant;
use super::{Effect, ExecutorId, Worker};
use crate::id::{Session, TaskId};
use crate::message::{AttemptId, FromWorker};
use crate::payload::Value;

/// How far a stream has come here.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StreamProgress {
    /// Items that this attempt gave.
    pub yielded: u32,
    /// Items that were taken, perhaps of an earlier attempt.
    pub consumed: u32,
}

impl StreamProgress {
    /// What its executor is told when it gets it.
    pub fn tells(&self, executor: ExecutorId, task: TaskId) -> Option<Effect> {
        let count = self.consumed;
        (count > 0).then_some(Effect::ReportConsumed { executor, task, count })
    }
}

impl Worker {
    /// User code gave an item. It is passed on also if nobody waits for it any more: what it names is held until
    /// the controller has seen it.
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

    /// Counts an item, if this executor runs this and it is the next; says of which attempt it is, and for whom.
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

    /// Items of a task, or of a call through the controller, were taken.
    pub(super) fn took(&mut self, attempt: AttemptId, count: u32, effects: &mut Vec<Effect>) {
        let Some(local) = self.attempts.get_mut(&attempt.task) else {
            return self.call_took(CallOrigin::Controller, attempt.task, count, effects);
        };
        if local.attempt == attempt.attempt && count > local.stream.consumed {
            local.stream.consumed = count;
            if let super::task::AttemptState::Running { executor, .. } = local.state {
                effects.push(Effect::ReportConsumed { executor, task: attempt.task, count });
            }
        }
    }

    /// Items of a call were taken.
    pub(super) fn call_took(
        &mut self,
        from: CallOrigin,
        id: TaskId,
        count: u32,
        effects: &mut Vec<Effect>,
    ) {
        let Some(hosted) = self.actors.values_mut().find(|hosted| hosted.ids.contains(&id)) else {
            return; // It has ended.
        };
        let executor = hosted.executor;
        let with_executor = hosted.running.values_mut().chain(&mut hosted.prefetched);
        let with_executor = with_executor.map(|call| (call, true));
        let waiting = hosted.mailbox.iter_mut().map(|call| (call, false));
        let is_it = |call: &Call| call.spec.id == id && call.origin == from;
        if let Some((call, given)) = with_executor.chain(waiting).find(|(call, _)| is_it(call))
            && count > call.stream.consumed
        {
            call.stream.consumed = count;
            effects.extend(call.stream.tells(executor, id).filter(|_| given));
        }
    }
}
