//! The ends of a queue channel. They are counted, cloned and released.
//!
//! The counts live in the channel's state, so that "this was the last end" and the close that it
//! causes are one step. An end that `close()` has released is still a valid value, but its
//! operations fail.

use std::{collections::VecDeque, fmt, mem::MaybeUninit, time::Duration};

use super::{
    Channel, Iter, Overflow, Permit, Reserve, Reserving, SendAll, Sending, SendingAll, Sent,
    TryIter,
    batch::{self, RecvMany},
    recv::{Receiving, Recv},
    send::SendValue,
    state::{Offer, Take},
};
use crate::{
    error::{Error, ErrorKind, SendError},
    metrics::{Kind, Snapshot, Subscription},
    sync::{Arc, AtomicBool, Ordering},
};

/// The sending end of a channel. Clone it for more senders. When the last sender goes, the channel
/// closes: receivers get the values that are still inside, then [`ErrorKind::Closed`].
pub struct Sender<T> {
    pub(crate) channel: Arc<Channel<T>>,
    released: AtomicBool,
}

/// The receiving end of a channel. Clone it for more receivers: each value goes to one of them.
/// When the last receiver goes, the channel closes: sends get their values back.
pub struct Receiver<T> {
    pub(crate) channel: Arc<Channel<T>>,
    released: AtomicBool,
}

/// A reference to a channel that does not count as a sender.
///
/// ```
/// let (tx, rx) = marline_channel::unbounded::<u8>();
/// let weak = tx.downgrade();
/// assert!(weak.upgrade().is_some());
/// drop(tx); // the last counted sender
/// assert!(weak.upgrade().is_none() && rx.is_closed());
/// ```
pub struct WeakSender<T> {
    channel: Arc<Channel<T>>,
}

/// A reference to a channel that does not count as a receiver.
///
/// ```
/// let (tx, rx) = marline_channel::unbounded::<u8>();
/// let weak = rx.downgrade();
/// drop(rx);
/// assert!(weak.upgrade().is_none() && tx.is_closed());
/// ```
pub struct WeakReceiver<T> {
    channel: Arc<Channel<T>>,
}

