//! Broadcast: every receiver gets every value, as long as it keeps up.
//!
//! The values are in one ring, under the short lock. Each receiver has its own position in it.
//! A value stays in the ring until every receiver has seen it, or until the ring needs its room.
//! Values are shared, so that cloning a value, which is user code, happens outside the lock. The
//! last receiver to see a value gets the value itself, unless another receiver still clones it.

use std::{
    collections::VecDeque,
    fmt,
    pin::Pin,
    ptr::NonNull,
    sync::Arc as StdArc,
    task::{Poll, Waker},
    time::Instant,
};

use crate::{
    error::{Error, ErrorKind, SendError},
    lock::{Lock, RawLock},
    metrics::{Counters, HighWater, Kind, Snapshot, count},
    op::{Op, sealed},
    park::WaitMemory,
    queue::MAX_CAPACITY,
    select::{Claim, ClauseAction},
    sync::Arc,
    wakers::{self, WakeList, WakeNode, wake_all},
};

/// Creates a channel in which every receiver gets every value. `capacity` is rounded up to a power
/// of two. A receiver that is more than `capacity` values behind learns how many values it missed
/// ([`ErrorKind::Lagged`]) and goes on with the oldest value that is left. Sends never wait.
///
/// # Panics
/// If `capacity` is 0 or more than [`MAX_CAPACITY`].
///
/// ```
/// let (tx, mut a) = marline_channel::broadcast(16);
/// let mut b = tx.subscribe();
/// assert_eq!(tx.send("news").unwrap(), 2);
/// assert_eq!((a.recv().wait(), b.recv().wait()), (Ok("news"), Ok("news")));
/// ```
#[track_caller]
pub fn broadcast<T: Clone>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    assert!(
        (1..=MAX_CAPACITY).contains(&capacity),
        "broadcast({capacity}): the capacity must be from 1 to MAX_CAPACITY (2^30)"
    );
    let channel = Arc::new(Channel {
        state: Lock::new(State {
            ring: VecDeque::new(),
            first: 0,
            senders: 1,
            receivers: 1,
            closed: false,
            waiting: WakeList::new(),
            counters: Counters::default(),
            high_water: HighWater::default(),
        }),
        spin: WaitMemory::new(),
        capacity: capacity.next_power_of_two(),
    });
    (Sender { channel: channel.clone() }, Receiver { channel, next: 0 })
}

struct Channel<T> {
    state: Lock<State<T>>,
    spin: WaitMemory,
    capacity: usize,
}

struct State<T> {
    ring: VecDeque<Slot<T>>,
    /// The number of the first value in the ring.
    first: u64,
    senders: usize,
    receivers: usize,
    closed: bool,
    waiting: WakeList,
    counters: Counters,
    high_water: HighWater,
}

struct Slot<T> {
    value: Option<StdArc<T>>,
    /// How many receivers have yet to see the value.
    left: usize,
}

/// The entry at a receiver's position.
enum Found<T> {
    Value(StdArc<T>),
    Nothing(ErrorKind),
}

impl<T> State<T> {
    fn end(&self) -> u64 {
        self.first + self.ring.len() as u64
    }

    fn find(&mut self, next: &mut u64) -> Found<T> {
        if *next < self.first {
            let missed = self.first - *next;
            *next = self.first;
            return Found::Nothing(ErrorKind::Lagged(missed));
        }
        let index = (*next - self.first) as usize;
        let Some(slot) = self.ring.get_mut(index) else {
            if !self.closed {
                return Found::Nothing(ErrorKind::Empty);
            }
            count!(self.counters, recv_closed += 1);
            return Found::Nothing(ErrorKind::Closed);
        };
        *next += 1;
        slot.left -= 1;
        let value = if slot.left == 0 { slot.value.take() } else { slot.value.clone() };
        count!(self.counters, recvs += 1);
        count!(self.counters, bytes_received += size_of::<T>());
        self.retire();
        Found::Value(value.expect("the value stays until every receiver has seen it"))
    }

    fn would_find(&self, next: u64) -> bool {
        next < self.end() || self.closed
    }

    /// Removes the values that every receiver has seen.
    fn retire(&mut self) {
        while self.ring.front().is_some_and(|slot| slot.left == 0) {
            self.ring.pop_front();
            self.first += 1;
        }
        if self.ring.is_empty() && self.ring.capacity() > KEPT_SLOTS {
            self.ring = VecDeque::new();
        }
    }

