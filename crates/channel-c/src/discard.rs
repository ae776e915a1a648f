//! The end of elements that were sent and will never be received: dropped by an overflow policy,
//! still inside when the channel was destroyed, or impossible to map. Each comes here exactly once,
//! and the channel's `on_drop` sees it.

use std::{
    ffi::c_void,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::{
    calls::Hook,
    element::Element,
    options::Mode,
    zero_copy::{Counters, Descriptor},
};

/// An element that will never be received, as `on_drop` sees it. Valid during the call only.
#[repr(C)]
pub struct Dropped {
    /// The mode of its channel (enum marline_mode). It says which of the fields below are used.
    pub mode: u32,
    /// Always 0.
    pub reserved: u32,
    /// COPY: the element's bytes, which are gone after the call. POINTER: the pointer that was
    /// sent, which is yours again. DESCRIPTOR: the sender's address of the buffer.
    pub ptr: *mut c_void,
    /// COPY: the element size. POINTER: the length that was sent. DESCRIPTOR: the buffer's length.
    pub len: usize,
    /// DESCRIPTOR: the descriptor. It is released when the call returns.
    pub descriptor: Descriptor,
}

/// Called once with each element that was sent and will never be received, on the thread that
/// caused it and outside all locks. It may use any channel. It must return, and not by longjmp or
/// an exception.
pub type OnDropFn = Option<unsafe extern "C" fn(dropped: *const Dropped, user: *mut c_void)>;

type DropHook = Hook<unsafe extern "C" fn(*const Dropped, *mut c_void)>;

/// The state that a channel shares with the discards of its queue.
#[derive(Default)]
pub(crate) struct Discards {
    hook: Mutex<Option<Arc<DropHook>>>,
    /// Set before the channel closes, to tell elements that the close ended from those that
    /// overflowed.
    pub(crate) closing: AtomicBool,
    pub(crate) zero_copy: Counters,
}

impl Discards {
    /// Replaces the callback. After this the old callback is not called and does not run, except
    /// further out on this thread's stack.
    pub(crate) fn set(&self, function: OnDropFn, user: *mut c_void) {
        let hook = function.map(|function| Arc::new(Hook::new(function, user)));
        let old = std::mem::replace(&mut *self.hook(), hook);
        if let Some(old) = old {
            old.revoke();
        }
    }

    fn hook(&self) -> MutexGuard<'_, Option<Arc<DropHook>>> {
        self.hook.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends an element: shows it to the callback, and releases it.
    pub(crate) fn end(&self, element: Element) {
        let dropped = view(&element);
        loop {
            let Some(hook) = self.hook().clone() else {
                break;
            };
            // SAFETY: C gave the function for this, and `dropped` outlives the call.
            if hook.call(|function, user| unsafe { function(&dropped, user) }) {
                break;
            }
            // The callback was replaced just now: call the next one.
        }
        if let Element::Descriptor(flight) = element {
            if flight.is_zero_copy() && self.closing.load(Ordering::Relaxed) {
                self.zero_copy.count_aborted();
            }
            flight.end();
        }
    }
}

fn view(element: &Element) -> Dropped {
    let (mode, ptr, len, descriptor) = match element {
        Element::Inline { .. } | Element::Boxed(_) => {
            let (ptr, len) = element.bytes().expect("a copied element has bytes");
            (Mode::Copy, ptr.cast_mut(), len, Descriptor::none())
        }
        Element::Pointer(pointer) => (Mode::Pointer, pointer.ptr, pointer.len, Descriptor::none()),
        Element::Descriptor(flight) => {
            let descriptor = flight.descriptor();
            (Mode::Descriptor, descriptor.addr, descriptor.len, descriptor)
        }
    };
    Dropped { mode: mode as u32, reserved: 0, ptr, len, descriptor }
}
