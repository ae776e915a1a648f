//! The reusable select: clauses that are added at run time, for repeated waits.
//!
//! Between waits the clauses keep their memory, but they are in no list and take no value. After
//! each wait the user takes the chosen clause's result with its key.

use std::{
    marker::PhantomData,
    pin::Pin,
    sync::atomic::{AtomicU64, Ordering},
    task::{Poll, Waker},
};

use super::{
    clause::sealed::{Clause as _, Erased},
    race::{Chosen, Indexed, Progress},
};
use crate::{
    error::{Error, ErrorKind, SendError},
    op::{Op, sealed},
    park::WaitMemory,
    queue::{Receiver, Receiving, Sender, Sending, Sent},
};

/// A set of clauses to wait on repeatedly, in fair turns.
///
/// ```
/// use marline_channel::{Selector, unbounded};
/// let (tx, rx) = unbounded();
/// let (tx2, rx2) = unbounded();
/// tx.try_send(1).unwrap();
/// tx2.try_send("two").unwrap();
/// let mut selector = Selector::new();
/// let numbers = selector.recv(&rx);
/// let words = selector.recv(&rx2);
/// for _ in 0..2 {
///     let index = selector.next().wait().unwrap();
///     if index == numbers.index() {
///         assert_eq!(selector.received(&numbers), Some(Ok(1)));
///     } else {
///         assert_eq!(selector.received(&words), Some(Ok("two")));
///     }
/// }
/// ```
pub struct Selector<'a> {
    clauses: Boxed<'a>,
    /// Boxed, because it must stay where it is even if a wait is leaked and the selector is moved.
    progress: Box<Progress>,
    chosen: Option<Chosen>,
    memory: WaitMemory,
    id: u64,
}

struct Boxed<'a> {
    list: Vec<Pin<Box<dyn Erased + Send + 'a>>>,
}

/// Names a receive clause of one selector.
#[derive(Debug)]
pub struct RecvKey<T> {
    selector: u64,
    index: usize,
    values: PhantomData<fn(T) -> T>,
}

/// Names a send clause of one selector.
#[derive(Debug)]
pub struct SendKey<T> {
    selector: u64,
    index: usize,
    values: PhantomData<fn(T) -> T>,
}

impl<T> RecvKey<T> {
    /// Returns the clause's number: from 0, in the order in which clauses were added.
    ///
    /// ```
    /// use marline_channel::{Selector, unbounded};
    /// let (tx, rx) = unbounded();
    /// let mut selector = Selector::new();
    /// let numbers = selector.recv(&rx);
    /// tx.try_send(7).unwrap();
    /// assert_eq!(selector.next().wait(), Ok(numbers.index()));
    /// assert_eq!(selector.received(&numbers), Some(Ok(7)));
    /// assert_eq!(selector.received(&numbers), None); // taken already
    /// ```
    pub fn index(&self) -> usize {
        self.index
    }
}

impl<T> SendKey<T> {
    /// Returns the clause's number: from 0, in the order in which clauses were added.
    ///
    /// ```
    /// use marline_channel::{Selector, Sent, bounded};
    /// let (tx, rx) = bounded(8);
    /// let mut selector = Selector::new();
    /// let out = selector.send(&tx, "first");
    /// assert_eq!(selector.next().wait(), Ok(out.index()));
    /// assert_eq!(selector.sent(&out), Some(Ok(Sent::Accepted)));
    /// assert_eq!(selector.refill(&out, "second"), None); // it had nothing left
    /// selector.next().wait().unwrap();
    /// assert_eq!(rx.try_iter().collect::<Vec<_>>(), ["first", "second"]);
    /// ```
    pub fn index(&self) -> usize {
        self.index
    }
}

