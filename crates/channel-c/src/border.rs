//! The border between C and Rust: no panic crosses it, and pointers are checked before their use.
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
            // Dropping the panic could panic again. After a bug a leak is acceptable.
            mem::forget(panic);
            Code::INTERNAL.negative()
        }
    }
}

/// Checks a pointer to which a result goes: it must be neither null nor misaligned.
#[inline(always)]
pub(crate) fn checked<T>(pointer: *mut T) -> Result<*mut T, Code> {
    if pointer.is_null() || !pointer.is_aligned() {
        return Err(Code::INVALID);
    }
    Ok(pointer)
}

/// Checks a pointer to a structure of the caller: it must be neither null nor misaligned.
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
        // SAFETY: the caller's promise; a pointer from C may be misaligned.
        unsafe { pointer.write_unaligned(value) }
    }
}
