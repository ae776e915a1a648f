//! Callbacks that can be revoked: which calls into foreign code are running, and a wait for their
//! end.
//!
//! A thread that revokes a callback first makes sure that no *new* call begins ([`Calls::close`],
//! or the state of an `alert`), then waits for the running calls. A callback that revokes itself is
//! on this thread's stack and would wait for itself. A list of frames tells such calls apart: one
//! frame per call that runs on this thread, from the innermost outwards.

use std::{cell::Cell, ffi::c_void, ptr};

use crate::sync::{AtomicUsize, Ordering, backoff, broken};

/// The running calls of one callback.
pub(crate) struct Calls {
    /// How many calls run, and [`CLOSED`]. It is one word, so that a call that begins and a close
    /// see each other, whichever comes first.
    word: AtomicUsize,
}

const CLOSED: usize = 1 << (usize::BITS - 1);

/// One call on this thread's stack. Its drop ends it, so that it ends however the call ends.
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
        // Release: what the call did happens before anything that waits for its end.
        self.calls.word.fetch_sub(1, Ordering::Release);
    }
}

impl Calls {
    pub(crate) fn new() -> Calls {
        Calls { word: AtomicUsize::new(0) }
    }

    /// Runs `call`, unless closed. The call is counted before it checks anything, so that a thread
    /// that closes too late to stop the call sees it.
    pub(crate) fn run<R>(&self, call: impl FnOnce() -> R) -> Option<R> {
        let before = self.word.fetch_add(1, Ordering::AcqRel);
        let frame = Frame { calls: self, outer: INNERMOST.with(Cell::get) };
        INNERMOST.with(|innermost| innermost.set(ptr::from_ref(&frame).cast()));
        if before & CLOSED != 0 && !broken("a-closed-callback-is-not-called") {
            return None;
        }
        Some(call())
    }

    /// Closes: no call begins from here on.
    fn close(&self) {
        self.word.fetch_or(CLOSED, Ordering::AcqRel);
    }

    /// Whether a call runs on another thread.
    pub(crate) fn is_running_elsewhere(&self) -> bool {
        let running = self.word.load(Ordering::Acquire) & !CLOSED;
        running > 0 && running > self.running_here()
    }

    /// Waits until no call runs on another thread. Callbacks are short, so this only polls: the end
    /// of a call wakes no waiter.
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

/// A pointer that the library only passes back. Only C knows its meaning, also across threads.
#[derive(Clone, Copy)]
pub(crate) struct User(pub(crate) *mut c_void);

// SAFETY: the pointer is never dereferenced here; the header says that callbacks run on any thread.
unsafe impl Send for User {}
// SAFETY: as above.
unsafe impl Sync for User {}

/// A callback that may be called any number of times until it is revoked.
pub(crate) struct Hook<F> {
    function: F,
    user: User,
    calls: Calls,
}

impl<F: Copy> Hook<F> {
    pub(crate) fn new(function: F, user: *mut c_void) -> Hook<F> {
        Hook { function, user: User(user), calls: Calls::new() }
    }

    /// Calls the callback through `call`. Returns false if it was revoked.
    pub(crate) fn call(&self, call: impl FnOnce(F, *mut c_void)) -> bool {
        self.calls.run(|| call(self.function, self.user.0)).is_some()
    }

    /// Revokes the callback: after this it is not called and does not run, except further out on
    /// this thread's stack.
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
    fn revoke_waits_for_a_running_call_on_another_thread() {
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
        assert!(!hook.call(|(), _| panic!("called after it was revoked")));
    }

    #[test]
    fn a_callback_may_revoke_itself_even_from_a_nested_call() {
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