/// The methods that both ends have.
macro_rules! both_ends {
    ($End:ident, $Weak:ident, $count:ident, $let_go:ident) => {
        impl<T> $End<T> {
            /// Returns how many values are in the channel.
            ///
            /// ```
            /// let (tx, rx) = marline_channel::bounded(2);
            /// assert!(rx.is_empty());
            /// tx.try_send('a').unwrap();
            /// assert_eq!((tx.len(), rx.len(), tx.capacity()), (1, 1, Some(2)));
            /// tx.try_send('b').unwrap();
            /// assert!(tx.is_full());
            /// ```
            pub fn len(&self) -> usize {
                self.channel.state.lock().len() as usize
            }

            /// Whether no value is in the channel.
            ///
            /// ```
            /// let (tx, rx) = marline_channel::bounded(2);
            /// assert!(rx.is_empty());
            /// tx.try_send('a').unwrap();
            /// assert_eq!((tx.len(), rx.len(), tx.capacity()), (1, 1, Some(2)));
            /// tx.try_send('b').unwrap();
            /// assert!(tx.is_full());
            /// ```
            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }

            /// Whether the channel has no room for another value. A rendezvous channel never has
            /// room, also if a receive waits, to which a `try_send` would hand its value.
            ///
            /// ```
            /// let (tx, rx) = marline_channel::bounded(2);
            /// assert!(rx.is_empty());
            /// tx.try_send('a').unwrap();
            /// assert_eq!((tx.len(), rx.len(), tx.capacity()), (1, 1, Some(2)));
            /// tx.try_send('b').unwrap();
            /// assert!(tx.is_full());
            /// ```
            pub fn is_full(&self) -> bool {
                !self.channel.state.lock().has_room()
            }

            /// Returns how many values the channel holds at most. None for an unbounded channel.
            ///
            /// ```
            /// let (tx, rx) = marline_channel::bounded(2);
            /// assert!(rx.is_empty());
            /// tx.try_send('a').unwrap();
            /// assert_eq!((tx.len(), rx.len(), tx.capacity()), (1, 1, Some(2)));
            /// tx.try_send('b').unwrap();
            /// assert!(tx.is_full());
            /// ```
            pub fn capacity(&self) -> Option<usize> {
                self.channel.capacity()
            }

            /// Whether the channel is closed. It may still hold values.
            ///
            /// ```
            /// let (tx, rx) = marline_channel::bounded(2);
            /// tx.try_send("inside").unwrap();
            /// assert!(rx.close_channel());
            /// assert!(tx.is_closed() && tx.try_send("late").is_err());
            /// assert_eq!(rx.try_recv(), Ok("inside")); // values inside are still received
            /// ```
            pub fn is_closed(&self) -> bool {
                self.channel.state.lock().is_closed()
            }

            /// Returns how many sending ends there are.
            ///
            /// ```
            /// let (tx, rx) = marline_channel::bounded::<u8>(2);
            /// let _another = tx.clone();
            /// assert_eq!((tx.sender_count(), rx.sender_count(), tx.receiver_count()), (2, 2, 1));
            /// ```
            pub fn sender_count(&self) -> usize {
                self.channel.state.lock().senders as usize
            }

            /// Returns how many receiving ends there are.
            ///
            /// ```
            /// let (tx, rx) = marline_channel::bounded::<u8>(2);
            /// let _another = tx.clone();
            /// assert_eq!((tx.sender_count(), rx.sender_count(), tx.receiver_count()), (2, 2, 1));
            /// ```
            pub fn receiver_count(&self) -> usize {
                self.channel.state.lock().receivers as usize
            }

            /// Returns the kind of channel.
            ///
            /// ```
            /// let (tx, rx) = marline_channel::bounded::<u8>(2);
            /// assert_eq!((tx.kind(), rx.kind().to_string()), (marline_channel::Kind::Bounded, "bounded".into()));
            /// ```
            pub fn kind(&self) -> Kind {
                self.channel.kind
            }

            /// Returns the name that was set with the builder.
            ///
            /// ```
            /// let (tx, rx) = marline_channel::Builder::<u8>::bounded(2).name("work").build().unwrap();
            /// assert_eq!((tx.name(), rx.name()), (Some("work"), Some("work")));
            /// ```
            pub fn name(&self) -> Option<&str> {
                self.channel.extras.as_ref()?.name.as_deref()
            }

            /// Returns the channel's state and counters as of now.
            ///
            /// ```
            /// let (tx, rx) = marline_channel::bounded(2);
            /// tx.try_send(1u8).unwrap();
            /// let snapshot = rx.snapshot();
            /// assert_eq!((snapshot.len, snapshot.high_water, snapshot.totals.sends), (1, 1, 1));
            /// ```
            pub fn snapshot(&self) -> Snapshot {
                self.channel.snapshot()
            }

            /// Pushes snapshots to `callback`: at most one per `min_operations` and
            /// `min_interval`, and a last one at the close. The callback runs on a thread that uses
            /// the channel, outside its lock. Dropping the subscription ends the pushes.
            ///
            /// ```
            /// use std::{sync::mpsc, time::Duration};
            /// let (pushes, pushed) = mpsc::channel();
            /// let (tx, _rx) = marline_channel::bounded(2);
            /// let _subscription = tx.subscribe_metrics(1, Duration::ZERO, move |snapshot| {
            ///     pushes.send(snapshot.len).unwrap();
            /// }).unwrap();
            /// tx.try_send("x").unwrap();
            /// assert_eq!(pushed.recv(), Ok(1));
            /// ```
            pub fn subscribe_metrics(
                &self,
                min_operations: u64,
                min_interval: Duration,
                callback: impl Fn(&Snapshot) + Send + Sync + 'static,
            ) -> Result<Subscription, Error> {
                let mut state = self.channel.state.lock();
                let observers = state.counters.observe()?;
                let totals = state.totals();
                drop(state);
                let operations = totals.sends + totals.recvs;
                let callback = Box::new(callback);
                let subscription =
                    observers.add(min_operations, min_interval, operations, callback);
                // Only now does a sample find the observer.
                self.channel.state.lock().sample_next();
                Ok(subscription)
            }

            /// Changes what a bounded channel does when it is full, for sends that begin later.
            ///
            /// ```
            /// use marline_channel::{Overflow, bounded};
            /// let (tx, rx) = bounded(1);
            /// tx.set_overflow(Overflow::DropOldest).unwrap();
            /// tx.try_send("old").unwrap();
            /// tx.try_send("new").unwrap();
            /// assert_eq!(rx.try_recv(), Ok("new"));
            /// ```
            pub fn set_overflow(&self, overflow: Overflow) -> Result<(), Error> {
                if self.channel.kind != Kind::Bounded {
                    return Err(Error::with_message(&(
                        ErrorKind::Unsupported,
                        "only a bounded channel has an overflow policy to change",
                    )));
                }
                self.channel.state.lock().set_overflow(overflow);
                Ok(())
            }

            /// Closes the channel for all ends. Parked and later sends fail and give their values
            /// back. Receivers get the values inside and then [`ErrorKind::Closed`].
            /// Returns whether this call closed the channel.
            ///
            /// ```
            /// let (tx, rx) = marline_channel::bounded(2);
            /// tx.try_send("inside").unwrap();
            /// assert!(rx.close_channel());
            /// assert!(tx.is_closed() && tx.try_send("late").is_err());
            /// assert_eq!(rx.try_recv(), Ok("inside")); // values inside are still received
            /// ```
            pub fn close_channel(&self) -> bool {
                self.channel.close()
            }

            /// Releases this end, as dropping it does. A second call does nothing. Operations of
            /// this end fail with [`ErrorKind::Closed`] afterwards.
            ///
            /// ```
            /// let (tx, rx) = marline_channel::bounded::<u8>(1);
            /// let other = tx.clone();
            /// tx.close();
            /// tx.close(); // does nothing
            /// assert!(!rx.is_closed() && tx.try_send(1).is_err());
            /// assert!(other.try_send(2).is_ok());
            /// ```
            pub fn close(&self) {
                if self.released.swap(true, Ordering::AcqRel) {
                    return;
                }
                self.channel.close_with(|state| state.$let_go());
            }

            /// Whether two ends belong to the same channel.
            ///
            /// ```
            /// let (tx, _rx) = marline_channel::bounded::<u8>(1);
            /// let (other, _other_rx) = marline_channel::bounded::<u8>(1);
            /// assert!(tx.same_channel(&tx.clone()) && !tx.same_channel(&other));
            /// ```
            pub fn same_channel(&self, other: &$End<T>) -> bool {
                Arc::ptr_eq(&self.channel, &other.channel)
            }

            /// Returns a reference to this channel that does not keep it open.
            ///
            /// ```
            /// let (tx, rx) = marline_channel::bounded(1);
            /// let weak = tx.downgrade();
            /// weak.upgrade().expect("a sender is left").try_send(1).unwrap();
            /// drop(tx);
            /// assert!(weak.upgrade().is_none());
            /// assert_eq!(rx.try_recv(), Ok(1));
            /// ```
            pub fn downgrade(&self) -> $Weak<T> {
                $Weak { channel: self.channel.clone() }
            }

            #[inline(always)]
            pub(crate) fn is_released(&self) -> bool {
                self.released.load(Ordering::Relaxed)
            }
        }

        impl<T> Clone for $End<T> {
            /// Returns another end of the same side. The clone of a released end is released, too.
            fn clone(&self) -> $End<T> {
                let released = self.is_released();
                if !released {
                    let mut state = self.channel.state.lock();
                    state.$count = state.$count.checked_add(1).expect("fewer than 2^32 ends");
                }
                $End { channel: self.channel.clone(), released: AtomicBool::new(released) }
            }
        }

        impl<T> Drop for $End<T> {
            fn drop(&mut self) {
                self.close();
            }
        }

        impl<T> fmt::Debug for $End<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_tuple(stringify!($End)).field(&self.channel).finish()
            }
        }

        impl<T> $Weak<T> {
            /// Returns a counted end. None if the last end of this side is gone.
            ///
            /// ```
            /// let (tx, rx) = marline_channel::bounded(1);
            /// let weak = tx.downgrade();
            /// weak.upgrade().expect("a sender is left").try_send(1).unwrap();
            /// drop(tx);
            /// assert!(weak.upgrade().is_none());
            /// assert_eq!(rx.try_recv(), Ok(1));
            /// ```
            pub fn upgrade(&self) -> Option<$End<T>> {
                let mut state = self.channel.state.lock();
                if state.$count == 0 {
                    return None;
                }
                state.$count = state.$count.checked_add(1).expect("fewer than 2^32 ends");
                drop(state);
                Some($End { channel: self.channel.clone(), released: AtomicBool::new(false) })
            }
        }

        impl<T> Clone for $Weak<T> {
            fn clone(&self) -> $Weak<T> {
                $Weak { channel: self.channel.clone() }
            }
        }

        impl<T> fmt::Debug for $Weak<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_tuple(stringify!($Weak)).field(&self.channel).finish()
            }
        }
    };
}

