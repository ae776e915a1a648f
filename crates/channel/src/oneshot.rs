//! Oneshot: one value, once. It costs one allocation, and one atomic exchange to send if the
//! receiver does not wait yet.
//!
//! The bits of a oneshot's word, and which party may do what:
//! - `SENT`: the sender has written the value. From then on the value is the receiver's.
//! - `ENDED`: the sender went without sending.
//! - `WAKER`: the receiver has written its waker and will not touch it. Only the receiver sets and
//!   clears this bit. A sender that sets `SENT` or `ENDED` and sees `WAKER` in that same exchange
//!   may take the waker. A receiver that clears `WAKER` and sees neither may change the waker.
//! - `SENDER_GONE`, `RECEIVER_GONE`: that side has finished with the allocation. The side that
//!   finishes second frees it. It sees the other side's bit in its own exchange, or, in the usual
//!   case of a receiver that outlives its sender, in a plain load.
//!
//! A sender that finds the word untouched sets it to `SENT | SENDER_GONE` in one step and has
//! finished. Otherwise it sets `SENT`, takes the waker, and only then sets `SENDER_GONE`: so the
//! allocation is alive while it takes the waker. All exchanges are AcqRel, all loads Acquire.

use std::{
    fmt,
    future::Future,
    mem,
    pin::Pin,
    ptr::NonNull,
    task::{Context, Poll, Waker},
    time::Instant,
};

use crate::{
    error::{Error, ErrorKind, SendError},
    lock::RawLock,
    metrics::{Kind, Snapshot, Totals},
    op::{Op, sealed},
    park::WaitMemory,
    select::{Claim, ClauseAction},
    sync::{AtomicU8, Ordering, Shared, broken},
};

const SENT: u8 = 1;
const ENDED: u8 = 2;
const WAKER: u8 = 4;
const SENDER_GONE: u8 = 8;
const RECEIVER_GONE: u8 = 16;

struct Inner<T> {
    word: AtomicU8,
    value: Shared<Option<T>>,
    waker: Shared<Option<Waker>>,
}

/// Creates a channel for one value.
///
/// ```
/// let (tx, mut rx) = marline_channel::oneshot();
/// std::thread::spawn(move || tx.send("done").unwrap());
/// assert_eq!(rx.recv().wait(), Ok("done"));
/// ```
pub fn oneshot<T>() -> (Sender<T>, Receiver<T>) {
    let inner = Box::new(Inner {
        word: AtomicU8::new(0),
        value: Shared::new(None),
        waker: Shared::new(None),
    });
    let inner = NonNull::from(Box::leak(inner));
    (Sender { inner }, Receiver { inner })
}

/// The sending end. Sending uses it up.
pub struct Sender<T> {
    inner: NonNull<Inner<T>>,
}

/// The receiving end. It is also a future of the value.
pub struct Receiver<T> {
    inner: NonNull<Inner<T>>,
}

// SAFETY: the ends share the allocation by the rules above, and send `T` across threads.
unsafe impl<T: Send> Send for Sender<T> {}
// SAFETY: shared references only read the word.
unsafe impl<T: Send> Sync for Sender<T> {}
// SAFETY: as for the sender.
unsafe impl<T: Send> Send for Receiver<T> {}
// SAFETY: as for the sender.
unsafe impl<T: Send> Sync for Receiver<T> {}

impl<T> Inner<T> {
    fn load(&self) -> u8 {
        self.word.load(Ordering::Acquire)
    }

    fn set(&self, bits: u8) -> u8 {
        self.word.fetch_or(bits, Ordering::AcqRel)
    }

    /// # Safety
    /// The caller is the receiver, after `SENT`, or the last side left.
    unsafe fn take_value(&self) -> Option<T> {
        // SAFETY: the caller's promise.
        unsafe { self.value.with(|value| value.take()) }
    }

