//! An alert tells a coroutine library that an operation can be finished: a waker that calls
//! `wake_fn`.
//!
//! `wake_fn` is called only for an operation that was left pending, at most once each time that it
//! was left pending, and never after the operation was finished or abandoned, although wakers are
//! called late, twice and from any thread. The state of an alert is one word:
//!
//! - QUIET: the operation rests. A wake-up is a late one and means nothing.
//! - LISTENING: `start` or `finish` is polling the operation. A wake-up is noted (HEARD), and the
//!   thread that polls then polls again instead of leaving the operation pending.
//! - ARMED: the operation was left pending. The first wake-up sets FIRED and calls `wake_fn`.
//!
//! A late waker still refers to its alert, so an alert is used for another operation only when
//! nothing else refers to it. An operation object has two alerts that take turns, so that an
//! operation which is started again from inside its own `wake_fn` does not allocate either. Calls
//! are counted per operation object, whichever alert they come from.

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

/// Called when an operation can be finished: make its waiter run again, and return. The call comes
/// on any thread, also on one that is inside another marline function, and maybe before the start
/// form has returned. It may itself finish or abandon the operation. It must return, and not by
/// longjmp, an exception or a switch to another stack.
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
    /// The callback. Changed only while nothing else refers to the alert.
    target: UnsafeCell<(WakeFn, User)>,
}

// SAFETY: the target is only read while there is more than one reference, and only changed while
// there is one, see `Alerts::begin`.
unsafe impl Sync for Alert {}

impl Alert {
    fn new(calls: &Arc<Calls>) -> Arc<Alert> {
        Arc::new(Alert {
            state: AtomicU8::new(QUIET),
            calls: calls.clone(),
            target: UnsafeCell::new((None, User(ptr::null_mut()))),
        })
    }

    /// Calls `wake_fn` for a wake-up. Returns false if the alert was no longer armed.
    fn fire(&self) -> bool {
        // The call is counted before the exchange decides about it, so that a thread that finds
        // FIRED sees the call.
        let fired = self.calls.run(|| {
            let fired =
                self.state.compare_exchange(ARMED, FIRED, Ordering::AcqRel, Ordering::Relaxed);
            if fired.is_err() {
                return false;
            }
            // SAFETY: the target is not changed while this waker refers to the alert.
            if let (Some(wake_fn), user) = unsafe { *self.target.get() } {
                // SAFETY: C gave the function for this, and the pointer with it.
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
                // `finish` came first, and listens now.
                ARMED => continue,
                LISTENING => HEARD,
                // HEARD or FIRED already. The state is written again, so that the thread that
                // listens next also sees what this wake-up is about.
                same => same,
            };
            let exchange =
                self.state.compare_exchange(state, next, Ordering::AcqRel, Ordering::Relaxed);
            if exchange.is_ok() {
                return;
            }
        }
    }
}

/// Whether nothing else refers to an alert. (There are no weak references, which `Arc::get_mut`
/// would lock out.)
#[inline(always)]
fn is_unique(alert: &Arc<Alert>) -> bool {
    let unique = Arc::strong_count(alert) == 1;
    // What the last other reference did happens before what this thread does now.
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

    /// Prepares an alert for an operation that begins. Wake-ups are noted from here on.
    #[inline(always)]
    pub(crate) fn begin(&mut self, wake_fn: WakeFn, user: *mut c_void) {
        if !is_unique(&self.pair[self.current]) {
            self.turn();
        }
        let alert = &self.pair[self.current];
        // SAFETY: nothing else refers to the alert, and only this operation creates references.
        unsafe { *alert.target.get() = (wake_fn, User(user)) };
        alert.state.store(LISTENING, Ordering::Release);
    }

    /// Goes on to the other alert, because a late waker still refers to the current one.
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

    /// Notes wake-ups from here on. The thread then sees what earlier wake-ups were about.
    #[inline(always)]
    pub(crate) fn listen(&self) {
        self.alert().state.swap(LISTENING, Ordering::AcqRel);
    }

    /// Leaves the operation pending. Returns false if a wake-up was noted.
    #[inline(always)]
    pub(crate) fn arm(&self) -> bool {
        self.alert()
            .state
            .compare_exchange(LISTENING, ARMED, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Ends the alert with its operation: no call begins from here on. Returns the calls if one is
    /// running on another thread. The caller waits for that call after it has unlocked everything,
    /// because the call may want to finish the operation.
    #[inline(always)]
    pub(crate) fn quiet(&self) -> Option<Arc<Calls>> {
        let state = &self.alert().state;
        if state.load(Ordering::Acquire) == ARMED {
            state.swap(QUIET, Ordering::AcqRel);
        } else {
            // A noted wake-up means nothing now, and no other thread changes FIRED.
            state.store(QUIET, Ordering::Release);
        }
        self.calls.is_running_elsewhere().then(|| self.calls.clone())
    }

    /// Returns the waker to poll with. It does not count as a reference.
    #[inline(always)]
    pub(crate) fn waker(&self) -> ManuallyDrop<Waker> {
        // SAFETY: the number of references does not change: the waker is never dropped, and is
        // borrowed for no longer than a poll, while the pair holds the alert.
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
