//! One operation object, several endings.
//!
//! [`Op`] wraps any action (a send, a receive, a select …) and ends it by `.await`, by
//! [`wait`](Op::wait) on the thread, or by [`wait_interruptible`](Op::wait_interruptible), with an
//! optional deadline and cancel token. All of that is here, once; an action only knows how to
//! attempt, park, and leave.
//!
//! Order of precedence when several things have happened by the time an operation looks: its own
//! completion, then cancellation, then the deadline. A token that was triggered before the
//! operation began ends it without an attempt; a deadline that had passed still allows one.

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

/// Results of more bytes than this go by [`sealed::Action::attempt_into`].
const LARGE: usize = 64;

/// What an [`Op`] does. Implemented by this crate's operations only.
pub trait Action: sealed::Action {}

impl<A: sealed::Action> Action for A {}

pub(crate) mod sealed {
    use super::{ErrorKind, MaybeUninit, Pin, Poll, WaitMemory, Waker};

    /// Attempt, park, leave. Dropping a parked action leaves, too.
    pub trait Action {
        type Output;

        /// Attempts, and parks when it cannot end yet. Parked without a waker, nobody is told of
        /// its end: the caller looks at [`Action::is_settled`] and then polls again.
        fn poll(self: Pin<&mut Self>, waker: Option<&Waker>) -> Poll<Self::Output>;

        /// The usual case of a wait: an attempt by the owner of an action that is not parked, which
        /// does not park either. None when it has to be polled. (Who asks, a task or a thread, decides
        /// how a contended lock is waited for.)
        fn attempt(self: Pin<&mut Self>, _is_task: bool) -> Option<Self::Output> {
            None
        }

        /// The same, for large results: one that is handed on by value is copied at each step, and
        /// in pieces. True when the place was written.
        #[inline(always)]
        fn attempt_into(self: Pin<&mut Self>, output: &mut MaybeUninit<Self::Output>) -> bool {
            self.attempt(false).map(|result| output.write(result)).is_some()
        }

        /// Whether its peer can go on for a while before anybody parks: then attempting again after
        /// a moment beats parking at once. Not for one that is parked.
        fn is_buffered(&self) -> bool {
            false
        }

        /// Whether polling a parked action would end it.
        fn is_settled(&self) -> bool;

        /// Ends it now: with what it achieved if a peer was faster, with `why` otherwise.
        fn abandon(self: Pin<&mut Self>, why: ErrorKind) -> Self::Output;

        /// How long such waits took lately.
        fn wait_memory(&self) -> Option<&WaitMemory>;

        /// The thread is about to sleep: the one moment when reading the clock costs nothing.
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
    /// None for most: then an operation that ends at once never looks at them again.
    limits: Option<Limits>,
}

impl<A: Action> Op<A> {
    pub(crate) fn of(action: A) -> Op<A> {
        Op { action, limits: None }
    }

    /// Fails with [`ErrorKind::Timeout`] at `deadline`. Of two deadlines the earlier counts.
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

    /// Fails with [`ErrorKind::Timeout`] after `timeout`, counted from this call. A time too far
    /// away to be told means none.
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

    /// Fails with [`ErrorKind::Cancelled`] when `token` is triggered.
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

    /// Ends the operation on this thread, asleep for as long as it takes.
    ///
    /// ```
    /// let (tx, rx) = marline_channel::rendezvous();
    /// std::thread::spawn(move || tx.send("from a thread").wait());
    /// assert_eq!(rx.recv().wait(), Ok("from a thread"));
    /// ```
    #[inline(always)]
    pub fn wait(mut self) -> A::Output {
        // SAFETY: a local that is not moved any more. (The `pin!` macro would move it once, on the
        // path of every message.)
        let mut this = unsafe { Pin::new_unchecked(&mut self) };
        if size_of::<A::Output>() > LARGE {
            let mut output = MaybeUninit::uninit();
            if this.is_cancelled() || !this.as_mut().action().attempt_into(&mut output) {
                this.wait_into(&mut output);
            }
            // SAFETY: written by the one or the other.
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
    /// (On Linux; elsewhere it waits on.)
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
        // Its bed is made before a thread waits in any way, so that what it costs to make one is
        // not left for a moment that matters.
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

    /// Attempts a few more times before parking, where the peer needs nobody parked to go on.
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

    /// Polls the action, then its limits. The deadline's wake-up is the caller's affair.
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

    /// Whether this is its beginning and its token was triggered before.
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

    /// The limit that has passed, if one has.
    pub(crate) fn limit_passed(&self) -> Option<ErrorKind> {
        self.limits.as_ref().and_then(Limits::passed)
    }

    /// Has `waker` woken when the token is triggered; false when it was already.
    pub(crate) fn watch_cancel(self: Pin<&mut Self>, waker: &Waker) -> bool {
        self.limits().is_none_or(|limits| limits.watch_cancel(waker))
    }

    /// Has `waker` woken at the deadline.
    pub(crate) fn watch_deadline(self: Pin<&mut Self>, waker: &Waker) {
        if let Some(limits) = self.limits() {
            limits.watch_deadline(waker);
        }
    }

    /// The same operation with another action, before it has begun.
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

/// When an operation ends although nothing came.
#[derive(Default)]
struct Limits {
    /// The operation was polled or waited for: from now on its completion comes first.
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

    /// The limit that has passed, if one has.
    fn passed(&self) -> Option<ErrorKind> {
        if self.is_cancelled() {
            return Some(ErrorKind::Cancelled);
        }
        match self.deadline {
            Some(deadline) if deadline <= Instant::now() => Some(ErrorKind::Timeout),
            _ => None,
        }
    }

    /// Has `waker` woken when the token is triggered; false when it was already.
    pub(crate) fn watch_cancel(self: Pin<&mut Self>, waker: &Waker) -> bool {
        // SAFETY: nothing is moved.
        match unsafe { &mut self.get_unchecked_mut().cancel } {
            None => true,
            Some(cancel) => {
                cancel.registered = true;
                // SAFETY: pinned with the limits, and forgotten in `Cancel::drop`.
                unsafe { cancel.token.register(&cancel.node, waker) }
            }
        }
    }

    /// Has `waker` woken at the deadline.
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
