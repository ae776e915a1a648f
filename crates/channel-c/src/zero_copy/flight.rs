//! A buffer on its way through a channel: a descriptor that owns its lease.
//!
//! It ends in one of three ways: it lands (the receiver has it, and releases it later), it is
//! ended (it was sent, and nobody will receive it), or it is dropped, which withdraws it: it was
//! never sent, and the buffer is its sender's as before.

use std::{ffi::c_void, mem, ptr};

use super::{
    lease::{self, LeaseId},
    region::RegionId,
};
use crate::code::Code;

/// A received buffer: read it, then give it back with marline_zc_release.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Descriptor {
    /// Where the buffer is for the receiver.
    pub addr: *mut c_void,
    /// Its length in bytes.
    pub len: usize,
    /// The region it lies in; 0 when it was copied.
    pub region_id: RegionId,
    /// Where in the region it begins, in bytes.
    pub offset: u64,
    /// Bits of enum marline_zc_flag.
    pub flags: u32,
    /// Always 0.
    pub reserved: u32,
    /// Names this one use of the buffer, for marline_zc_release.
    pub lease: u64,
}

/// What is special about a descriptor.
#[repr(C)]
pub enum ZcFlag {
    /// The buffer is a private copy made by the library; marline_zc_release frees it.
    Copied = 1,
    /// The address was made by the region's map_fn.
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
    /// The descriptor's lease is nobody else's to end.
    pub(super) unsafe fn new(descriptor: Descriptor) -> Flight {
        Flight { descriptor }
    }

    pub(crate) fn descriptor(&self) -> Descriptor {
        self.descriptor
    }

    pub(crate) fn is_zero_copy(&self) -> bool {
        self.descriptor.flags & ZcFlag::Copied as u32 == 0
    }

    /// Hands the buffer to its receiver; in vain when it cannot be mapped.
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
        // Unless `on_drop` released it already.
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
