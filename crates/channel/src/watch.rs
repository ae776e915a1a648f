//! Watch: receivers read the latest value. They see that it changed, not every change.
//!
//! The value is behind a reader-writer lock, because a reader is user code and may take its time.
//! The version, the counts of the ends and the wakers are behind the short lock. The version
//! changes only while the value is locked for writing, so a reader that holds the value knows which
//! version it holds.

use std::{
    fmt, mem,
    ops::Deref,
    pin::Pin,
    ptr::NonNull,
    sync::{PoisonError, RwLock, RwLockReadGuard},
    task::{Poll, Waker},
    time::Instant,
};

use crate::{
    error::{Error, ErrorKind, SendError},
    lock::{Lock, RawLock},
    metrics::{Counters, Kind, Snapshot, count},
    op::{Op, sealed},
    park::WaitMemory,
    select::{Claim, ClauseAction},
    sync::Arc,
    wakers::{self, WakeList, WakeNode, wake_all},
};

/// Creates a channel that always holds one value, `initial` at first. Receivers can read it at any
/// time, and wait until it changes.
///
/// ```
/// let (tx, mut rx) = marline_channel::watch("starting");
/// assert_eq!(*rx.borrow(), "starting");
/// tx.send("ready").unwrap();
/// rx.changed().wait().unwrap();
/// assert_eq!(*rx.borrow_and_update(), "ready");
/// assert_eq!(rx.has_changed(), Ok(false));
/// ```
pub fn watch<T>(initial: T) -> (Sender<T>, Receiver<T>) {
    let channel = Arc::new(Channel {
        value: RwLock::new(initial),
        state: Lock::new(State {
            version: 0,
            senders: 1,
            receivers: 1,
            closed: false,
            waiting: WakeList::new(),
            counters: Counters::default(),
        }),
        spin: WaitMemory::new(),
    });
    (Sender { channel: channel.clone() }, Receiver { channel, seen: 0 })
}

struct Channel<T> {
    value: RwLock<T>,
    state: Lock<State>,
    spin: WaitMemory,
}

struct State {
    version: u64,
    senders: usize,
    receivers: usize,
    closed: bool,
    waiting: WakeList,
    counters: Counters,
}

impl State {
    /// Returns what is new to a receiver that has seen version `seen`: a value, or the close. None
    /// if there is nothing new yet.
    fn news(&self, seen: u64) -> Option<Result<(), ErrorKind>> {
        if self.version != seen {
            Some(Ok(()))
        } else if self.closed {
            Some(Err(ErrorKind::Closed))
        } else {
            None
        }
    }
}

impl<T> Channel<T> {
    fn borrow(&self) -> Ref<'_, T> {
        Ref { guard: self.value.read().unwrap_or_else(PoisonError::into_inner) }
    }

    /// Changes the value, and starts a new version if `change` returns true. Returns the other part
    /// of its result, after everything is unlocked.
    fn modify<R>(&self, change: impl FnOnce(&mut T) -> (bool, R)) -> R {
        let mut value = self.value.write().unwrap_or_else(PoisonError::into_inner);
        let (changed, result) = change(&mut value);
        if changed {
            let mut state = self.state.lock();
            state.version += 1;
            count!(state.counters, bytes_sent += size_of::<T>());
            count!(state.counters, sends += 1);
            if state.counters.is_send_sampled(state.counters.totals.sends) {
                state.counters.sample(Instant::now());
            }
        }
        drop(value);
        if changed {
            wake_all(&self.state, |state| &mut state.waiting);
        }
        result
    }

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
            capacity: Some(1),
            len: 1,
            senders: state.senders,
            receivers: state.receivers,
            waiting_recv: state.waiting.len(),
            closed: state.closed,
            ..Snapshot::counted(Kind::Watch, at, &state.counters)
        }
    }
}

/// A borrow of the value. Keep it short: the sender waits until it ends.
#[derive(Debug)]
pub struct Ref<'a, T> {
    guard: RwLockReadGuard<'a, T>,
}

