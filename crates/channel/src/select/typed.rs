//! The typed select: a chain of clauses with their handlers, held by value. It allocates nothing.

use std::{
    marker::PhantomData,
    ops::Range,
    pin::Pin,
    task::{Poll, Waker},
};

use super::{
    clause::{Clause, sealed::Erased},
    race::{Chosen, Indexed, Progress},
};
use crate::{
    error::{Error, ErrorKind},
    op::{Op, sealed},
    park::WaitMemory,
};

/// A select while it is built, and then the operation itself: `.await` it or [`wait`](Op::wait) for
/// it. Exactly one clause happens. Its handler gets the clause's result and returns the select's.
/// The clauses that lose change nothing.
///
/// The select attempts its clauses in turn, so that none starves. With [`biased`](Op::biased) it
/// attempts them in the order in which they were added. A clause on a closed channel is ready with
/// its error, unless [`skip_closed`](Op::skip_closed) is set. Clauses may have their own deadlines
/// and tokens: when such a limit passes, its clause is chosen, with its error.
///
/// ```
/// use marline_channel::{Select, bounded, rendezvous};
/// let (orders, _kitchen) = bounded(8);
/// let (_guests, bell) = rendezvous::<String>();
/// let done = Select::new()
///     .on(bell.recv(), |guest| format!("{guest:?} rang"))
///     .on(orders.send("soup"), |sent| format!("ordered: {:?}", sent.unwrap()))
///     .wait();
/// assert_eq!(done.unwrap(), "ordered: Accepted");
/// ```
pub type Select<C, R> = Op<Race<C, R>>;

/// The action of a [`Select`].
pub struct Race<C: Clauses<R>, R> {
    clauses: C,
    progress: Progress,
    result: PhantomData<fn() -> R>,
}

/// The clauses of a typed select. Only this crate implements it.
pub trait Clauses<R>: sealed_clauses::Chain<R> {}

impl<R, C: sealed_clauses::Chain<R>> Clauses<R> for C {}

mod sealed_clauses {
    use super::{Chosen, Erased, Pin, Range, WaitMemory};

    pub trait Chain<R> {
        const COUNT: usize;
        fn clause(self: Pin<&mut Self>, index: usize) -> Pin<&mut dyn Erased>;
        /// Whether all peers can go on for a while before either side parks.
        fn is_buffered(&self) -> bool;
        /// The memory of how long waits for the last clause took lately: as good a guess as any.
        fn wait_memory(&self) -> Option<&WaitMemory>;
        /// Whether [`Chain::attempt_plainly`] suffices.
        fn is_plain(&self) -> bool;
        /// Attempts the clauses with these numbers, in order. Returns the result of the first that
        /// ended.
        fn attempt_plainly(
            self: Pin<&mut Self>,
            is_task: bool,
            numbers: &Range<usize>,
        ) -> Option<R>;
        fn finish(self: Pin<&mut Self>, chosen: Chosen) -> R;
    }
}

use sealed_clauses::Chain;

impl<R> Chain<R> for () {
    const COUNT: usize = 0;

    fn clause(self: Pin<&mut Self>, _index: usize) -> Pin<&mut dyn Erased> {
        unreachable!("no clause has this number")
    }

    fn is_buffered(&self) -> bool {
        true
    }

    fn wait_memory(&self) -> Option<&WaitMemory> {
        None
    }

    fn is_plain(&self) -> bool {
        true
    }

    fn attempt_plainly(self: Pin<&mut Self>, _is_task: bool, _numbers: &Range<usize>) -> Option<R> {
        None
    }

    fn finish(self: Pin<&mut Self>, _chosen: Chosen) -> R {
        unreachable!("no clause has this number")
    }
}

/// A clause and its handler behind the clauses before it.
pub struct Arms<P, C, F> {
    before: P,
    clause: C,
    handler: Option<F>,
}

impl<P, C, F> Arms<P, C, F> {
    fn parts(self: Pin<&mut Self>) -> (Pin<&mut P>, Pin<&mut C>, &mut Option<F>) {
        // SAFETY: the clauses are pinned with `self`; the handler is not.
        unsafe {
            let this = self.get_unchecked_mut();
            let before = Pin::new_unchecked(&mut this.before);
            (before, Pin::new_unchecked(&mut this.clause), &mut this.handler)
        }
    }
}

impl<R, P: Chain<R>, C: Clause, F: FnOnce(C::Output) -> R> Chain<R> for Arms<P, C, F> {
    const COUNT: usize = P::COUNT + 1;

    fn clause(self: Pin<&mut Self>, index: usize) -> Pin<&mut dyn Erased> {
        let (before, clause, _) = self.parts();
        if index == P::COUNT { clause.erased() } else { before.clause(index) }
    }

