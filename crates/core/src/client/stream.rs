//! Streams: items of tasks and calls, in order, each once, and how many of them were taken.
//!
//! A task or call that runs again gives once more what it gave before: who counts what came is here, and lets go of
//! what it had. The end of a direct call takes a shorter way than its items: it is the end when they have come.

use super::call::CallState;
use super::{Client, Effect};
use crate::error::Error;
use crate::id::{ObjectId, Referent, TaskId};
use crate::message::{CancelMode, FromClient, ToHost};
use crate::payload::Value;
use crate::spec::TaskSpec;

/// A stream that has not ended.
#[derive(Debug, Default)]
pub(super) struct StreamState {
    /// Items that came.
    pub came: u32,
    /// Items that the user took, as far as was said.
    took: u32,
    /// The user wants no more of it.
    closed: bool,
}

impl StreamState {
    /// How many items were taken.
    pub fn took(&self) -> u32 {
        self.took
    }
}

impl Client {
    pub(super) fn open_stream(&mut self, spec: &TaskSpec) {
        if spec.stream_window.is_some() {
            self.streams.insert(spec.id, StreamState::default());
        }
    }

    /// An item came, which the controller holds for this client.
    pub(super) fn yielded(
        &mut self,
        task: TaskId,
        index: u32,
        value: Result<Value, Error>,
        effects: &mut Vec<Effect>,
    ) {
        let thing = Referent::Object(ObjectId::item(task, index));
        let repeated = crate::planted!(ItemRepeated);
        let next = self.streams.get_mut(&task).filter(|stream| stream.came == index || repeated);
        let wanted = next.is_some_and(|stream| {
            stream.came = stream.came.max(index.saturating_add(1));
            !stream.closed
        });
        if wanted {
            self.count_held(thing);
            effects.push(Effect::Yielded { task, index, value });
        } else if !self.is_held(thing) {
            effects.push(Effect::ToController(FromClient::Release { thing }));
        }
        self.end_if_all_came(task, effects);
    }

    /// A direct call ends when its host has said so, and all its items have come.
    pub(super) fn end_if_all_came(&mut self, id: TaskId, effects: &mut Vec<Effect>) {
        let came = self.streams.get(&id).map_or(u32::MAX, |stream| stream.came);
        let Some(call) = self.calls.get_mut(&id) else { return };
        if let Some((_, outcome)) = call.ending.take_if(|(items, _)| *items <= came) {
            let actor = call.actor;
            self.end_call(id, outcome, effects);
            self.send_calls(actor, effects);
        }
    }

    /// The user has taken so many items of a stream in all. Said in [steps](crate::spec::took_step), it lets the
    /// producer go on in time.
    pub fn report_consumed(&mut self, task: TaskId, count: u32, effects: &mut Vec<Effect>) {
        if let Some(stream) = self.streams.get_mut(&task)
            && count > stream.took
        {
            stream.took = count;
            self.tell_took(task, effects);
        }
    }

    /// Whoever sees to a stream is told how many of its items were taken, if any were.
    pub(super) fn tell_took(&self, task: TaskId, effects: &mut Vec<Effect>) {
        let count = self.streams.get(&task).map_or(0, StreamState::took);
        if count == 0 {
            return;
        }
        match self.calls.get(&task).map(|call| call.state) {
            // It is told when it is sent.
            Some(CallState::Waiting) => {}
            Some(CallState::Sent { host, .. }) => {
                let address = self.hosts[&host].clone();
                let message = ToHost::Took { call: task, count };
                effects.push(Effect::ToHost { host, address, message });
            }
            Some(CallState::Relayed) | None => {
                effects.push(Effect::ToController(FromClient::Took { task, count }));
            }
        }
    }

    /// The user wants no more of a stream: it is cancelled, and what still comes of it is let go.
    pub fn close_stream(&mut self, task: TaskId, effects: &mut Vec<Effect>) {
        if let Some(stream) = self.streams.get_mut(&task)
            && !std::mem::replace(&mut stream.closed, true)
        {
            self.cancel(task, CancelMode::Graceful, effects);
        }
    }
}