impl<'a> Selector<'a> {
    /// Creates a selector without clauses.
    ///
    /// ```
    /// use marline_channel::{Selector, unbounded};
    /// let (tx, rx) = unbounded();
    /// let mut selector = Selector::new();
    /// let numbers = selector.recv(&rx);
    /// tx.try_send(7).unwrap();
    /// assert_eq!(selector.next().wait(), Ok(numbers.index()));
    /// assert_eq!(selector.received(&numbers), Some(Ok(7)));
    /// assert_eq!(selector.received(&numbers), None); // taken already
    /// ```
    pub fn new() -> Selector<'a> {
        static IDS: AtomicU64 = AtomicU64::new(0);
        let mut progress = Box::new(Progress::new());
        progress.first = Some(0);
        Selector {
            clauses: Boxed { list: Vec::new() },
            progress,
            chosen: None,
            memory: WaitMemory::new(),
            id: IDS.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Attempts the clauses in the order in which they were added, instead of in turn.
    ///
    /// ```
    /// use marline_channel::{Selector, unbounded};
    /// let (tx, rx) = unbounded();
    /// let (urgent_tx, urgent_rx) = unbounded();
    /// let mut selector = Selector::new().biased();
    /// let urgent = selector.recv(&urgent_rx);
    /// let _usual = selector.recv(&rx);
    /// tx.try_send("tea").unwrap();
    /// urgent_tx.try_send("fire").unwrap();
    /// assert_eq!(selector.next().wait(), Ok(urgent.index()));
    /// ```
    pub fn biased(mut self) -> Selector<'a> {
        self.progress.biased = true;
        self
    }

