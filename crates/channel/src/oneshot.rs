//! One value, once: one allocation, and one atomic exchange to send when nobody waits yet.
//!
//! The word of a oneshot, and who may do what:
//! - `SENT`: the sender has written the value. From then on the value is the receiver's.
//! - `ENDED`: the sender went without sending.
//! - `WAKER`: the receiver has written its waker and will not touch it. The receiver sets and
//!   clears it; whoever sets `SENT` or `ENDED` and sees `WAKER` in that same exchange may take the
//!   waker; a receiver that clears `WAKER` and sees neither may change it.
//! - `SENDER_GONE`, `RECEIVER_GONE`: that side is through with the allocation. The side that comes
//!   second frees it; it sees the other's bit in its own exchange, or, in the usual case of a
//!   receiver that outlives its sender, in a plain load.
//!
//! A sender that finds the word untouched goes from nothing to `SENT | SENDER_GONE` in one step and
//! is through. Otherwise it sets `SENT`, takes the waker, and only then `SENDER_GONE`: so the
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

/// A channel for one value.
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

/// The sending end; sending uses it up.
pub struct Sender<T> {
    inner: NonNull<Inner<T>>,
}

/// The receiving end. It is also a future of the value.
pub struct Receiver<T> {
    inner: NonNull<Inner<T>>,
}

// SAFETY: the allocation is shared by the rules above, and sends `T` across threads.
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
    /// For the receiver after `SENT`, or the last one left.
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
/// For the side that came second.
unsafe fn free<T>(inner: NonNull<Inner<T>>) {
    // SAFETY: made by `Box::leak`, and the other side is through with it.
    drop(unsafe { Box::from_raw(inner.as_ptr()) });
}

impl<T> Sender<T> {
    /// Sends the value; never waits. Gives it back when the receiver is gone.
    ///
    /// ```
    /// let (tx, mut rx) = marline_channel::oneshot();
    /// tx.send("answer").unwrap();
    /// assert_eq!(rx.recv().wait(), Ok("answer"));
    /// ```
    #[inline]
    pub fn send(self, value: T) -> Result<(), SendError<T>> {
        let this = mem::ManuallyDrop::new(self);
        // SAFETY: alive until this side says it is gone; the value is the sender's before SENT.
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
        // SAFETY: by the rules above: the waker is ours, and the allocation alive until we are gone.
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

    /// Lets go of this end, as dropping it does: the receiver gets [`ErrorKind::Closed`].
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
    /// assert!(tx.is_closed()); // nobody will ever ask
    /// ```
    pub fn is_closed(&self) -> bool {
        // SAFETY: alive while this end is.
        unsafe { self.inner.as_ref() }.load() & RECEIVER_GONE != 0
    }

    /// What the channel knows about itself.
    ///
    /// ```
    /// let (tx, _rx) = marline_channel::oneshot::<u8>();
    /// assert_eq!(tx.snapshot().senders, 1);
    /// ```
    pub fn snapshot(&self) -> Snapshot {
        // SAFETY: alive while this end is.
        unsafe { self.inner.as_ref() }.snapshot()
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        // SAFETY: alive until this side says it is gone.
        unsafe {
            let before = self.inner.as_ref().set(ENDED);
            Self::leave(self.inner, before);
        }
    }
}

impl<T> Receiver<T> {
    fn inner(&self) -> &Inner<T> {
        // SAFETY: alive while this end is.
        unsafe { self.inner.as_ref() }
    }

    /// Receives the value, waiting for it. Dropping the operation loses nothing: the value stays.
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

    /// Lets go of this end, as dropping it does: a later send gets its value back.
    ///
    /// ```
    /// let (tx, rx) = marline_channel::oneshot();
    /// rx.close();
    /// assert_eq!(tx.send("late").unwrap_err().into_inner(), "late");
    /// ```
    pub fn close(self) {}

    /// Receives the value if it is there.
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

    /// Whether nothing is to be expected any more: the value was taken, or will never be.
    fn is_over(&self) -> bool {
        let word = self.inner().load();
        // SAFETY: SENT makes the value the receiver's.
        word & SENT != 0 && unsafe { self.inner().value.with(|value| value.is_none()) }
            || word & (SENT | ENDED) == ENDED
    }

    /// Whether the value is there or will never be.
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

    /// What the channel knows about itself.
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

    /// For the owner of this end.
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

    /// Leaves the waker; returns a word that may have got SENT or ENDED meanwhile.
    fn register(&mut self, waker: &Waker, word: u8) -> u8 {
        let inner = self.inner();
        if word & WAKER != 0 {
            let word = inner.word.fetch_and(!WAKER, Ordering::AcqRel);
            if word & (SENT | ENDED) != 0 {
                return word;
            }
        }
        // SAFETY: WAKER is clear and the sender had not ended when it was, so it is ours.
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
        // SAFETY: by the rules above: the second to be gone frees.
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
            // Nobody waits any more. A sender that sees the waker first wakes somebody for nothing.
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
