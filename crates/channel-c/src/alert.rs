//! Telling a coroutine library that an operation can be finished: a waker that calls `wake_fn`.
//!
//! `wake_fn` is called only for an operation that was left pending, at most once each time it was,
//! and never after the operation was finished or abandoned, although wakers are called late, twice
//! and from any thread. What an alert is doing is one word:
//!
//! - QUIET: the operation rests; wake-ups are late ones and mean nothing.
//! - LISTENING: `start` or `finish` is polling it; a wake-up is noted (HEARD), and whoever polls
//!   looks again instead of leaving.
//! - ARMED: it was left pending; the first wake-up makes it FIRED and calls.
//!
//! A late waker still refers to its alert, so an alert is used for another operation only when
//! nobody else refers to it; there are two to take turns, so that an operation which is started
//! again from inside its own `wake_fn` does not allocate either. Calls are counted per operation,
//! whichever alert they come from.

use std::{
    cell::UnsafeCell,
    ffi::c_void,
    mem::ManuallyDrop,
    ptr,
    sync::Arc,
    task::{Wake, Waker},
};

use crate::{
    calls::{Calls, User},
    sync::{AtomicU8, Ordering, broken, fence},
};

/// Tells that an operation can be finished: make its waiter run again, and return. It is called on
/// any thread, also one that is inside another marline function, and maybe before the start form
/// has returned; it may itself finish or abandon the operation. It must return, and not by longjmp,
/// an exception or a switch to another stack.
pub type WakeFn = Option<unsafe extern "C" fn(user: *mut c_void)>;

const QUIET: u8 = 0;
const LISTENING: u8 = 1;
const HEARD: u8 = 2;
const ARMED: u8 = 3;
const FIRED: u8 = 4;

struct Alert {
    state: AtomicU8,
    /// The calls of the operation.
    calls: Arc<Calls>,
    /// Whom to tell; changed only while nobody else refers to the alert.
    target: UnsafeCell<(WakeFn, User)>,
}

// SAFETY: the target is only read while there is more than one reference, see `Alerts::begin`.
unsafe impl Sync for Alert {}

impl Alert {
    fn new(calls: &Arc<Calls>) -> Arc<Alert> {
        Arc::new(Alert {
            state: AtomicU8::new(QUIET),
            calls: calls.clone(),
            target: UnsafeCell::new((None, User(ptr::null_mut()))),
        })
    }

    /// Tells of a wake-up; false when the alert was no longer armed.
    fn fire(&self) -> bool {
        // The call is counted before it is decided, so that whoever finds FIRED sees it.
        let fired = self.calls.run(|| {
            let fired =
                self.state.compare_exchange(ARMED, FIRED, Ordering::AcqRel, Ordering::Relaxed);
            if fired.is_err() {
                return false;
            }
            // SAFETY: not changed while this waker refers to the alert.
            if let (Some(wake_fn), user) = unsafe { *self.target.get() } {
                // SAFETY: a function C gave for this, with the pointer it gave with it.
                unsafe { wake_fn(user.0) }
            }
            true
        });
        fired == Some(true)
    }
}

impl Wake for Alert {
    fn wake(self: Arc<Alert>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Alert>) {
        loop {
            let state = self.state.load(Ordering::Acquire);
            let next = match state {
                QUIET => return,
                HEARD if broken("note-again") => return,
                ARMED if self.fire() => return,
                ARMED if broken("tell-or-note") => return,
                // `finish` was faster, and listens.
                ARMED => continue,
                LISTENING => HEARD,
                // Noted or told already; written again, so that whoever listens next sees what
                // this wake-up is about, too.
                told => told,
            };
            let exchange =
                self.state.compare_exchange(state, next, Ordering::AcqRel, Ordering::Relaxed);
            if exchange.is_ok() {
                return;
            }
        }
    }
}

/// Whether nobody else refers to an alert. (There are no weak references, which is what
/// `Arc::get_mut` would lock out.)
#[inline(always)]
fn is_unique(alert: &Arc<Alert>) -> bool {
    let unique = Arc::strong_count(alert) == 1;
    // What the last other reference did comes before what is done now.
    fence(Ordering::Acquire);
    unique
}

/// The alerts of one operation.
pub(crate) struct Alerts {
    pair: [Arc<Alert>; 2],
    current: usize,
    calls: Arc<Calls>,
}

impl Alerts {
    pub(crate) fn new() -> Alerts {
        let calls = Arc::new(Calls::new());
        Alerts { pair: [Alert::new(&calls), Alert::new(&calls)], current: 0, calls }
    }

    /// Prepares an alert for an operation that begins; wake-ups are noted.
    #[inline(always)]
    pub(crate) fn begin(&mut self, wake_fn: WakeFn, user: *mut c_void) {
        if !is_unique(&self.pair[self.current]) {
            self.turn();
        }
        let alert = &self.pair[self.current];
        // SAFETY: nobody else refers to it, and only this operation makes further references.
        unsafe { *alert.target.get() = (wake_fn, User(user)) };
        alert.state.store(LISTENING, Ordering::Release);
    }

    /// A late waker still refers to the current alert: the other one's turn.
    #[cold]
    fn turn(&mut self) {
        self.current = 1 - self.current;
        if !is_unique(&self.pair[self.current]) {
            self.pair[self.current] = Alert::new(&self.calls);
        }
    }

    #[inline(always)]
    fn alert(&self) -> &Arc<Alert> {
        &self.pair[self.current]
    }

    /// Wake-ups are noted from here on, and what earlier ones were about is seen.
    #[inline(always)]
    pub(crate) fn listen(&self) {
        self.alert().state.swap(LISTENING, Ordering::AcqRel);
    }

    /// Leaves the operation pending; false when a wake-up was noted.
    #[inline(always)]
    pub(crate) fn arm(&self) -> bool {
        self.alert()
            .state
            .compare_exchange(LISTENING, ARMED, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// The operation is over: no call begins from here on. Returns its calls when one is running
    /// on another thread; that is waited for after everything has been unlocked, as it may want to
    /// finish the operation.
    #[inline(always)]
    pub(crate) fn quiet(&self) -> Option<Arc<Calls>> {
        let state = &self.alert().state;
        if state.load(Ordering::Acquire) == ARMED {
            state.swap(QUIET, Ordering::AcqRel);
        } else {
            // What was noted means nothing now, and nobody else goes on from FIRED.
            state.store(QUIET, Ordering::Release);
        }
        self.calls.is_running_elsewhere().then(|| self.calls.clone())
    }

    /// The waker to poll with, not counted as a reference.
    #[inline(always)]
    pub(crate) fn waker(&self) -> ManuallyDrop<Waker> {
        // SAFETY: as many references as there were: the waker is never dropped, and is borrowed
        // for no longer than a poll, while the pair holds the alert.
        let uncounted = unsafe { Arc::from_raw(Arc::as_ptr(self.alert())) };
        ManuallyDrop::new(Waker::from(uncounted))
    }
}

impl Drop for Alerts {
    fn drop(&mut self) {
        if let Some(calls) = self.quiet() {
            calls.wait();
        }
    }
}

#[cfg(all(test, not(marline_model)))]
mod tests;
