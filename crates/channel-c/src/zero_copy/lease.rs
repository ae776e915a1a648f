//! A lease is one use of a buffer, from its send until its receiver releases it. It is a handle
//! like any other, so that a descriptor that is released twice, or made up, ends nothing.

use std::{
    ffi::c_void,
    ptr,
    sync::atomic::{AtomicPtr, Ordering},
};

use super::region::Region;
use crate::{
    blocks::Block,
    code::Code,
    table::{Object, Ref, Table},
};

pub(super) type LeaseId = u64;

pub(super) enum Lease {
    /// A buffer inside a region, which counts it as in flight.
    Buffer {
        region: Ref<Region>,
        offset: u64,
        len: usize,
        /// The address that the backend's map returned.
        mapped: AtomicPtr<c_void>,
    },
    /// A private copy, freed with the lease.
    Copy(#[expect(dead_code, reason = "held for its memory")] Block),
}

impl Object for Lease {
    const ID_TAG: u64 = 6;

    fn table() -> &'static Table<Lease> {
        static LEASES: Table<Lease> = Table::new();
        &LEASES
    }
}

impl Lease {
    /// Creates a lease of a buffer that `region` has counted as in flight.
    pub(super) fn of_buffer(region: Ref<Region>, offset: u64, len: usize) -> Result<LeaseId, Code> {
        let lease = Lease::Buffer { region, offset, len, mapped: AtomicPtr::new(ptr::null_mut()) };
        Lease::table().insert(lease).map_err(|lease| {
            lease.uncount();
            Code::NO_MEMORY
        })
    }

    pub(super) fn of_copy(block: Block) -> Result<LeaseId, Code> {
        Lease::table().insert(Lease::Copy(block)).map_err(|_| Code::NO_MEMORY)
    }

    fn uncount(&self) {
        if let Lease::Buffer { region, .. } = self {
            region.uncount_in_flight();
        }
    }
}

/// Maps a leased buffer for its receiver. Returns the new address, or None if the buffer stays
/// where it is.
pub(super) fn map(id: LeaseId) -> Result<Option<*mut c_void>, Code> {
    let lease = Lease::table().get(id).ok_or(Code::INTERNAL)?;
    let Lease::Buffer { region, offset, len, mapped } = &*lease else {
        return Ok(None);
    };
    let addr = region.backend.map(*offset, *len)?;
    mapped.store(addr.unwrap_or(ptr::null_mut()), Ordering::Release);
    Ok(addr)
}

/// Ends a lease whose buffer was never sent: the buffer stays with its sender.
pub(super) fn withdraw(id: LeaseId) {
    if let Some(lease) = Lease::table().remove(id) {
        lease.uncount();
    }
}

/// Ends a lease whose buffer was sent: tells the backend that the buffer is free. Returns false if
/// there was no such lease.
pub(super) fn end(id: LeaseId) -> bool {
    let Some(lease) = Lease::table().remove(id) else {
        return false;
    };
    if let Lease::Buffer { region, offset, len, mapped } = &*lease {
        region.backend.release(*offset, *len, mapped.load(Ordering::Acquire));
    }
    // After the call of the backend, so that a deregister that returns leaves no such call behind.
    lease.uncount();
    true
}
