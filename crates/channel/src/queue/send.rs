//! The send of one value.

use std::{
    mem::MaybeUninit,
    pin::Pin,
    task::{Poll, Waker},
};

use super::{
    Sender,
    node::{CLOSED, DISCARDED, IDLE, Node, SPENT, WAITING},
    state::Offer,
    waiting::{NOTHING_TO_SEND, Side},
};
use crate::{
    error::{ErrorKind, SendError},
    op::{Op, sealed},
    park::WaitMemory,
};

/// How a successful send ended.
// A whole word: compilers make a caller read a result word by word. If the callee had written a
// single byte, this read would wait until that byte has left the store buffer.
#[repr(usize)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sent {
    /// The channel, or already a receiver, has the value.
    Accepted,
    /// The channel had no room and its policy is [`Overflow::DropNewest`](super::Overflow): the
    /// value went to `on_drop`.
    Dropped,
}

/// The operation [`Sender::send`] returns.
pub type Sending<'a, T> = Op<SendValue<'a, T>>;

/// The action of [`Sending`]. Dropping it while it waits drops its value. To keep the value, poll
/// the operation by reference and use [`Op::into_unsent`].
pub struct SendValue<'a, T> {
    tx: &'a Sender<T>,
    pub(crate) node: Node<T>,
}

// SAFETY: the node is shared with peers by the rules of `node`, which send `T` across threads.
unsafe impl<T: Send> Send for SendValue<'_, T> {}
// SAFETY: through a shared reference only the node's atomic state can be read.
unsafe impl<T: Send> Sync for SendValue<'_, T> {}

impl<'a, T> SendValue<'a, T> {
    #[inline(always)]
    pub(super) fn op(tx: &'a Sender<T>, value: T) -> Sending<'a, T> {
        Op::of(SendValue { tx, node: Node::new(Some(value)) })
    }

    pub(crate) fn sender(&self) -> &'a Sender<T> {
        self.tx
    }

    #[inline(always)]
    pub(crate) fn result(&self, outcome: u8) -> Result<Sent, SendError<T>> {
        match outcome {
            CLOSED => Err(self.error(ErrorKind::Closed)),
            SPENT => panic!("{NOTHING_TO_SEND}"),
            DISCARDED => Ok(Sent::Dropped),
            _ => Ok(Sent::Accepted),
        }
    }

    fn ended(&self, offer: Offer) -> Option<Result<Sent, SendError<T>>> {
        offer.outcome().map(|outcome| self.result(outcome))
    }

    #[inline(never)]
    fn ended_into(
        &self,
        offer: Offer,
        output: &mut MaybeUninit<Result<Sent, SendError<T>>>,
    ) -> bool {
        self.ended(offer).map(|result| output.write(result)).is_some()
    }

    fn error(&self, kind: ErrorKind) -> SendError<T> {
        SendError::new(kind, self.take_value().expect("an unsent value is there"))
    }

    /// Takes the value, unless it was sent. The operation must not be parked.
    fn take_value(&self) -> Option<T> {
        debug_assert!(self.node.state() != WAITING);
        // SAFETY: the caller is the owner of a node that is not WAITING.
        unsafe { self.node.slot(|slot| slot.take()) }
    }
}

impl<T> sealed::Action for SendValue<'_, T> {
    type Output = Result<Sent, SendError<T>>;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, waker: Option<&Waker>) -> Poll<Self::Output> {
        if self.tx.is_released() && self.node.state() == IDLE {
            return Poll::Ready(self.result(CLOSED));
        }
        // SAFETY: the node is pinned, and `drop` leaves.
        unsafe { self.tx.channel.poll_send(&self.node, waker) }.map(|outcome| self.result(outcome))
    }

    #[inline(always)]
    fn attempt(self: Pin<&mut Self>, is_task: bool) -> Option<Self::Output> {
        if self.tx.is_released() {
            return None;
        }
        self.ended(self.tx.channel.offer_node(&self.node, is_task))
    }

    #[inline(always)]
    fn attempt_into(self: Pin<&mut Self>, output: &mut MaybeUninit<Self::Output>) -> bool {
        if self.tx.is_released() {
            return false;
        }
        match self.tx.channel.offer_node(&self.node, false) {
            Offer::Sent => _ = output.write(Ok(Sent::Accepted)),
            offer => return self.ended_into(offer, output),
        }
        true
    }

    fn is_buffered(&self) -> bool {
        self.tx.channel.holds_a_batch && self.node.state() == IDLE
    }

    fn is_settled(&self) -> bool {
        self.node.state() > WAITING
    }

    fn abandon(self: Pin<&mut Self>, why: ErrorKind) -> Self::Output {
        if self.tx.channel.leave(&self.node, Side::Send, why) {
            return Err(self.error(why));
        }
        self.result(self.node.state())
    }

    fn wait_memory(&self) -> Option<&WaitMemory> {
        Some(&self.tx.channel.wait_memory)
    }

    fn before_sleep(&self) {
        self.tx.channel.note_time();
    }
}

impl<T> Drop for SendValue<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if self.node.state() == WAITING {
            self.tx.channel.leave(&self.node, Side::Send, ErrorKind::Cancelled);
        }
    }
}

impl<T> Sending<'_, T> {
    /// Gives up the send and returns the value, unless it was sent already.
    ///
    /// ```
    /// use std::{future::Future, pin::pin, task::{Context, Waker}};
    /// let (tx, rx) = marline_channel::rendezvous();
    /// let mut op = pin!(tx.send("precious"));
    /// assert!(op.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    /// assert_eq!(op.into_unsent(), Some("precious"));
    /// assert!(rx.try_recv().is_err());
    /// ```
    pub fn into_unsent(self: Pin<&mut Self>) -> Option<T> {
        let action = self.into_ref().get_ref().inner();
        if action.node.state() == WAITING {
            action.tx.channel.leave(&action.node, Side::Send, ErrorKind::Cancelled);
        }
        let value = action.take_value();
        if value.is_some() {
            action.node.set_state(SPENT);
        }
        value
    }

    /// Marks a clause whose value is gone. The clause must not be parked.
    pub(crate) fn spend(self: Pin<&mut Self>) {
        self.inner().node.set_state(SPENT);
    }

    /// Gives a clause that is not parked another value. Returns the value that it had.
    pub(crate) fn refill(self: Pin<&mut Self>, value: T) -> Option<T> {
        let node = &self.into_ref().get_ref().inner().node;
        debug_assert!(node.state() != WAITING);
        node.set_state(IDLE);
        // SAFETY: the caller is the owner of a node that is not WAITING.
        unsafe { node.slot(|slot| slot.replace(value)) }
    }
}
