//! DESCRIPTOR channels: whether a buffer travels as it is or as a copy, and the functions that
//! send, receive and release.

use std::{
    ffi::{c_int, c_void},
    ptr,
};

use super::{
    counters::{Route, ZcCounters},
    flight::{Descriptor, Flight, ZcFlag},
    lease::{self, Lease},
    region::{FallbackReason, Region, RegionId},
};
use crate::{
    alert::WakeFn,
    blocks,
    border::{checked, checked_const, enter, store},
    channel::{Channel, ChannelId},
    code::Code,
    element::{Destination, Element},
    limits::Limits,
    operation::{OpId, Operation},
    options::Mode,
    token::TokenId,
};

/// Returns the element that a caller wants to send, and how it travels.
///
/// # Safety
/// A buffer inside the region can be read if it has to be copied.
pub(crate) unsafe fn element(
    channel: &Channel,
    region: RegionId,
    buffer: *mut c_void,
    len: usize,
) -> Result<(Element, Route), Code> {
    let region_id = region;
    let region = Region::of(region)?;
    let offset = region.offset(buffer, len)?;
    if channel.mode == Mode::Copy && len == channel.element_size {
        // SAFETY: the caller's promise.
        let element = unsafe { Element::copied(buffer, len, &channel.blocks)? };
        return Ok((element, Route::CopiedCapacity));
    }
    if channel.mode != Mode::Descriptor {
        return Err(Code::INVALID);
    }
    let (descriptor, route) = match region.count_in_flight(len)? {
        Ok(()) => {
            let descriptor = Descriptor {
                addr: buffer,
                len,
                region_id,
                offset,
                lease: Lease::of_buffer(region, offset, len)?,
                ..Descriptor::none()
            };
            (descriptor, Route::ZeroCopy)
        }
        Err(reason) => {
            let route = match reason {
                FallbackReason::Small => Route::CopiedSmall,
                FallbackReason::Capacity => Route::CopiedCapacity,
            };
            // SAFETY: the caller's promise.
            (unsafe { private_copy(buffer, len)? }, route)
        }
    };
    // SAFETY: the lease is new, so nothing else ends it.
    let flight = unsafe { Flight::new(descriptor) };
    Ok((Element::Descriptor(flight), route))
}

/// # Safety
/// The buffer can be read.
unsafe fn private_copy(buffer: *const c_void, len: usize) -> Result<Descriptor, Code> {
    let mut block = blocks::allocate(len)?;
    // SAFETY: the caller's promise, and the block has this size.
    unsafe { ptr::copy_nonoverlapping(buffer.cast(), block.as_mut_ptr(), len) };
    let addr = block.as_mut_ptr().cast();
    Ok(Descriptor {
        addr,
        len,
        flags: ZcFlag::Copied as u32,
        lease: Lease::of_copy(block)?,
        ..Descriptor::none()
    })
}

/// Returns the destination of a receive.
pub(crate) fn destination(
    channel: &Channel,
    descriptor: *mut Descriptor,
) -> Result<Destination, Code> {
    if channel.mode != Mode::Descriptor {
        return Err(Code::INVALID);
    }
    Ok(Destination::Descriptor(checked(descriptor)?))
}

/// Sends a buffer inside a region without copying it. When this returns 0, the buffer is the
/// receiver's until the receiver releases it. Unless this returns 0, the buffer stays yours. Copies
/// the buffer instead if a copy is better, or the only way (see struct marline_zc_counters). Then
/// *copied (which may be NULL) becomes true, and the buffer is yours again at once. Waits like
/// marline_send.
///
/// EAGAIN, ETIME, EPIPE, EINTR as for marline_send. EINVAL: no such channel or region, a region
/// that is being deregistered, a buffer that is empty or not inside the region, a POINTER channel,
/// or a COPY channel whose element size is not len. ENOMEM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn marline_send_zc(
    channel: ChannelId,
    region: RegionId,
    buffer: *mut c_void,
    len: usize,
    copied: *mut bool,
    timeout_ms: i64,
) -> c_int {
    // SAFETY: the same contract.
    unsafe { marline_send_zc_c(channel, region, buffer, len, copied, timeout_ms, 0) }
}