both_ends!(Sender, WeakSender, senders, release_sender);
both_ends!(Receiver, WeakReceiver, receivers, release_receiver);

impl<T> Sender<T> {
    pub(super) fn pair(channel: Channel<T>) -> (Sender<T>, Receiver<T>) {
        let channel = Arc::new(channel);
        let tx = Sender { channel: channel.clone(), released: AtomicBool::new(false) };
        (tx, Receiver { channel, released: AtomicBool::new(false) })
    }

    /// Sends a value. Waits for room, or, on a rendezvous channel, for a receive.
    ///
    /// ```
    /// let (tx, rx) = marline_channel::bounded(1);
    /// tx.send(7).wait().unwrap();
    /// drop(rx);
    /// assert_eq!(tx.send(8).wait().unwrap_err().into_inner(), 8);
    /// ```
    #[inline(always)]
    pub fn send(&self, value: T) -> Sending<'_, T> {
        SendValue::op(self, value)
    }

    /// Sends a value without waiting. Fails with [`ErrorKind::Full`], and gives the value back, if
    /// it would have to wait.
    ///
    /// ```
    /// let (tx, rx) = marline_channel::rendezvous();
    /// assert!(tx.try_send(1).is_err()); // no receive waits for it
    /// # drop(rx);
    /// ```
    #[inline]
    pub fn try_send(&self, value: T) -> Result<Sent, SendError<T>> {
        let mut value = Some(value);
        if self.is_released() {
            return Err(SendError::new(ErrorKind::Closed, value.take().expect("not sent")));
        }
        let kind = match self.channel.offer(&mut value, true) {
            Offer::Sent => return Ok(Sent::Accepted),
            Offer::Discarded => return Ok(Sent::Dropped),
            Offer::Full => ErrorKind::Full,
            Offer::Closed => ErrorKind::Closed,
        };
        Err(SendError::new(kind, value.take().expect("not sent")))
    }

    /// Sends all of `values`, front first. Waits for room as often as necessary. If the operation
    /// fails or is dropped, the unsent values are still in `values`.
    ///
    /// ```
    /// use std::collections::VecDeque;
    /// let (tx, rx) = marline_channel::unbounded();
    /// assert_eq!(tx.send_all(&mut VecDeque::from([1, 2, 3])).wait(), Ok(3));
    /// assert_eq!(rx.try_iter().collect::<Vec<_>>(), [1, 2, 3]);
    /// ```
    pub fn send_all<'a>(&'a self, values: &'a mut VecDeque<T>) -> SendingAll<'a, T> {
        SendAll::op(self, values)
    }

    /// Waits for room and takes it, so that the value can be made and sent later without a wait.
    /// Only bounded (blocking) and unbounded channels support it.
    ///
    /// ```
    /// let (tx, rx) = marline_channel::bounded(1);
    /// let permit = tx.reserve().wait().unwrap();
    /// assert!(tx.try_send("barging").is_err());
    /// permit.send("made when there was room for it").unwrap();
    /// # drop(rx);
    /// ```
    pub fn reserve(&self) -> Reserving<'_, T> {
        Reserve::op(self)
    }

    /// Takes room for a value without waiting. Fails with [`ErrorKind::Full`] if there is none.
    ///
    /// ```
    /// let (tx, rx) = marline_channel::bounded(1);
    /// let permit = tx.try_reserve().unwrap();
    /// assert!(tx.try_reserve().is_err()); // the only slot is reserved
    /// permit.send("sure").unwrap();
    /// assert_eq!(rx.try_recv(), Ok("sure"));
    /// ```
    pub fn try_reserve(&self) -> Result<Permit<'_, T>, Error> {
        Permit::try_new(self)
    }
}

