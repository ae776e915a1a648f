//! A select that rests, is waited for by a thread, or was started and is pending.
//!
//! A waiting thread does not hold the lock: it marks the select as busy, and other calls fail.
//! Destroying a select ends its wait through `stop`: the select's own token, or a child of the
//! token that the caller passed to the wait.

use std::{
    ffi::c_void,
    future::Future,
    pin::{Pin, pin},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::Duration,
};

use marline_channel::{CancelToken, Error, ErrorKind, Selecting};

use super::clauses::Clauses;
use crate::{
    alert::{Alerts, WakeFn},
    calls::Calls,
    code::Code,
    exclusive::{Exclusive, Guard},
    limits::{Limits, Wait},
    table::{Object, Ref, Table},
    token::TokenId,
};

pub(super) struct Select {
    inside: Exclusive<SelectState>,
    stop: Mutex<Stop>,
    interruptible: bool,
}

/// The order of the fields matters: a wait is dropped before the clauses that it refers to. Never
/// moved, see `OperationState` in `operation.rs`.
struct SelectState {
    phase: Phase,
    clauses: Clauses,
    alerts: Alerts,
}

enum Phase {
    Resting,
    /// A thread waits, and alone uses the clauses.
    Waiting,
    Started(Selecting<'static, 'static>),
}

/// The token that ends the wait from outside, and the caller's token that is its parent (0: none).
struct Stop {
    token: CancelToken,
    parent: TokenId,
}

/// The clause that was chosen, and its result.
pub(super) struct Chosen {
    pub(super) index: usize,
    pub(super) result: Result<(), Code>,
}

impl Object for Select {
    const ID_TAG: u64 = 4;

    fn table() -> &'static Table<Select> {
        static SELECTS: Table<Select> = Table::new();
        &SELECTS
    }
}

impl Select {
    pub(super) fn new(biased: bool, skip_closed: bool, interruptible: bool) -> Select {
        Select {
            inside: Exclusive::new(SelectState {
                phase: Phase::Resting,
                clauses: Clauses::new(biased, skip_closed),
                alerts: Alerts::new(),
            }),
            stop: Mutex::new(Stop { token: CancelToken::new(), parent: 0 }),
            interruptible,
        }
    }

    pub(super) fn of(id: u64) -> Result<Ref<Select>, Code> {
        Select::table().get(id).ok_or(Code::INVALID)
    }

    /// Changes the clauses of a select that rests.
    pub(super) fn change<R>(
        &self,
        change: impl FnOnce(&mut Clauses) -> Result<R, Code>,
    ) -> Result<R, Code> {
        change(&mut self.resting()?.clauses)
    }

    fn resting(&self) -> Result<Guard<'_, SelectState>, Code> {
        let inside = self.inside.lock()?;
        match inside.phase {
            Phase::Resting => Ok(inside),
            Phase::Waiting | Phase::Started(_) => Err(Code::INVALID),
        }
    }

    fn stop(&self) -> MutexGuard<'_, Stop> {
        lock(&self.stop)
    }

    /// Returns the token that ends the next wait. Creates one only for another parent, or if the
    /// old one was triggered.
    fn stop_for(&self, limits: &Limits, parent: TokenId) -> CancelToken {
        let mut stop = self.stop();
        if stop.parent != parent || stop.token.is_cancelled() {
            stop.parent = parent;
            stop.token = match &limits.token {
                None => CancelToken::new(),
                Some(token) => token.cancel.child(),
            };
        }
        stop.token.clone()
    }
}

impl Ref<Select> {
    /// Waits on this thread.
    ///
    /// # Safety
    /// The destinations of receive clauses can be written to.
    pub(super) unsafe fn wait(&self, limits: &Limits, parent: TokenId) -> Result<Chosen, Code> {
        let mut inside = self.resting()?;
        let selecting = self.selecting(&mut inside, limits, parent)?;
        inside.phase = Phase::Waiting;
        drop(inside);
        let ended = match self.interruptible {
            false => selecting.wait().map_err(|error| self.code(error, limits)),
            // The wait is gone when this returns.
            true => self.wait_interruptible(selecting, limits),
        };
        let mut inside = self.inside.lock()?;
        inside.phase = Phase::Resting;
        let index = ended?;
        // SAFETY: the wait is over; the caller's promise.
        let result = unsafe { inside.clauses.result(index) };
        Ok(Chosen { index, result })
    }

