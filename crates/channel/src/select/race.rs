//! The algorithm of a select, over any collection of clauses. The parent module proves it. The
//! select first attempts every clause by itself, in turn. Only if none ends does it lock and list
//! all of them.

use std::{
    pin::Pin,
    ptr::NonNull,
    task::{Poll, Waker},
};

use super::{
    Claim,
    clause::{AttemptOutcome, sealed::Erased},
    turn,
};
use crate::{
    error::{Error, ErrorKind},
    lock::{Pause, RawLock},
    sync::broken,
};

/// A collection of clauses, by index.
pub(crate) trait Indexed {
    fn count(&self) -> usize;
    fn clause(self: Pin<&mut Self>, index: usize) -> Pin<&mut dyn Erased>;
}

/// The clause that was chosen, and the limit that ended it, if any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chosen {
    pub(crate) index: usize,
    pub(crate) limit: Option<ErrorKind>,
}

/// The progress of one select.
pub(crate) struct Progress {
    claim: Claim,
    /// Whether the clauses were attempted. From then on their completion comes before their tokens.
    pub(crate) begun: bool,
    /// Whether the clauses are listed. A race takes them off before it goes.
    listed: bool,
    /// The waker the claim was opened with.
    waker: Option<Waker>,
    pub(crate) biased: bool,
    pub(crate) skip_closed: bool,
    /// The clause to attempt first, for a select that is used again and keeps its own turn.
    pub(crate) first: Option<usize>,
}

impl Progress {
    pub(crate) fn new() -> Progress {
        Progress {
            claim: Claim::new(),
            begun: false,
            listed: false,
            waker: None,
            biased: false,
            skip_closed: false,
            first: None,
        }
    }

    pub(crate) fn is_listed(&self) -> bool {
        self.listed
    }

    /// Whether an attempt at the clauses needs nothing else: they are not listed, and closed
    /// channels are not skipped.
    #[inline(always)]
    pub(crate) fn is_plain(&self) -> bool {
        !self.listed && !self.skip_closed
    }

    /// Returns the index of the clause to attempt first, of `count` clauses.
    #[inline(always)]
    pub(crate) fn start(&self, count: usize) -> usize {
        match self.first {
            _ if self.biased => 0,
            Some(first) => first % count,
            None => turn::next() % count,
        }
    }

    /// Whether a poll would be ready, for a thread that spins.
    pub(crate) fn is_settled(&self) -> bool {
        self.listed && !self.claim.is_open()
    }