impl<T> Receiver<T> {
    /// Receives a value. Waits for one. Dropping the operation at any moment loses nothing.
    ///
    /// ```
    /// let (tx, rx) = marline_channel::unbounded();
    /// tx.send("a").wait().unwrap();
    /// drop(tx);
    /// assert_eq!(rx.recv().wait(), Ok("a"));
    /// assert!(rx.recv().wait().unwrap_err().is_closed());
    /// ```
    #[inline(always)]
    pub fn recv(&self) -> Receiving<'_, T> {
        Recv::op(self)
    }

    /// Receives a value without waiting. Fails with [`ErrorKind::Empty`] if there is none, and with
    /// [`ErrorKind::Closed`] if the channel is closed and drained.
    ///
    /// ```
    /// let (tx, rx) = marline_channel::bounded(4);
    /// tx.try_send('x').unwrap();
    /// assert_eq!(rx.try_recv(), Ok('x'));
    /// ```
    #[inline]
    pub fn try_recv(&self) -> Result<T, Error> {
        if self.is_released() {
            return Err(ErrorKind::Closed.into());
        }
        let mut place = MaybeUninit::uninit();
        match self.channel.take(&mut place, false, true) {
            // SAFETY: a value was taken, so the place is written.
            Take::Taken => Ok(unsafe { place.assume_init() }),
            Take::Empty => Err(ErrorKind::Empty.into()),
            Take::Closed => Err(ErrorKind::Closed.into()),
        }
    }

    /// Waits for at least one value and appends up to `max` values to `values`.
    ///
    /// ```
    /// let (tx, rx) = marline_channel::unbounded();
    /// (0..10).for_each(|n| drop(tx.try_send(n).unwrap()));
    /// let mut values = vec![];
    /// assert_eq!(rx.recv_many(&mut values, 4).wait(), Ok(4));
    /// assert_eq!(values, [0, 1, 2, 3]);
    /// ```
    pub fn recv_many<'a>(&'a self, values: &'a mut Vec<T>, max: usize) -> batch::Receiving<'a, T> {
        RecvMany::op(self, values, max)
    }

    /// Receives until the channel is closed, blocking this thread in between.
    ///
    /// ```
    /// let (tx, rx) = marline_channel::bounded(2);
    /// std::thread::spawn(move || (0..5).for_each(|n| drop(tx.send(n).wait().unwrap())));
    /// assert_eq!(rx.iter().collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    /// ```
    pub fn iter(&self) -> Iter<'_, T> {
        Iter::new(self)
    }

    /// Receives until the channel is empty, without waiting.
    ///
    /// ```
    /// let (tx, rx) = marline_channel::unbounded();
    /// (1..=3).for_each(|n| drop(tx.try_send(n).unwrap()));
    /// assert_eq!(rx.try_iter().sum::<i32>(), 6);
    /// ```
    pub fn try_iter(&self) -> TryIter<'_, T> {
        TryIter::new(self)
    }
}
