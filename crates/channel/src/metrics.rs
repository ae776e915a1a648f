//! The metrics of a channel: counters under the lock that an operation holds anyway, a snapshot of
//! them, rates between two snapshots, and subscriptions that push snapshots.
//!
//! Counting costs at most a plain increment per operation. A queue does not count its sends and
//! receives at all: the positions of its buffer tell them. The clock is read once in
//! [`SAMPLE_EVERY`] sends and when a thread goes to sleep, or more often if a subscription asks for
//! more pushes. Without the `metrics` feature there are no counters, and their fields in a snapshot
//! stay zero.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use crate::{
    error::{Error, ErrorKind},
    panics::FirstPanic,
};

/// The clock is read once in this many sends, or more often if a subscription asks for more pushes.
///
/// ```
/// assert_eq!(marline_channel::SAMPLE_EVERY, 64);
/// ```
pub const SAMPLE_EVERY: u64 = 64;

/// The version of [`Snapshot`]'s fields.
///
/// ```
/// let (tx, _rx) = marline_channel::unbounded::<u8>();
/// assert_eq!(tx.snapshot().version, marline_channel::SNAPSHOT_VERSION);
/// ```
pub const SNAPSHOT_VERSION: u32 = 1;

/// The kinds of channel.
///
/// ```
/// use marline_channel::Kind;
/// let (tx, _rx) = marline_channel::conflated::<u8>();
/// assert_eq!(tx.kind(), Kind::Conflated);
/// assert_eq!(tx.kind().to_string(), "conflated");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Each send waits for its receive.
    Rendezvous,
    /// Holds values up to its capacity.
    Bounded,
    /// Holds any number of values.
    Unbounded,
    /// Holds the latest value.
    Conflated,
    /// One value, once.
    Oneshot,
    /// Every receiver gets every value.
    Broadcast,
    /// Receivers see the latest value.
    Watch,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Kind::Rendezvous => "rendezvous",
            Kind::Bounded => "bounded",
            Kind::Unbounded => "unbounded",
            Kind::Conflated => "conflated",
            Kind::Oneshot => "oneshot",
            Kind::Broadcast => "broadcast",
            Kind::Watch => "watch",
        })
    }
}

/// Running totals, guarded by the channel's lock.
pub(crate) struct Counters {
    pub(crate) totals: Totals,
    first_operation: Option<Instant>,
    /// From the first sampled operation to the last, in nanoseconds.
    operated_nanos: u64,
    /// Sends whose number has none of these bits are sampled.
    send_mask: u32,
    /// The mask for receives. No receive is sampled unless the channel has observers.
    recv_mask: u32,
    /// Set with the first subscription.
    observers: Option<Arc<Observers>>,
}

/// The most values a channel ever held. Separate from the other counters, because every send reads
/// it.
#[derive(Default)]
pub(crate) struct HighWater(u64);

impl HighWater {
    #[inline(always)]
    pub(crate) fn note(&mut self, len: u64) {
        if cfg!(feature = "metrics") && len > self.0 {
            self.0 = len;
        }
    }

    pub(crate) fn get(&self) -> usize {
        self.0 as usize
    }
}

