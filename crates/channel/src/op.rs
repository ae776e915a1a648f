//! One operation object, several endings.
//!
//! [`Op`] wraps any action (a send, a receive, a select …) and ends it by `.await`, by
//! [`wait`](Op::wait) on the thread, or by [`wait_interruptible`](Op::wait_interruptible), with an
//! optional deadline and cancel token. All of that is in this file. An action only knows how to
//! attempt, park, and leave.
//!
//! Order of precedence, if several of these have happened by the time an operation checks: its own
//! completion, then cancellation, then the deadline. A token that was triggered before the
//! operation began ends it without an attempt. An operation whose deadline passed before it began
//! still makes one attempt.

use std::{
    future::Future,
    mem::MaybeUninit,
    pin::Pin,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use crate::{
    cancel::CancelToken,
    error::{Error, ErrorKind},
    park::{WaitMemory, Woken, with_parker},
    timer::Alarm,
    wakers::WakeNode,
};

/// A result of more bytes than this is written in place, by [`sealed::Action::attempt_into`].
const LARGE: usize = 64;

/// The work of an [`Op`]: a send, a receive, a select … Only this crate implements it.
pub trait Action: sealed::Action {}

impl<A: sealed::Action> Action for A {}

pub(crate) mod sealed {
    use super::{ErrorKind, MaybeUninit, Pin, Poll, WaitMemory, Waker};

    /// An operation that can attempt, park and leave. Dropping a parked action leaves, too.
    pub trait Action {
        type Output;

        /// Attempts, and parks the action if it cannot end yet. An action that is parked without a
        /// waker wakes nothing when it is settled: the caller checks [`Action::is_settled`] and
        /// then polls again.
        fn poll(self: Pin<&mut Self>, waker: Option<&Waker>) -> Poll<Self::Output>;

        /// Attempts without parking: the usual case of a wait. The action must not be parked.
        /// Returns None if it has to be polled. Whether the caller is a task or a thread decides
        /// how it waits for a contended lock.
        fn attempt(self: Pin<&mut Self>, _is_task: bool) -> Option<Self::Output> {
            None
        }

        /// Like [`Action::attempt`], but writes the result to `output`. For large results: a result
        /// that is returned by value is copied at each step, and in pieces. Returns whether
        /// `output` was written.
        #[inline(always)]
        fn attempt_into(self: Pin<&mut Self>, output: &mut MaybeUninit<Self::Output>) -> bool {
            self.attempt(false).map(|result| output.write(result)).is_some()
        }

        /// Whether the peer can go on for a while before either side parks. Then attempting again
        /// after a moment beats parking at once. False for a parked action.
        fn is_buffered(&self) -> bool {
            false
        }

        /// Whether a poll of a parked action would end it.
        fn is_settled(&self) -> bool;

        /// Ends the action now: with its own result if a peer settled it first, with `why`
        /// otherwise.
        fn abandon(self: Pin<&mut Self>, why: ErrorKind) -> Self::Output;

        /// The memory of how long waits like this one took lately.
        fn wait_memory(&self) -> Option<&WaitMemory>;

        /// Runs when the thread is about to sleep: the one moment when reading the clock costs
        /// nothing.
        fn before_sleep(&self) {}
    }
}

/// A pending operation: `.await` it, or end it with [`wait`](Op::wait).
///
/// ```
/// use marline_channel::{ErrorKind, bounded};
/// use std::time::Duration;
/// let (tx, rx) = bounded(1);
/// tx.send(1).wait().unwrap();                                      // from a thread
/// let late = tx.send(2).timeout(Duration::from_millis(1)).wait();  // with a deadline
/// assert_eq!(late.unwrap_err().kind(), ErrorKind::Timeout);
/// futures_executor::block_on(async { assert_eq!(rx.recv().await, Ok(1)) }); // from a task
/// ```
#[must_use = "an operation does nothing until it is awaited or waited for"]
pub struct Op<A: Action> {
    action: A,
    /// None for most operations. Then a poll polls the action, and checks nothing else.
    limits: Option<Limits>,
}

impl<A: Action> Op<A> {
    pub(crate) fn of(action: A) -> Op<A> {
        Op { action, limits: None }
    }

    /// Fails with [`ErrorKind::Timeout`] at `deadline`. The earlier of two deadlines counts.
    ///
    /// ```
    /// use marline_channel::{ErrorKind, rendezvous};
    /// use std::time::{Duration, Instant};
    /// let (_tx, rx) = rendezvous::<u8>();
    /// let deadline = Instant::now() + Duration::from_millis(1);
    /// assert_eq!(rx.recv().deadline(deadline).wait().unwrap_err().kind(), ErrorKind::Timeout);
    /// ```
    pub fn deadline(mut self, deadline: Instant) -> Op<A> {
        let limits = self.limits.get_or_insert_default();
        limits.deadline = Some(limits.deadline.map_or(deadline, |other| other.min(deadline)));
        self
    }

    /// Fails with [`ErrorKind::Timeout`] after `timeout`, counted from this call. A timeout that is
    /// too long for an [`Instant`] sets no deadline.
    ///
    /// ```
    /// use std::time::Duration;
    /// let (tx, _rx) = marline_channel::rendezvous();
    /// let late = tx.send("patience").timeout(Duration::from_millis(1)).wait().unwrap_err();
    /// assert_eq!(late.into_inner(), "patience"); // the value comes back
    /// ```
    pub fn timeout(self, timeout: Duration) -> Op<A> {
        match Instant::now().checked_add(timeout) {
            Some(deadline) => self.deadline(deadline),
            None => self,
        }
    }

    /// Fails with [`ErrorKind::Cancelled`] when `token` is triggered. The last of several tokens
    /// counts.
    ///
    /// ```
    /// use marline_channel::{CancelToken, ErrorKind, rendezvous};
    /// let (_tx, rx) = rendezvous::<u8>();
    /// let token = CancelToken::new();
    /// let remote = token.clone();
    /// std::thread::spawn(move || remote.cancel());
    /// assert_eq!(rx.recv().cancel(&token).wait().unwrap_err().kind(), ErrorKind::Cancelled);
    /// ```
    pub fn cancel(mut self, token: &CancelToken) -> Op<A> {
        let token = token.clone();
        self.limits.get_or_insert_default().cancel =
            Some(Cancel { token, node: WakeNode::new(), registered: false });
        self
    }

    /// Blocks this thread until the operation ends.
    ///
    /// ```
    /// let (tx, rx) = marline_channel::rendezvous();
    /// std::thread::spawn(move || tx.send("from a thread").wait());
    /// assert_eq!(rx.recv().wait(), Ok("from a thread"));
    /// ```
    #[inline(always)]
    pub fn wait(mut self) -> A::Output {
        // SAFETY: `self` is a local that does not move any more. (The `pin!` macro would move it
        // once, on the path of every message.)
        let mut this = unsafe { Pin::new_unchecked(&mut self) };
        if size_of::<A::Output>() > LARGE {
            let mut output = MaybeUninit::uninit();
            if this.is_cancelled() || !this.as_mut().action().attempt_into(&mut output) {
                this.wait_into(&mut output);
            }
            // SAFETY: `attempt_into` or `wait_into` has written it.
            return unsafe { output.assume_init() };
        }
        if !this.is_cancelled()
            && let Some(output) = this.as_mut().action().attempt(false)
        {
            return output;
        }
        this.wait_slowly()
    }

    #[cold]
    #[inline(never)]
    fn wait_into(self: Pin<&mut Self>, output: &mut MaybeUninit<A::Output>) {
        output.write(self.wait_slowly());
    }

    #[cold]
    #[inline(never)]
    fn wait_slowly(self: Pin<&mut Self>) -> A::Output {
        match self.block(false) {
            Ok(output) => output,
            Err(_) => unreachable!("only an interruptible wait is interrupted"),
        }
    }

    /// Like [`wait`](Op::wait), but returns [`ErrorKind::Interrupted`] when a signal handler ran
    /// on this thread. The operation is intact then: wait again, or drop it.
    /// (On Linux only. On other systems it keeps waiting.)
    ///
    /// ```
    /// use std::pin::pin;
    /// let (tx, rx) = marline_channel::bounded(1);
    /// tx.send(1).wait().unwrap();
    /// let mut op = pin!(rx.recv());
    /// let value = loop {
    ///     match op.as_mut().wait_interruptible() {
    ///         Ok(received) => break received.unwrap(),
    ///         Err(_interrupted) => { /* look at what the handler left, then go on */ }
    ///     }
    /// };
    /// assert_eq!(value, 1);
    /// ```
    pub fn wait_interruptible(self: Pin<&mut Self>) -> Result<A::Output, Error> {
        self.block(true)
    }

    fn block(mut self: Pin<&mut Self>, interruptible: bool) -> Result<A::Output, Error> {
        if self.as_mut().begins_cancelled() {
            return Ok(self.action().abandon(ErrorKind::Cancelled));
        }
        if let Some(output) = self.as_mut().attempt_again() {
            return Ok(output);
        }
        if let Poll::Ready(output) = self.as_mut().action().poll(None) {
            return Ok(output);
        }
        let deadline = self.deadline_at();
        // The thread gets its parker before it waits in any way, even awake: creating one has a
        // cost, which must not fall into a moment that matters.
        with_parker(|parker, waker| {
            if self.limit_passed().is_none()
                && let Some(memory) = self.action.wait_memory()
                && memory.wait_awake(|| self.action.is_settled())
                && let Poll::Ready(output) = self.as_mut().action().poll(None)
            {
                return Ok(output);
            }
            let start = Instant::now();
            loop {
                if let Poll::Ready(output) = self.as_mut().poll_limited(waker) {
                    if let Some(memory) = self.action.wait_memory() {
                        memory.remember(start.elapsed());
                    }
                    return Ok(output);
                }
                self.action.before_sleep();
                if parker.park(deadline, interruptible) == Woken::Signal {
                    return Err(Error::new(ErrorKind::Interrupted));
                }
            }
        })
    }

    /// Attempts a few more times before parking, if the peer can go on without a parked operation.
    fn attempt_again(self: Pin<&mut Self>) -> Option<A::Output> {
        let worth_it = self.action.is_buffered()
            && self.action.wait_memory().is_some_and(WaitMemory::is_short);
        if !worth_it {
            return None;
        }
        WaitMemory::attempt_again(
            &mut self.action(),
            |action| action.wait_memory(),
            |action| action.as_mut().attempt(false),
        )
    }

    /// Polls the action, then checks its limits. The caller arranges the wake-up at the deadline.
    fn poll_limited(mut self: Pin<&mut Self>, waker: &Waker) -> Poll<A::Output> {
        if let Poll::Ready(output) = self.as_mut().action().poll(Some(waker)) {
            return Poll::Ready(output);
        }
        if let Some(why) = self.limit_passed() {
            return Poll::Ready(self.action().abandon(why));
        }
        if !self.as_mut().watch_cancel(waker) {
            return Poll::Ready(self.action().abandon(ErrorKind::Cancelled));
        }
        Poll::Pending
    }

    pub(crate) fn action(self: Pin<&mut Self>) -> Pin<&mut A> {
        // SAFETY: the action is pinned with the operation and is never moved out of it.
        unsafe { self.map_unchecked_mut(|this| &mut this.action) }
    }

    fn limits(self: Pin<&mut Self>) -> Option<Pin<&mut Limits>> {
        // SAFETY: as above.
        unsafe { self.map_unchecked_mut(|this| &mut this.limits) }.as_pin_mut()
    }

    /// Whether the operation begins with this call and its token is triggered already.
    fn begins_cancelled(self: Pin<&mut Self>) -> bool {
        self.limits().is_some_and(|limits| {
            // SAFETY: nothing is moved.
            let limits = unsafe { limits.get_unchecked_mut() };
            !std::mem::replace(&mut limits.begun, true) && limits.is_cancelled()
        })
    }

    #[inline(always)]
    pub(crate) fn is_cancelled(&self) -> bool {
        self.limits.as_ref().is_some_and(Limits::is_cancelled)
    }

    #[inline(always)]
    pub(crate) fn is_limited(&self) -> bool {
        self.limits.is_some()
    }

    pub(crate) fn deadline_at(&self) -> Option<Instant> {
        self.limits.as_ref().and_then(|limits| limits.deadline)
    }

    /// Returns the limit that has passed, if any.
    pub(crate) fn limit_passed(&self) -> Option<ErrorKind> {
        self.limits.as_ref().and_then(Limits::passed)
    }

    /// Registers `waker` to be woken when the token is triggered. Returns false if it is already.
    pub(crate) fn watch_cancel(self: Pin<&mut Self>, waker: &Waker) -> bool {
        self.limits().is_none_or(|limits| limits.watch_cancel(waker))
    }

    /// Registers `waker` to be woken at the deadline.
    pub(crate) fn watch_deadline(self: Pin<&mut Self>, waker: &Waker) {
        if let Some(limits) = self.limits() {
            limits.watch_deadline(waker);
        }
    }

    /// Replaces the action of an operation that has not begun. The limits stay.
    pub(crate) fn map<B: Action>(self, change: impl FnOnce(A) -> B) -> Op<B> {
        Op { action: change(self.action), limits: self.limits }
    }

    pub(crate) fn inner(&self) -> &A {
        &self.action
    }
}

impl<A: Action> Future for Op<A> {
    type Output = A::Output;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<A::Output> {
        if self.limits.is_none() {
            return self.action().poll(Some(context.waker()));
        }
        if self.as_mut().begins_cancelled() {
            return Poll::Ready(self.action().abandon(ErrorKind::Cancelled));
        }
        if let Poll::Ready(output) = self.as_mut().poll_limited(context.waker()) {
            return Poll::Ready(output);
        }
        self.watch_deadline(context.waker());
        Poll::Pending
    }
}

/// The deadline and the token that end an operation before its action has ended.
#[derive(Default)]
struct Limits {
    /// Whether the operation was polled or waited for. From then on its completion comes first.
    begun: bool,
    deadline: Option<Instant>,
    alarm: Option<Alarm>,
    cancel: Option<Cancel>,
}

struct Cancel {
    token: CancelToken,
    node: WakeNode,
    registered: bool,
}

impl Limits {
    fn is_cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(|cancel| cancel.token.is_cancelled())
    }

    /// Returns the limit that has passed, if any.
    fn passed(&self) -> Option<ErrorKind> {
        if self.is_cancelled() {
            return Some(ErrorKind::Cancelled);
        }
        match self.deadline {
            Some(deadline) if deadline <= Instant::now() => Some(ErrorKind::Timeout),
            _ => None,
        }
    }

    /// Registers `waker` to be woken when the token is triggered. Returns false if it is already.
    pub(crate) fn watch_cancel(self: Pin<&mut Self>, waker: &Waker) -> bool {
        // SAFETY: nothing is moved.
        match unsafe { &mut self.get_unchecked_mut().cancel } {
            None => true,
            Some(cancel) => {
                cancel.registered = true;
                // SAFETY: the node is pinned with the limits, and `Cancel::drop` forgets it.
                unsafe { cancel.token.register(&cancel.node, waker) }
            }
        }
    }

    /// Registers `waker` to be woken at the deadline.
    pub(crate) fn watch_deadline(self: Pin<&mut Self>, waker: &Waker) {
        // SAFETY: neither the deadline nor the alarm is pinned; the cancel node is left alone.
        let this = unsafe { self.get_unchecked_mut() };
        if let Some(deadline) = this.deadline {
            match &mut this.alarm {
                Some(alarm) => alarm.renew(waker),
                None => this.alarm = Some(Alarm::set(deadline, waker)),
            }
        }
    }
}

impl Drop for Cancel {
    #[cold]
    fn drop(&mut self) {
        if self.registered {
            self.token.forget(&self.node);
        }
    }
}