impl<T> Deref for Ref<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.guard
    }
}

/// The sending end.
pub struct Sender<T> {
    channel: Arc<Channel<T>>,
}

/// A receiving end, which remembers the last version it has seen.
pub struct Receiver<T> {
    channel: Arc<Channel<T>>,
    seen: u64,
}

impl<T> Sender<T> {
    /// Replaces the value. Fails with [`ErrorKind::Closed`], and gives the value back, if there is
    /// no receiver or the channel is closed.
    ///
    /// ```
    /// let (tx, rx) = marline_channel::watch("idle");
    /// tx.send("busy").unwrap();
    /// assert_eq!(*rx.borrow(), "busy");
    /// ```
    pub fn send(&self, value: T) -> Result<(), SendError<T>> {
        {
            let mut state = self.channel.state.lock();
            if state.closed || state.receivers == 0 {
                count!(state.counters, send_closed += 1);
                drop(state);
                return Err(SendError::new(ErrorKind::Closed, value));
            }
        }
        drop(self.send_replace(value));
        Ok(())
    }

    /// Replaces the value, also without receivers, and returns the old value.
    ///
    /// ```
    /// let (tx, _rx) = marline_channel::watch("idle");
    /// assert_eq!(tx.send_replace("busy"), "idle");
    /// ```
    pub fn send_replace(&self, value: T) -> T {
        self.channel.modify(|held| (true, mem::replace(held, value)))
    }

    /// Changes the value in place. Receivers see a change if `change` returns true. Returns what
    /// `change` returned.
    ///
    /// ```
    /// let (tx, rx) = marline_channel::watch(1);
    /// assert!(tx.send_if_modified(|n| { *n += 1; true }));
    /// assert_eq!(*rx.borrow(), 2);
    /// ```
    pub fn send_if_modified(&self, change: impl FnOnce(&mut T) -> bool) -> bool {
        self.channel.modify(|held| {
            let changed = change(held);
            (changed, changed)
        })
    }

    /// Creates a receiver that has seen the current value.
    ///
    /// ```
    /// let (tx, rx) = marline_channel::watch(1);
    /// drop(rx);
    /// let rx = tx.subscribe();
    /// assert!(!rx.has_changed().unwrap()); // it has seen the current value
    /// assert_eq!(*rx.borrow(), 1);
    /// ```
    pub fn subscribe(&self) -> Receiver<T> {
        let mut state = self.channel.state.lock();
        state.receivers += 1;
        let seen = state.version;
        drop(state);
        Receiver { channel: self.channel.clone(), seen }
    }
}

