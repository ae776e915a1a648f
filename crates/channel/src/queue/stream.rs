//! A receiver as a `Stream`.

use std::{
    mem::MaybeUninit,
    pin::Pin,
    task::{Context, Poll},
};

use futures_core::Stream;

use super::{
    Receiver,
    node::{IDLE, Node},
    state::Take,
};

/// A receiver as a [`Stream`] that ends when the channel is closed; see [`Receiver::into_stream`].
/// Dropping it at any moment loses nothing, as with a receive.
///
/// ```
/// use futures_util::StreamExt;
/// let (tx, rx) = marline_channel::unbounded();
/// (1..=3).for_each(|n| drop(tx.try_send(n).unwrap()));
/// drop(tx);
/// let doubled = rx.stream().map(|n| n * 2).collect::<Vec<_>>();
/// assert_eq!(futures_executor::block_on(doubled), [2, 4, 6]);
/// ```
pub struct ReceiverStream<T> {
    node: Node<T>,
    rx: Receiver<T>,
}

// SAFETY: the node is shared with peers by the rules of `node`, which send `T` across threads.
unsafe impl<T: Send> Send for ReceiverStream<T> {}
// SAFETY: a shared reference gives no access to the node.
unsafe impl<T: Send> Sync for ReceiverStream<T> {}

impl<T> Receiver<T> {
    /// Turns this end into a `Stream` (feature `stream`).
    ///
    /// ```
    /// use futures_util::StreamExt;
    /// let (tx, rx) = marline_channel::unbounded();
    /// tx.try_send(1).unwrap();
    /// drop(tx);
    /// let values: Vec<i32> = futures_executor::block_on(rx.into_stream().collect());
    /// assert_eq!(values, [1]);
    /// ```
    pub fn into_stream(self) -> ReceiverStream<T> {
        ReceiverStream { node: Node::new(None), rx: self }
    }

    /// Returns another end of this channel as a `Stream` (feature `stream`).
    ///
    /// ```
    /// use futures_util::StreamExt;
    /// let (tx, rx) = marline_channel::unbounded();
    /// (1..=3).for_each(|n| drop(tx.try_send(n).unwrap()));
    /// drop(tx);
    /// let doubled = rx.stream().map(|n| n * 2).collect::<Vec<_>>();
    /// assert_eq!(futures_executor::block_on(doubled), [2, 4, 6]);
    /// ```
    pub fn stream(&self) -> ReceiverStream<T> {
        self.clone().into_stream()
    }
}

impl<T> Stream for ReceiverStream<T> {
    type Item = T;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        if self.rx.is_released() {
            return Poll::Ready(None);
        }
        let mut place = MaybeUninit::uninit();
        // SAFETY: the node is pinned, and `drop` leaves; the place is written if a value was taken.
        unsafe {
            let polled = self.rx.channel.poll_recv(&self.node, &mut place, Some(context.waker()));
            polled.map(|take| (take == Take::Taken).then(|| place.assume_init()))
        }
    }
}

impl<T> Drop for ReceiverStream<T> {
    fn drop(&mut self) {
        if self.node.state() != IDLE {
            self.rx.channel.drop_recv(&self.node);
        }
    }
}