/// The counters of a [`Snapshot`]. Only successful operations count as sends and receives, each
/// exactly once.
///
/// ```
/// let (tx, rx) = marline_channel::bounded(1);
/// tx.try_send([0u8; 100]).unwrap();
/// tx.try_send([0u8; 100]).unwrap_err();
/// rx.try_recv().unwrap();
/// let totals = rx.snapshot().totals;
/// assert_eq!((totals.sends, totals.send_full, totals.recvs), (1, 1, 1));
/// assert_eq!((totals.bytes_sent, totals.bytes_received), (100, 100));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Totals {
    /// Values accepted. A value that the overflow policy discarded later counts; one that it
    /// discarded at once does not.
    pub sends: u64,
    /// Values taken by receivers.
    pub recvs: u64,
    /// Bytes of the values accepted.
    pub bytes_sent: u64,
    /// Bytes of the values taken.
    pub bytes_received: u64,
    /// Calls of `try_send` that found no room.
    pub send_full: u64,
    /// Sends that met their deadline.
    pub send_timeout: u64,
    /// Sends ended by their cancel token, or dropped while they waited.
    pub send_cancelled: u64,
    /// Sends that found, or met, a closed channel.
    pub send_closed: u64,
    /// Calls of `try_recv` that found no value.
    pub recv_empty: u64,
    /// Receives that met their deadline.
    pub recv_timeout: u64,
    /// Receives ended by their cancel token, or dropped while they waited.
    pub recv_cancelled: u64,
    /// Receives that found, or met, a closed and drained channel.
    pub recv_closed: u64,
    /// Values discarded to make room for newer ones.
    pub dropped_oldest: u64,
    /// Values discarded for lack of room.
    pub dropped_newest: u64,
    /// Values still inside when the last receiver went.
    pub undelivered: u64,
}

/// Adds to one of the totals. Does nothing when metrics are compiled out.
macro_rules! count {
    ($counters:expr, $field:ident += $by:expr) => {
        if cfg!(feature = "metrics") {
            let by = $by as u64;
            $counters.totals.$field += by;
        }
    };
}
pub(crate) use count;

impl Default for Counters {
    fn default() -> Counters {
        Counters {
            totals: Totals::default(),
            first_operation: None,
            operated_nanos: 0,
            send_mask: SAMPLE_EVERY as u32 - 1,
            recv_mask: u32::MAX,
            observers: None,
        }
    }
}

impl Counters {
    /// Whether to [`Counters::sample`] at the send with this number.
    pub(crate) fn is_send_sampled(&self, number: u64) -> bool {
        cfg!(feature = "metrics") && number as u32 & self.send_mask == 0
    }

    /// Whether to [`Counters::sample`] at the receive with this number.
    pub(crate) fn is_recv_sampled(&self, number: u64) -> bool {
        cfg!(feature = "metrics") && number as u32 & self.recv_mask == 0
    }

    /// Returns how many sends there will have been before the next sampled send, if there were
    /// `sends` so far. Sends are numbered from 0, so that the first one is sampled.
    pub(crate) fn next_sampled_send(&self, sends: u64) -> u64 {
        let mask = u64::from(self.send_mask);
        if cfg!(feature = "metrics") { (sends + mask) & !mask } else { u64::MAX }
    }

    /// Like [`Counters::next_sampled_send`], for receives, which are numbered from 1.
    pub(crate) fn next_sampled_recv(&self, recvs: u64) -> u64 {
        if cfg!(feature = "metrics") { recvs | u64::from(self.recv_mask) } else { u64::MAX }
    }

    /// Records the time of an operation. Returns true if the channel has observers. The caller
    /// reads the clock: a queue does so outside its lock, since that takes longer than an
    /// operation.
    #[cold]
    pub(crate) fn sample(&mut self, now: Instant) -> bool {
        if !cfg!(feature = "metrics") {
            return false;
        }
        let first = *self.first_operation.get_or_insert(now);
        let nanos = now.saturating_duration_since(first).as_nanos() as u64;
        // Another thread may have read the clock later and come here sooner.
        self.operated_nanos = self.operated_nanos.max(nanos);
        let step = self.observers.as_ref().and_then(|observers| observers.step());
        // At least as often as the observers ask: round down to a power of two.
        self.send_mask = (1 << step.unwrap_or(SAMPLE_EVERY).ilog2()) - 1;
        self.recv_mask = if step.is_some() { self.send_mask } else { u32::MAX };
        step.is_some()
    }

    fn last_operation(&self) -> Option<Instant> {
        Some(self.first_operation? + Duration::from_nanos(self.operated_nanos))
    }