impl<T> Receiver<T> {
    /// Borrows the value and marks it as seen.
    ///
    /// ```
    /// let (tx, mut rx) = marline_channel::watch(1);
    /// tx.send(2).unwrap();
    /// assert!(rx.has_changed().unwrap());
    /// assert_eq!(*rx.borrow_and_update(), 2);
    /// assert!(!rx.has_changed().unwrap());
    /// ```
    pub fn borrow_and_update(&mut self) -> Ref<'_, T> {
        let value = self.channel.borrow();
        self.seen = self.channel.state.lock().version;
        value
    }

    /// Waits for a value that this receiver has not seen, and marks it as seen. A value that came
    /// before the close can still be seen after it.
    ///
    /// ```
    /// use marline_channel::ErrorKind;
    /// let (tx, mut rx) = marline_channel::watch(1);
    /// assert_eq!(rx.try_changed().unwrap_err().kind(), ErrorKind::Empty);
    /// tx.send(2).unwrap();
    /// rx.changed().wait().unwrap();
    /// assert_eq!(*rx.borrow(), 2);
    /// ```
    pub fn changed(&mut self) -> Changing<'_, T> {
        Op::of(Changed { rx: self, node: WakeNode::new() })
    }

    /// Like [`changed`](Receiver::changed), without waiting. Fails with [`ErrorKind::Empty`] if
    /// there is no unseen value.
    ///
    /// ```
    /// use marline_channel::ErrorKind;
    /// let (tx, mut rx) = marline_channel::watch(1);
    /// assert_eq!(rx.try_changed().unwrap_err().kind(), ErrorKind::Empty);
    /// tx.send(2).unwrap();
    /// rx.changed().wait().unwrap();
    /// assert_eq!(*rx.borrow(), 2);
    /// ```
    pub fn try_changed(&mut self) -> Result<(), Error> {
        let mut state = self.channel.state.lock();
        match state.news(self.seen) {
            Some(news) => {
                self.seen = state.version;
                match news {
                    Ok(()) => {
                        count!(state.counters, recvs += 1);
                        count!(state.counters, bytes_received += size_of::<T>());
                    }
                    Err(_) => count!(state.counters, recv_closed += 1),
                }
                news.map_err(Error::new)
            }
            None => {
                count!(state.counters, recv_empty += 1);
                Err(ErrorKind::Empty.into())
            }
        }
    }

    /// Whether there is a value that this receiver has not seen. Fails with [`ErrorKind::Closed`]
    /// if there is none and never will be.
    ///
    /// ```
    /// let (tx, mut rx) = marline_channel::watch(1);
    /// tx.send(2).unwrap();
    /// assert!(rx.has_changed().unwrap());
    /// assert_eq!(*rx.borrow_and_update(), 2);
    /// assert!(!rx.has_changed().unwrap());
    /// ```
    pub fn has_changed(&self) -> Result<bool, Error> {
        match self.channel.state.lock().news(self.seen) {
            Some(news) => news.map(|()| true).map_err(Error::new),
            None => Ok(false),
        }
    }
}

macro_rules! both_ends {
    ($End:ident, $count:ident) => {
        impl<T> $End<T> {
            /// Borrows the value, also after the close.
            ///
            /// ```
            /// let (tx, rx) = marline_channel::watch(String::from("now"));
            /// assert_eq!(rx.borrow().len(), 3);
            /// drop(tx);
            /// assert_eq!(*rx.borrow(), "now"); // also after the close
            /// ```
            pub fn borrow(&self) -> Ref<'_, T> {
                self.channel.borrow()
            }

            /// Returns how many sending ends there are.
            ///
            /// ```
            /// let (tx, rx) = marline_channel::watch(0);
            /// let _another = rx.clone();
            /// assert_eq!((rx.sender_count(), tx.receiver_count()), (1, 2));
            /// ```
            pub fn sender_count(&self) -> usize {
                self.channel.state.lock().senders
            }

            /// Returns how many receiving ends there are.
            ///
            /// ```
            /// let (tx, rx) = marline_channel::watch(0);
            /// let _another = rx.clone();
            /// assert_eq!((rx.sender_count(), tx.receiver_count()), (1, 2));
            /// ```
            pub fn receiver_count(&self) -> usize {
                self.channel.state.lock().receivers
            }

            /// Whether the channel is closed.
            ///
            /// ```
            /// let (tx, mut rx) = marline_channel::watch(0);
            /// tx.close_channel();
            /// assert!(rx.is_closed());
            /// assert!(rx.changed().wait().unwrap_err().is_closed());
            /// ```
            pub fn is_closed(&self) -> bool {
                self.channel.state.lock().closed
            }

            /// Releases this end, as dropping it does.
            ///
            /// ```
            /// let (tx, mut rx) = marline_channel::watch(0);
            /// tx.close_channel();
            /// assert!(rx.is_closed());
            /// assert!(rx.changed().wait().unwrap_err().is_closed());
            /// ```
            pub fn close(self) {}

            /// Closes the channel for all ends. Returns whether this call closed it.
            ///
            /// ```
            /// let (tx, mut rx) = marline_channel::watch(0);
            /// tx.close_channel();
            /// assert!(rx.is_closed());
            /// assert!(rx.changed().wait().unwrap_err().is_closed());
            /// ```
            pub fn close_channel(&self) -> bool {
                self.channel.close()
            }

            /// Returns the channel's state and counters as of now.
            ///
            /// ```
            /// let (tx, _rx) = marline_channel::watch(0);
            /// tx.send(1).unwrap();
            /// assert_eq!(tx.snapshot().totals.sends, 1);
            /// ```
            pub fn snapshot(&self) -> Snapshot {
                self.channel.snapshot()
            }
        }

        impl<T> Drop for $End<T> {
            fn drop(&mut self) {
                let mut state = self.channel.state.lock();
                state.$count -= 1;
                let last_sender = state.senders == 0;
                drop(state);
                if last_sender {
                    self.channel.close();
                }
            }
        }

        impl<T> fmt::Debug for $End<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(concat!("watch::", stringify!($End)))
                    .field("is_closed", &self.is_closed())
                    .finish_non_exhaustive()
            }
        }
    };
}

