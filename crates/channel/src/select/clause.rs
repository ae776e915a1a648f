//! A clause of a select: an operation that can be attempted, listed with others under one claim,
//! and taken off again.

use std::{
    pin::Pin,
    ptr::NonNull,
    task::{Poll, Waker},
    time::Instant,
};

use super::Claim;
use crate::{error::ErrorKind, lock::RawLock, op::Op, park::WaitMemory};

/// An operation that can be a clause of a select: the receives and sends of this crate, by value or
/// as `Pin<&mut _>` (to keep a losing send and its value).
pub trait Clause: sealed::Clause {}

impl<C: sealed::Clause> Clause for C {}

pub(crate) use sealed::{AttemptOutcome, ClauseAction};

pub(crate) mod sealed {
    use super::{Claim, ErrorKind, Instant, NonNull, Pin, RawLock, WaitMemory, Waker};

    /// The part of an operation that a select uses. Its limits are not part of it.
    pub trait ClauseAction: crate::op::sealed::Action {
        /// Returns the lock of the channel. None for an operation that is only waited for, not
        /// raced for.
        fn lock(&self) -> Option<&RawLock>;

        /// Tries to end the operation now. Takes the lock itself. Returns true if a poll would be
        /// ready.
        fn try_end(self: Pin<&mut Self>) -> bool;

        /// Whether the operation is unused, so that [`Action::attempt`](crate::op::sealed::Action)
        /// is a complete attempt and returns its complete result.
        fn is_fresh(&self) -> bool {
            false
        }

        /// Whether an attempt would be in vain, as far as this can tell without the lock.
        fn seems_stuck(&self) -> bool {
            false
        }

        /// Whether an attempt would end the operation, judged under its lock.
        ///
        /// # Safety
        /// The caller holds [`ClauseAction::lock`].
        unsafe fn could_end(&self) -> bool;

        /// Puts the operation into its channel's list.
        ///
        /// # Safety
        /// The caller holds [`ClauseAction::lock`], and delists the operation before the operation
        /// or the claim goes.
        unsafe fn enlist(self: Pin<&mut Self>, claim: NonNull<Claim>, clause: u32);

        /// Takes the operation off the list, if it is listed. Takes the lock itself.
        fn delist(self: Pin<&mut Self>);

        /// Registers `waker`, for an operation that is only waited for. Returns true if a poll
        /// would be ready already.
        fn watch(self: Pin<&mut Self>, waker: &Waker) -> bool;

        /// Whether the operation ended because its channel is closed.
        fn ended_closed(&self) -> bool;

        /// Whether the operation has nothing left to do, so that the select passes over it.
        fn is_spent(&self) -> bool;

        /// Gives up a result that the user did not take.
        fn forget(self: Pin<&mut Self>);
    }

    /// A clause with its limits, as the select sees it.
    pub trait Clause {
        type Output;
        /// Whether the peer can go on for a while before either side parks.
        fn is_buffered(&self) -> bool;
        /// The memory of how long waits for this clause took lately.
        fn wait_memory(&self) -> Option<&WaitMemory>;
        fn erased(self: Pin<&mut Self>) -> Pin<&mut dyn Erased>;
        /// Whether [`Clause::attempt_plainly`] suffices: the clause is unused and has no limits.
        fn is_plain(&self) -> bool;
        /// Tries to end the clause now. Returns its result if it ended.
        fn attempt_plainly(self: Pin<&mut Self>, is_task: bool) -> Option<Self::Output>;
        /// Returns the result of a clause that was chosen.
        fn output(self: Pin<&mut Self>, limit: Option<ErrorKind>) -> Self::Output;
    }

    /// How an attempt at a clause went.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum AttemptOutcome {
        /// The clause ended: a poll would be ready.
        Ended,
        /// The clause's token was triggered.
        Cancelled,
        /// The clause has not ended yet.
        Open,
        /// The clause cannot be chosen any more: it is spent, or closed and skipped.
        Over,
    }

    /// The part of a clause that does not depend on its type.
    pub trait Erased {
        fn lock(&self) -> Option<&RawLock>;
        /// Tries to end the clause now. When the select begins, the token comes before the
        /// completion; later the completion comes first.
        fn attempt(self: Pin<&mut Self>, begins: bool, skip_closed: bool) -> AttemptOutcome;
        /// # Safety
        /// As for [`ClauseAction::could_end`].
        unsafe fn could_end(&self) -> bool;
        /// # Safety
        /// As for [`ClauseAction::enlist`].
        unsafe fn enlist(self: Pin<&mut Self>, claim: NonNull<Claim>, clause: u32);
        fn delist(self: Pin<&mut Self>);
        /// Registers `waker` with an operation that is only waited for, and with the limits.
        /// Returns true if the clause could end already.
        fn watch(self: Pin<&mut Self>, waker: &Waker) -> bool;
        fn ended_closed(&self) -> bool;
        fn is_spent(&self) -> bool;
        fn forget(self: Pin<&mut Self>);
        /// Returns the limit that has passed, and when. A token counts as earlier than any
        /// deadline.
        fn limit_passed(&self) -> Option<(ErrorKind, Option<Instant>)>;
    }
}

