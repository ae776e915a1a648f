//! How many handles the process has to each referent. The client tells the controller only of the
//! first handle to a referent (`Hold`) and of the last (`Release`). A referent that a call or a
//! request still uses is released only after that call or request has ended.

use super::{Client, Effect};
use crate::id::Referent;
use crate::message::FromClient;

impl Client {
    /// Adds a handle to `thing`.
    pub fn hold(&mut self, thing: Referent, effects: &mut Vec<Effect>) {
        if !self.membership.is_open() {
            return;
        }
        if !self.is_held(thing) {
            effects.push(Effect::ToController(FromClient::Hold { thing }));
        }
        *self.handles.entry(thing).or_default() += 1;
    }

    /// Removes a handle to `thing`.
    pub fn release(&mut self, thing: Referent, effects: &mut Vec<Effect>) {
        let Some(count) = self.handles.get_mut(&thing) else { return };
        *count -= 1;
        if *count == 0 {
            self.handles.remove(&thing);
            self.release_if_unused(thing, effects);
        }
    }

    /// Adds a handle to a referent that the controller holds for this client already, because of an
    /// answer or a submission.
    pub(super) fn count_held(&mut self, thing: Referent) {
        *self.handles.entry(thing).or_default() += 1;
    }

    pub(super) fn begin_use(&mut self, thing: Referent) {
        *self.in_use.entry(thing).or_default() += 1;
    }

    pub(super) fn end_use(&mut self, thing: Referent, effects: &mut Vec<Effect>) {
        let count = self.in_use.get_mut(&thing).expect("`begin_use` was called");
        *count -= 1;
        if *count == 0 {
            self.in_use.remove(&thing);
            self.release_if_unused(thing, effects);
        }
    }

    pub(super) fn is_held(&self, thing: Referent) -> bool {
        self.handles.contains_key(&thing) || self.in_use.contains_key(&thing)
    }

    fn release_if_unused(&mut self, thing: Referent, effects: &mut Vec<Effect>) {
        if !self.is_held(thing) {
            if let Referent::Actor(actor) = thing {
                self.forget_actor(actor);
            }
            effects.push(Effect::ToController(FromClient::Release { thing }));
        }
    }
}
