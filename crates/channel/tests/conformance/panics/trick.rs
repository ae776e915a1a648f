//! A waker that panics on request.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{RawWaker, RawWakerVTable, Waker},
};

/// A waker that panics once wherever a flag says so. It is leaked, so that its vtable has nothing
/// to count.
#[derive(Default)]
pub struct Trick {
    pub wakes: AtomicUsize,
    pub at_wake: AtomicBool,
    pub at_clone: AtomicBool,
    pub at_drop: AtomicBool,
    /// Run at the next clone.
    pub on_clone: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Trick {
    pub fn new() -> &'static Trick {
        Box::leak(Box::default())
    }

    pub fn waker(&'static self) -> Waker {
        let data = std::ptr::from_ref(self).cast();
        // SAFETY: the vtable expects a leaked `Trick`, and its functions are thread-safe.
        unsafe { Waker::from_raw(RawWaker::new(data, &VTABLE)) }
    }

    fn spring(flag: &AtomicBool, words: &'static str) {
        if flag.swap(false, Ordering::SeqCst) {
            std::panic::panic_any(words);
        }
    }
}

static VTABLE: RawWakerVTable = RawWakerVTable::new(
    |data| {
        let trick = trick(data);
        let on_clone = trick.on_clone.lock().unwrap().take();
        if let Some(on_clone) = on_clone {
            on_clone();
        }
        Trick::spring(&trick.at_clone, "clone");
        RawWaker::new(data, &VTABLE)
    },
    wake,
    wake,
    |data| Trick::spring(&trick(data).at_drop, "drop"),
);

fn trick(data: *const ()) -> &'static Trick {
    // SAFETY: `data` comes from `Trick::waker`, and points at a leaked box.
    unsafe { &*data.cast::<Trick>() }
}

fn wake(data: *const ()) {
    let trick = trick(data);
    trick.wakes.fetch_add(1, Ordering::SeqCst);
    Trick::spring(&trick.at_wake, "wake");
}

/// Returns a waker whose wake-up panics.
pub fn panicking_wake() -> Waker {
    let trick = Trick::new();
    trick.at_wake.store(true, Ordering::SeqCst);
    trick.waker()
}
