//! Runs several pieces of user code (wakers, `on_drop`, a value's `Drop`, observers) so that a
//! panic in one does not keep the others from running. The first panic resumes afterwards.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
};

/// Runs pieces one by one and remembers the first panic.
#[derive(Default)]
pub(crate) struct FirstPanic(Option<Box<dyn Any + Send>>);

impl FirstPanic {
    pub(crate) fn run(&mut self, piece: impl FnOnce()) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(piece)) {
            self.0.get_or_insert(panic);
        }
    }

    /// Resumes the remembered panic, unless this thread is unwinding already.
    pub(crate) fn resume(self) {
        if let Some(panic) = self.0
            && !std::thread::panicking()
        {
            resume_unwind(panic);
        }
    }
}