    /// Removes a receiver that is at `next`. Returns the values that only this receiver had yet to
    /// see, for the caller to drop outside the lock.
    fn unsubscribe(&mut self, next: u64) -> Vec<StdArc<T>> {
        self.receivers -= 1;
        let mut dropped = vec![];
        for slot in self.ring.iter_mut().skip(next.saturating_sub(self.first) as usize) {
            slot.left -= 1;
            if slot.left == 0 {
                dropped.extend(slot.value.take());
            }
        }
        count!(self.counters, undelivered += if self.receivers == 0 { dropped.len() } else { 0 });
        self.retire();
        dropped
    }
}

/// The most slots that a drained ring keeps. A larger ring gives its memory back.
const KEPT_SLOTS: usize = 64;

impl<T> Channel<T> {
    fn close(&self) -> bool {
        let mut state = self.state.lock();
        let first = !state.closed;
        state.closed = true;
        drop(state);
        wake_all(&self.state, |state| &mut state.waiting);
        first
    }

    fn snapshot(&self) -> Snapshot {
        let at = Instant::now();
        let state = self.state.lock();
        Snapshot {
            capacity: Some(self.capacity),
            len: state.ring.len(),
            high_water: state.high_water.get(),
            senders: state.senders,
            receivers: state.receivers,
            waiting_recv: state.waiting.len(),
            closed: state.closed,
            ..Snapshot::counted(Kind::Broadcast, at, &state.counters)
        }
    }
}

/// Creates a receiver that starts at the next value.
fn subscribe<T>(channel: &Arc<Channel<T>>) -> Receiver<T> {
    let mut state = channel.state.lock();
    state.receivers += 1;
    let next = state.end();
    drop(state);
    Receiver { channel: channel.clone(), next }
}

/// The sending end. When the last sender goes, receivers get the values that are left, then
/// [`ErrorKind::Closed`].
pub struct Sender<T> {
    channel: Arc<Channel<T>>,
}

/// A receiving end with its own position.
pub struct Receiver<T> {
    channel: Arc<Channel<T>>,
    next: u64,
}

impl<T> Sender<T> {
    /// Sends a value to all receivers and returns how many there are. Fails with
    /// [`ErrorKind::Closed`], and gives the value back, if there is none or the channel is closed.
    ///
    /// ```
    /// let (tx, _rx) = marline_channel::broadcast(4);
    /// let _second = tx.subscribe();
    /// assert_eq!(tx.send("to both"), Ok(2));
    /// ```
    pub fn send(&self, value: T) -> Result<usize, SendError<T>> {
        // Before the lock is taken, because this allocates.
        let value = StdArc::new(value);
        let mut state = self.channel.state.lock();
        if state.closed || state.receivers == 0 {
            count!(state.counters, send_closed += 1);
            drop(state);
            let value = StdArc::into_inner(value).expect("not shared yet");
            return Err(SendError::new(ErrorKind::Closed, value));
        }
        let receivers = state.receivers;
        let mut oldest = None;
        if state.ring.len() == self.channel.capacity {
            oldest = state.ring.pop_front();
            state.first += 1;
            count!(state.counters, dropped_oldest += 1);
        }
        state.ring.push_back(Slot { value: Some(value), left: receivers });
        count!(state.counters, bytes_sent += size_of::<T>());
        let len = state.ring.len() as u64;
        state.high_water.note(len);
        count!(state.counters, sends += 1);
        if state.counters.is_send_sampled(state.counters.totals.sends) {
            state.counters.sample(Instant::now());
        }
        let anybody = state.waiting.len() > 0;
        drop(state);
        let mut panics = crate::panics::FirstPanic::default();
        if anybody {
            panics.run(|| wake_all(&self.channel.state, |state| &mut state.waiting));
        }
        panics.run(|| drop(oldest));
        panics.resume();
        Ok(receivers)
    }

    /// Creates a receiver that starts at the next value.
    ///
    /// ```
    /// let (tx, mut early) = marline_channel::broadcast(4);
    /// tx.send(1).unwrap();
    /// let mut late = tx.subscribe();
    /// tx.send(2).unwrap();
    /// assert_eq!((early.try_recv(), late.try_recv()), (Ok(1), Ok(2)));
    /// ```
    pub fn subscribe(&self) -> Receiver<T> {
        subscribe(&self.channel)
    }
}