/// Like marline_send_zc, with a cancel token; see marline_send_c.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn marline_send_zc_c(
    channel: ChannelId,
    region: RegionId,
    buffer: *mut c_void,
    len: usize,
    copied: *mut bool,
    timeout_ms: i64,
    token: TokenId,
) -> c_int {
    enter(|| {
        let limits = Limits::of(timeout_ms, token)?;
        let channel = Channel::in_use(channel)?;
        // SAFETY: the caller's promise.
        let (element, route) = unsafe { element(&channel, region, buffer, len)? };
        // SAFETY: the caller's promise.
        unsafe { store(copied, route.is_copied()) };
        channel.send(element, route, &limits)
    })
}

/// The start form of marline_send_zc; see marline_op_create. This call sets *copied. A buffer that
/// is not copied is lent until the operation has ended. If it ended with 0, the buffer is the
/// receiver's, otherwise yours.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn marline_send_zc_start(
    op: OpId,
    channel: ChannelId,
    region: RegionId,
    buffer: *mut c_void,
    len: usize,
    copied: *mut bool,
    timeout_ms: i64,
    token: TokenId,
    wake_fn: WakeFn,
    user: *mut c_void,
) -> c_int {
    enter(|| {
        let limits = Limits::of(timeout_ms, token)?;
        let channel = Channel::of(channel)?;
        // SAFETY: the caller's promise.
        let (element, route) = unsafe { element(&channel, region, buffer, len)? };
        // SAFETY: the caller's promise.
        unsafe { store(copied, route.is_copied()) };
        Operation::start_send(op, channel, element, route, &limits, wake_fn, user)
    })
}

/// Receives a buffer. You may read it until you release it with marline_zc_release. Waits like
/// marline_recv.
///
/// EAGAIN, ETIME, EPIPE, EINTR as for marline_recv. EINVAL: no such channel, not a DESCRIPTOR
/// channel, or a null pointer. Or the code that the region's map_fn returned: then the buffer went
/// to on_drop.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn marline_recv_zc(
    channel: ChannelId,
    descriptor: *mut Descriptor,
    timeout_ms: i64,
) -> c_int {
    // SAFETY: the same contract.
    unsafe { marline_recv_zc_c(channel, descriptor, timeout_ms, 0) }
}

/// Like marline_recv_zc, with a cancel token; see marline_recv_c.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn marline_recv_zc_c(
    channel: ChannelId,
    descriptor: *mut Descriptor,
    timeout_ms: i64,
    token: TokenId,
) -> c_int {
    enter(|| {
        let limits = Limits::of(timeout_ms, token)?;
        let channel = Channel::in_use(channel)?;
        let to = destination(&channel, descriptor)?;
        // SAFETY: the caller's promise.
        unsafe { channel.recv(to, &limits) }
    })
}

/// The start form of marline_recv_zc; see marline_op_create. *descriptor must stay valid until the
/// operation is finished or abandoned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn marline_recv_zc_start(
    op: OpId,
    channel: ChannelId,
    descriptor: *mut Descriptor,
    timeout_ms: i64,
    token: TokenId,
    wake_fn: WakeFn,
    user: *mut c_void,
) -> c_int {
    enter(|| {
        let limits = Limits::of(timeout_ms, token)?;
        let channel = Channel::of(channel)?;
        let to = destination(&channel, descriptor)?;
        // SAFETY: the caller's promise.
        unsafe { Operation::start_recv(op, channel, to, &limits, wake_fn, user) }
    })
}

/// Releases a received buffer, and calls the release_fn of its region. Release every received
/// descriptor exactly once.
///
/// EINVAL: a null pointer, or a descriptor that was released before or never received.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn marline_zc_release(descriptor: *const Descriptor) -> c_int {
    enter(|| {
        // SAFETY: not null and aligned; valid by the caller's promise.
        let descriptor = unsafe { &*checked_const(descriptor)? };
        match lease::end(descriptor.lease) {
            true => Ok(()),
            false => Err(Code::INVALID),
        }
    })
}

/// Stores the zero-copy counters of a channel in *counters.
///
/// EINVAL: no such channel, or a null pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn marline_zc_counters(
    channel: ChannelId,
    counters: *mut ZcCounters,
) -> c_int {
    enter(|| {
        let counters = checked(counters)?;
        let read = Channel::of(channel)?.discards.zero_copy.read();
        // SAFETY: not null and aligned; valid by the caller's promise.
        unsafe { counters.write(read) };
        Ok(())
    })
}
