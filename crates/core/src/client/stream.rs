//! Streams: the items of tasks and calls, in order and once each, and how many of them the user has
//! consumed.
//!
//! A task or call that runs again yields its earlier items again. The client counts the items that
//! have arrived, and releases those that it had before. The end of a direct call takes a shorter
//! way than its items. The call therefore ends here only when all of them have arrived.

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
    /// How many items have arrived.
    pub came: u32,
    /// How many items the user has reported as consumed.
    consumed: u32,
    /// The user has closed the stream.
    closed: bool,
}

impl StreamState {
    /// Returns how many items the user has consumed.
    pub fn consumed(&self) -> u32 {
        self.consumed
    }
}

impl Client {
    pub(super) fn open_stream(&mut self, spec: &TaskSpec) {
        if spec.stream_window.is_some() {
            self.streams.insert(spec.id, StreamState::default());
        }
    }

    /// Handles an item. The controller holds it for this client.
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

    /// Ends a direct call, if its host has reported its end and all its items have arrived.
    pub(super) fn end_if_all_came(&mut self, id: TaskId, effects: &mut Vec<Effect>) {
        let came = self.streams.get(&id).map_or(u32::MAX, |stream| stream.came);
        let Some(call) = self.calls.get_mut(&id) else { return };
        if let Some((_, outcome)) = call.ending.take_if(|(items, _)| *items <= came) {
            let actor = call.actor;
            self.end_call(id, outcome, effects);
            self.send_calls(actor, effects);
        }
    }

    /// Reports how many items of a stream the user has consumed in all. Reported in
    /// [steps](crate::spec::consumed_report_step), this lets the producer go on in time.
    pub fn report_consumed(&mut self, task: TaskId, count: u32, effects: &mut Vec<Effect>) {
        if let Some(stream) = self.streams.get_mut(&task)
            && count > stream.consumed
        {
            stream.consumed = count;
            self.send_consumed(task, effects);
        }
    }

    /// Sends the count of consumed items, unless it is 0, to the host of the call or to the
    /// controller.
    pub(super) fn send_consumed(&self, task: TaskId, effects: &mut Vec<Effect>) {
        let count = self.streams.get(&task).map_or(0, StreamState::consumed);
        if count == 0 {
            return;
        }
        match self.calls.get(&task).map(|call| call.state) {
            // The count goes with the call when it is sent.
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

    /// Closes a stream: cancels its task or call, and releases the items that still arrive.
    pub fn close_stream(&mut self, task: TaskId, effects: &mut Vec<Effect>) {
        if let Some(stream) = self.streams.get_mut(&task)
            && !std::mem::replace(&mut stream.closed, true)
        {
            self.cancel(task, CancelMode::Graceful, effects);
        }
    }
}
