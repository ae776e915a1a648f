//! The short lock: one atomic exchange to take, one store to release.
//!
//! It is held for tens of nanoseconds, never across a waker, a callback or a value's `Drop`, so a
//! waiter first spins. It waits longer only when the holder was descheduled; then it yields, and
//! then sleeps for growing, bounded times, so that a low-priority holder gets to run also under
//! real-time scheduling. Nobody is ever *woken* by a release: that is what makes it one store.
//!
//! `acquire` and `release` are apart from the guard because a select takes several locks of
//! different types at once (always in address order).

#[cfg(not(marline_model))]
pub use real::RawLock;

#[cfg(marline_model)]
pub use model::RawLock;

use std::{
    cell::UnsafeCell,
    ops::{Deref, DerefMut},
};

/// A value behind a [`RawLock`], which comes first so that both can share a cache line.
#[repr(C)]
pub(crate) struct Lock<S> {
    raw: RawLock,
    state: UnsafeCell<S>,
}

// SAFETY: the state is reached only through the guard, one thread at a time.
unsafe impl<S: Send> Send for Lock<S> {}
// SAFETY: as above.
unsafe impl<S: Send> Sync for Lock<S> {}

impl<S> Lock<S> {
    pub(crate) fn new(state: S) -> Lock<S> {
        Lock { raw: RawLock::new(), state: UnsafeCell::new(state) }
    }

    #[inline(always)]
    pub(crate) fn lock(&self) -> Guard<'_, S> {
        self.raw.acquire();
        Guard { lock: self }
    }

    pub(crate) fn raw(&self) -> &RawLock {
        &self.raw
    }

    /// The state, for a caller that took [`Lock::raw`] by hand.
    ///
    /// # Safety
    /// This thread holds the lock, and no guard or other such reference is live.
    #[expect(clippy::mut_from_ref, reason = "the lock is held by hand")]
    pub(crate) unsafe fn state(&self) -> &mut S {
        // SAFETY: exclusive by the caller's promise.
        unsafe { &mut *self.state.get() }
    }
}

pub(crate) struct Guard<'a, S> {
    lock: &'a Lock<S>,
}

impl<S> Deref for Guard<'_, S> {
    type Target = S;
    #[inline(always)]
    fn deref(&self) -> &S {
        // SAFETY: the guard is the proof that this thread holds the lock.
        unsafe { &*self.lock.state.get() }
    }
}

impl<S> DerefMut for Guard<'_, S> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut S {
        // SAFETY: as above, and the guard is borrowed mutably.
        unsafe { &mut *self.lock.state.get() }
    }
}

impl<S> Drop for Guard<'_, S> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: taken in `lock`, released once here.
        unsafe { self.lock.raw.release() }
    }
}

#[cfg(not(marline_model))]
mod real {
    use std::{
        hint,
        sync::atomic::{AtomicBool, Ordering},
        thread,
        time::Duration,
    };

    /// Pauses before giving up the time slice: this many, the first of this many turns of a spin
    /// loop, each twice the last. Nothing is looked at during a pause: looking would take the cache
    /// line away from the holder, who is in the middle of a run of its own.
    const PAUSES: u32 = 4;
    const FIRST_PAUSE: u32 = 8;
    /// How often to give up the time slice before sleeping.
    const YIELDS: u32 = 16;
    /// The longest sleep between two looks: a bound on the delay after a preempted holder goes on.
    const LONGEST_SLEEP_MICROS: u64 = 1_000;

    pub struct RawLock {
        held: AtomicBool,
    }

    impl RawLock {
        pub(super) const fn new() -> RawLock {
            RawLock { held: AtomicBool::new(false) }
        }

        #[inline(always)]
        pub(crate) fn acquire(&self) {
            if !self.try_acquire() {
                self.acquire_contended();
            }
        }

        #[cold]
        #[inline(never)]
        fn acquire_contended(&self) {
            let mut sleep_micros = 50;
            for turn in 0.. {
                if turn < PAUSES && crate::park::other_cpus() {
                    (0..FIRST_PAUSE << turn).for_each(|_| hint::spin_loop());
                } else if turn < PAUSES + YIELDS {
                    thread::yield_now();
                } else {
                    thread::sleep(Duration::from_micros(sleep_micros));
                    sleep_micros = (sleep_micros * 2).min(LONGEST_SLEEP_MICROS);
                }
                if self.try_acquire() {
                    return;
                }
            }
        }

        #[inline(always)]
        fn try_acquire(&self) -> bool {
            self.held.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
        }

        /// Who holds several locks takes them by this: their addresses.
        pub(crate) fn order(&self) -> usize {
            std::ptr::from_ref(self).addr()
        }

        /// # Safety
        /// This thread holds the lock.
        #[inline(always)]
        pub(crate) unsafe fn release(&self) {
            self.held.store(false, Ordering::Release);
        }
    }
}

#[cfg(marline_model)]
mod model {
    use std::{
        cell::UnsafeCell,
        sync::atomic::{AtomicUsize, Ordering},
    };

    /// loom's mutex, with its guard kept inside so that it can be released from elsewhere.
    pub struct RawLock {
        mutex: loom::sync::Mutex<()>,
        guard: UnsafeCell<Option<loom::sync::MutexGuard<'static, ()>>>,
        number: usize,
    }

    impl RawLock {
        pub(super) fn new() -> RawLock {
            static NUMBERS: AtomicUsize = AtomicUsize::new(0);
            RawLock {
                mutex: loom::sync::Mutex::new(()),
                guard: UnsafeCell::new(None),
                number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            }
        }

        pub(crate) fn acquire(&self) {
            let guard = self.mutex.lock().unwrap();
            // SAFETY: the guard is dropped in `release`, before the mutex can go; the cell is only
            // touched while the mutex is held.
            unsafe {
                let guard = std::mem::transmute::<
                    loom::sync::MutexGuard<'_, ()>,
                    loom::sync::MutexGuard<'static, ()>,
                >(guard);
                *self.guard.get() = Some(guard);
            }
        }

        /// By age: addresses differ from run to run, and a model must not.
        pub(crate) fn order(&self) -> usize {
            self.number
        }

        /// # Safety
        /// This thread holds the lock.
        pub(crate) unsafe fn release(&self) {
            // SAFETY: this thread holds the mutex.
            let guard = unsafe { (*self.guard.get()).take() };
            drop(guard);
        }
    }
}
