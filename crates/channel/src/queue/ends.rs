//! The ends of a queue channel: counted, cloned, let go.
//!
//! Counts live in the channel's state, so that "this was the last one" and the close it causes are
//! one step. An end that was let go by `close()` stays usable as a value; its operations fail.

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

/// The sending end of a channel. Clone it for more senders; when the last one goes, the channel
/// closes and receivers get what is still inside, then [`ErrorKind::Closed`].
pub struct Sender<T> {
    pub(crate) channel: Arc<Channel<T>>,
    released: AtomicBool,
}

/// The receiving end of a channel. Clone it for more receivers: each value goes to one of them.
/// When the last one goes, the channel closes and sends get their values back.
pub struct Receiver<T> {
    pub(crate) channel: Arc<Channel<T>>,
    released: AtomicBool,
}

/// Reaches a channel without counting as a sender.
///
/// ```
/// let (tx, rx) = marline_channel::unbounded::<u8>();
/// let weak = tx.downgrade();
/// assert!(weak.upgrade().is_some());
/// drop(tx); // the last one that counts
/// assert!(weak.upgrade().is_none() && rx.is_closed());
/// ```
pub struct WeakSender<T> {
    channel: Arc<Channel<T>>,
}

/// Reaches a channel without counting as a receiver.
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

/// What both ends can tell and do.
macro_rules! both_ends {
    ($End:ident, $Weak:ident, $count:ident, $let_go:ident) => {
        impl<T> $End<T> {
            /// How many values are inside.
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

            /// Whether nothing is inside.
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

            /// Whether a `try_send` would find no room (on a rendezvous channel always, unless a
            /// receive is waiting).
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

            /// How many values the channel holds at most; none for unbounded.
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

            /// Whether the channel is closed. Values may still be inside.
            ///
            /// ```
            /// let (tx, rx) = marline_channel::bounded(2);
            /// tx.try_send("inside").unwrap();
            /// assert!(rx.close_channel());
            /// assert!(tx.is_closed() && tx.try_send("late").is_err());
            /// assert_eq!(rx.try_recv(), Ok("inside")); // what is inside is still received
            /// ```
            pub fn is_closed(&self) -> bool {
                self.channel.state.lock().is_closed()
            }

            /// How many sending ends there are.
            ///
            /// ```
            /// let (tx, rx) = marline_channel::bounded::<u8>(2);
            /// let _another = tx.clone();
            /// assert_eq!((tx.sender_count(), rx.sender_count(), tx.receiver_count()), (2, 2, 1));
            /// ```
            pub fn sender_count(&self) -> usize {
                self.channel.state.lock().senders as usize
            }

            /// How many receiving ends there are.
            ///
            /// ```
            /// let (tx, rx) = marline_channel::bounded::<u8>(2);
            /// let _another = tx.clone();
            /// assert_eq!((tx.sender_count(), rx.sender_count(), tx.receiver_count()), (2, 2, 1));
            /// ```
            pub fn receiver_count(&self) -> usize {
                self.channel.state.lock().receivers as usize
            }

            /// The kind of channel.
            ///
            /// ```
            /// let (tx, rx) = marline_channel::bounded::<u8>(2);
            /// assert_eq!((tx.kind(), rx.kind().to_string()), (marline_channel::Kind::Bounded, "bounded".into()));
            /// ```
            pub fn kind(&self) -> Kind {
                self.channel.kind
            }

            /// The name given to the builder.
            ///
            /// ```
            /// let (tx, rx) = marline_channel::Builder::<u8>::bounded(2).name("work").build().unwrap();
            /// assert_eq!((tx.name(), rx.name()), (Some("work"), Some("work")));
            /// ```
            pub fn name(&self) -> Option<&str> {
                self.channel.extras.as_ref()?.name.as_deref()
            }

            /// What the channel knows about itself.
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

            /// Has snapshots pushed to `callback`, at most one per `min_operations` and
            /// `min_interval`, on a thread that uses the channel, outside its lock; and a last one
            /// at the close. Ends when the subscription is dropped.
            ///
            /// ```
            /// use std::{sync::mpsc, time::Duration};
            /// let (told, heard) = mpsc::channel();
            /// let (tx, _rx) = marline_channel::bounded(2);
            /// let _subscription = tx.subscribe_metrics(1, Duration::ZERO, move |snapshot| {
            ///     told.send(snapshot.len).unwrap();
            /// }).unwrap();
            /// tx.try_send("x").unwrap();
            /// assert_eq!(heard.recv(), Ok(1));
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
                // Now that a sample finds it.
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

            /// Closes the channel for everybody: parked and later sends fail with their value,
            /// receivers get what is inside and then [`ErrorKind::Closed`].
            /// Says whether this call closed it.
            ///
            /// ```
            /// let (tx, rx) = marline_channel::bounded(2);
            /// tx.try_send("inside").unwrap();
            /// assert!(rx.close_channel());
            /// assert!(tx.is_closed() && tx.try_send("late").is_err());
            /// assert_eq!(rx.try_recv(), Ok("inside")); // what is inside is still received
            /// ```
            pub fn close_channel(&self) -> bool {
                self.channel.close()
            }

            /// Lets go of this end, as dropping it does; more than once does nothing. Operations
            /// of this end fail with [`ErrorKind::Closed`] afterwards.
            ///
            /// ```
            /// let (tx, rx) = marline_channel::bounded::<u8>(1);
            /// let other = tx.clone();
            /// tx.close();
            /// tx.close(); // the same again
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

            /// An end that does not keep the channel open.
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
            /// Another end of the same side. The clone of an end that was let go is one, too.
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
            /// A counted end, unless the last one of this side is gone.
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

    /// Sends a value, waiting for room (on a rendezvous channel: for its receiver).
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

    /// Sends a value if that needs no waiting; [`ErrorKind::Full`] gives it back otherwise.
    ///
    /// ```
    /// let (tx, rx) = marline_channel::rendezvous();
    /// assert!(tx.try_send(1).is_err()); // nobody waits for it
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

    /// Sends everything in `values`, front first, waiting for room as often as it takes. What was
    /// not sent when it fails, or is dropped, is still in `values`.
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

    /// Waits for room and takes it, so that the value can be made and sent later without waiting.
    /// On bounded (blocking) and unbounded channels.
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

    /// Takes room if there is some.
    ///
    /// ```
    /// let (tx, rx) = marline_channel::bounded(1);
    /// let permit = tx.try_reserve().unwrap();
    /// assert!(tx.try_reserve().is_err()); // the only place is promised
    /// permit.send("sure").unwrap();
    /// assert_eq!(rx.try_recv(), Ok("sure"));
    /// ```
    pub fn try_reserve(&self) -> Result<Permit<'_, T>, Error> {
        Permit::try_new(self)
    }
}

impl<T> Receiver<T> {
    /// Receives a value, waiting for one. Dropping the operation at any moment loses nothing.
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

    /// Receives a value if that needs no waiting. A closed and drained channel is
    /// [`ErrorKind::Closed`], not `Empty`.
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
            // SAFETY: taken, so the place is written.
            Take::Taken => Ok(unsafe { place.assume_init() }),
            Take::Empty => Err(ErrorKind::Empty.into()),
            Take::Closed => Err(ErrorKind::Closed.into()),
        }
    }

    /// Waits for at least one value and appends up to `max` of them to `values`, in one go.
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

    /// Receives what is there now.
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