impl<T: Clone> Receiver<T> {
    /// Receives the next value. Waits for it. Dropping the operation loses nothing.
    ///
    /// ```
    /// let (tx, mut rx) = marline_channel::broadcast(4);
    /// tx.send("news").unwrap();
    /// assert_eq!(rx.recv().wait(), Ok("news"));
    /// ```
    pub fn recv(&mut self) -> Receiving<'_, T> {
        Op::of(Recv { rx: self, node: WakeNode::new() })
    }

    /// Receives the next value without waiting. Fails with [`ErrorKind::Empty`] if there is none.
    ///
    /// ```
    /// use marline_channel::{ErrorKind, broadcast};
    /// let (tx, mut rx) = broadcast(2);
    /// (0..5).for_each(|n| drop(tx.send(n).unwrap()));
    /// assert_eq!(rx.try_recv().unwrap_err().kind(), ErrorKind::Lagged(3));
    /// assert_eq!(rx.try_recv(), Ok(3));
    /// ```
    pub fn try_recv(&mut self) -> Result<T, Error> {
        let found = self.channel.state.lock().find(&mut self.next);
        if let Found::Nothing(ErrorKind::Empty) = found {
            count!(self.channel.state.lock().counters, recv_empty += 1);
        }
        found.take()
    }

    /// Creates another receiver of this channel, which starts at the next value that is sent.
    ///
    /// ```
    /// let (tx, rx) = marline_channel::broadcast(4);
    /// tx.send(1).unwrap();
    /// let mut from_now_on = rx.resubscribe();
    /// assert!(from_now_on.try_recv().is_err());
    /// ```
    pub fn resubscribe(&self) -> Receiver<T> {
        subscribe(&self.channel)
    }
}

impl<T: Clone> Found<T> {
    /// Returns the value itself if no other receiver needs it, a clone otherwise. Runs outside the
    /// lock.
    fn take(self) -> Result<T, Error> {
        match self {
            Found::Nothing(kind) => Err(kind.into()),
            Found::Value(value) => {
                Ok(StdArc::try_unwrap(value).unwrap_or_else(|value| (*value).clone()))
            }
        }
    }
}

macro_rules! both_ends {
    ($End:ident) => {
        impl<T> $End<T> {
            /// Returns how many values at least one receiver has yet to see.
            ///
            /// ```
            /// let (tx, mut rx) = marline_channel::broadcast(4);
            /// tx.send('a').unwrap();
            /// assert_eq!((tx.len(), tx.is_empty(), tx.capacity()), (1, false, 4));
            /// rx.try_recv().unwrap();
            /// assert!(rx.is_empty());
            /// ```
            pub fn len(&self) -> usize {
                self.channel.state.lock().ring.len()
            }

            /// Whether every receiver has seen every value.
            ///
            /// ```
            /// let (tx, rx) = marline_channel::broadcast::<u8>(3);
            /// assert!(rx.is_empty());
            /// assert_eq!(tx.capacity(), 4); // rounded up to a power of two
            /// ```
            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }

            /// Returns the most values that the channel keeps.
            ///
            /// ```
            /// let (tx, rx) = marline_channel::broadcast::<u8>(3);
            /// assert!(rx.is_empty());
            /// assert_eq!(tx.capacity(), 4); // rounded up to a power of two
            /// ```
            pub fn capacity(&self) -> usize {
                self.channel.capacity
            }

            /// Returns how many sending ends there are.
            ///
            /// ```
            /// let (tx, rx) = marline_channel::broadcast::<u8>(4);
            /// let _another = tx.subscribe();
            /// assert_eq!((rx.sender_count(), tx.receiver_count()), (1, 2));
            /// ```
            pub fn sender_count(&self) -> usize {
                self.channel.state.lock().senders
            }

            /// Returns how many receiving ends there are.
            ///
            /// ```
            /// let (tx, rx) = marline_channel::broadcast::<u8>(4);
            /// let _another = tx.subscribe();
            /// assert_eq!((rx.sender_count(), tx.receiver_count()), (1, 2));
            /// ```
            pub fn receiver_count(&self) -> usize {
                self.channel.state.lock().receivers
            }

            /// Whether the channel is closed. It may still hold values.
            ///
            /// ```
            /// let (tx, mut rx) = marline_channel::broadcast(4);
            /// tx.send("last words").unwrap();
            /// tx.close_channel();
            /// assert!(rx.is_closed());
            /// assert_eq!(rx.try_recv(), Ok("last words"));
            /// assert!(rx.try_recv().unwrap_err().is_closed());
            /// ```
            pub fn is_closed(&self) -> bool {
                self.channel.state.lock().closed
            }

            /// Releases this end, as dropping it does.
            ///
            /// ```
            /// let (tx, rx) = marline_channel::broadcast::<u8>(4);
            /// tx.close();
            /// assert!(rx.is_closed());
            /// ```
            pub fn close(self) {}

            /// Closes the channel for all ends. Returns whether this call closed it.
            ///
            /// ```
            /// let (tx, mut rx) = marline_channel::broadcast(4);
            /// tx.send("last words").unwrap();
            /// tx.close_channel();
            /// assert!(rx.is_closed());
            /// assert_eq!(rx.try_recv(), Ok("last words"));
            /// assert!(rx.try_recv().unwrap_err().is_closed());
            /// ```
            pub fn close_channel(&self) -> bool {
                self.channel.close()
            }

            /// Returns the channel's state and counters as of now.
            ///
            /// ```
            /// let (tx, _rx) = marline_channel::broadcast(4);
            /// tx.send(1u32).unwrap();
            /// let snapshot = tx.snapshot();
            /// assert_eq!((snapshot.len, snapshot.totals.sends, snapshot.totals.bytes_sent), (1, 1, 4));
            /// ```
            pub fn snapshot(&self) -> Snapshot {
                self.channel.snapshot()
            }
        }

        impl<T> fmt::Debug for $End<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(concat!("broadcast::", stringify!($End)))
                    .field("len", &self.len())
                    .field("capacity", &self.capacity())
                    .finish_non_exhaustive()
            }
        }
    };
}

