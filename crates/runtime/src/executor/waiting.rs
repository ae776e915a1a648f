//! User code that waits for other work. Its CPUs are free meanwhile, if its worker lets one more wait.

use super::process::Waiter;
use super::run::Said;
use super::{Teller, context};
use marline_core::Error;
use marline_core::message::Try;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

/// One time that something waits. Nobody refuses it outside of tasks and calls.
#[derive(Clone, Debug, Default)]
pub struct Wait {
    waiter: Arc<Waiter>,
    /// So many may wait and do: this one may not.
    refused: Arc<OnceLock<usize>>,
}

impl Wait {
    /// Who waits: rung also if it may not go on.
    pub fn waiter(&self) -> &Arc<Waiter> {
        &self.waiter
    }

    /// Why it may not go on, if it may not.
    pub fn error(&self) -> Option<Error> {
        let limit = self.refused.get()?;
        Some(Error::exhausted(format!(
            "{limit} tasks of this worker wait for others, and no more may (max_blocked_executors): have fewer \
             wait at a time, or say MARLINE_MAX_BLOCKED_EXECUTORS where workers start"
        )))
    }
}

/// What a task or call waits in now, if it does.
#[derive(Clone, Debug, Default)]
pub(super) struct Waiting(Arc<Mutex<Option<Wait>>>);

impl Waiting {
    fn now(&self) -> MutexGuard<'_, Option<Wait>> {
        self.0.lock().expect("nothing panics under it")
    }

    /// The worker has as many that wait as it may. If this is about a wait that is over, it ends the one after
    /// it: that there were too many is true of it, too, give or take a moment.
    pub fn refuse(&self, limit: usize) {
        let wait = self.now().clone();
        if let Some(wait) = wait {
            let _ = wait.refused.set(limit);
            wait.waiter.ring();
        }
    }
}

/// Waits for other work. If it is a task that waits, its CPUs are free meanwhile; if it may not, it is told.
pub fn blocking<R>(wait: impl FnOnce(&Wait) -> R) -> R {
    let Some(context) = context() else { return wait(&Wait::default()) };
    let attempt = Try { task: context.task, attempt: context.attempt };
    let Teller(tell) = context.tell;
    // A signal's handler may wait while its task does.
    let this = Wait::default();
    let outer = context.waiting.now().replace(this.clone());
    tell(Said::Blocked { attempt, blocked: true });
    let result = wait(&this);
    *context.waiting.now() = outer;
    tell(Said::Blocked { attempt, blocked: false });
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::process::Waited;
    use marline_core::error::ErrorKind;
    use std::time::Instant;

    #[test]
    fn a_wait_that_is_refused_names_the_limit() {
        let (waiting, wait) = (Waiting::default(), Wait::default());
        waiting.refuse(7); // Nothing waits.
        *waiting.now() = Some(wait.clone());
        assert!(wait.error().is_none());
        assert_eq!(wait.waiter().wait(Instant::now()), Waited::TimedOut);
        waiting.refuse(7);
        assert_eq!(wait.waiter().wait(Instant::now()), Waited::Rung);
        let error = wait.error().expect("it was refused");
        assert_eq!(error.kind(), ErrorKind::Exhausted);
        assert!(
            error.message().contains("7 tasks")
                && error.message().contains("max_blocked_executors")
        );
    }
}