    fn snapshot(&self) -> Snapshot {
        let word = self.load();
        let sent = word & SENT != 0;
        let sides = |gone: u8| usize::from(word & gone == 0);
        Snapshot {
            capacity: Some(1),
            len: usize::from(sent),
            high_water: usize::from(sent),
            senders: sides(SENDER_GONE),
            receivers: sides(RECEIVER_GONE),
            waiting_recv: usize::from(word & WAKER != 0 && !sent),
            totals: Totals { sends: sent.into(), ..Totals::default() },
            closed: word & (ENDED | SENDER_GONE | RECEIVER_GONE) != 0,
            ..Snapshot::empty(Kind::Oneshot, Instant::now())
        }
    }
}

/// # Safety
/// The caller is the side that finishes second.
unsafe fn free<T>(inner: NonNull<Inner<T>>) {
    // SAFETY: the allocation comes from `Box::leak`, and the other side has finished with it.
    drop(unsafe { Box::from_raw(inner.as_ptr()) });
}

impl<T> Sender<T> {
    /// Sends the value. Never waits. Fails with [`ErrorKind::Closed`], and gives the value back, if
    /// the receiver is gone.
    ///
    /// ```
    /// let (tx, mut rx) = marline_channel::oneshot();
    /// tx.send("answer").unwrap();
    /// assert_eq!(rx.recv().wait(), Ok("answer"));
    /// ```
    #[inline]
    pub fn send(self, value: T) -> Result<(), SendError<T>> {
        let this = mem::ManuallyDrop::new(self);
        // SAFETY: the allocation is alive until this side sets SENDER_GONE; the value is the
        // sender's before SENT.
        unsafe {
            let inner = this.inner.as_ref();
            inner.value.with(|place| *place = Some(value));
            let word = &inner.word;
            let through = SENT | SENDER_GONE;
            if word.compare_exchange(0, through, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                return Ok(());
            }
            Self::send_to_waiting(this.inner)
        }
    }

    /// # Safety
    /// Called once, with the value written.
    #[cold]
    unsafe fn send_to_waiting(inner: NonNull<Inner<T>>) -> Result<(), SendError<T>> {
        // SAFETY: by the rules above.
        unsafe {
            let before = inner.as_ref().set(SENT);
            if before & RECEIVER_GONE != 0 {
                let value = inner.as_ref().take_value().expect("written above");
                free(inner);
                return Err(SendError::new(ErrorKind::Closed, value));
            }
            Self::leave(inner, before);
        }
        Ok(())
    }