    /// Skips clauses whose channel is closed. If all are, the wait fails with
    /// [`ErrorKind::Closed`].
    ///
    /// ```
    /// use marline_channel::{Selector, unbounded};
    /// let (tx, rx) = unbounded::<u8>();
    /// let mut selector = Selector::new().skip_closed();
    /// selector.recv(&rx);
    /// drop(tx);
    /// assert!(selector.next().wait().unwrap_err().is_closed()); // nothing left to wait for
    /// ```
    pub fn skip_closed(mut self) -> Selector<'a> {
        self.progress.skip_closed = true;
        self
    }

    /// Adds a receive clause.
    ///
    /// ```
    /// use marline_channel::{Selector, unbounded};
    /// let (tx, rx) = unbounded();
    /// let mut selector = Selector::new();
    /// let numbers = selector.recv(&rx);
    /// tx.try_send(7).unwrap();
    /// assert_eq!(selector.next().wait(), Ok(numbers.index()));
    /// assert_eq!(selector.received(&numbers), Some(Ok(7)));
    /// assert_eq!(selector.received(&numbers), None); // taken already
    /// ```
    pub fn recv<T: Send>(&mut self, rx: &'a Receiver<T>) -> RecvKey<T> {
        let index = self.add(rx.recv());
        RecvKey { selector: self.id, index, values: PhantomData }
    }

    /// Adds a send clause. Once its value is sent, the clause has nothing left to send: waits skip
    /// it until [`refill`](Selector::refill).
    ///
    /// ```
    /// use marline_channel::{Selector, Sent, bounded};
    /// let (tx, rx) = bounded(8);
    /// let mut selector = Selector::new();
    /// let out = selector.send(&tx, "first");
    /// assert_eq!(selector.next().wait(), Ok(out.index()));
    /// assert_eq!(selector.sent(&out), Some(Ok(Sent::Accepted)));
    /// assert_eq!(selector.refill(&out, "second"), None); // it had nothing left
    /// selector.next().wait().unwrap();
    /// assert_eq!(rx.try_iter().collect::<Vec<_>>(), ["first", "second"]);
    /// ```
    pub fn send<T: Send>(&mut self, tx: &'a Sender<T>, value: T) -> SendKey<T> {
        let index = self.add(tx.send(value));
        SendKey { selector: self.id, index, values: PhantomData }
    }

    fn add<C: Erased + Send + 'a>(&mut self, clause: C) -> usize {
        self.leave();
        self.clauses.list.push(Box::pin(clause));
        self.clauses.list.len() - 1
    }

    /// Waits for the next clause and returns its number. Take the clause's result with
    /// [`received`](Selector::received) or [`sent`](Selector::sent) before the next wait. Otherwise
    /// a received value goes back to its channel.
    ///
    /// ```
    /// use marline_channel::{Selector, unbounded};
    /// let (tx, rx) = unbounded();
    /// let mut selector = Selector::new();
    /// let numbers = selector.recv(&rx);
    /// tx.try_send(7).unwrap();
    /// assert_eq!(selector.next().wait(), Ok(numbers.index()));
    /// assert_eq!(selector.received(&numbers), Some(Ok(7)));
    /// assert_eq!(selector.received(&numbers), None); // taken already
    /// ```
    pub fn next<'s>(&'s mut self) -> Selecting<'s, 'a> {
        self.forget();
        self.progress.begun = false;
        Op::of(Next { selector: self })
    }

    /// Returns the result of the chosen receive clause. None if this clause was not chosen, or its
    /// result was taken already.
    ///
    /// ```
    /// use marline_channel::{Selector, unbounded};
    /// let (tx, rx) = unbounded();
    /// let mut selector = Selector::new();
    /// let numbers = selector.recv(&rx);
    /// tx.try_send(7).unwrap();
    /// assert_eq!(selector.next().wait(), Ok(numbers.index()));
    /// assert_eq!(selector.received(&numbers), Some(Ok(7)));
    /// assert_eq!(selector.received(&numbers), None); // taken already
    /// ```
    pub fn received<T: 'a>(&mut self, key: &RecvKey<T>) -> Option<Result<T, Error>> {
        let limit = self.take_chosen(key.selector, key.index)?;
        // SAFETY: the key was made for this clause by `recv::<T>`.
        let clause = unsafe { self.clauses.typed::<Receiving<'a, T>>(key.index) };
        Some(clause.output(limit))
    }

    /// Returns how the chosen send clause ended. None if this clause was not chosen, or its result
    /// was taken already.
    ///
    /// ```
    /// use marline_channel::{Selector, Sent, bounded};
    /// let (tx, rx) = bounded(8);
    /// let mut selector = Selector::new();
    /// let out = selector.send(&tx, "first");
    /// assert_eq!(selector.next().wait(), Ok(out.index()));
    /// assert_eq!(selector.sent(&out), Some(Ok(Sent::Accepted)));
    /// assert_eq!(selector.refill(&out, "second"), None); // it had nothing left
    /// selector.next().wait().unwrap();
    /// assert_eq!(rx.try_iter().collect::<Vec<_>>(), ["first", "second"]);
    /// ```
    pub fn sent<T: 'a>(&mut self, key: &SendKey<T>) -> Option<Result<Sent, SendError<T>>> {
        let limit = self.take_chosen(key.selector, key.index)?;
        // SAFETY: the key was made for this clause by `send::<T>`.
        let mut clause = unsafe { self.clauses.typed::<Sending<'a, T>>(key.index) };
        let output = clause.as_mut().output(limit);
        clause.spend();
        Some(output)
    }

    /// Gives a send clause a value to send next. Returns the unsent value that it replaces, if any.
    ///
    /// ```
    /// use marline_channel::{Selector, Sent, bounded};
    /// let (tx, rx) = bounded(8);
    /// let mut selector = Selector::new();
    /// let out = selector.send(&tx, "first");
    /// assert_eq!(selector.next().wait(), Ok(out.index()));
    /// assert_eq!(selector.sent(&out), Some(Ok(Sent::Accepted)));
    /// assert_eq!(selector.refill(&out, "second"), None); // it had nothing left
    /// selector.next().wait().unwrap();
    /// assert_eq!(rx.try_iter().collect::<Vec<_>>(), ["first", "second"]);
    /// ```
    pub fn refill<T: 'a>(&mut self, key: &SendKey<T>, value: T) -> Option<T> {
        assert_eq!(key.selector, self.id, "the key belongs to another selector");
        self.leave();
        self.chosen.take_if(|chosen| chosen.index == key.index);
        // SAFETY: the key was made for this clause by `send::<T>`.
        unsafe { self.clauses.typed::<Sending<'a, T>>(key.index) }.refill(value)
    }

    fn take_chosen(&mut self, selector: u64, index: usize) -> Option<Option<ErrorKind>> {
        assert_eq!(selector, self.id, "the key belongs to another selector");
        let chosen = self.chosen.take_if(|chosen| chosen.index == index)?;
        Some(chosen.limit)
    }

    /// Ends a wait that was leaked, before anything about the clauses changes.
    fn leave(&mut self) {
        if let Some(chosen) = self.progress.leave(self.clauses.indexed()) {
            self.clauses.list[chosen.index].as_mut().forget();
        }
    }

    /// Gives up a result that the user did not take.
    fn forget(&mut self) {
        if let Some(chosen) = self.chosen.take() {
            self.clauses.list[chosen.index].as_mut().forget();
        }
    }
}

