//! The orderly end of a controller. It takes no new work, and every worker finishes the work that
//! it has. When the last worker has left, or the grace is over, the process may end.
//!
//! Work that waits for a worker goes on waiting, and ends with the controller. The drained workers
//! join the next controller, wherever that is.

use super::{Controller, Effect, Role, Timer};
use crate::error::{Error, Ran};
use crate::id::SessionId;
use crate::message::ToWorker;
use crate::time::Time;
use std::time::Duration;

impl Controller {
    /// Stops taking new work, and lets every worker finish the work that it has until `grace` is
    /// over. [`Effect::AllowExit`] says when the process may end. This effect comes once.
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

    /// Allows the process to end if the controller shuts down and the last worker has left.
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

    /// Fails with `Unavailable` if the controller shuts down: it takes no new work.
    pub(super) fn check_takes_work(&self) -> Result<(), Error> {
        if !self.shutting_down {
            return Ok(());
        }
        let words = "the cluster is shutting down, and takes no new work";
        Err(Error::unavailable(Ran::No, words))
    }

    /// Returns whether a process may join in this role. Workers may not while the controller shuts
    /// down.
    pub(super) fn lets_in(&self, role: &Role) -> bool {
        match role {
            Role::Client => true,
            Role::Worker(_) => !self.shutting_down,
        }
    }

    /// Returns why a request to join in this role was not granted.
    pub fn join_rejection(&self, role: &Role) -> Error {
        let words = if self.lets_in(role) {
            "a later request of the same process was answered already"
        } else {
            "the cluster is shutting down, and takes no more workers"
        };
        Error::unavailable(Ran::No, words)
    }
}
