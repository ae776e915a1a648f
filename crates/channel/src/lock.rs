//! The short lock: one atomic exchange to take, one store to release.
//!
//! A holder keeps the lock for tens of nanoseconds, never across a waker, a callback or a value's
//! `Drop`, so a waiter first spins. The wait is longer only if the holder was descheduled. Then the
//! waiter yields, and then it sleeps for growing, bounded times, so that a low-priority holder gets
//! to run also under real-time scheduling. A release never *wakes* a waiter: so it is one store.
//!
//! A release may leave a [`Hint`] in the lock: what the next operation would find. Since nothing
//! changes without the lock, a hint is exact for as long as it stands. Reading it costs nothing.
//!
//! `acquire` and `release` are separate from the guard because a select takes several locks of
//! different types at once (always in address order).

#[cfg(not(marline_model))]
pub use real::RawLock;

#[cfg(marline_model)]
pub use model::RawLock;

use std::{
    cell::UnsafeCell,
    ops::{Deref, DerefMut},
};

/// The facts that a free lock shows about the state behind it: any of the constants below, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hint(u8);

impl Hint {
    pub(crate) const NONE: Hint = Hint(0);
    /// A receive would find nothing.
    pub(crate) const EMPTY: Hint = Hint(2);
    /// A send would find no room.
    pub(crate) const FULL: Hint = Hint(4);

    #[inline(always)]
    pub(crate) fn when(self, it_is_so: bool) -> Hint {
        if it_is_so { self } else { Hint::NONE }
    }

    pub(crate) fn and(self, other: Hint) -> Hint {
        Hint(self.0 | other.0)
    }
}

/// How long to stay away from a lock that is held. The choice depends on the caller, because that
/// tells what the holder is about to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pause {
    /// The caller is a thread that sends or receives one value. The holder does the same, and then
    /// waits for the caller.
    Short,
    /// The caller is a thread on a channel whose buffer holds a batch. The holder is in the middle
    /// of a run of its own, and the two sides meet once a batch instead of once a value.
    Batch,
    /// The caller is a task. Its runtime has other tasks to run on the holder's thread, too.
    Task,
}

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
        self.lock_after(Pause::Short)
    }

    /// Locks. If the lock is held, pauses for as long as `pause` says before the next attempt.
    #[inline(always)]
    pub(crate) fn lock_after(&self, pause: Pause) -> Guard<'_, S> {
        self.raw.acquire(pause);
        Guard { lock: self }
    }

    pub(crate) fn raw(&self) -> &RawLock {
        &self.raw
    }

    /// Whether the lock is free and carries `hint`. Does not take the lock, so the answer may be
    /// out of date by now.
    #[inline(always)]
    pub(crate) fn says(&self, hint: Hint) -> bool {
        self.raw.says(hint)
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

impl<S> Guard<'_, S> {
    /// Releases the lock and leaves `hint`, which must be true of the state.
    #[inline(always)]
    pub(crate) fn release(self, hint: Hint) {
        // SAFETY: the lock was taken in `lock` and is released once: the guard is forgotten.
        unsafe { self.lock.raw.release_with(hint) };
        std::mem::forget(self);
    }
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
        // SAFETY: the lock was taken in `lock` and is released once, here.
        unsafe { self.lock.raw.release() }
    }
}

#[cfg(not(marline_model))]
mod real {
    use std::{
        hint,
        sync::atomic::{AtomicU8, Ordering},
        thread,
        time::Duration,
    };

    use super::{Hint, Pause};

    /// The word of a held lock. The word of a free lock is its hint.
    const HELD: u8 = 1;

    /// How many pauses to make before giving up the time slice. Each is twice as long as the one
    /// before. A pause does not read the word: that would take the cache line away from the holder.
    const PAUSES: u32 = 4;
    // The first pause for each `Pause`, in turns of a spin loop.
    const FIRST_SHORT_PAUSE: u32 = 4;
    const FIRST_BATCH_PAUSE: u32 = 16;
    const FIRST_TASK_PAUSE: u32 = 64;
    /// How often to give up the time slice before sleeping.
    const YIELDS: u32 = 16;
    /// The longest sleep between two attempts, in microseconds: a bound on the delay after a
    /// preempted holder goes on.
    const LONGEST_SLEEP_MICROS: u64 = 1_000;

    pub struct RawLock {
        word: AtomicU8,
    }

    impl RawLock {
        pub(super) const fn new() -> RawLock {
            RawLock { word: AtomicU8::new(Hint::NONE.0) }
        }

        #[inline(always)]
        pub(crate) fn acquire(&self, pause: Pause) {
            if !self.try_acquire() {
                self.acquire_contended(pause);
            }
        }

        #[cold]
        #[inline(never)]
        fn acquire_contended(&self, pause: Pause) {
            let first_pause = match pause {
                Pause::Short => FIRST_SHORT_PAUSE,
                Pause::Batch => FIRST_BATCH_PAUSE,
                Pause::Task => FIRST_TASK_PAUSE,
            };
            let mut sleep_micros = 50;
            for turn in 0.. {
                if turn < PAUSES && crate::park::other_cpus() {
                    (0..first_pause << turn).for_each(|_| hint::spin_loop());
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
            self.word.swap(HELD, Ordering::Acquire) != HELD
        }

        #[inline(always)]
        pub(super) fn says(&self, hint: Hint) -> bool {
            self.word.load(Ordering::Relaxed) & (HELD | hint.0) == hint.0
        }

        /// The order in which an operation takes several locks: by address.
        pub(crate) fn order(&self) -> usize {
            std::ptr::from_ref(self).addr()
        }

        /// # Safety
        /// This thread holds the lock.
        #[inline(always)]
        pub(crate) unsafe fn release(&self) {
            // SAFETY: the caller's promise.
            unsafe { self.release_with(Hint::NONE) }
        }

        /// # Safety
        /// As for [`RawLock::release`].
        #[inline(always)]
        pub(super) unsafe fn release_with(&self, hint: Hint) {
            self.word.store(hint.0, Ordering::Release);
        }
    }
}

#[cfg(marline_model)]
mod model {
    use std::{
        cell::UnsafeCell,
        sync::atomic::{AtomicUsize, Ordering},
    };

    use super::{Hint, Pause};

    /// loom's mutex. Its guard is stored inside, so that other code can release it.
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

        pub(crate) fn acquire(&self, _pause: Pause) {
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

        /// Always false: hints would give the checker more to model and nothing more to find, since
        /// no operation parks without an attempt under the lock.
        pub(super) fn says(&self, _hint: Hint) -> bool {
            false
        }

        /// The order by age: addresses differ from run to run, and a model must not.
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

        /// # Safety
        /// As for [`RawLock::release`].
        pub(super) unsafe fn release_with(&self, _hint: Hint) {
            // SAFETY: the caller's promise.
            unsafe { self.release() }
        }
    }
}
