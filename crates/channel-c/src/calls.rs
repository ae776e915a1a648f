//! Callbacks that can be taken back: which calls into foreign code are running, and a wait for
//! their end.
//!
//! Whoever takes a callback back first makes sure that no *new* call begins ([`Calls::close`], or
//! the state of an `alert`), then waits for those under way. A callback that takes itself back is
//! on this thread's stack and would wait for itself: such calls are told apart by a list of frames,
//! one per running call, from the innermost outwards.

use std::{cell::Cell, ffi::c_void, ptr};

use crate::sync::{AtomicUsize, Ordering, backoff, broken};

/// The running calls of one callback.
pub(crate) struct Calls {
    /// How many there are, and [`CLOSED`]. One word, so that a call that begins and a close see
    /// each other, whoever is first.
    word: AtomicUsize,
}

const CLOSED: usize = 1 << (usize::BITS - 1);

/// One call on this thread's stack. Its end is its drop, so that it ends however the call does.
struct Frame<'a> {
    calls: &'a Calls,
    outer: *const Frame<'static>,
}

#[cfg(not(marline_model))]
thread_local! {
    static INNERMOST: Cell<*const Frame<'static>> = const { Cell::new(ptr::null()) };
}

#[cfg(marline_model)]
loom::thread_local! {
    static INNERMOST: Cell<*const Frame<'static>> = Cell::new(ptr::null());
}

impl Drop for Frame<'_> {
    fn drop(&mut self) {
        INNERMOST.with(|innermost| innermost.set(self.outer));
        // Release: what the call did comes before whatever its end is waited for.
        self.calls.word.fetch_sub(1, Ordering::Release);
    }
}

impl Calls {
    pub(crate) fn new() -> Calls {
        Calls { word: AtomicUsize::new(0) }
    }

    /// Runs `call`, unless closed. It is counted before it looks at anything, so that whoever
    /// comes too late to stop it sees it.
    pub(crate) fn run<R>(&self, call: impl FnOnce() -> R) -> Option<R> {
        let before = self.word.fetch_add(1, Ordering::AcqRel);
        let frame = Frame { calls: self, outer: INNERMOST.with(Cell::get) };
        INNERMOST.with(|innermost| innermost.set(ptr::from_ref(&frame).cast()));
        if before & CLOSED != 0 && !broken("a-closed-callback-is-not-called") {
            return None;
        }
        Some(call())
    }

    /// No call begins from here on.
    fn close(&self) {
        self.word.fetch_or(CLOSED, Ordering::AcqRel);
    }

    /// Whether a call runs on another thread.
    pub(crate) fn is_running_elsewhere(&self) -> bool {
        let running = self.word.load(Ordering::Acquire) & !CLOSED;
        running > 0 && running > self.running_here()
    }

    /// Waits until no call runs on another thread. Callbacks are short; no one wakes this.
    pub(crate) fn wait(&self) {
        if broken("wait-for-running-calls") {
            return;
        }
        backoff(|| !self.is_running_elsewhere());
    }

    fn running_here(&self) -> usize {
        let (mut at, mut count) = (INNERMOST.with(Cell::get), 0);
        while !at.is_null() {
            // SAFETY: frames on the list are on this thread's stack, further out than this one.
            let frame = unsafe { &*at };
            count += usize::from(ptr::eq(frame.calls, self));
            at = frame.outer;
        }
        count
    }
}

/// A pointer the library only hands back. Its meaning, also across threads, is C's affair.
#[derive(Clone, Copy)]
pub(crate) struct User(pub(crate) *mut c_void);

// SAFETY: never dereferenced here; the header tells callers that callbacks come on any thread.
unsafe impl Send for User {}
// SAFETY: as above.
unsafe impl Sync for User {}

/// A callback that may be called any number of times until it is taken back.
pub(crate) struct Hook<F> {
    function: F,
    user: User,
    calls: Calls,
}

impl<F: Copy> Hook<F> {
    pub(crate) fn new(function: F, user: *mut c_void) -> Hook<F> {
        Hook { function, user: User(user), calls: Calls::new() }
    }

    /// Calls it through `call`; false when it was taken back.
    pub(crate) fn call(&self, call: impl FnOnce(F, *mut c_void)) -> bool {
        self.calls.run(|| call(self.function, self.user.0)).is_some()
    }

    /// After this the callback is not called and does not run, except further out on this thread.
    pub(crate) fn revoke(&self) {
        self.calls.close();
        self.calls.wait();
    }
}

#[cfg(all(test, not(marline_model)))]
mod tests {
    use super::*;
    use std::{
        sync::atomic::{AtomicBool, AtomicU32},
        thread,
    };

    #[test]
    fn taking_back_waits_for_a_call_on_another_thread() {
        let (inside, release, returned) =
            (AtomicBool::new(false), AtomicBool::new(false), AtomicBool::new(false));
        let hook = Hook::new((), ptr::null_mut());
        thread::scope(|scope| {
            scope.spawn(|| {
                hook.call(|(), _| {
                    inside.store(true, Ordering::SeqCst);
                    backoff(|| release.load(Ordering::SeqCst));
                    assert!(!returned.load(Ordering::SeqCst), "did not wait for the call");
                })
            });
            backoff(|| inside.load(Ordering::SeqCst));
            assert!(hook.calls.is_running_elsewhere());
            scope.spawn(|| {
                hook.revoke();
                returned.store(true, Ordering::SeqCst);
            });
            backoff(|| hook.calls.word.load(Ordering::SeqCst) & CLOSED != 0);
            release.store(true, Ordering::SeqCst);
        });
        assert!(!hook.call(|(), _| panic!("called after it was taken back")));
    }

    #[test]
    fn a_callback_may_take_itself_back_also_from_a_call_inside_a_call() {
        let times = AtomicU32::new(0);
        let hook = Hook::new((), ptr::null_mut());
        hook.call(|(), _| {
            hook.call(|(), _| {
                times.fetch_add(1, Ordering::Relaxed);
                hook.revoke();
            });
            assert!(!hook.call(|(), _| ()));
        });
        assert_eq!(times.load(Ordering::Relaxed), 1);
        assert!(INNERMOST.get().is_null());
    }
}