    /// Polls the select. `attempted` says whether the caller has just attempted the clauses.
    ///
    /// # Safety
    /// `self` and the clauses are pinned, and [`Progress::leave`] is called before they go.
    pub(crate) unsafe fn poll(
        &mut self,
        mut clauses: Pin<&mut dyn Indexed>,
        waker: Option<&Waker>,
        mut attempted: bool,
    ) -> Poll<Result<Chosen, Error>> {
        // A waker need not recognise its own clone, so one that was just stored is not compared.
        let mut just_listed = false;
        loop {
            if self.listed {
                match self.look(clauses.as_mut(), waker, just_listed) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Some(chosen)) => return Poll::Ready(Ok(chosen)),
                    Poll::Ready(None) => {}
                }
            }
            if !std::mem::take(&mut attempted)
                && let Poll::Ready(result) = self.attempt_all(clauses.as_mut())
            {
                return Poll::Ready(result);
            }
            // SAFETY: the caller's promise.
            unsafe { self.list_all(clauses.as_mut(), waker) };
            just_listed = self.listed;
            if self.listed && waker.is_none() {
                return Poll::Pending;
            }
            // Another turn: it attempts again if a clause could end. Otherwise `look` registers the
            // waker with the clauses that are only waited for, and checks them.
        }
    }

    fn passes_over(&self, clause: &dyn Erased) -> bool {
        clause.is_spent() || self.skip_closed && clause.ended_closed()
    }

    /// Attempts the clauses one by one, then checks their limits.
    pub(crate) fn attempt_all(
        &mut self,
        mut clauses: Pin<&mut dyn Indexed>,
    ) -> Poll<Result<Chosen, Error>> {
        let count = clauses.count();
        if count == 0 {
            return Poll::Ready(Err(Error::with_message(&(
                ErrorKind::Invalid,
                "a select needs at least one clause: it would wait for ever",
            ))));
        }
        let start = self.start(count);
        let in_turn = || (start..count).chain(0..start);
        let mut live = 0;
        for index in in_turn() {
            match clauses.as_mut().clause(index).attempt(!self.begun, self.skip_closed) {
                AttemptOutcome::Ended => return Poll::Ready(Ok(Chosen { index, limit: None })),
                AttemptOutcome::Cancelled => {
                    let limit = Some(ErrorKind::Cancelled);
                    return Poll::Ready(Ok(Chosen { index, limit }));
                }
                AttemptOutcome::Open => live += 1,
                AttemptOutcome::Over => {}
            }
        }
        if live == 0 {
            let spent = (0..count).all(|index| clauses.as_mut().clause(index).is_spent());
            return Poll::Ready(Err(if spent {
                Error::with_message(&(
                    ErrorKind::Invalid,
                    "every clause of the select has sent its value: refill one, or add another",
                ))
            } else {
                ErrorKind::Closed.into()
            }));
        }
        self.begun = true;
        match self.limit_passed(clauses) {
            Some(chosen) => Poll::Ready(Ok(chosen)),
            None => Poll::Pending,
        }
    }

    /// Returns the clause whose token was triggered, or whose deadline passed first.
    fn limit_passed(&self, mut clauses: Pin<&mut dyn Indexed>) -> Option<Chosen> {
        let mut first = None;
        for index in 0..clauses.count() {
            let clause = clauses.as_mut().clause(index);
            if !self.passes_over(&*clause)
                && let Some((why, at)) = clause.limit_passed()
                && first.is_none_or(|(_, earliest)| at < earliest)
            {
                first = Some((Chosen { index, limit: Some(why) }, at));
            }
        }
        first.map(|(chosen, _)| chosen)
    }

    /// Lists all clauses, unless one could end by now.
    ///
    /// # Safety
    /// As for [`Progress::poll`].
    unsafe fn list_all(&mut self, mut clauses: Pin<&mut dyn Indexed>, waker: Option<&Waker>) {
        self.waker = waker.cloned();
        drop(self.claim.open(self.waker.clone()));
        let claim = NonNull::from(&self.claim);
        let locked = LockedAll::new(clauses.as_mut());
        let mut could_end = false;
        for index in 0..clauses.count() {
            let clause = clauses.as_mut().clause(index);
            let raced = clause.lock().is_some() && !self.passes_over(&*clause);
            // SAFETY: the clause's lock is held.
            could_end |= raced && unsafe { clause.could_end() };
        }
        if could_end && !broken("select-looks-before-listing") {
            return;
        }
        for index in 0..clauses.count() {
            let clause = clauses.as_mut().clause(index);
            if clause.lock().is_some() && !self.passes_over(&*clause) {
                // SAFETY: the clause's lock is held; the rest is the caller's promise.
                unsafe { clause.enlist(claim, index as u32) };
            }
        }
        self.listed = true;
        drop(locked);
    }

    /// Checks the listed clauses. Ready with None means: start over.
    fn look(
        &mut self,
        mut clauses: Pin<&mut dyn Indexed>,
        waker: Option<&Waker>,
        just_listed: bool,
    ) -> Poll<Option<Chosen>> {
        if self.claim.winner().is_none() {
            let Some(waker) = waker else {
                return Poll::Pending;
            };
            let known = self.waker.as_ref().is_some_and(|held| held.will_wake(waker));
            if !known && !just_listed {
                return self.start_over(clauses);
            }
            let mut ready = false;
            for index in 0..clauses.count() {
                let clause = clauses.as_mut().clause(index);
                ready |= !self.passes_over(&*clause) && clause.watch(waker);
            }
            if ready {
                return self.start_over(clauses);
            }
            let Some(chosen) = self.limit_passed(clauses.as_mut()) else { return Poll::Pending };
            if self.claim.try_give_up() {
                self.delist_all(clauses);
                return Poll::Ready(Some(chosen));
            }
        }
        self.settle(clauses)
    }

    /// Gives up the claim to start over, unless a peer won it first.
    fn start_over(&mut self, clauses: Pin<&mut dyn Indexed>) -> Poll<Option<Chosen>> {
        if self.claim.try_give_up() {
            self.delist_all(clauses);
            return Poll::Ready(None);
        }
        self.settle(clauses)
    }

    /// Ends with the clause that a peer chose. Starts over if that clause only closed, and closed
    /// clauses are skipped.
    fn settle(&mut self, mut clauses: Pin<&mut dyn Indexed>) -> Poll<Option<Chosen>> {
        let index = self.claim.winner().expect("a peer won");
        self.delist_all(clauses.as_mut());
        if self.skip_closed && clauses.clause(index).ended_closed() {
            return Poll::Ready(None);
        }
        Poll::Ready(Some(Chosen { index, limit: None }))
    }

    /// Ends the race from the owner's side. Returns None if the owner gave up, and the chosen
    /// clause if a peer won first.
    pub(crate) fn leave(&mut self, clauses: Pin<&mut dyn Indexed>) -> Option<Chosen> {
        if !self.listed {
            return None;
        }
        if self.claim.try_give_up() {
            self.delist_all(clauses);
            return None;
        }
        match self.settle(clauses) {
            Poll::Ready(chosen) => chosen,
            Poll::Pending => unreachable!("settling is immediate"),
        }
    }

    fn delist_all(&mut self, mut clauses: Pin<&mut dyn Indexed>) {
        for index in 0..clauses.count() {
            clauses.as_mut().clause(index).delist();
        }
        self.listed = false;
    }
}

