//! The border itself: no panic crosses it, and pointers are looked at before they are used.
//!
//! Every function of the ABI that can fail runs its body through [`enter`].

use std::{
    ffi::c_int,
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
};

use crate::code::{Code, number};

/// Runs the body of an ABI function.
#[inline(always)]
pub(crate) fn enter(body: impl FnOnce() -> Result<(), Code>) -> c_int {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(result) => number(result),
        Err(panic) => {
            // Dropping it could panic again; a bug may leak.
            mem::forget(panic);
            Code::INTERNAL.negative()
        }
    }
}

/// Where a result goes: neither null nor misaligned.
#[inline(always)]
pub(crate) fn checked<T>(pointer: *mut T) -> Result<*mut T, Code> {
    if pointer.is_null() || !pointer.is_aligned() {
        return Err(Code::INVALID);
    }
    Ok(pointer)
}

/// A structure given by the caller: neither null nor misaligned.
#[inline(always)]
pub(crate) fn checked_const<T>(pointer: *const T) -> Result<*const T, Code> {
    checked(pointer.cast_mut()).map(<*mut T>::cast_const)
}

/// Stores a result through a pointer that may be null.
///
/// # Safety
/// A pointer that is not null can be written to.
pub(crate) unsafe fn store<T>(pointer: *mut T, value: T) {
    if !pointer.is_null() {
        // SAFETY: the caller's promise; C may hand in what it likes to call aligned.
        unsafe { pointer.write_unaligned(value) }
    }
}