    /// Returns the observers, to add one.
    pub(crate) fn observe(&mut self) -> Result<Arc<Observers>, Error> {
        if !cfg!(feature = "metrics") {
            return Err(Error::with_message(&(
                ErrorKind::Unsupported,
                "metrics are compiled out: build marline-channel with its `metrics` feature",
            )));
        }
        Ok(self.observers.get_or_insert_default().clone())
    }

    /// Makes the next operation one that is sampled.
    pub(crate) fn sample_next(&mut self) {
        (self.send_mask, self.recv_mask) = (0, 0);
    }

    /// Returns the observers, to push to them.
    pub(crate) fn observers(&self) -> Option<Arc<Observers>> {
        self.observers.clone()
    }
}

/// A channel at one moment. Counters survive the close of the channel.
///
/// ```
/// let (tx, rx) = marline_channel::bounded(8);
/// tx.try_send(1u64).unwrap();
/// rx.try_recv().unwrap();
/// let snapshot = rx.snapshot();
/// assert_eq!((snapshot.totals.sends, snapshot.totals.recvs, snapshot.len), (1, 1, 0));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Snapshot {
    /// [`SNAPSHOT_VERSION`].
    pub version: u32,
    /// The kind of channel.
    pub kind: Kind,
    /// The name that was set with the builder.
    pub name: Option<Arc<str>>,
    /// How many values the channel holds at most. None for an unbounded channel.
    pub capacity: Option<usize>,
    /// How many values the channel holds now.
    pub len: usize,
    /// The most values that the channel ever held.
    pub high_water: usize,
    /// Sending ends.
    pub senders: usize,
    /// Receiving ends.
    pub receivers: usize,
    /// Parked sends.
    pub waiting_send: usize,
    /// Parked receives.
    pub waiting_recv: usize,
    /// Running totals.
    pub totals: Totals,
    /// The time of the first operation, about: only some operations are sampled.
    pub first_operation: Option<Instant>,
    /// The time of the last operation, about: only some operations are sampled.
    pub last_operation: Option<Instant>,
    /// Whether the channel is closed.
    pub closed: bool,
    /// When this snapshot was taken.
    pub at: Instant,
}

/// Operations and bytes per second between two snapshots.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Rate {
    /// Accepted values per second.
    pub sends: f64,
    /// Taken values per second.
    pub recvs: f64,
    /// Bytes accepted per second.
    pub bytes_sent: f64,
    /// Bytes taken per second.
    pub bytes_received: f64,
}

impl Snapshot {
    /// Returns a snapshot without any counts.
    pub(crate) fn empty(kind: Kind, at: Instant) -> Snapshot {
        Snapshot::counted(kind, at, &Counters::default())
    }

    /// Returns a snapshot with the counters. The caller fills in the other fields.
    pub(crate) fn counted(kind: Kind, at: Instant, counters: &Counters) -> Snapshot {
        Snapshot {
            version: SNAPSHOT_VERSION,
            kind,
            name: None,
            capacity: None,
            len: 0,
            high_water: 0,
            senders: 0,
            receivers: 0,
            waiting_send: 0,
            waiting_recv: 0,
            totals: counters.totals,
            first_operation: counters.first_operation,
            last_operation: counters.last_operation(),
            closed: false,
            at,
        }
    }

    /// Returns the rate from `earlier` to this snapshot. Zero if no time has passed.
    ///
    /// ```
    /// let (tx, _rx) = marline_channel::unbounded();
    /// let before = tx.snapshot();
    /// tx.try_send("x").unwrap();
    /// assert!(tx.snapshot().rate(&before).sends > 0.0);
    /// ```
    pub fn rate(&self, earlier: &Snapshot) -> Rate {
        let seconds = self.at.saturating_duration_since(earlier.at).as_secs_f64();
        if seconds == 0.0 {
            return Rate::default();
        }
        let per_second = |field: fn(&Totals) -> u64| {
            field(&self.totals).saturating_sub(field(&earlier.totals)) as f64 / seconds
        };
        Rate {
            sends: per_second(|totals| totals.sends),
            recvs: per_second(|totals| totals.recvs),
            bytes_sent: per_second(|totals| totals.bytes_sent),
            bytes_received: per_second(|totals| totals.bytes_received),
        }
    }
}

