//! The switch between the real primitives and the model checker's (`--cfg marline_model`).
//!
//! The other modules are the same source in both builds, except for the lock (`lock.rs`) and one
//! line of `queue/node.rs`. A model run can leave out a step of the protocol, to show that the
//! models would notice: then [`broken`] returns `true` for that step. Outside the model checker
//! `broken` always returns `false`.

#[cfg(not(marline_model))]
pub(crate) use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering},
};

#[cfg(marline_model)]
pub(crate) use loom::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering},
};

/// A cell that the two parties of a hand-off share. The model checker checks every access against
/// every other.
pub(crate) struct Shared<T> {
    #[cfg(not(marline_model))]
    cell: std::cell::UnsafeCell<T>,
    #[cfg(marline_model)]
    cell: loom::cell::UnsafeCell<T>,
}

impl<T> Shared<T> {
    pub(crate) fn new(value: T) -> Shared<T> {
        #[cfg(not(marline_model))]
        let cell = std::cell::UnsafeCell::new(value);
        #[cfg(marline_model)]
        let cell = loom::cell::UnsafeCell::new(value);
        Shared { cell }
    }

    /// # Safety
    /// No other party may touch the cell for the duration of `f`.
    #[inline(always)]
    pub(crate) unsafe fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        #[cfg(not(marline_model))]
        // SAFETY: exclusive by the caller's promise.
        return f(unsafe { &mut *self.cell.get() });
        #[cfg(marline_model)]
        // SAFETY: exclusive by the caller's promise, which loom checks.
        return self.cell.with_mut(|pointer| f(unsafe { &mut *pointer }));
    }
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
