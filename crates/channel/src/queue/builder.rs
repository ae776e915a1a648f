//! Functions and a builder that create queue channels.

use std::sync::Arc as StdArc;

use super::{
    Channel, Extras, OnDrop, Overflow, Receiver, Sender,
    state::{State, UNBOUNDED},
};
use crate::{
    error::{Error, ErrorKind},
    lock::Lock,
    metrics::Kind,
    park::WaitMemory,
};

/// The largest capacity of a bounded channel. A larger one is a mistake, or means an unbounded
/// channel.
///
/// ```
/// use marline_channel::{Builder, MAX_CAPACITY};
/// assert!(Builder::<u8>::bounded(MAX_CAPACITY + 1).build().is_err());
/// ```
pub const MAX_CAPACITY: usize = 1 << 30;

/// The capacity, in values, from which on a buffer holds a batch. The two sides fill or drain a
/// smaller buffer no slower than they meet for each value.
const BATCH: u32 = 16;

/// The longest name of a channel, in bytes.
const MAX_NAME_BYTES: usize = 255;

/// Creates a channel without a buffer: each send completes when its value is handed to a receive.
///
/// ```
/// let (tx, rx) = marline_channel::rendezvous();
/// std::thread::scope(|scope| {
///     scope.spawn(|| tx.send("hello").wait().unwrap());
///     assert_eq!(rx.recv().wait(), Ok("hello"));
/// });
/// ```
pub fn rendezvous<T>() -> (Sender<T>, Receiver<T>) {
    Builder::rendezvous().make()
}

/// Creates a channel that holds up to `capacity` values. Further sends wait.
///
/// # Panics
/// If `capacity` is 0 (see [`rendezvous`]) or more than [`MAX_CAPACITY`]. [`Builder::build`]
/// returns an error instead.
///
/// ```
/// let (tx, rx) = marline_channel::bounded(2);
/// tx.send(1).wait().unwrap();
/// tx.send(2).wait().unwrap();
/// assert!(tx.try_send(3).is_err());
/// assert_eq!(rx.recv().wait(), Ok(1));
/// ```
#[track_caller]
pub fn bounded<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    match Builder::bounded(capacity).build() {
        Ok(ends) => ends,
        Err(error) => panic!("bounded({capacity}): {error}"),
    }
}

/// Creates a channel without a limit. Sends never wait.
///
/// ```
/// let (tx, rx) = marline_channel::unbounded();
/// (0..1000).for_each(|n| drop(tx.try_send(n).unwrap()));
/// drop(tx);
/// assert_eq!(rx.into_iter().sum::<i32>(), 499_500);
/// ```
pub fn unbounded<T>() -> (Sender<T>, Receiver<T>) {
    Builder::unbounded().make()
}

/// Creates a channel that holds the latest value: a new value replaces one that was not received
/// yet.
///
/// ```
/// let (tx, rx) = marline_channel::conflated();
/// for position in 0..10 {
///     tx.try_send(position).unwrap();
/// }
/// assert_eq!(rx.try_recv(), Ok(9));
/// assert!(rx.try_recv().is_err());
/// ```
pub fn conflated<T>() -> (Sender<T>, Receiver<T>) {
    Builder::conflated().make()
}

/// Creates a queue channel with options: an overflow policy, a name, callbacks.
///
/// ```
/// use marline_channel::{Builder, Overflow};
/// use std::sync::atomic::{AtomicU32, Ordering};
/// static DROPPED: AtomicU32 = AtomicU32::new(0);
/// let (tx, _rx) = Builder::bounded(2)
///     .overflow(Overflow::DropOldest)
///     .name("frames")
///     .on_drop(|_frame: u32| drop(DROPPED.fetch_add(1, Ordering::Relaxed)))
///     .build()
///     .unwrap();
/// for frame in 0..5 {
///     tx.try_send(frame).unwrap();
/// }
/// assert_eq!(DROPPED.load(Ordering::Relaxed), 3);
/// ```
#[must_use = "a builder does nothing until `build`"]
pub struct Builder<T> {
    kind: Kind,
    /// None for an unbounded channel.
    capacity: Option<usize>,
    overflow: Overflow,
    name: Option<StdArc<str>>,
    on_drop: Option<OnDrop<T>>,
    measure: Option<fn(&T) -> usize>,
}

impl<T> Builder<T> {
    fn new(kind: Kind, capacity: Option<usize>, overflow: Overflow) -> Builder<T> {
        Builder { kind, capacity, overflow, name: None, on_drop: None, measure: None }
    }

    /// Like [`rendezvous`].
    ///
    /// ```
    /// use marline_channel::{Builder, Kind};
    /// let (tx, _rx) = Builder::<String>::rendezvous().name("orders").build().unwrap();
    /// assert_eq!((tx.kind(), tx.name()), (Kind::Rendezvous, Some("orders")));
    /// ```
    pub fn rendezvous() -> Builder<T> {
        Builder::new(Kind::Rendezvous, Some(0), Overflow::Block)
    }

    /// Like [`bounded`].
    ///
    /// ```
    /// use marline_channel::{Builder, Kind};
    /// let (tx, _rx) = Builder::<String>::bounded(16).name("orders").build().unwrap();
    /// assert_eq!((tx.kind(), tx.name()), (Kind::Bounded, Some("orders")));
    /// ```
    pub fn bounded(capacity: usize) -> Builder<T> {
        Builder::new(Kind::Bounded, Some(capacity), Overflow::Block)
    }

    /// Like [`unbounded`].
    ///
    /// ```
    /// use marline_channel::{Builder, Kind};
    /// let (tx, _rx) = Builder::<String>::unbounded().name("orders").build().unwrap();
    /// assert_eq!((tx.kind(), tx.name()), (Kind::Unbounded, Some("orders")));
    /// ```
    pub fn unbounded() -> Builder<T> {
        Builder::new(Kind::Unbounded, None, Overflow::Block)
    }