type Callback = dyn Fn(&Snapshot) + Send + Sync;

/// A subscriber to snapshots. A push is due once both minimums have passed since the last push. The
/// first push waits for `min_operations` only.
pub(crate) struct Observer {
    min_operations: u64,
    min_interval: Duration,
    last: Mutex<(u64, Option<Instant>)>,
    /// Whether its subscription was dropped.
    ended: AtomicBool,
    callback: Box<Callback>,
}

impl Observer {
    /// Returns whether a push is due. For each push, only one caller gets true.
    fn claim(&self, snapshot: &Snapshot, closing: bool) -> bool {
        let operations = snapshot.totals.sends + snapshot.totals.recvs;
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let enough = operations.saturating_sub(last.0) >= self.min_operations;
        let elapsed = |before| snapshot.at.saturating_duration_since(before) >= self.min_interval;
        let due = closing || enough && last.1.is_none_or(elapsed);
        if due {
            *last = (operations, Some(snapshot.at));
        }
        due
    }
}

/// The observers of one channel.
#[derive(Default)]
pub(crate) struct Observers {
    list: Mutex<Vec<Arc<Observer>>>,
}

impl Observers {
    fn list(&self) -> MutexGuard<'_, Vec<Arc<Observer>>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pushes `snapshot` to the observers that are due. At the close all are.
    pub(crate) fn push(&self, snapshot: &Snapshot, closing: bool) {
        let list = self.list().clone();
        let mut panics = FirstPanic::default();
        for observer in list.iter().filter(|observer| observer.claim(snapshot, closing)) {
            // The list is a copy: an earlier callback may have ended this observer.
            if !observer.ended.load(Ordering::Acquire) {
                panics.run(|| (observer.callback)(snapshot));
            }
        }
        panics.resume();
    }

    /// Returns the fewest operations after which an observer wants a push. None without observers.
    fn step(&self) -> Option<u64> {
        self.list().iter().map(|observer| observer.min_operations.clamp(1, SAMPLE_EVERY)).min()
    }

    /// Adds an observer, on a channel that has had `operations` operations.
    pub(crate) fn add(
        self: &Arc<Observers>,
        min_operations: u64,
        min_interval: Duration,
        operations: u64,
        callback: Box<Callback>,
    ) -> Subscription {
        let last = Mutex::new((operations, None));
        let ended = AtomicBool::new(false);
        let observer = Arc::new(Observer { min_operations, min_interval, last, ended, callback });
        self.list().push(observer.clone());
        Subscription { observers: self.clone(), observer }
    }
}

/// Keeps an observer subscribed. Dropping it ends the pushes. (A push that has begun on another
/// thread runs to its end.)
///
/// ```
/// use std::{sync::mpsc, time::Duration};
/// let (pushes, pushed) = mpsc::channel();
/// let (tx, _rx) = marline_channel::unbounded();
/// let subscription = tx.subscribe_metrics(1, Duration::ZERO, move |snapshot| {
///     let _ = pushes.send(snapshot.totals.sends);
/// }).unwrap();
/// tx.try_send("x").unwrap();
/// assert_eq!(pushed.recv(), Ok(1));
/// drop(subscription);
/// tx.try_send("y").unwrap();
/// assert!(pushed.recv().is_err()); // the callback is gone
/// ```
#[must_use = "dropping it ends the subscription"]
pub struct Subscription {
    observers: Arc<Observers>,
    observer: Arc<Observer>,
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").finish_non_exhaustive()
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.observer.ended.store(true, Ordering::Release);
        self.observers.list().retain(|other| !Arc::ptr_eq(other, &self.observer));
    }
}