    fn wait_interruptible(
        &self,
        selecting: Selecting<'static, 'static>,
        limits: &Limits,
    ) -> Result<usize, Code> {
        let mut selecting = pin!(selecting);
        match selecting.as_mut().wait_interruptible() {
            Ok(ended) => ended.map_err(|error| self.code(error, limits)),
            // A clause may have been chosen just now. Then that counts.
            Err(_) => {
                self.stop().token.cancel();
                give_up(selecting, Waker::noop()).map_err(|_| Code::INTERRUPTED)
            }
        }
    }

    /// Starts a wait. It ends at once, or is left pending.
    ///
    /// # Safety
    /// The destinations of receive clauses can be written to until the wait ends.
    pub(super) unsafe fn start(
        &self,
        limits: &Limits,
        parent: TokenId,
        wake_fn: WakeFn,
        user: *mut c_void,
    ) -> Result<Chosen, Code> {
        if limits.wait == Wait::Try {
            // SAFETY: the caller's promise.
            return unsafe { self.wait(limits, parent) };
        }
        let mut inside = self.resting()?;
        let selecting = self.selecting(&mut inside, limits, parent)?;
        inside.alerts.begin(wake_fn, user);
        inside.phase = Phase::Started(selecting);
        // SAFETY: the caller's promise.
        let (polled, _) = unsafe { inside.drive() };
        self.ended(polled, &mut inside, limits)
    }

    /// Ends a started wait, if a clause was chosen.
    ///
    /// # Safety
    /// The destinations of receive clauses can be written to.
    pub(super) unsafe fn finish(&self) -> Result<Chosen, Code> {
        let mut inside = self.started()?;
        inside.alerts.listen();
        // SAFETY: the caller's promise.
        let (polled, running) = unsafe { inside.drive() };
        let ended = self.ended(polled, &mut inside, &Limits::NONE);
        drop(inside);
        if let Some(calls) = running {
            calls.wait();
        }
        ended
    }

    /// Gives up a started wait, unless a send clause has happened first.
    pub(super) fn abandon(&self) -> Result<Chosen, Code> {
        let mut inside = self.started()?;
        let (chosen, running) = inside.abandon(&self.stop);
        drop(inside);
        if let Some(calls) = running {
            calls.wait();
        }
        chosen
    }

    /// Ends the wait of a select whose handle is gone already.
    pub(super) fn destroy(&self) {
        let _ = self.abandon();
        // Ends the wait of a thread. (A call further out on this thread's stack finds the handle
        // gone, and abandons its wait itself.)
        self.stop().token.cancel();
    }

    fn started(&self) -> Result<Guard<'_, SelectState>, Code> {
        let inside = self.inside.lock()?;
        match inside.phase {
            Phase::Started(_) => Ok(inside),
            Phase::Resting | Phase::Waiting => Err(Code::INVALID),
        }
    }

    /// Creates the wait for the next clause. The caller makes sure that the wait ends before the
    /// clauses are used again.
    fn selecting(
        &self,
        inside: &mut SelectState,
        limits: &Limits,
        parent: TokenId,
    ) -> Result<Selecting<'static, 'static>, Code> {
        if inside.clauses.is_empty() {
            return Err(Code::INVALID);
        }
        let stop = self.stop_for(limits, parent);
        // Checked after the token is stored: either this sees that the handle is gone, or `destroy`
        // triggers the token.
        if !self.is_open() {
            return Err(Code::CLOSED);
        }
        // SAFETY: the phase tells all other calls that the clauses are taken.
        let selecting = unsafe { inside.clauses.selector() }.next().cancel(&stop);
        Ok(match limits.wait {
            Wait::Forever => selecting,
            Wait::For(time) => selecting.timeout(time),
            Wait::Try => selecting.timeout(Duration::ZERO),
        })
    }

    /// Returns the result of a poll. If the select was destroyed meanwhile, no call could finish a
    /// pending wait, so this abandons it.
    fn ended(
        &self,
        polled: Poll<Result<Chosen, Error>>,
        inside: &mut SelectState,
        limits: &Limits,
    ) -> Result<Chosen, Code> {
        match polled {
            Poll::Ready(chosen) => chosen.map_err(|error| self.code(error, limits)),
            Poll::Pending if self.is_open() => Err(Code::NOT_FINISHED),
            Poll::Pending => {
                let _ = inside.abandon(&self.stop);
                Err(Code::INVALID)
            }
        }
    }

    /// Returns the code of a wait that failed.
    fn code(&self, error: Error, limits: &Limits) -> Code {
        match error.kind() {
            ErrorKind::Timeout if limits.wait == Wait::Try => Code::WOULD_BLOCK,
            ErrorKind::Cancelled if !self.is_open() => Code::CLOSED,
            kind => kind.into(),
        }
    }
}

