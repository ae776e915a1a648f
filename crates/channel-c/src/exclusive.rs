//! A lock for handles that one thread uses at a time (operations, selects). If the thread that
//! holds the lock comes back for it, the lock fails instead of waiting for itself.
//!
//! That happens when a callback, called from inside an operation, uses the same operation. A thread
//! holds the lock for as long as a `start` or `finish` takes, so a second thread only spins and
//! yields.

use std::{
    cell::UnsafeCell,
    ops::{Deref, DerefMut},
};

use crate::{
    code::Code,
    sync::{AtomicUsize, Ordering, backoff, broken, this_thread},
};

pub(crate) struct Exclusive<T> {
    /// The thread that holds the lock, or 0.
    owner: AtomicUsize,
    inside: UnsafeCell<T>,
}

// SAFETY: only the owner reaches the inside.
unsafe impl<T: Send> Sync for Exclusive<T> {}

pub(crate) struct Guard<'a, T> {
    lock: &'a Exclusive<T>,
}

impl<T> Exclusive<T> {
    pub(crate) fn new(inside: T) -> Exclusive<T> {
        Exclusive { owner: AtomicUsize::new(0), inside: UnsafeCell::new(inside) }
    }

    /// Locks. Waits for another thread; fails with EINVAL if this thread holds the lock already.
    #[inline(always)]
    pub(crate) fn lock(&self) -> Result<Guard<'_, T>, Code> {
        let me = this_thread();
        if !self.try_take(me) {
            if self.owner.load(Ordering::Relaxed) == me {
                return Err(Code::INVALID);
            }
            backoff(|| self.try_take(me));
        }
        Ok(Guard { lock: self })
    }

    #[inline(always)]
    fn try_take(&self, me: usize) -> bool {
        self.owner.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed).is_ok()
            || broken("exclusive-excludes")
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the guard's thread is the owner.
        unsafe { &*self.lock.inside.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and the guard is borrowed mutably.
        unsafe { &mut *self.lock.inside.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.lock.owner.store(0, Ordering::Release);
    }
}

#[cfg(all(test, not(marline_model)))]
mod tests {
    use super::*;

    #[test]
    fn a_lock_fails_for_the_thread_that_holds_it_and_makes_others_wait() {
        let count = Exclusive::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..1_000 {
                        let mut inside = count.lock().unwrap();
                        assert_eq!(count.lock().err(), Some(Code::INVALID));
                        *inside += 1;
                    }
                });
            }
        });
        assert_eq!(*count.lock().unwrap(), 3_000);
    }
}
