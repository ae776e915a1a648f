//! User code that waits for other work. Its CPUs are free meanwhile, if its worker lets one more wait.

use super::run::Said;
use super::{Teller, context};
use marline_channel::CancelToken;
use marline_core::Error;
use marline_core::message::Try;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

/// One time that something waits. Nobody refuses it outside of tasks and calls.
#[derive(Clone, Debug, Default)]
pub struct Wait(Option<Arc<Refusable>>);

#[derive(Debug, Default)]
struct Refusable {
    refused: CancelToken,
    limit: OnceLock<usize>,
}

impl Wait {
    /// Cancelled if it may not go on, where that can be.
    pub fn refused(&self) -> Option<&CancelToken> {
        self.0.as_ref().map(|wait| &wait.refused)
    }

    /// Why it may not go on, if it may not.
    pub fn error(&self) -> Option<Error> {
        let limit = self.0.as_ref()?.limit.get()?;
        Some(Error::exhausted(format!(
            "{limit} tasks of this worker wait for others, and no more may (max_blocked_executors): have fewer \
             wait at a time, or say MARLINE_MAX_BLOCKED_EXECUTORS where workers start"
        )))
    }
}

/// What a task or call waits in now, if it does.
#[derive(Clone, Debug, Default)]
pub(super) struct Waiting(Arc<Mutex<Wait>>);

impl Waiting {
    fn now(&self) -> MutexGuard<'_, Wait> {
        self.0.lock().expect("nothing panics under it")
    }

    /// The worker has as many that wait as it may. If this is about a wait that is over, it ends the one after
    /// it: that there were too many is true of it, too, give or take a moment.
    pub fn refuse(&self, limit: usize) {
        let wait = self.now().0.clone();
        if let Some(wait) = wait {
            let _ = wait.limit.set(limit);
            wait.refused.cancel();
        }
    }
}

/// Waits for other work. If it is a task that waits, its CPUs are free meanwhile; if it may not, it is told.
pub fn blocking<R>(wait: impl FnOnce(&Wait) -> R) -> R {
    let Some(context) = context() else { return wait(&Wait::default()) };
    let attempt = Try { task: context.task, attempt: context.attempt };
    let Teller(tell) = context.tell;
    // A signal's handler may wait while its task does.
    let this = Wait(Some(Arc::default()));
    let outer = std::mem::replace(&mut *context.waiting.now(), this.clone());
    tell(Said::Blocked { attempt, blocked: true });
    let result = wait(&this);
    *context.waiting.now() = outer;
    tell(Said::Blocked { attempt, blocked: false });
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use marline_core::error::ErrorKind;

    #[test]
    fn a_wait_that_is_refused_names_the_limit() {
        let (waiting, wait) = (Waiting::default(), Wait(Some(Arc::default())));
        let is_refused = || wait.refused().is_some_and(CancelToken::is_cancelled);
        waiting.refuse(7); // Nothing waits.
        *waiting.now() = wait.clone();
        assert!(wait.error().is_none() && !is_refused());
        waiting.refuse(7);
        assert!(is_refused());
        let error = wait.error().expect("it was refused");
        assert_eq!(error.kind(), ErrorKind::Exhausted);
        assert!(
            error.message().contains("7 tasks")
                && error.message().contains("max_blocked_executors")
        );
    }
}
