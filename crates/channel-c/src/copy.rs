//! COPY channels: elements of one size, copied in and out.

use std::ffi::{c_int, c_void};

use crate::{
    alert::WakeFn,
    border::enter,
    channel::{Channel, ChannelId},
    code::Code,
    element::{Destination, Element},
    limits::Limits,
    operation::{OpId, Operation},
    options::Mode,
    token::TokenId,
    zero_copy::Route,
};

/// Fails unless elements of this channel can be copied to or from `place`.
#[inline(always)]
fn check(channel: &Channel, place: *const c_void, size: usize) -> Result<(), Code> {
    if channel.mode != Mode::Copy || place.is_null() || size != channel.element_size {
        return Err(Code::INVALID);
    }
    Ok(())
}

/// Copies the element that a caller wants to send.
///
/// # Safety
/// An element that is not null can be read for `size` bytes.
#[inline(always)]
pub(crate) unsafe fn element(
    channel: &Channel,
    element: *const c_void,
    size: usize,
) -> Result<Element, Code> {
    check(channel, element, size)?;
    // SAFETY: the caller's promise.
    unsafe { Element::copied(element, size, &channel.blocks) }
}

/// Returns the destination of a receive.
#[inline(always)]
pub(crate) fn destination(
    channel: &Channel,
    element: *mut c_void,
    size: usize,
) -> Result<Destination, Code> {
    check(channel, element, size)?;
    Ok(Destination::Bytes(element))
}

/// Sends a copy of *element, whose size must be the channel's element size. timeout_ms: 0 tries
/// without waiting, < 0 waits without a limit, > 0 waits that many milliseconds. Unless this
/// returns 0, nothing was sent.
///
/// EAGAIN: no room (timeout_ms 0). ETIME. EPIPE: closed. EINTR (on an INTERRUPTIBLE channel).
/// EINVAL: no such channel, not a COPY channel, another size, or a null pointer. ENOMEM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn marline_send(
    channel: ChannelId,
    element: *const c_void,
    size: usize,
    timeout_ms: i64,
) -> c_int {
    // SAFETY: the same contract.
    unsafe { marline_send_c(channel, element, size, timeout_ms, 0) }
}

/// Like marline_send, but also ends with ECANCELED when the token is triggered. A token that was
/// triggered before the call ends it without an attempt. A token of 0 means none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn marline_send_c(
    channel: ChannelId,
    element: *const c_void,
    size: usize,
    timeout_ms: i64,
    token: TokenId,
) -> c_int {
    enter(|| {
        let limits = Limits::of(timeout_ms, token)?;
        let channel = Channel::in_use(channel)?;
        // SAFETY: the caller's promise.
        let element = unsafe { self::element(&channel, element, size)? };
        channel.send(element, Route::Plain, &limits)
    })
}

/// The start form of marline_send: returns at once, with EINPROGRESS if the send has to wait. See
/// marline_op_create. This call copies the element.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn marline_send_start(
    op: OpId,
    channel: ChannelId,
    element: *const c_void,
    size: usize,
    timeout_ms: i64,
    token: TokenId,
    wake_fn: WakeFn,
    user: *mut c_void,
) -> c_int {
    enter(|| {
        let limits = Limits::of(timeout_ms, token)?;
        let channel = Channel::of(channel)?;
        // SAFETY: the caller's promise.
        let element = unsafe { self::element(&channel, element, size)? };
        Operation::start_send(op, channel, element, Route::Plain, &limits, wake_fn, user)
    })
}

/// Receives into *element, whose size must be the channel's element size. timeout_ms: 0 tries
/// without waiting, < 0 waits without a limit, > 0 waits that many milliseconds. Unless this
/// returns 0, nothing was taken and *element is untouched.
///
/// EAGAIN: no element (timeout_ms 0). ETIME. EPIPE: closed and drained (also with timeout_ms 0).
/// EINTR (on an INTERRUPTIBLE channel). EINVAL: no such channel, not a COPY channel, another size,
/// or a null pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn marline_recv(
    channel: ChannelId,
    element: *mut c_void,
    size: usize,
    timeout_ms: i64,
) -> c_int {
    // SAFETY: the same contract.
    unsafe { marline_recv_c(channel, element, size, timeout_ms, 0) }
}

/// Like marline_recv, but also ends with ECANCELED when the token is triggered. A token that was
/// triggered before the call ends it without an attempt. A token of 0 means none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn marline_recv_c(
    channel: ChannelId,
    element: *mut c_void,
    size: usize,
    timeout_ms: i64,
    token: TokenId,
) -> c_int {
    enter(|| {
        let limits = Limits::of(timeout_ms, token)?;
        let channel = Channel::in_use(channel)?;
        let to = destination(&channel, element, size)?;
        // SAFETY: the caller's promise.
        unsafe { channel.recv(to, &limits) }
    })
}

/// The start form of marline_recv: returns at once, with EINPROGRESS if the receive has to wait.
/// See marline_op_create. *element must stay valid until the operation is finished or abandoned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn marline_recv_start(
    op: OpId,
    channel: ChannelId,
    element: *mut c_void,
    size: usize,
    timeout_ms: i64,
    token: TokenId,
    wake_fn: WakeFn,
    user: *mut c_void,
) -> c_int {
    enter(|| {
        let limits = Limits::of(timeout_ms, token)?;
        let channel = Channel::of(channel)?;
        let to = destination(&channel, element, size)?;
        // SAFETY: the caller's promise.
        unsafe { Operation::start_recv(op, channel, to, &limits, wake_fn, user) }
    })
}
