//! What was asked for and has not come.

use marline_channel::oneshot;
use marline_core::error::{Error, Ran};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll, Wake, Waker, ready};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// Something that was asked for and has not come: await it, or [`wait`](Pending::wait) for it.
pub struct Pending<T> {
    receiver: oneshot::Receiver<T>,
    /// It came while several were waited for.
    came: Option<Result<T, Error>>,
    /// It came, and was given away.
    taken: bool,
}

/// Who is told of something, once, by whichever thread hears of it. It is dropped if it never comes: the
/// cluster was shut down. It must not block.
pub type Tell<T> = Box<dyn FnOnce(T) + Send>;

impl<T: Send + 'static> Pending<T> {
    /// Something that comes, and who is to be told of it.
    pub fn told() -> (Tell<T>, Pending<T>) {
        let (waiter, receiver) = oneshot();
        (Box::new(move |value| drop(waiter.send(value))), Pending::new(receiver))
    }
}

impl<T> Pending<T> {
    pub(super) fn new(receiver: oneshot::Receiver<T>) -> Pending<T> {
        Pending { receiver, came: None, taken: false }
    }

    /// Blocks this thread until it comes.
    pub fn wait(mut self) -> Result<T, Error> {
        if let Some(came) = self.came {
            return came;
        }
        if self.taken {
            return Err(taken());
        }
        self.receiver.recv().wait().map_err(|_| gone())
    }

    /// Blocks this thread until it comes, or the time is over; then it can be waited for again.
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<T, Error> {
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
            marline_channel::ErrorKind::Timeout => {
                Error::timeout(format!("nothing came within {timeout:?}; it may still come"))
                    .ran(Ran::Maybe)
            }
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

/// Blocks this thread until `count` of these have come, or the deadline is over. Says how many have.
pub fn wait_for_some<'a, T: 'a>(
    pending: &mut dyn Iterator<Item = &'a mut Pending<T>>,
    count: usize,
    deadline: Option<Instant>,
) -> usize {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut cx = task::Context::from_waker(&waker);
    let mut left: Vec<&mut Pending<T>> = pending.collect();
    let all = left.len();
    loop {
        left.retain_mut(|pending| pending.poll_ready(&mut cx).is_pending());
        let come = all - left.len();
        let time = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if come >= count.min(all) || time.is_some_and(|time| time.is_zero()) {
            return come;
        }
        match time {
            Some(time) => thread::park_timeout(time),
            None => thread::park(),
        }
    }
}

/// Wakes a thread that waits for several things.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
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
        let (tell, mut pending) = Pending::<u32>::told();
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
        let (tell, mut pending) = Pending::<u32>::told();
        drop(tell);
        assert_eq!(pending.wait_timeout(SOON).unwrap_err().kind(), ErrorKind::Unavailable);
    }
}
