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
    pub fn shut_down(&mut self, now: Time, grace: Duration, effects: &mut Vec<Effect>) {
        self.shutting_down = true;
        self.timers.insert((now + grace, Timer::ShutdownDeadline));
        let mut workers: Vec<SessionId> = self.workers.keys().copied().collect();
        workers.sort_unstable();
        for id in workers {
            let to = self.workers[&id].session;
            effects.push(Effect::ToWorker { to, message: ToWorker::WindUp { grace } });
            self.start_draining(id, effects);
        }
        self.dispatch(now, effects);
        self.exit_if_no_workers(effects);
    }

    /// The last worker has left.
    pub(super) fn exit_if_no_workers(&mut self, effects: &mut Vec<Effect>) {
        if self.shutting_down && self.workers.is_empty() {
            self.allow_exit(effects);
        }
    }

    pub(super) fn allow_exit(&mut self, effects: &mut Vec<Effect>) {
        if !std::mem::replace(&mut self.exit_allowed, true) {
            effects.push(Effect::AllowExit);
        }
    }

    /// Says so if no new work is taken.
    pub(super) fn check_takes_work(&self) -> Result<(), Error> {
        if !self.shutting_down {
            return Ok(());
        }
        let words = "the cluster is about to end, and takes no new work";
        Err(Error::unavailable(Ran::No, words))
    }

    /// Whether whoever joins as this is let in.
    pub(super) fn lets_in(&self, role: &Role) -> bool {
        match role {
            Role::Client => true,
            Role::Worker(_) => !self.shutting_down,
        }
    }

    /// Why somebody was not let in.
    pub fn join_rejection(&self, role: &Role) -> Error {
        let words = if self.lets_in(role) {
            "a later request of the same process was answered already"
        } else {
            "the cluster is about to end, and takes no more workers"
        };
        Error::unavailable(Ran::No, words)
    }
}
