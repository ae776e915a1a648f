//! User code that waits for other work. It lends its CPU meanwhile, if its worker allows one more
//! waiting task.

use super::process::Waiter;
use super::{Reporter, context};
use marline_core::Error;
use marline_wire::executor::ExecutorReport;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::task::{self, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// One wait. Only a wait in a task or call can be refused.
#[derive(Clone, Debug, Default)]
pub struct BlockingWait {
    waiter: Arc<Waiter>,
    /// Set to the limit if as many tasks wait already, so this one may not.
    refused: Arc<OnceLock<usize>>,
}

impl BlockingWait {
    /// Returns the waiting thread. It is also notified if it may not keep waiting.
    pub fn waiter(&self) -> &Arc<Waiter> {
        &self.waiter
    }

    /// Returns why it may not keep waiting, if it may not.
    pub fn error(&self) -> Option<Error> {
        let limit = self.refused.get()?;
        Some(Error::exhausted(format!(
            "{limit} tasks of this worker wait for others, which is the limit (max_blocked_executors): have fewer \
             wait at a time, or set MARLINE_MAX_BLOCKED_EXECUTORS for the worker"
        )))
    }
}

/// The current wait of a task or call, if it waits.
#[derive(Clone, Debug, Default)]
pub(super) struct CurrentWait(Arc<Mutex<Option<BlockingWait>>>);

impl CurrentWait {
    fn now(&self) -> MutexGuard<'_, Option<BlockingWait>> {
        self.0.lock().expect("nothing panics under it")
    }

    /// Refuses the wait: the worker has as many waiting tasks as it may have. If the wait that this
    /// is about is over already, this ends the next one. That is fair: there were too many waiting
    /// tasks a moment ago.
    pub fn refuse(&self, limit: usize) {
        let wait = self.now().clone();
        if let Some(wait) = wait {
            let _ = wait.refused.set(limit);
            wait.waiter.notify();
        }
    }
}

/// Calls `wait`, which waits for other work. A task lends its CPU meanwhile. If it may not wait,
/// [`BlockingWait::error`] says so.
pub fn wait_lending_cpu<R>(wait: impl FnOnce(&BlockingWait) -> R) -> R {
    let Some(context) = context() else { return wait(&BlockingWait::default()) };
    let Reporter(report) = context.report;
    // A signal handler may wait while its task waits.
    let this = BlockingWait::default();
    let outer = context.waiting.now().replace(this.clone());
    report(ExecutorReport::Blocked);
    let result = wait(&this);
    *context.waiting.now() = outer;
    report(ExecutorReport::Resumed);
    result
}

/// Re-check the clock at least this often, where there is no deadline.
const LONGEST: Duration = Duration::from_secs(60 * 60);

/// Polls until there is a result, or returns `None` after the deadline. A task that has to wait
/// lends its CPU as in [`wait_lending_cpu`]. If it may not wait, this fails.
pub(crate) fn poll_until<R>(
    deadline: Option<Instant>,
    mut poll: impl FnMut(&mut task::Context<'_>) -> Poll<R>,
) -> Result<Option<R>, Error> {
    // The worker is not told of a wait for a result that is there already.
    if let Poll::Ready(came) = poll(&mut task::Context::from_waker(Waker::noop())) {
        return Ok(Some(came));
    }
    wait_lending_cpu(|wait| {
        let waker = Waker::from(Arc::new(RingsOnWake(wait.waiter().clone())));
        let mut cx = task::Context::from_waker(&waker);
        loop {
            // Before the poll: a result that comes after the poll notifies again.
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

/// Notifies the waiter of a thread that polls.
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
        assert!((5..20).contains(&polls.get()), "it sleeps until it is woken: {}", polls.get());
        assert!(Instant::now() >= soon);
    }

    #[test]
    fn a_poll_is_woken_by_another_thread() {
        let (sender, mut receiver) = marline_channel::oneshot();
        let mut sender = Some(sender);
        let came = poll_until(None, |cx| {
            let polled = std::pin::Pin::new(&mut receiver).poll(cx);
            if let Some(sender) = sender.take() {
                thread::spawn(move || sender.send(7));
            }
            polled
        });
        assert_eq!(came, Ok(Some(Ok(7))));
    }
}
