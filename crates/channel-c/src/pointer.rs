//! POINTER channels: a pointer with a length. The receiver owns the memory behind it. Until a send
//! returns 0 the sender does.

use std::ffi::{c_int, c_void};

use crate::{
    alert::WakeFn,
    border::{checked, enter},
    channel::{Channel, ChannelId},
    code::Code,
    element::{Destination, Element, Pointer},
    limits::Limits,
    operation::{OpId, Operation},
    options::Mode,
    token::TokenId,
    zero_copy::Route,
};

/// Returns the element that a caller wants to send.
pub(crate) fn element(channel: &Channel, ptr: *mut c_void, len: usize) -> Result<Element, Code> {
    if channel.mode != Mode::Pointer || ptr.is_null() {
        return Err(Code::INVALID);
    }
    Ok(Element::Pointer(Pointer { ptr, len }))
}

/// Returns the destination of a receive.
pub(crate) fn destination(
    channel: &Channel,
    ptr: *mut *mut c_void,
    len: *mut usize,
) -> Result<Destination, Code> {
    if channel.mode != Mode::Pointer {
        return Err(Code::INVALID);
    }
    let (ptr, len) = (checked(ptr)?, checked(len)?);
    Ok(Destination::Pointer { ptr, len })
}

/// Sends a pointer and a length. When this returns 0, the memory behind the pointer is the
/// receiver's. Otherwise it stays yours. The library never reads it. Waits like marline_send.
///
/// EAGAIN, ETIME, EPIPE, EINTR as for marline_send. EINVAL: no such channel, not a POINTER channel,
/// or a null pointer.
#[unsafe(no_mangle)]
pub extern "C" fn marline_send_ptr(
    channel: ChannelId,
    ptr: *mut c_void,
    len: usize,
    timeout_ms: i64,
) -> c_int {
    marline_send_ptr_c(channel, ptr, len, timeout_ms, 0)
}

/// Like marline_send_ptr, with a cancel token; see marline_send_c.
#[unsafe(no_mangle)]
pub extern "C" fn marline_send_ptr_c(
    channel: ChannelId,
    ptr: *mut c_void,
    len: usize,
    timeout_ms: i64,
    token: TokenId,
) -> c_int {
    enter(|| {
        let limits = Limits::of(timeout_ms, token)?;
        let channel = Channel::in_use(channel)?;
        let element = element(&channel, ptr, len)?;
        channel.send(element, Route::Plain, &limits)
    })
}

/// The start form of marline_send_ptr; see marline_op_create. The memory behind ptr stays yours
/// until the operation has ended with 0.
#[unsafe(no_mangle)]
pub extern "C" fn marline_send_ptr_start(
    op: OpId,
    channel: ChannelId,
    ptr: *mut c_void,
    len: usize,
    timeout_ms: i64,
    token: TokenId,
    wake_fn: WakeFn,
    user: *mut c_void,
) -> c_int {
    enter(|| {
        let limits = Limits::of(timeout_ms, token)?;
        let channel = Channel::of(channel)?;
        let element = element(&channel, ptr, len)?;
        Operation::start_send(op, channel, element, Route::Plain, &limits, wake_fn, user)
    })
}

/// Receives a pointer and its length. When this returns 0, the memory behind the pointer is yours.
/// Waits like marline_recv.
///
/// EAGAIN, ETIME, EPIPE, EINTR as for marline_recv. EINVAL: no such channel, not a POINTER channel,
/// or a null pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn marline_recv_ptr(
    channel: ChannelId,
    ptr: *mut *mut c_void,
    len: *mut usize,
    timeout_ms: i64,
) -> c_int {
    // SAFETY: the same contract.
    unsafe { marline_recv_ptr_c(channel, ptr, len, timeout_ms, 0) }
}

/// Like marline_recv_ptr, with a cancel token; see marline_recv_c.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn marline_recv_ptr_c(
    channel: ChannelId,
    ptr: *mut *mut c_void,
    len: *mut usize,
    timeout_ms: i64,
    token: TokenId,
) -> c_int {
    enter(|| {
        let limits = Limits::of(timeout_ms, token)?;
        let channel = Channel::in_use(channel)?;
        let to = destination(&channel, ptr, len)?;
        // SAFETY: the caller's promise.
        unsafe { channel.recv(to, &limits) }
    })
}

/// The start form of marline_recv_ptr; see marline_op_create. *ptr and *len must stay valid until
/// the operation is finished or abandoned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn marline_recv_ptr_start(
    op: OpId,
    channel: ChannelId,
    ptr: *mut *mut c_void,
    len: *mut usize,
    timeout_ms: i64,
    token: TokenId,
    wake_fn: WakeFn,
    user: *mut c_void,
) -> c_int {
    enter(|| {
        let limits = Limits::of(timeout_ms, token)?;
        let channel = Channel::of(channel)?;
        let to = destination(&channel, ptr, len)?;
        // SAFETY: the caller's promise.
        unsafe { Operation::start_recv(op, channel, to, &limits, wake_fn, user) }
    })
}