    /// Like [`conflated`].
    ///
    /// ```
    /// use marline_channel::{Builder, Kind};
    /// let (tx, _rx) = Builder::<String>::conflated().name("orders").build().unwrap();
    /// assert_eq!((tx.kind(), tx.name()), (Kind::Conflated, Some("orders")));
    /// ```
    pub fn conflated() -> Builder<T> {
        Builder::new(Kind::Conflated, Some(1), Overflow::DropOldest)
    }

    /// Sets what a bounded channel does when it is full.
    ///
    /// ```
    /// use marline_channel::{Builder, Overflow, Sent};
    /// let (tx, rx) = Builder::bounded(1).overflow(Overflow::DropNewest).build().unwrap();
    /// assert_eq!(tx.try_send("kept"), Ok(Sent::Accepted));
    /// assert_eq!(tx.try_send("too late"), Ok(Sent::Dropped));
    /// assert_eq!(rx.try_recv(), Ok("kept"));
    /// ```
    pub fn overflow(mut self, overflow: Overflow) -> Builder<T> {
        self.overflow = overflow;
        self
    }

    /// Sets the name that snapshots and dumps show.
    ///
    /// ```
    /// let (tx, rx) = marline_channel::Builder::<u8>::unbounded().name("events").build().unwrap();
    /// assert_eq!((tx.name(), rx.snapshot().name.as_deref()), (Some("events"), Some("events")));
    /// ```
    pub fn name(mut self, name: &str) -> Builder<T> {
        self.name = Some(name.into());
        self
    }

    /// Sets a callback that gets each value that will never be received, exactly once: a value that
    /// the overflow policy discards, or that is still inside when the last receiver goes. The
    /// callback runs on the thread that caused it, outside the channel's lock.
    ///
    /// ```
    /// use marline_channel::{Builder, Overflow};
    /// use std::sync::{Arc, Mutex};
    /// let dropped = Arc::new(Mutex::new(vec![]));
    /// let log = dropped.clone();
    /// let (tx, rx) = Builder::bounded(1)
    ///     .overflow(Overflow::DropOldest)
    ///     .on_drop(move |value| log.lock().unwrap().push(value))
    ///     .build()
    ///     .unwrap();
    /// (1..=3).for_each(|n| drop(tx.try_send(n)));
    /// drop(rx); // discards the value that is still inside
    /// assert_eq!(*dropped.lock().unwrap(), [1, 2, 3]);
    /// ```
    pub fn on_drop(mut self, on_drop: impl Fn(T) + Send + Sync + 'static) -> Builder<T> {
        self.on_drop = Some(Box::new(on_drop));
        self
    }

    /// Sets how many bytes a value counts for in the metrics. The default is the size of its type.
    /// `measure` runs inside the channel's lock: it must be quick and must not touch the channel. A
    /// panic counts as 0 bytes.
    ///
    /// ```
    /// use marline_channel::Builder;
    /// let (tx, _rx) = Builder::unbounded().measure(String::len).build().unwrap();
    /// tx.try_send("four".to_string()).unwrap();
    /// assert_eq!(tx.snapshot().totals.bytes_sent, 4);
    /// ```
    pub fn measure(mut self, measure: fn(&T) -> usize) -> Builder<T> {
        self.measure = Some(measure);
        self
    }

    /// Creates the channel. Fails with [`ErrorKind::Invalid`] if the options do not fit together.
    ///
    /// ```
    /// use marline_channel::{Builder, ErrorKind};
    /// let refused = Builder::<u8>::bounded(0).build().unwrap_err();
    /// assert_eq!(refused.kind(), ErrorKind::Invalid);
    /// ```
    pub fn build(self) -> Result<(Sender<T>, Receiver<T>), Error> {
        if self.kind == Kind::Bounded && self.capacity == Some(0) {
            return Err(Error::with_message(&(
                ErrorKind::Invalid,
                "a bounded channel needs a capacity of at least 1: use `rendezvous`",
            )));
        }
        if self.capacity > Some(MAX_CAPACITY) {
            return Err(Error::with_message(&(
                ErrorKind::Invalid,
                "capacity is over MAX_CAPACITY (2^30): use `unbounded`",
            )));
        }
        if self.kind != Kind::Bounded
            && self.kind != Kind::Conflated
            && self.overflow != Overflow::Block
        {
            return Err(Error::with_message(&(
                ErrorKind::Invalid,
                "only a bounded channel can overflow: use `Builder::bounded`",
            )));
        }
        if self.kind == Kind::Conflated && self.overflow != Overflow::DropOldest {
            return Err(Error::with_message(&(
                ErrorKind::Invalid,
                "a conflated channel always drops the oldest: use `Builder::bounded(1)`",
            )));
        }
        if self.name.as_ref().is_some_and(|name| name.len() > MAX_NAME_BYTES) {
            return Err(Error::with_message(&(
                ErrorKind::Invalid,
                "a channel's name has at most 255 bytes",
            )));
        }
        Ok(self.make())
    }

    fn make(self) -> (Sender<T>, Receiver<T>) {
        let capacity = self.capacity.map_or(UNBOUNDED, |capacity| capacity as u32);
        let extras = (self.name.is_some() || self.on_drop.is_some())
            .then(|| Box::new(Extras { name: self.name, on_drop: self.on_drop }));
        Sender::pair(Channel {
            state: Lock::new(State::new(capacity, self.overflow, self.measure)),
            wait_memory: WaitMemory::new(),
            kind: self.kind,
            holds_a_batch: capacity >= BATCH,
            extras,
        })
    }
}