    fn is_buffered(&self) -> bool {
        self.clause.is_buffered() && self.before.is_buffered()
    }

    fn wait_memory(&self) -> Option<&WaitMemory> {
        self.clause.wait_memory()
    }

    #[inline(always)]
    fn is_plain(&self) -> bool {
        self.before.is_plain() && self.clause.is_plain()
    }

    #[inline(always)]
    fn attempt_plainly(self: Pin<&mut Self>, is_task: bool, numbers: &Range<usize>) -> Option<R> {
        let (before, clause, handler) = self.parts();
        if let Some(result) = before.attempt_plainly(is_task, numbers) {
            return Some(result);
        }
        if !numbers.contains(&P::COUNT) {
            return None;
        }
        assert!(handler.is_some(), "a select ends once");
        let output = clause.attempt_plainly(is_task)?;
        Some(handler.take().expect("a select ends once")(output))
    }

    fn finish(self: Pin<&mut Self>, chosen: Chosen) -> R {
        let (before, clause, handler) = self.parts();
        if chosen.index != P::COUNT {
            return before.finish(chosen);
        }
        let output = clause.output(chosen.limit);
        handler.take().expect("a select ends once")(output)
    }
}

impl<R> Select<(), R> {
    /// Creates a select without clauses.
    ///
    /// ```
    /// use marline_channel::{Select, unbounded};
    /// let (tx, numbers) = unbounded();
    /// let (_tx, words) = unbounded::<&str>();
    /// tx.try_send(3).unwrap();
    /// let length = Select::new()
    ///     .on(numbers.recv(), |number| number.unwrap())
    ///     .on(words.recv(), |word| word.unwrap().len())
    ///     .wait();
    /// assert_eq!(length.unwrap(), 3);
    /// ```
    #[expect(clippy::new_without_default, reason = "an empty select is an error")]
    pub fn new() -> Select<(), R> {
        Op::of(Race { clauses: (), progress: Progress::new(), result: PhantomData })
    }
}

impl<C: Clauses<R>, R> Select<C, R> {
    /// Adds a clause: a send or a receive, and the handler of its result.
    ///
    /// ```
    /// use marline_channel::{Select, unbounded};
    /// let (tx, numbers) = unbounded();
    /// let (_tx, words) = unbounded::<&str>();
    /// tx.try_send(3).unwrap();
    /// let length = Select::new()
    ///     .on(numbers.recv(), |number| number.unwrap())
    ///     .on(words.recv(), |word| word.unwrap().len())
    ///     .wait();
    /// assert_eq!(length.unwrap(), 3);
    /// ```
    pub fn on<K: Clause, F: FnOnce(K::Output) -> R>(
        self,
        clause: K,
        handler: F,
    ) -> Select<Arms<C, K, F>, R> {
        self.map(|race| {
            let mut progress = Progress::new();
            progress.biased = race.progress.biased;
            progress.skip_closed = race.progress.skip_closed;
            let (before, handler) = (race.into_clauses(), Some(handler));
            Race { clauses: Arms { before, clause, handler }, progress, result: PhantomData }
        })
    }

    /// Attempts the clauses in the order in which they were added, instead of in turn.
    ///
    /// ```
    /// use marline_channel::{Select, unbounded};
    /// let (tx, rx) = unbounded();
    /// let (stop_tx, stop) = unbounded();
    /// tx.try_send(1).unwrap();
    /// stop_tx.try_send(()).unwrap();
    /// let goes_on = Select::new()
    ///     .on(stop.recv(), |_| false) // attempted first
    ///     .on(rx.recv(), |_| true)
    ///     .biased()
    ///     .wait();
    /// assert_eq!(goes_on.unwrap(), false);
    /// ```
    pub fn biased(self) -> Select<C, R> {
        self.map(|mut race| {
            race.progress.biased = true;
            race
        })
    }

    /// Skips clauses whose channel is closed. If all are, the select fails with
    /// [`ErrorKind::Closed`].
    ///
    /// ```
    /// use marline_channel::{Select, unbounded};
    /// let (tx, rx) = unbounded();
    /// let (_, closed) = unbounded::<i32>();
    /// tx.try_send(1).unwrap();
    /// let got = Select::new().on(closed.recv(), |_| 0).on(rx.recv(), |n| n.unwrap()).skip_closed();
    /// assert_eq!(got.wait().unwrap(), 1);
    /// ```
    pub fn skip_closed(self) -> Select<C, R> {
        self.map(|mut race| {
            race.progress.skip_closed = true;
            race
        })
    }
}

impl<C: Clauses<R>, R> Race<C, R> {
    fn into_clauses(self) -> C {
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: the clauses are read once, and `this` is not dropped. The rest of an unlisted
        // race owns nothing.
        unsafe { std::ptr::read(&this.clauses) }
    }

