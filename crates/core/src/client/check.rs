//! The invariants of a client, checked after every event.

use super::Client;
use super::call::CallState;

impl Client {
    /// Panics, naming the contradiction, if the state is inconsistent.
    pub fn check_invariants(&self) {
        for (id, view) in &self.actors {
            let waiting =
                view.order.iter().filter(|(_, call)| self.calls[call].state == CallState::Waiting);
            assert!(waiting.eq(view.waiting.iter()), "waiting calls to {id}");
            let relayed =
                view.order.values().filter(|call| self.calls[*call].state == CallState::Relayed);
            let late = self.late.values().filter(|actor| *actor == id);
            assert_eq!(
                view.relayed as usize,
                relayed.count() + late.count(),
                "relayed calls to {id}"
            );
            let mut waits = false;
            for call in view.order.values() {
                let call = self
                    .calls
                    .get(call)
                    .unwrap_or_else(|| panic!("a call to {id} ended and is still listed"));
                match call.state {
                    CallState::Waiting => waits = true,
                    CallState::Sent { epoch, .. } => {
                        assert!(
                            !waits || view.stalled >= Some(epoch),
                            "a call to {id} overtook another"
                        );
                    }
                    CallState::Relayed => {}
                }
            }
        }
        for (id, stream) in &self.streams {
            assert!(
                self.tasks.contains(id) || self.calls.contains_key(id),
                "the stream of {id} exists, but {id} has ended"
            );
            let ending = self.calls.get(id).and_then(|call| call.ending.as_ref());
            assert!(
                ending.is_none_or(|(items, _)| *items > stream.came),
                "all items of {id} have arrived, but it has not ended"
            );
        }
        let listed: usize = self.actors.values().map(|view| view.order.len()).sum();
        assert_eq!(listed, self.calls.len(), "calls that have not ended");
        assert!(self.submitted <= self.task_credit, "submitted more than was granted");
        assert!(self.handles.values().all(|count| *count > 0), "a referent with zero handles");
    }
}
