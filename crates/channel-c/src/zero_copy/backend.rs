//! The backend of a region: a small table of functions, so that other memory (a device's, another
//! process's) can plug in. The built-in backend is plain memory of this process, which needs no
//! functions.

use std::{
    ffi::{c_int, c_void},
    ptr,
};

use crate::code::Code;

/// Adds memory to a backend. Returns 0 and sets *cookie, which later calls get, or returns a
/// negative errno, which marline_region_register passes on.
pub type RegisterFn = Option<
    unsafe extern "C" fn(
        addr: *mut c_void,
        len: usize,
        cookie: *mut u64,
        user: *mut c_void,
    ) -> c_int,
>;

/// Makes a buffer of the region reachable for its receiver, on the receiver's thread. Returns 0
/// and sets *addr, or returns a negative errno: then the receive fails with it and the buffer goes
/// to on_drop.
pub type MapFn = Option<
    unsafe extern "C" fn(
        cookie: u64,
        offset: u64,
        len: usize,
        addr: *mut *mut c_void,
        user: *mut c_void,
    ) -> c_int,
>;

/// Called once for each buffer that was sent, when it is no longer in use: its receiver released
/// it, or it was dropped. addr is the address from map_fn, or NULL.
pub type ReleaseFn = Option<
    unsafe extern "C" fn(
        cookie: u64,
        offset: u64,
        len: usize,
        addr: *mut c_void,
        user: *mut c_void,
    ),
>;

/// Called once, when the region is deregistered.
pub type DeregisterFn = Option<unsafe extern "C" fn(cookie: u64, user: *mut c_void)>;

/// The functions with which memory that is not plain memory of this process plugs in. Each may be
/// NULL: then that step does what plain memory needs, which is nothing. A backend with only
/// release_fn tells the owner of plain memory when a buffer may be used again.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ZcBackend {
    /// Called by marline_region_register.
    pub register_fn: RegisterFn,
    /// Called by a receive.
    pub map_fn: MapFn,
    /// Called by marline_zc_release.
    pub release_fn: ReleaseFn,
    /// Called by marline_region_deregister.
    pub deregister_fn: DeregisterFn,
    /// Passed to each of the functions.
    pub user: *mut c_void,
}

/// A registered backend: its functions, and its cookie for the memory.
pub(super) struct Backend {
    table: ZcBackend,
    cookie: u64,
}

// SAFETY: the functions and their user pointer come from C, which knows that they are called on the
// threads that send, receive and release.
unsafe impl Send for Backend {}
// SAFETY: as above.
unsafe impl Sync for Backend {}

const PLAIN: ZcBackend = ZcBackend {
    register_fn: None,
    map_fn: None,
    release_fn: None,
    deregister_fn: None,
    user: ptr::null_mut(),
};

impl Backend {
    pub(super) fn register(
        table: Option<&ZcBackend>,
        addr: *mut c_void,
        len: usize,
    ) -> Result<Backend, Code> {
        let table = *table.unwrap_or(&PLAIN);
        let mut cookie = 0;
        if let Some(register) = table.register_fn {
            // SAFETY: the backend's own function, called as its type says.
            succeeded(unsafe { register(addr, len, &mut cookie, table.user) })?;
        }
        Ok(Backend { table, cookie })
    }

    /// Returns the receiver's address of a buffer. None if the buffer stays where it is.
    pub(super) fn map(&self, offset: u64, len: usize) -> Result<Option<*mut c_void>, Code> {
        let Some(map) = self.table.map_fn else {
            return Ok(None);
        };
        let mut addr = ptr::null_mut();
        // SAFETY: as above.
        succeeded(unsafe { map(self.cookie, offset, len, &mut addr, self.table.user) })?;
        Ok(Some(addr))
    }

    pub(super) fn release(&self, offset: u64, len: usize, mapped: *mut c_void) {
        if let Some(release) = self.table.release_fn {
            // SAFETY: as above.
            unsafe { release(self.cookie, offset, len, mapped, self.table.user) }
        }
    }

    pub(super) fn deregister(&self) {
        if let Some(deregister) = self.table.deregister_fn {
            // SAFETY: as above.
            unsafe { deregister(self.cookie, self.table.user) }
        }
    }
}

fn succeeded(returned: c_int) -> Result<(), Code> {
    match returned {
        0 => Ok(()),
        failure => Err(Code::foreign(failure)),
    }
}
