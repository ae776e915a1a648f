//! The receive of one value.

use std::{
    mem::MaybeUninit,
    pin::Pin,
    task::{Poll, Waker},
};

use super::{
    Receiver,
    node::{IDLE, Node, WAITING},
    state::{State, Take},
    waiting::Side,
};
use crate::{
    error::{Error, ErrorKind},
    lock::Guard,
    op::{Op, sealed},
    park::WaitMemory,
};

/// The operation [`Receiver::recv`] returns.
pub type Receiving<'a, T> = Op<Recv<'a, T>>;

/// The action of [`Receiving`]. Dropping it at any moment loses nothing: a value that was already
/// handed to it goes back to the front of the channel.
pub struct Recv<'a, T> {
    rx: &'a Receiver<T>,
    pub(crate) node: Node<T>,
}

// SAFETY: the node is shared with peers by the rules of `node`, which send `T` across threads.
unsafe impl<T: Send> Send for Recv<'_, T> {}
// SAFETY: through a shared reference only the node's atomic state can be read.
unsafe impl<T: Send> Sync for Recv<'_, T> {}

impl<'a, T> Recv<'a, T> {
    #[inline(always)]
    pub(super) fn op(rx: &'a Receiver<T>) -> Receiving<'a, T> {
        Op::of(Recv { rx, node: Node::new(None) })
    }

    pub(crate) fn receiver(&self) -> &'a Receiver<T> {
        self.rx
    }
}

impl<T> Recv<'_, T> {
    #[inline(never)]
    fn attempt_slowly(
        &self,
        state: Guard<'_, State<T>>,
        output: &mut MaybeUninit<Result<T, Error>>,
    ) -> bool {
        let mut place = MaybeUninit::uninit();
        let take = self.rx.channel.take_slowly(state, &mut place, false);
        match take {
            // SAFETY: a value was taken, so the place is written.
            Take::Taken => _ = output.write(Ok(unsafe { place.assume_init() })),
            Take::Closed => _ = output.write(Err(ErrorKind::Closed.into())),
            Take::Empty => {}
        }
        take != Take::Empty
    }
}

impl<T> sealed::Action for Recv<'_, T> {
    type Output = Result<T, Error>;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, waker: Option<&Waker>) -> Poll<Self::Output> {
        if self.rx.is_released() && self.node.state() == IDLE {
            return Poll::Ready(Err(ErrorKind::Closed.into()));
        }
        let mut place = MaybeUninit::uninit();
        // SAFETY: the node is pinned, and `drop` leaves.
        match unsafe { self.rx.channel.poll_recv(&self.node, &mut place, waker) } {
            // SAFETY: a value was taken, so the place is written.
            Poll::Ready(Take::Taken) => Poll::Ready(Ok(unsafe { place.assume_init() })),
            Poll::Ready(_) => Poll::Ready(Err(ErrorKind::Closed.into())),
            Poll::Pending => Poll::Pending,
        }
    }

    #[inline(always)]
    fn attempt(self: Pin<&mut Self>, is_task: bool) -> Option<Self::Output> {
        if self.rx.is_released() {
            return None;
        }
        let mut place = MaybeUninit::uninit();
        match self.rx.channel.take(&mut place, is_task, false) {
            // SAFETY: a value was taken, so the place is written.
            Take::Taken => Some(Ok(unsafe { place.assume_init() })),
            Take::Closed => Some(Err(ErrorKind::Closed.into())),
            Take::Empty => None,
        }
    }

    #[inline(always)]
    fn attempt_into(self: Pin<&mut Self>, output: &mut MaybeUninit<Self::Output>) -> bool {
        if self.rx.is_released() {
            return false;
        }
        match self.rx.channel.take_quickly(false, |value| _ = output.write(Ok(value))) {
            Ok(()) => true,
            Err(state) => self.attempt_slowly(state, output),
        }
    }

    fn is_buffered(&self) -> bool {
        self.rx.channel.holds_a_batch && self.node.state() == IDLE
    }

    fn is_settled(&self) -> bool {
        self.node.state() > WAITING
    }

    fn abandon(self: Pin<&mut Self>, why: ErrorKind) -> Self::Output {
        if self.rx.channel.leave(&self.node, Side::Receive, why) {
            return Err(why.into());
        }
        match self.poll(None) {
            Poll::Ready(result) => result,
            Poll::Pending => unreachable!("a settled receive is ready"),
        }
    }

    fn wait_memory(&self) -> Option<&WaitMemory> {
        Some(&self.rx.channel.wait_memory)
    }

    fn before_sleep(&self) {
        self.rx.channel.note_time();
    }
}

impl<T> Drop for Recv<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if self.node.state() != IDLE {
            self.rx.channel.drop_recv(&self.node);
        }
    }
}