both_ends!(Sender, senders);
both_ends!(Receiver, receivers);

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Sender<T> {
        self.channel.state.lock().senders += 1;
        Sender { channel: self.channel.clone() }
    }
}

impl<T> Clone for Receiver<T> {
    /// Returns another receiver, which has seen the same version as this one.
    fn clone(&self) -> Receiver<T> {
        self.channel.state.lock().receivers += 1;
        Receiver { channel: self.channel.clone(), seen: self.seen }
    }
}

/// The operation [`Receiver::changed`] returns.
pub type Changing<'a, T> = Op<Changed<'a, T>>;

/// The action of [`Changing`].
pub struct Changed<'a, T> {
    rx: &'a mut Receiver<T>,
    node: WakeNode,
}

impl<T> Changed<'_, T> {
    fn has_news(&self) -> bool {
        self.rx.channel.state.lock().news(self.rx.seen).is_some()
    }

    /// Registers `waker` to be woken by the next change. Returns true if there is one already.
    fn register(&self, waker: &Waker) -> bool {
        let ready = |state: &State| state.news(self.rx.seen).is_some();
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

impl<T> sealed::Action for Changed<'_, T> {
    type Output = Result<(), Error>;

    fn poll(self: Pin<&mut Self>, waker: Option<&Waker>) -> Poll<Self::Output> {
        let ready = match waker {
            Some(waker) => self.register(waker),
            None => self.has_news(),
        };
        if !ready {
            return Poll::Pending;
        }
        self.leave();
        // SAFETY: the node is not moved.
        let this = unsafe { self.get_unchecked_mut() };
        Poll::Ready(this.rx.try_changed())
    }

    fn is_settled(&self) -> bool {
        self.has_news()
    }

    fn abandon(self: Pin<&mut Self>, why: ErrorKind) -> Self::Output {
        self.leave();
        let mut state = self.rx.channel.state.lock();
        match why {
            ErrorKind::Timeout => count!(state.counters, recv_timeout += 1),
            _ => count!(state.counters, recv_cancelled += 1),
        }
        Err(why.into())
    }

    fn wait_memory(&self) -> Option<&WaitMemory> {
        Some(&self.rx.channel.spin)
    }
}

impl<T> ClauseAction for Changed<'_, T> {
    fn lock(&self) -> Option<&RawLock> {
        None
    }

    fn try_end(self: Pin<&mut Self>) -> bool {
        self.has_news()
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
        matches!(self.rx.channel.state.lock().news(self.rx.seen), Some(Err(_)))
    }

    fn is_spent(&self) -> bool {
        false
    }

    fn forget(self: Pin<&mut Self>) {}
}

impl<T> Drop for Changed<'_, T> {
    fn drop(&mut self) {
        if self.leave() {
            count!(self.rx.channel.state.lock().counters, recv_cancelled += 1);
        }
    }
}
