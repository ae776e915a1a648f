//! User code that waits for other work. Its CPUs are free meanwhile, if its worker lets one more wait.

use super::process::Waiter;
use super::run::ExecutorReport;
use super::{Teller, context};
use marline_core::Error;
use marline_core::message::AttemptId;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::task::{self, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// One time that something waits. Nobody refuses it outside of tasks and calls.
#[derive(Clone, Debug, Default)]
pub struct BlockingWait {
    waiter: Arc<Waiter>,
    /// So many may wait and do: this one may not.
    refused: Arc<OnceLock<usize>>,
}

impl BlockingWait {
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
pub(super) struct CurrentWait(Arc<Mutex<Option<BlockingWait>>>);

impl CurrentWait {
    fn now(&self) -> MutexGuard<'_, Option<BlockingWait>> {
        self.0.lock().expect("nothing panics under it")
    }

    /// The worker has as many that wait as it may. If this is about a wait that is over, it ends the one after
    /// it: that there were too many is true of it, too, give or take a moment.
    pub fn refuse(&self, limit: usize) {
        let wait = self.now().clone();
        if let Some(wait) = wait {
            let _ = wait.refused.set(limit);
            wait.waiter.notify();
        }
    }
}

/// Waits for other work. If it is a task that waits, its CPUs are free meanwhile; if it may not, it is told.
pub fn wait_lending_cpu<R>(wait: impl FnOnce(&BlockingWait) -> R) -> R {
    let Some(context) = context() else { return wait(&BlockingWait::default()) };
    let attempt = AttemptId { task: context.task, attempt: context.attempt };
    let Teller(tell) = context.tell;
    // A signal's handler may wait while its task does.
    let this = BlockingWait::default();
    let outer = context.waiting.now().replace(this.clone());
    tell(ExecutorReport::Blocked { attempt, blocked: true });
    let result = wait(&this);
    *context.waiting.now() = outer;
    tell(ExecutorReport::Blocked { attempt, blocked: false });
    result
}

/// Re-check the clock at least this often, where there is no deadline.
const LONGEST: Duration = Duration::from_secs(60 * 60);

/// Polls until there is something, or the deadline passes: then nothing. A task that has to wait lends its CPU as
/// [`blocking`] says; if it may not wait, this fails.
pub(crate) fn poll_until<R>(
    deadline: Option<Instant>,
    mut poll: impl FnMut(&mut task::Context<'_>) -> Poll<R>,
) -> Result<Option<R>, Error> {
    // The worker hears nothing of a wait for what has come already.
    if let Poll::Ready(came) = poll(&mut task::Context::from_waker(Waker::noop())) {
        return Ok(Some(came));
    }
    wait_lending_cpu(|wait| {
        let waker = Waker::from(Arc::new(RingsOnWake(wait.waiter().clone())));
        let mut cx = task::Context::from_waker(&waker);
        loop {
            // Before the poll: whatever comes after the poll rings again.
            wait.waiter().begin_again();
            if let Poll::Ready(came) = poll(&mut cx) {
                return Ok(Some(came));
            }
            if let Some(error) = wait.error() {
                return Err(error);
            }
            let now = Instant::now();
            if deadline.is_some_and(|deadline| deadline <= now) {
                return Ok(None);
            }
            wait.waiter().wait(deadline.unwrap_or(now + LONGEST));
        }
    })
}

/// Rings the waiter of a thread that polls.
struct RingsOnWake(Arc<Waiter>);

impl Wake for RingsOnWake {
    fn wake(self: Arc<Self>) {
        self.0.notify();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::process::WaitOutcome;
    use marline_core::error::ErrorKind;
    use std::thread;

    #[test]
    fn a_wait_that_is_refused_names_the_limit() {
        let (waiting, wait) = (CurrentWait::default(), BlockingWait::default());
        waiting.refuse(7); // Nothing waits.
        *waiting.now() = Some(wait.clone());
        assert!(wait.error().is_none());
        assert_eq!(wait.waiter().wait(Instant::now()), WaitOutcome::TimedOut);
        waiting.refuse(7);
        assert_eq!(wait.waiter().wait(Instant::now()), WaitOutcome::Notified);
        let error = wait.error().expect("it was refused");
        assert_eq!(error.kind(), ErrorKind::Exhausted);
        assert!(
            error.message().contains("7 tasks")
                && error.message().contains("max_blocked_executors")
        );
    }

    #[test]
    fn a_poll_that_is_woken_in_vain_goes_on_until_its_deadline() {
        let polls = std::cell::Cell::new(0);
        let soon = Instant::now() + Duration::from_millis(20);
        let nothing = poll_until(Some(soon), |cx| {
            polls.set(polls.get() + 1);
            if polls.get() < 5 {
                cx.waker().wake_by_ref();
            }
            Poll::<()>::Pending
        });
        assert_eq!(nothing, Ok(None));
        assert!((5..20).contains(&polls.get()), "it sleeps when nobody wakes it: {}", polls.get());
        assert!(Instant::now() >= soon);
    }

    #[test]
    fn a_poll_is_woken_by_another_thread() {
        let (tell, mut told) = marline_channel::oneshot();
        let mut tell = Some(tell);
        let came = poll_until(None, |cx| {
            let polled = std::pin::Pin::new(&mut told).poll(cx);
            if let Some(tell) = tell.take() {
                thread::spawn(move || tell.send(7));
            }
            polled
        });
        assert_eq!(came, Ok(Some(Ok(7))));
    }
}
