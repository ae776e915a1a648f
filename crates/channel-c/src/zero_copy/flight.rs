//! A flight is a buffer on its way through a channel: a descriptor that owns its lease.
//!
//! A flight ends in one of three ways:
//! - [`Flight::deliver`]: the receiver has the buffer, and releases it later.
//! - [`Flight::end`]: the buffer was sent, and will never be received.
//! - A drop withdraws the buffer: it was never sent, and stays with its sender.

use std::{ffi::c_void, mem, ptr};

use super::{
    lease::{self, LeaseId},
    region::RegionId,
};
use crate::code::Code;

/// A received buffer: read it, then release it with marline_zc_release.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Descriptor {
    /// The address of the buffer for the receiver.
    pub addr: *mut c_void,
    /// Its length in bytes.
    pub len: usize,
    /// The region that contains the buffer; 0 if the buffer was copied.
    pub region_id: RegionId,
    /// The offset of the buffer in the region, in bytes.
    pub offset: u64,
    /// Bits of enum marline_zc_flag.
    pub flags: u32,
    /// Always 0.
    pub reserved: u32,
    /// Names this one use of the buffer, for marline_zc_release.
    pub lease: u64,
}

/// Bits of struct marline_descriptor.flags.
#[repr(C)]
pub enum ZcFlag {
    /// The buffer is a private copy that the library made. marline_zc_release frees it.
    Copied = 1,
    /// The address comes from the region's map_fn.
    Mapped = 2,
}

impl Descriptor {
    pub(crate) const fn none() -> Descriptor {
        Descriptor {
            addr: ptr::null_mut(),
            len: 0,
            region_id: 0,
            offset: 0,
            flags: 0,
            reserved: 0,
            lease: 0,
        }
    }
}

pub(crate) struct Flight {
    descriptor: Descriptor,
}

impl Flight {
    /// # Safety
    /// Nothing else ends the descriptor's lease.
    pub(super) unsafe fn new(descriptor: Descriptor) -> Flight {
        Flight { descriptor }
    }

    pub(crate) fn descriptor(&self) -> Descriptor {
        self.descriptor
    }

    pub(crate) fn is_zero_copy(&self) -> bool {
        self.descriptor.flags & ZcFlag::Copied as u32 == 0
    }

    /// Delivers the buffer to its receiver. Returns the flight if the buffer cannot be mapped.
    pub(crate) fn deliver(mut self) -> Result<Descriptor, (Code, Flight)> {
        match lease::map(self.lease()) {
            Err(code) => return Err((code, self)),
            Ok(None) => {}
            Ok(Some(addr)) => {
                self.descriptor.addr = addr;
                self.descriptor.flags |= ZcFlag::Mapped as u32;
            }
        }
        let descriptor = self.descriptor;
        mem::forget(self);
        Ok(descriptor)
    }

    /// Ends the use of a buffer that was sent and will not be received.
    pub(crate) fn end(self) {
        // Does nothing if `on_drop` released the buffer already.
        lease::end(self.lease());
        mem::forget(self);
    }

    fn lease(&self) -> LeaseId {
        self.descriptor.lease
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        lease::withdraw(self.lease());
    }
}