    /// Attempts the clauses of the usual, plain select, without dispatch. None if it is not plain.
    #[inline(always)]
    fn attempt_plainly(self: Pin<&mut Self>, is_task: bool) -> Option<Option<R>> {
        let (mut clauses, progress) = self.parts();
        if C::COUNT == 0 || !progress.is_plain() || !clauses.is_plain() {
            return None;
        }
        let start = progress.start(C::COUNT);
        match clauses.as_mut().attempt_plainly(is_task, &(start..C::COUNT)) {
            None => Some(clauses.attempt_plainly(is_task, &(0..start))),
            result => Some(result),
        }
    }

    #[inline(never)]
    fn attempt_slowly(self: Pin<&mut Self>) -> Option<Result<R, Error>> {
        let (mut clauses, progress) = self.parts();
        match progress.attempt_all(ByNumber::<C, R>::of(clauses.as_mut())) {
            Poll::Ready(result) => Some(result.map(|chosen| clauses.finish(chosen))),
            Poll::Pending => None,
        }
    }

    #[inline(never)]
    fn poll_slowly(
        self: Pin<&mut Self>,
        waker: Option<&Waker>,
        attempted: bool,
    ) -> Poll<Result<R, Error>> {
        let (mut clauses, progress) = self.parts();
        let indexed = ByNumber::<C, R>::of(clauses.as_mut());
        // SAFETY: the race is pinned, and `drop` leaves.
        unsafe { progress.poll(indexed, waker, attempted) }
            .map(|result| result.map(|chosen| clauses.finish(chosen)))
    }

    fn parts(self: Pin<&mut Self>) -> (Pin<&mut C>, &mut Progress) {
        // SAFETY: both stay where they are: the clauses are returned pinned, and the progress is
        // only ever used in place.
        unsafe {
            let this = self.get_unchecked_mut();
            (Pin::new_unchecked(&mut this.clauses), &mut this.progress)
        }
    }
}

/// A chain of clauses, indexed by number.
#[repr(transparent)]
struct ByNumber<C, R>(C, PhantomData<fn() -> R>);

impl<C: Chain<R>, R> ByNumber<C, R> {
    fn of(clauses: Pin<&mut C>) -> Pin<&mut ByNumber<C, R>> {
        // SAFETY: the type is transparent over the chain, and pinned as the chain is.
        unsafe {
            let clauses: *mut C = clauses.get_unchecked_mut();
            Pin::new_unchecked(&mut *clauses.cast::<ByNumber<C, R>>())
        }
    }
}

impl<C: Chain<R>, R> Indexed for ByNumber<C, R> {
    fn count(&self) -> usize {
        C::COUNT
    }

    fn clause(self: Pin<&mut Self>, index: usize) -> Pin<&mut dyn Erased> {
        // SAFETY: the chain is pinned with `self`.
        unsafe { self.map_unchecked_mut(|this| &mut this.0) }.clause(index)
    }
}

impl<C: Clauses<R>, R> sealed::Action for Race<C, R> {
    type Output = Result<R, Error>;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, waker: Option<&Waker>) -> Poll<Self::Output> {
        match self.as_mut().attempt_plainly(waker.is_some()) {
            Some(Some(result)) => Poll::Ready(Ok(result)),
            attempted => self.poll_slowly(waker, attempted.is_some()),
        }
    }

    #[inline(always)]
    fn attempt(mut self: Pin<&mut Self>, is_task: bool) -> Option<Self::Output> {
        match self.as_mut().attempt_plainly(is_task) {
            Some(result) => result.map(Ok),
            None => self.attempt_slowly(),
        }
    }

    fn is_buffered(&self) -> bool {
        !self.progress.is_listed() && self.clauses.is_buffered()
    }

    fn is_settled(&self) -> bool {
        self.progress.is_settled()
    }

    fn abandon(self: Pin<&mut Self>, why: ErrorKind) -> Self::Output {
        let (mut clauses, progress) = self.parts();
        match progress.leave(ByNumber::<C, R>::of(clauses.as_mut())) {
            None => Err(why.into()),
            Some(chosen) => Ok(clauses.finish(chosen)),
        }
    }

    fn wait_memory(&self) -> Option<&WaitMemory> {
        self.clauses.wait_memory()
    }
}

impl<C: Clauses<R>, R> Drop for Race<C, R> {
    fn drop(&mut self) {
        // SAFETY: the race has been pinned since it was listed, and is not moved here.
        let clauses = unsafe { Pin::new_unchecked(&mut self.clauses) };
        self.progress.leave(ByNumber::<C, R>::of(clauses));
    }
}
