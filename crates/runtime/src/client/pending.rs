//! Results that were requested and have not arrived.
//!
//! A task that waits for other work lends its CPU meanwhile, whichever method it waits with. The
//! controller answers some requests itself (an actor is registered, a name is found). Those answers
//! come soon and need no CPU, so a task that waits for them lends nothing.

use crate::executor::{poll_until, runs_here};
use marline_channel::oneshot;
use marline_core::error::{Error, Ran};
use std::pin::Pin;
use std::task::{self, Poll, ready};
use std::time::{Duration, Instant};

/// A result that was requested and may not have arrived: await it, or [`wait`](Pending::wait) for
/// it.
pub struct Pending<T> {
    receiver: oneshot::Receiver<T>,
    /// Whether other work produces the result. Then a task that waits for it lends its CPU.
    of_work: bool,
    /// The result, if it arrived at a poll and was not taken.
    came: Option<Result<T, Error>>,
    /// Whether the result was taken.
    taken: bool,
}

/// A function that is called once with a result, by the thread that receives it. It must not block.
/// It is dropped if the result never comes, because the cluster was shut down.
pub type Callback<T> = Box<dyn FnOnce(T) + Send>;

impl<T: Send + 'static> Pending<T> {
    /// Creates a result that other work produces, and the callback that sets it.
    pub fn with_callback() -> (Callback<T>, Pending<T>) {
        let (waiter, receiver) = oneshot();
        let pending = Pending { of_work: true, ..Pending::new(receiver) };
        (Box::new(move |value| drop(waiter.send(value))), pending)
    }
}

impl<T> Pending<T> {
    /// Creates a result that the controller produces itself.
    pub(super) fn new(receiver: oneshot::Receiver<T>) -> Pending<T> {
        Pending { receiver, of_work: false, came: None, taken: false }
    }

    /// Returns whether a wait on this thread lends the CPU of a task.
    fn lends(&self) -> bool {
        self.of_work && runs_here()
    }

    /// Blocks this thread until the result arrives. A task that waits for other work lends its CPU
    /// meanwhile. If its worker has as many waiting tasks as it may have, this fails with
    /// `Exhausted`.
    pub fn wait(mut self) -> Result<T, Error> {
        if self.lends() {
            poll_until(None, |cx| self.poll_ready(cx)).map_err(refused)?;
        }
        if let Some(came) = self.came {
            return came;
        }
        if self.taken {
            return Err(taken());
        }
        self.receiver.recv().wait().map_err(|_| session_over_error())
    }

    /// Blocks this thread until the result arrives. Fails with `Timeout` after `timeout`; then the
    /// caller can wait again. A task lends its CPU as in [`wait`](Pending::wait).
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<T, Error> {
        if self.lends() {
            let deadline = Instant::now().checked_add(timeout);
            let came = poll_until(deadline, |cx| self.poll_ready(cx)).map_err(refused)?;
            came.ok_or_else(|| too_late(timeout))?;
        }
        if let Some(came) = self.came.take() {
            self.taken = true;
            return came;
        }
        if self.taken {
            return Err(taken());
        }
        let came = self.receiver.recv().timeout(timeout).wait();
        self.taken = came.is_ok();
        came.map_err(|error| match error.kind() {
            marline_channel::ErrorKind::Timeout => too_late(timeout),
            _ => session_over_error(),
        })
    }

    /// Returns whether the result has arrived, even if it was taken since.
    pub fn is_ready(&self) -> bool {
        self.came.is_some() || self.taken || self.receiver.is_settled()
    }

    /// Polls whether the result has arrived. If it has not, wakes the task of `cx` when it does.
    pub fn poll_ready(&mut self, cx: &mut task::Context<'_>) -> Poll<()> {
        if self.came.is_none() && self.taken {
            self.came = Some(Err(taken()));
        }
        if self.came.is_none() {
            let receiver = Pin::new(&mut self.receiver);
            self.came = Some(ready!(receiver.poll(cx)).map_err(|_| session_over_error()));
        }
        Poll::Ready(())
    }
}

/// Blocks this thread until `count` of these results have arrived, or the deadline has passed.
/// Returns how many have arrived. A task lends its CPU as in [`Pending::wait`].
pub fn wait_for_some<'a, T: 'a>(
    pending: &mut dyn Iterator<Item = &'a mut Pending<T>>,
    count: usize,
    deadline: Option<Instant>,
) -> Result<usize, Error> {
    let mut left: Vec<&mut Pending<T>> = pending.collect();
    let all = left.len();
    let waited = poll_until(deadline, |cx| {
        left.retain_mut(|pending| pending.poll_ready(cx).is_pending());
        if all - left.len() >= count.min(all) { Poll::Ready(()) } else { Poll::Pending }
    });
    waited.map_err(refused)?;
    Ok(all - left.len())
}

impl<T: Unpin> Future for Pending<T> {
    type Output = Result<T, Error>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Self::Output> {
        ready!(self.poll_ready(cx));
        self.taken = true;
        Poll::Ready(self.came.take().expect("it has come"))
    }
}

fn taken() -> Error {
    Error::invalid("its result was taken already: a result can be taken once").ran(Ran::Maybe)
}

fn too_late(timeout: Duration) -> Error {
    Error::timeout(format!("nothing came within {timeout:?}; it may still come")).ran(Ran::Maybe)
}

/// Marks the error of a task that may not wait: the work that it would have waited for goes on.
pub(super) fn refused(error: Error) -> Error {
    error.ran(Ran::Maybe)
}

pub(super) fn session_over_error() -> Error {
    Error::unavailable(Ran::Maybe, "the cluster was shut down while this was waited for")
}

#[cfg(test)]
mod tests {
    use super::*;
    use marline_core::error::ErrorKind;

    const SOON: Duration = Duration::from_millis(1);

    #[test]
    fn a_pending_result_is_returned_once() {
        let (tell, mut pending) = Pending::<u32>::with_callback();
        assert_eq!(pending.wait_timeout(SOON).unwrap_err().kind(), ErrorKind::Timeout);
        tell(7);
        assert_eq!(pending.wait_timeout(SOON).unwrap(), 7);
        assert!(pending.is_ready());
        for again in [pending.wait_timeout(SOON), pending.wait()] {
            let error = again.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.message().contains("its result was taken already"), "{error}");
        }
    }

    #[test]
    fn a_dropped_callback_makes_its_pending_result_unavailable() {
        let (tell, mut pending) = Pending::<u32>::with_callback();
        drop(tell);
        assert_eq!(pending.wait_timeout(SOON).unwrap_err().kind(), ErrorKind::Unavailable);
    }
}
