//! The end of a controller in good order: it takes no new work, every worker finishes what it has, and
//! when the last has left, or the grace is over, the process may end.
//!
//! What waits for a worker goes on waiting, and ends with the controller. Workers that were drained for
//! this join the next controller, wherever that is.

use super::{Controller, Effect, Role, Timer};
use crate::error::{Error, Ran};
use crate::id::SessionId;
use crate::message::ToWorker;
use crate::time::Time;
use std::time::Duration;

impl Controller {
    /// Takes no new work from now on, and has every worker finish what it has until `grace` is over.
    /// [`Effect::WoundUp`] says when the process may end, once.
    pub fn wind_up(&mut self, now: Time, grace: Duration, effects: &mut Vec<Effect>) {
        self.winding_up = true;
        self.timers.insert((now + grace, Timer::WoundUp));
        let mut workers: Vec<SessionId> = self.workers.keys().copied().collect();
        workers.sort_unstable();
        for id in workers {
            let to = self.workers[&id].session;
            effects.push(Effect::ToWorker { to, message: ToWorker::WindUp { grace } });
            self.is_draining(id, effects);
        }
        self.dispatch(now, effects);
        self.end_if_alone(effects);
    }

    /// The last worker has left.
    pub(super) fn end_if_alone(&mut self, effects: &mut Vec<Effect>) {
        if self.winding_up && self.workers.is_empty() {
            self.may_end(effects);
        }
    }

    pub(super) fn may_end(&mut self, effects: &mut Vec<Effect>) {
        if !std::mem::replace(&mut self.wound_up, true) {
            effects.push(Effect::WoundUp);
        }
    }

    /// Says so if no new work is taken.
    pub(super) fn check_takes_work(&self) -> Result<(), Error> {
        if !self.winding_up {
            return Ok(());
        }
        let words = "the cluster is about to end, and takes no new work";
        Err(Error::unavailable(Ran::No, words))
    }

    /// Whether whoever joins as this is let in.
    pub(super) fn lets_in(&self, role: &Role) -> bool {
        match role {
            Role::Client => true,
            Role::Worker(_) => !self.winding_up,
        }
    }

    /// Why somebody was not let in.
    pub fn why_refused(&self, role: &Role) -> Error {
        let words = if self.lets_in(role) {
            "a later request of the same process was answered already"
        } else {
            "the cluster is about to end, and takes no more workers"
        };
        Error::unavailable(Ran::No, words)
    }
}