impl SelectState {
    /// Polls the started wait until a clause is chosen, or until the wait can be left pending with
    /// its alert armed. Wake-ups must be noted already. When the wait ends, also returns its calls,
    /// if one is running on another thread.
    ///
    /// # Safety
    /// The destinations of receive clauses can be written to.
    unsafe fn drive(&mut self) -> (Poll<Result<Chosen, Error>>, Option<Arc<Calls>>) {
        let waker = self.alerts.waker();
        let mut context = Context::from_waker(&waker);
        loop {
            let polled = match &mut self.phase {
                Phase::Started(selecting) => {
                    // SAFETY: the wait never moves out of its select, where it is dropped in place.
                    unsafe { Pin::new_unchecked(selecting) }.poll(&mut context)
                }
                Phase::Resting | Phase::Waiting => unreachable!("only a started wait is driven"),
            };
            if let Poll::Ready(ended) = polled {
                self.phase = Phase::Resting;
                let running = self.alerts.quiet();
                let chosen = ended.map(|index| Chosen {
                    index,
                    // SAFETY: the wait is over; the caller's promise.
                    result: unsafe { self.clauses.result(index) },
                });
                return (Poll::Ready(chosen), running);
            }
            if self.alerts.arm() {
                return (Poll::Pending, None);
            }
            self.alerts.listen();
        }
    }

    /// Gives up the started wait. A send clause whose element a receiver took first has happened.
    /// An element that a receive clause was given goes back.
    fn abandon(&mut self, stop: &Mutex<Stop>) -> (Result<Chosen, Code>, Option<Arc<Calls>>) {
        // Before anything else, because the token wakes the alert, too.
        let running = self.alerts.quiet();
        lock(stop).token.cancel();
        let ended = match &mut self.phase {
            Phase::Started(selecting) => {
                // SAFETY: the wait never moves out of its select, where it is dropped in place.
                give_up(unsafe { Pin::new_unchecked(selecting) }, &self.alerts.waker())
            }
            Phase::Resting | Phase::Waiting => unreachable!("only a started wait is abandoned"),
        };
        self.phase = Phase::Resting;
        let chosen = match ended {
            Ok(index) if self.clauses.is_send(index) => {
                // SAFETY: the wait is over, and a send clause writes nowhere.
                let result = unsafe { self.clauses.result(index) };
                Ok(Chosen { index, result })
            }
            Ok(_) => {
                // SAFETY: the wait is over.
                unsafe { self.clauses.forget() };
                Err(Code::CANCELLED)
            }
            Err(_) => Err(Code::CANCELLED),
        };
        (chosen, running)
    }
}

/// Ends a wait whose token was triggered. Returns the clause that was chosen, if any.
fn give_up(
    selecting: Pin<&mut Selecting<'static, 'static>>,
    waker: &Waker,
) -> Result<usize, Error> {
    match selecting.poll(&mut Context::from_waker(waker)) {
        Poll::Ready(ended) => ended,
        Poll::Pending => unreachable!("a cancelled operation ends when it is polled"),
    }
}

fn lock(stop: &Mutex<Stop>) -> MutexGuard<'_, Stop> {
    stop.lock().unwrap_or_else(PoisonError::into_inner)
}