impl Drop for Selector<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Default for Selector<'_> {
    fn default() -> Self {
        Selector::new()
    }
}

impl std::fmt::Debug for Selector<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Selector")
            .field("clauses", &self.clauses.list.len())
            .finish_non_exhaustive()
    }
}

impl<'a> Boxed<'a> {
    fn indexed(&mut self) -> Pin<&mut (dyn Indexed + 'a)> {
        let boxed: Pin<&mut Boxed<'a>> = Pin::new(self);
        boxed
    }

    /// # Safety
    /// The clause was added as a `C`.
    unsafe fn typed<C>(&mut self, index: usize) -> Pin<&mut C> {
        // SAFETY: the box holds a `C`, pinned.
        unsafe {
            let erased: *mut (dyn Erased + Send + 'a) =
                self.list[index].as_mut().get_unchecked_mut();
            Pin::new_unchecked(&mut *erased.cast::<C>())
        }
    }
}

impl Indexed for Boxed<'_> {
    fn count(&self) -> usize {
        self.list.len()
    }

    fn clause(self: Pin<&mut Self>, index: usize) -> Pin<&mut dyn Erased> {
        self.get_mut().list[index].as_mut()
    }
}

/// The operation [`Selector::next`] returns.
pub type Selecting<'s, 'a> = Op<Next<'s, 'a>>;

/// The action of [`Selecting`].
pub struct Next<'s, 'a> {
    selector: &'s mut Selector<'a>,
}

impl sealed::Action for Next<'_, '_> {
    type Output = Result<usize, Error>;

    fn poll(mut self: Pin<&mut Self>, waker: Option<&Waker>) -> Poll<Self::Output> {
        let selector = &mut *self.selector;
        let clauses = selector.clauses.indexed();
        // SAFETY: the selector is borrowed until `drop`, which leaves; its clauses are boxed.
        unsafe { selector.progress.poll(clauses, waker, false) }.map(|result| {
            let chosen = result?;
            selector.progress.first = Some(chosen.index + 1);
            selector.chosen = Some(chosen);
            Ok(chosen.index)
        })
    }

    fn is_settled(&self) -> bool {
        self.selector.progress.is_settled()
    }

    fn abandon(mut self: Pin<&mut Self>, why: ErrorKind) -> Self::Output {
        let selector = &mut *self.selector;
        selector.chosen = selector.progress.leave(selector.clauses.indexed());
        selector.chosen.map(|chosen| chosen.index).ok_or(Error::from(why))
    }

    fn wait_memory(&self) -> Option<&WaitMemory> {
        Some(&self.selector.memory)
    }
}

impl Drop for Next<'_, '_> {
    fn drop(&mut self) {
        self.selector.leave();
    }
}
