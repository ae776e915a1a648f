//! The switch between the real primitives and the model checker's (`--cfg marline_model`), for the
//! lock-free parts: handle slots, running calls, alerts and the lock that knows its thread
//! (`exclusive`). The models are in `model.rs`.

#[cfg(not(marline_model))]
pub(crate) use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering, fence};

#[cfg(marline_model)]
pub(crate) use loom::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering, fence};

/// Waits until `done` returns true, which takes about as long as a short call on another thread.
#[cfg(not(marline_model))]
pub(crate) fn backoff(done: impl Fn() -> bool) {
    use std::{hint, thread, time::Duration};
    const SPINS: u32 = 64;
    const YIELDS: u32 = 64;
    /// The longest sleep between two checks: a bound on the delay after a callback that took long.
    const LONGEST_SLEEP: Duration = Duration::from_millis(1);
    let mut looks = 0;
    let mut sleep = Duration::from_micros(50);
    while !done() {
        if looks < SPINS {
            hint::spin_loop();
        } else if looks < SPINS + YIELDS {
            thread::yield_now();
        } else {
            thread::sleep(sleep);
            sleep = (sleep * 2).min(LONGEST_SLEEP);
        }
        looks += 1;
    }
}

#[cfg(marline_model)]
pub(crate) fn backoff(done: impl Fn() -> bool) {
    while !done() {
        loom::thread::yield_now();
    }
}

/// Returns a number that no other thread has. Never 0.
#[cfg(not(marline_model))]
#[inline(always)]
pub(crate) fn this_thread() -> usize {
    thread_local! {
        static MARK: u8 = const { 0 };
    }
    MARK.with(|mark| std::ptr::from_ref(mark).addr())
}

#[cfg(marline_model)]
pub(crate) fn this_thread() -> usize {
    loom::thread_local! {
        static MARK: Box<u8> = Box::new(0);
    }
    MARK.with(|mark| std::ptr::from_ref::<u8>(mark).addr())
}

/// Whether a model run asked for `step` to be left out (`MARLINE_BROKEN=step`).
#[cfg(marline_model)]
pub(crate) fn broken(step: &str) -> bool {
    static STEP: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    STEP.get_or_init(|| std::env::var("MARLINE_BROKEN").ok()).as_deref() == Some(step)
}

#[cfg(not(marline_model))]
#[inline(always)]
pub(crate) const fn broken(_step: &str) -> bool {
    false
}