    /// Wakes the receiver, if `before` (the word when SENT or ENDED was set) had its waker.
    ///
    /// # Safety
    /// Called once, last.
    unsafe fn leave(inner: NonNull<Inner<T>>, before: u8) {
        // SAFETY: by the rules above the waker is the sender's, and the allocation is alive until
        // this side sets SENDER_GONE.
        unsafe {
            let waker = if before & WAKER != 0 && !broken("oneshot-wakes") {
                inner.as_ref().waker.with(|waker| waker.take())
            } else {
                None
            };
            if inner.as_ref().set(SENDER_GONE) & RECEIVER_GONE != 0 {
                free(inner);
            }
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    /// Releases this end, as dropping it does: the receiver gets [`ErrorKind::Closed`].
    ///
    /// ```
    /// let (tx, mut rx) = marline_channel::oneshot::<u8>();
    /// tx.close(); // same as dropping it
    /// assert!(rx.recv().wait().unwrap_err().is_closed());
    /// ```
    pub fn close(self) {}

    /// Whether the receiver is gone.
    ///
    /// ```
    /// let (tx, rx) = marline_channel::oneshot::<u8>();
    /// assert!(!tx.is_closed());
    /// drop(rx);
    /// assert!(tx.is_closed());
    /// ```
    pub fn is_closed(&self) -> bool {
        // SAFETY: the allocation is alive while this end is.
        unsafe { self.inner.as_ref() }.load() & RECEIVER_GONE != 0
    }

    /// Returns the channel's state and counters as of now.
    ///
    /// ```
    /// let (tx, _rx) = marline_channel::oneshot::<u8>();
    /// assert_eq!(tx.snapshot().senders, 1);
    /// ```
    pub fn snapshot(&self) -> Snapshot {
        // SAFETY: the allocation is alive while this end is.
        unsafe { self.inner.as_ref() }.snapshot()
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        // SAFETY: the allocation is alive until this side sets SENDER_GONE.
        unsafe {
            let before = self.inner.as_ref().set(ENDED);
            Self::leave(self.inner, before);
        }
    }
}

impl<T> Receiver<T> {
    fn inner(&self) -> &Inner<T> {
        // SAFETY: the allocation is alive while this end is.
        unsafe { self.inner.as_ref() }
    }

    /// Receives the value. Waits for it. Dropping the operation loses nothing: the value stays.
    ///
    /// ```
    /// let (tx, mut rx) = marline_channel::oneshot();
    /// std::thread::spawn(move || tx.send(6 * 7));
    /// assert_eq!(rx.recv().wait(), Ok(42));
    /// ```
    #[inline]
    pub fn recv(&mut self) -> Receiving<'_, T> {
        Op::of(Recv { rx: self, waits: false })
    }

    /// Releases this end, as dropping it does: a later send gets its value back.
    ///
    /// ```
    /// let (tx, rx) = marline_channel::oneshot();
    /// rx.close();
    /// assert_eq!(tx.send("late").unwrap_err().into_inner(), "late");
    /// ```
    pub fn close(self) {}

    /// Receives the value without waiting. Fails with [`ErrorKind::Empty`] if it is not there yet.
    ///
    /// ```
    /// use marline_channel::ErrorKind;
    /// let (tx, mut rx) = marline_channel::oneshot();
    /// assert_eq!(rx.try_recv().unwrap_err().kind(), ErrorKind::Empty);
    /// tx.send(1).unwrap();
    /// assert_eq!(rx.try_recv(), Ok(1));
    /// ```
    #[inline]
    pub fn try_recv(&mut self) -> Result<T, Error> {
        match self.look(self.inner().load()) {
            Poll::Ready(result) => result,
            Poll::Pending => Err(ErrorKind::Empty.into()),
        }
    }

    /// Whether no value will come any more: it was taken, or the sender went without sending.
    fn is_over(&self) -> bool {
        let word = self.inner().load();
        // SAFETY: SENT makes the value the receiver's.
        word & SENT != 0 && unsafe { self.inner().value.with(|value| value.is_none()) }
            || word & (SENT | ENDED) == ENDED
    }

    /// Whether the value was sent or will never be sent.
    ///
    /// ```
    /// let (tx, rx) = marline_channel::oneshot();
    /// assert!(!rx.is_settled());
    /// tx.send(1).unwrap();
    /// assert!(rx.is_settled());
    /// ```
    pub fn is_settled(&self) -> bool {
        self.inner().load() & (SENT | ENDED) != 0
    }

    /// Returns the channel's state and counters as of now.
    ///
    /// ```
    /// let (tx, rx) = marline_channel::oneshot();
    /// tx.send(1u64).unwrap();
    /// assert_eq!(rx.snapshot().totals.sends, 1);
    /// ```
    pub fn snapshot(&self) -> Snapshot {
        let mut snapshot = self.inner().snapshot();
        if snapshot.len == 1 && self.is_over() {
            snapshot.len = 0;
            snapshot.totals.recvs = 1;
        }
        snapshot
    }

    /// Takes the value, if `word` says that it was sent. Only for the owner of this end.
    #[inline(always)]
    fn look(&self, word: u8) -> Poll<Result<T, Error>> {
        if word & SENT != 0 {
            // SAFETY: SENT makes the value the receiver's.
            let value = unsafe { self.inner().take_value() };
            return Poll::Ready(value.ok_or(ErrorKind::Closed.into()));
        }
        if word & ENDED != 0 { Poll::Ready(Err(ErrorKind::Closed.into())) } else { Poll::Pending }
    }

    fn poll_recv(&mut self, waker: Option<&Waker>) -> Poll<Result<T, Error>> {
        let mut word = self.inner().load();
        if let (0, Some(waker)) = (word & (SENT | ENDED), waker) {
            word = self.register(waker, word);
        }
        self.look(word)
    }

    /// Leaves the waker for the sender. Returns the word, in which SENT or ENDED may be set by now.
    fn register(&mut self, waker: &Waker, word: u8) -> u8 {
        let inner = self.inner();
        if word & WAKER != 0 {
            let word = inner.word.fetch_and(!WAKER, Ordering::AcqRel);
            if word & (SENT | ENDED) != 0 {
                return word;
            }
        }
        // SAFETY: WAKER is clear, and neither SENT nor ENDED was set when it was seen clear, so the
        // waker is the receiver's.
        let old = unsafe {
            inner.waker.with(|held| match held {
                Some(held) if held.will_wake(waker) => None,
                _ => held.replace(waker.clone()),
            })
        };
        let word = inner.set(WAKER);
        drop(old);
        word
    }
}

impl<T> Drop for Receiver<T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: by the rules above the side that finishes second frees.
        unsafe {
            let inner = self.inner();
            if inner.load() & SENDER_GONE != 0 || inner.set(RECEIVER_GONE) & SENDER_GONE != 0 {
                free(self.inner);
            }
        }
    }
}