both_ends!(Sender);
both_ends!(Receiver);

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Sender<T> {
        self.channel.state.lock().senders += 1;
        Sender { channel: self.channel.clone() }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut state = self.channel.state.lock();
        state.senders -= 1;
        let last = state.senders == 0;
        drop(state);
        if last {
            self.channel.close();
        }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let dropped = self.channel.state.lock().unsubscribe(self.next);
        drop(dropped);
    }
}

/// The operation [`Receiver::recv`] returns.
pub type Receiving<'a, T> = Op<Recv<'a, T>>;

/// The action of [`Receiving`].
pub struct Recv<'a, T> {
    rx: &'a mut Receiver<T>,
    node: WakeNode,
}

impl<T> Recv<'_, T> {
    fn would_find(&self) -> bool {
        self.rx.channel.state.lock().would_find(self.rx.next)
    }

    /// Registers `waker` to be woken by the next value or by the close. Returns true, without
    /// registering, if the receive can end at once.
    fn register(&self, waker: &Waker) -> bool {
        let ready = |state: &State<T>| state.would_find(self.rx.next);
        let lock = &self.rx.channel.state;
        // SAFETY: the node is pinned, in this list only, and `drop` leaves.
        unsafe { wakers::register(lock, |state| &mut state.waiting, &self.node, waker, ready) }
    }

    /// Takes the node off the list. Returns whether it was there.
    fn leave(&self) -> bool {
        // SAFETY: the node is in this list or in none.
        unsafe { wakers::leave(&self.rx.channel.state, |state| &mut state.waiting, &self.node) }
    }
}

impl<T: Clone> sealed::Action for Recv<'_, T> {
    type Output = Result<T, Error>;

    fn poll(self: Pin<&mut Self>, waker: Option<&Waker>) -> Poll<Self::Output> {
        let ready = match waker {
            Some(waker) => self.register(waker),
            None => self.would_find(),
        };
        if !ready {
            return Poll::Pending;
        }
        self.leave();
        // SAFETY: the node is not moved.
        let this = unsafe { self.get_unchecked_mut() };
        let found = this.rx.channel.state.lock().find(&mut this.rx.next);
        Poll::Ready(found.take())
    }

    fn is_settled(&self) -> bool {
        self.would_find()
    }

    fn abandon(self: Pin<&mut Self>, why: ErrorKind) -> Self::Output {
        self.leave();
        if why == ErrorKind::Timeout {
            count!(self.rx.channel.state.lock().counters, recv_timeout += 1);
        } else {
            count!(self.rx.channel.state.lock().counters, recv_cancelled += 1);
        }
        Err(why.into())
    }

    fn wait_memory(&self) -> Option<&WaitMemory> {
        Some(&self.rx.channel.spin)
    }
}

impl<T: Clone> ClauseAction for Recv<'_, T> {
    fn lock(&self) -> Option<&RawLock> {
        None
    }

    fn try_end(self: Pin<&mut Self>) -> bool {
        self.would_find()
    }

    unsafe fn could_end(&self) -> bool {
        false
    }

    unsafe fn enlist(self: Pin<&mut Self>, _claim: NonNull<Claim>, _clause: u32) {}

    fn delist(self: Pin<&mut Self>) {
        self.leave();
    }

    fn watch(self: Pin<&mut Self>, waker: &Waker) -> bool {
        self.register(waker)
    }

    fn ended_closed(&self) -> bool {
        let state = self.rx.channel.state.lock();
        state.closed && self.rx.next == state.end()
    }

    fn is_spent(&self) -> bool {
        false
    }

    fn forget(self: Pin<&mut Self>) {}
}

impl<T> Drop for Recv<'_, T> {
    fn drop(&mut self) {
        if self.leave() {
            count!(self.rx.channel.state.lock().counters, recv_cancelled += 1);
        }
    }
}
