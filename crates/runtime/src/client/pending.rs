//! What was asked for and has not come.
//!
//! A task that waits for other work lends its CPU meanwhile, in whichever way it waits here. The controller's own
//! answers (an actor is registered, a name is found) come soon and need no CPU: nothing is lent for those.

use crate::executor::{poll_until, runs_here};
use marline_channel::oneshot;
use marline_core::error::{Error, Ran};
use std::pin::Pin;
use std::task::{self, Poll, ready};
use std::time::{Duration, Instant};

/// Something that was asked for and has not come: await it, or [`wait`](Pending::wait) for it.
pub struct Pending<T> {
    receiver: oneshot::Receiver<T>,
    /// Other work brings it: a task that waits for it lends its CPU.
    of_work: bool,
    /// It came while several were waited for.
    came: Option<Result<T, Error>>,
    /// It came, and was given away.
    taken: bool,
}

/// Who is told of something, once, by whichever thread hears of it. It is dropped if it never comes: the
/// cluster was shut down. It must not block.
pub type Callback<T> = Box<dyn FnOnce(T) + Send>;

impl<T: Send + 'static> Pending<T> {
    /// Something that other work brings, and who is to be told of it.
    pub fn with_callback() -> (Callback<T>, Pending<T>) {
        let (waiter, receiver) = oneshot();
        let pending = Pending { of_work: true, ..Pending::new(receiver) };
        (Box::new(move |value| drop(waiter.send(value))), pending)
    }
}

impl<T> Pending<T> {
    /// An answer of the controller's own.
    pub(super) fn new(receiver: oneshot::Receiver<T>) -> Pending<T> {
        Pending { receiver, of_work: false, came: None, taken: false }
    }

    /// Whether this thread lends the CPU of its task while it waits.
    fn lends(&self) -> bool {
        self.of_work && runs_here()
    }

    /// Blocks this thread until it comes. A task that waits for other work lends its CPU meanwhile; if as many tasks
    /// of its worker wait as may, this is `Exhausted`.
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
        self.receiver.recv().wait().map_err(|_| gone())
    }

    /// Blocks this thread until it comes, or the time is over; then it can be waited for again. A task lends its CPU
    /// as with [`wait`](Pending::wait).
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
            _ => gone(),
        })
    }

    /// Whether it has come; also when it was taken since.
    pub fn is_ready(&self) -> bool {
        self.came.is_some() || self.taken || self.receiver.is_settled()
    }

    /// Whether it has come; if not, whoever polls is told when it does.
    pub fn poll_ready(&mut self, cx: &mut task::Context<'_>) -> Poll<()> {
        if self.came.is_none() && self.taken {
            self.came = Some(Err(taken()));
        }
        if self.came.is_none() {
            let receiver = Pin::new(&mut self.receiver);
            self.came = Some(ready!(receiver.poll(cx)).map_err(|_| gone()));
        }
        Poll::Ready(())
    }
}

/// Blocks this thread until `count` of these have come, or the deadline is over. Says how many have. A task lends its
/// CPU as with [`Pending::wait`].
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
    Error::invalid("its result was taken already: it is given once").ran(Ran::Maybe)
}

fn too_late(timeout: Duration) -> Error {
    Error::timeout(format!("nothing came within {timeout:?}; it may still come")).ran(Ran::Maybe)
}

/// A task may not wait; what it would have waited for goes on.
pub(super) fn refused(error: Error) -> Error {
    error.ran(Ran::Maybe)
}

pub(super) fn gone() -> Error {
    Error::unavailable(Ran::Maybe, "the cluster was shut down while this was waited for")
}

#[cfg(test)]
mod tests {
    use super::*;
    use marline_core::error::ErrorKind;

    const SOON: Duration = Duration::from_millis(1);

    #[test]
    fn what_came_is_given_once() {
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
    fn what_never_comes_is_not_taken_for_what_was_taken() {
        let (tell, mut pending) = Pending::<u32>::with_callback();
        drop(tell);
        assert_eq!(pending.wait_timeout(SOON).unwrap_err().kind(), ErrorKind::Unavailable);
    }
}