/// The most locks that a select holds at once without an allocation.
const INLINE_LOCKS: usize = 16;

/// The locks of all clauses, each once, taken in the order of [`RawLock::order`].
struct LockedAll {
    inline: [Option<NonNull<RawLock>>; INLINE_LOCKS],
    more: Vec<Option<NonNull<RawLock>>>,
}

impl LockedAll {
    fn new(mut clauses: Pin<&mut dyn Indexed>) -> LockedAll {
        let mut all = LockedAll { inline: [None; INLINE_LOCKS], more: Vec::new() };
        let count = clauses.count();
        if count > INLINE_LOCKS {
            all.more.resize(count, None);
        }
        let places = all.places();
        for (index, place) in places.iter_mut().take(count).enumerate() {
            *place = clauses.as_mut().clause(index).lock().map(NonNull::from);
        }
        // SAFETY: the clauses keep their channels alive, so the lock outlives this guard.
        places.sort_unstable_by_key(|place| place.map(|lock| unsafe { lock.as_ref() }.order()));
        let mut previous = None;
        for place in places.iter_mut() {
            if *place == previous {
                *place = None;
                continue;
            }
            previous = *place;
            if let Some(lock) = *place {
                // SAFETY: the clauses keep their channels alive, so the lock outlives this guard.
                unsafe { lock.as_ref() }.acquire(Pause::Short);
            }
        }
        all
    }

    fn places(&mut self) -> &mut [Option<NonNull<RawLock>>] {
        if self.more.is_empty() { &mut self.inline } else { &mut self.more }
    }
}

impl Drop for LockedAll {
    fn drop(&mut self) {
        for lock in self.places().iter().flatten() {
            // SAFETY: the lock was taken in `new`, and is released once.
            unsafe { lock.as_ref().release() };
        }
    }
}