impl<T> Future for Receiver<T> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T, Error>> {
        self.poll_recv(Some(context.waker()))
    }
}

/// The operation [`Receiver::recv`] returns.
pub type Receiving<'a, T> = Op<Recv<'a, T>>;

/// The action of [`Receiving`].
pub struct Recv<'a, T> {
    rx: &'a mut Receiver<T>,
    waits: bool,
}

impl<T> sealed::Action for Recv<'_, T> {
    type Output = Result<T, Error>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, waker: Option<&Waker>) -> Poll<Self::Output> {
        self.waits |= waker.is_some();
        self.rx.poll_recv(waker)
    }

    #[inline(always)]
    fn attempt(self: Pin<&mut Self>, _is_task: bool) -> Option<Self::Output> {
        match self.rx.look(self.rx.inner().load()) {
            Poll::Ready(result) => Some(result),
            Poll::Pending => None,
        }
    }

    fn is_settled(&self) -> bool {
        self.rx.is_settled()
    }

    fn abandon(self: Pin<&mut Self>, why: ErrorKind) -> Self::Output {
        Err(why.into())
    }

    fn wait_memory(&self) -> Option<&WaitMemory> {
        static ONESHOTS: WaitMemory = WaitMemory::new();
        Some(&ONESHOTS)
    }
}

impl<T> ClauseAction for Recv<'_, T> {
    fn lock(&self) -> Option<&RawLock> {
        None
    }

    fn try_end(self: Pin<&mut Self>) -> bool {
        self.rx.is_settled()
    }

    unsafe fn could_end(&self) -> bool {
        false
    }

    unsafe fn enlist(self: Pin<&mut Self>, _claim: NonNull<Claim>, _clause: u32) {}

    fn delist(self: Pin<&mut Self>) {}

    fn watch(mut self: Pin<&mut Self>, waker: &Waker) -> bool {
        self.waits = true;
        let word = self.rx.inner().load();
        word & (SENT | ENDED) != 0 || self.rx.register(waker, word) & (SENT | ENDED) != 0
    }

    fn ended_closed(&self) -> bool {
        self.rx.is_over()
    }

    fn is_spent(&self) -> bool {
        false
    }

    fn forget(self: Pin<&mut Self>) {}
}

impl<T> Drop for Recv<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if self.waits && !self.rx.is_settled() {
            // This operation no longer waits. A sender that sees the waker first wakes it in vain.
            self.rx.inner().word.fetch_and(!WAKER, Ordering::AcqRel);
        }
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("oneshot::Sender").field("is_closed", &self.is_closed()).finish()
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("oneshot::Receiver").field("is_settled", &self.is_settled()).finish()
    }
}