impl<A: ClauseAction> sealed::Erased for Op<A> {
    fn lock(&self) -> Option<&RawLock> {
        self.inner().lock()
    }

    fn attempt(mut self: Pin<&mut Self>, begins: bool, skip_closed: bool) -> AttemptOutcome {
        if begins && self.is_cancelled() {
            return AttemptOutcome::Cancelled;
        }
        if self.inner().is_spent() || skip_closed && self.inner().ended_closed() {
            return AttemptOutcome::Over;
        }
        if !self.as_mut().action().try_end() {
            return AttemptOutcome::Open;
        }
        if skip_closed && self.inner().ended_closed() {
            AttemptOutcome::Over
        } else {
            AttemptOutcome::Ended
        }
    }

    unsafe fn could_end(&self) -> bool {
        // SAFETY: the caller's promise.
        unsafe { self.inner().could_end() }
    }

    unsafe fn enlist(self: Pin<&mut Self>, claim: NonNull<Claim>, clause: u32) {
        // SAFETY: the caller's promise.
        unsafe { self.action().enlist(claim, clause) }
    }

    fn delist(self: Pin<&mut Self>) {
        self.action().delist();
    }

    fn watch(mut self: Pin<&mut Self>, waker: &Waker) -> bool {
        let ready = self.as_mut().action().watch(waker);
        let cancelled = !self.as_mut().watch_cancel(waker);
        self.watch_deadline(waker);
        ready || cancelled
    }

    fn ended_closed(&self) -> bool {
        self.inner().ended_closed()
    }

    fn is_spent(&self) -> bool {
        self.inner().is_spent()
    }

    fn forget(self: Pin<&mut Self>) {
        self.action().forget();
    }

    fn limit_passed(&self) -> Option<(ErrorKind, Option<Instant>)> {
        let why = Op::limit_passed(self)?;
        Some((why, self.deadline_at().filter(|_| why == ErrorKind::Timeout)))
    }
}

impl<A: ClauseAction> sealed::Clause for Op<A> {
    type Output = A::Output;

    fn is_buffered(&self) -> bool {
        self.inner().is_buffered()
    }

    fn wait_memory(&self) -> Option<&WaitMemory> {
        self.inner().wait_memory()
    }

    fn erased(self: Pin<&mut Self>) -> Pin<&mut dyn sealed::Erased> {
        self
    }

    #[inline(always)]
    fn is_plain(&self) -> bool {
        !self.is_limited() && self.inner().is_fresh()
    }

    #[inline(always)]
    fn attempt_plainly(self: Pin<&mut Self>, is_task: bool) -> Option<A::Output> {
        if self.inner().seems_stuck() { None } else { self.action().attempt(is_task) }
    }

    fn output(self: Pin<&mut Self>, limit: Option<ErrorKind>) -> A::Output {
        let action = self.action();
        match limit {
            Some(why) => action.abandon(why),
            None => match action.poll(None) {
                Poll::Ready(output) => output,
                Poll::Pending => unreachable!("a chosen clause is ready"),
            },
        }
    }
}

impl<C: sealed::Clause> sealed::Clause for Pin<&mut C> {
    type Output = C::Output;

    fn is_buffered(&self) -> bool {
        (**self).is_buffered()
    }

    fn wait_memory(&self) -> Option<&WaitMemory> {
        (**self).wait_memory()
    }

    fn erased(self: Pin<&mut Self>) -> Pin<&mut dyn sealed::Erased> {
        self.as_deref_mut().erased()
    }

    /// False: the operation outlives the select, and so has to record how it ended.
    fn is_plain(&self) -> bool {
        false
    }

    fn attempt_plainly(self: Pin<&mut Self>, _is_task: bool) -> Option<C::Output> {
        None
    }

    fn output(self: Pin<&mut Self>, limit: Option<ErrorKind>) -> C::Output {
        self.as_deref_mut().output(limit)
    }
}
