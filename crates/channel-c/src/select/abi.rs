//! The functions of the ABI for selects.

use std::ffi::{c_int, c_void};

use super::state::{Chosen, Select};
use crate::{
    alert::WakeFn,
    border::{checked, enter, store},
    channel::{Channel, ChannelId},
    code::{Code, number},
    copy,
    element::{Destination, Element},
    limits::Limits,
    pointer,
    table::{Object as _, Ref},
    token::TokenId,
    zero_copy::{self, Descriptor, RegionId, Route},
};

/// Names a select. Never 0.
pub type SelectId = u64;

/// Bits for marline_select_create.
#[repr(C)]
pub enum SelectFlag {
    /// Looks at the clauses in the order they were added, instead of in fair turns.
    Biased = 1,
    /// Passes over clauses whose channel is closed (and drained), instead of choosing them with
    /// EPIPE; when all are, the wait returns EPIPE.
    SkipClosed = 2,
    /// A blocking wait returns EINTR when a signal handler ran on its thread.
    Interruptible = 4,
}

/// Makes a select: a set of send and receive clauses of which a wait chooses one. Flags are bits of
/// enum marline_select_flag.
///
/// Add clauses, wait, look at which clause it was, wait again. A clause keeps its number (from 0,
/// in the order added) until marline_select_reset. A select is used by one thread at a time. It
/// keeps its channels, also when those are destroyed meanwhile: they are closed then.
///
/// EINVAL: unknown flags, or a null pointer. ENOMEM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn marline_select_create(flags: u32, select: *mut SelectId) -> c_int {
    enter(|| {
        let select = checked(select)?;
        if flags >= 8 {
            return Err(Code::INVALID);
        }
        let has = |flag: SelectFlag| flags & flag as u32 != 0;
        let new = Select::new(
            has(SelectFlag::Biased),
            has(SelectFlag::SkipClosed),
            has(SelectFlag::Interruptible),
        );
        let id = Select::table().insert(new).map_err(|_| Code::NO_MEMORY)?;
        // SAFETY: not null and aligned; valid by the caller's promise.
        unsafe { select.write(id) };
        Ok(())
    })
}

/// # Safety
/// A destination that can be written to during waits; an index that is null or can be written to.
unsafe fn add_recv(
    select: SelectId,
    channel: ChannelId,
    to: impl FnOnce(&Channel) -> Result<Destination, Code>,
    index: *mut usize,
) -> Result<(), Code> {
    let channel = Channel::of(channel)?;
    let to = to(&channel)?;
    // SAFETY: a select that rests; the caller's promise.
    let added = Select::of(select)?.change(|clauses| unsafe { clauses.add_recv(channel, to) })?;
    // SAFETY: the caller's promise.
    unsafe { store(index, added) };
    Ok(())
}

/// # Safety
/// An index that is null or can be written to.
unsafe fn add_send(
    select: SelectId,
    channel: Ref<Channel>,
    element: Element,
    route: Route,
    index: *mut usize,
) -> Result<(), Code> {
    let added = Select::of(select)?
        // SAFETY: a select that rests.
        .change(|clauses| unsafe { clauses.add_send(channel, element, route) })?;
    // SAFETY: the caller's promise.
    unsafe { store(index, added) };
    Ok(())
}

/// Adds a clause that receives from a COPY channel into *element, which must stay valid while the
/// select is waited for. *index (which may be NULL) becomes the clause's number.
///
/// EINVAL: no such select or channel, one that is being waited for, another mode or size, or a null
/// pointer. EMSGSIZE: over 65536 clauses. ENOMEM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn marline_select_add_recv(
    select: SelectId,
    channel: ChannelId,
    element: *mut c_void,
    size: usize,
    index: *mut usize,
) -> c_int {
    // SAFETY: the caller's promise.
    enter(|| unsafe {
        add_recv(select, channel, |channel| copy::destination(channel, element, size), index)
    })
}

/// Adds a clause that receives from a POINTER channel into *ptr and *len; otherwise like
/// marline_select_add_recv.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn marline_select_add_recv_ptr(
    select: SelectId,
    channel: ChannelId,
    ptr: *mut *mut c_void,
    len: *mut usize,
    index: *mut usize,
) -> c_int {
    // SAFETY: the caller's promise.
    enter(|| unsafe {
        add_recv(select, channel, |channel| pointer::destination(channel, ptr, len), index)
    })
}

/// Adds a clause that receives from a DESCRIPTOR channel into *descriptor; otherwise like
/// marline_select_add_recv.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn marline_select_add_recv_zc(
    select: SelectId,
    channel: ChannelId,
    descriptor: *mut Descriptor,
    index: *mut usize,
) -> c_int {
    // SAFETY: the caller's promise.
    enter(|| unsafe {
        add_recv(select, channel, |channel| zero_copy::destination(channel, descriptor), index)
    })
}

/// Adds a clause that sends a copy of *element, taken by this call, to a COPY channel. It sends
/// once: after it was chosen it is passed over until marline_select_refill.
///
/// Errors as for marline_select_add_recv.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn marline_select_add_send(
    select: SelectId,
    channel: ChannelId,
    element: *const c_void,
    size: usize,
    index: *mut usize,
) -> c_int {
    enter(|| {
        let channel = Channel::of(channel)?;
        // SAFETY: the caller's promise.
        let element = unsafe { copy::element(&channel, element, size)? };
        // SAFETY: the caller's promise.
        unsafe { add_send(select, channel, element, Route::Plain, index) }
    })
}

/// Adds a clause that sends a pointer to a POINTER channel. What it points at stays yours until the
/// clause was chosen with result 0, also when the select is reset or destroyed. Otherwise like
/// marline_select_add_send.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn marline_select_add_send_ptr(
    select: SelectId,
    channel: ChannelId,
    ptr: *mut c_void,
    len: usize,
    index: *mut usize,
) -> c_int {
    enter(|| {
        let channel = Channel::of(channel)?;
        let element = pointer::element(&channel, ptr, len)?;
        // SAFETY: the caller's promise.
        unsafe { add_send(select, channel, element, Route::Plain, index) }
    })
}

/// Adds a clause that sends a buffer inside a region, as marline_send_zc does; *copied (which may
/// be NULL) is set by this call. A buffer that is not copied is on loan, and in flight, until the
/// clause was chosen, refilled, reset or destroyed. Otherwise like marline_select_add_send.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn marline_select_add_send_zc(
    select: SelectId,
    channel: ChannelId,
    region: RegionId,
    buffer: *mut c_void,
    len: usize,
    copied: *mut bool,
    index: *mut usize,
) -> c_int {
    enter(|| {
        let channel = Channel::of(channel)?;
        // SAFETY: the caller's promise.
        let (element, route) = unsafe { zero_copy::element(&channel, region, buffer, len)? };
        // SAFETY: the caller's promise.
        unsafe { store(copied, route.is_copied()) };
        // SAFETY: the caller's promise.
        unsafe { add_send(select, channel, element, route, index) }
    })
}

/// Gives send clause `index` an element that `make` makes for a channel; `make` gets no channel
/// handle, as that may be destroyed by now.
fn refill(
    select: SelectId,
    index: usize,
    make: impl FnOnce(&Channel) -> Result<(Element, Route), Code>,
) -> Result<(), Code> {
    Select::of(select)?.change(|clauses| {
        let (element, route) = make(clauses.send_channel(index)?)?;
        // SAFETY: a select that rests.
        unsafe { clauses.refill(index, element, route) }
    })
}

/// Gives send clause number index a copy of *element to send next, in place of one it still had.
///
/// EINVAL: no such select or send clause, a select that is being waited for, another mode or size,
/// or a null pointer. ENOMEM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn marline_select_refill(
    select: SelectId,
    index: usize,
    element: *const c_void,
    size: usize,
) -> c_int {
    enter(|| {
        refill(select, index, |channel| {
            // SAFETY: the caller's promise.
            let element = unsafe { copy::element(channel, element, size)? };
            Ok((element, Route::Plain))
        })
    })
}

/// Gives send clause number index a pointer to send next; one it still had stays yours. Otherwise
/// like marline_select_refill.
#[unsafe(no_mangle)]
pub extern "C" fn marline_select_refill_ptr(
    select: SelectId,
    index: usize,
    ptr: *mut c_void,
    len: usize,
) -> c_int {
    enter(|| {
        refill(select, index, |channel| Ok((pointer::element(channel, ptr, len)?, Route::Plain)))
    })
}

/// Gives send clause number index a buffer inside a region to send next; one it still had is yours
/// again. Otherwise like marline_select_refill and marline_select_add_send_zc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn marline_select_refill_zc(
    select: SelectId,
    index: usize,
    region: RegionId,
    buffer: *mut c_void,
    len: usize,
    copied: *mut bool,
) -> c_int {
    enter(|| {
        refill(select, index, |channel| {
            // SAFETY: the caller's promise.
            let (element, route) = unsafe { zero_copy::element(channel, region, buffer, len)? };
            // SAFETY: the caller's promise.
            unsafe { store(copied, route.is_copied()) };
            Ok((element, route))
        })
    })
}

/// # Safety
/// Both can be written to.
unsafe fn report(
    ended: impl FnOnce() -> Result<Chosen, Code>,
    index: *mut usize,
    result: *mut c_int,
) -> Result<(), Code> {
    let (index, result) = (checked(index)?, checked(result)?);
    let chosen = ended()?;
    // SAFETY: not null and aligned; the caller's promise.
    unsafe {
        index.write(chosen.index);
        result.write(number(chosen.result));
    }
    Ok(())
}

/// Waits until one clause has happened, and only one. Returns 0 then, with its number in *index and
/// its result in *result: 0, or what the send or receive would have returned, such as EPIPE. The
/// other clauses have changed nothing. timeout_ms: 0 tries, < 0 waits for as long as it takes, > 0
/// waits that long.
///
/// Otherwise no clause has happened. EAGAIN: none could (timeout_ms 0). ETIME. EPIPE: all channels
/// are closed (with SKIP_CLOSED), or the select was destroyed. EINTR (with INTERRUPTIBLE). EINVAL:
/// no such select, one that is being waited for, a null pointer, no clauses, or only send clauses
/// that were not refilled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn marline_select_wait(
    select: SelectId,
    index: *mut usize,
    result: *mut c_int,
    timeout_ms: i64,
) -> c_int {
    // SAFETY: the same contract.
    unsafe { marline_select_wait_c(select, index, result, timeout_ms, 0) }
}

/// Like marline_select_wait, and ends with ECANCELED when the token is triggered. A token of 0 is
/// none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn marline_select_wait_c(
    select: SelectId,
    index: *mut usize,
    result: *mut c_int,
    timeout_ms: i64,
    token: TokenId,
) -> c_int {
    enter(|| {
        let limits = Limits::of(timeout_ms, token)?;
        let select = Select::of(select)?;
        // SAFETY: the caller's promise.
        unsafe { report(|| select.wait(&limits, token), index, result) }
    })
}

/// The start form of marline_select_wait; see marline_op_create. Here the select itself is the
/// operation object: EINPROGRESS, then wake_fn, then marline_select_finish. The places of receive
/// clauses must stay valid until then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn marline_select_start(
    select: SelectId,
    index: *mut usize,
    result: *mut c_int,
    timeout_ms: i64,
    token: TokenId,
    wake_fn: WakeFn,
    user: *mut c_void,
) -> c_int {
    enter(|| {
        let limits = Limits::of(timeout_ms, token)?;
        let select = Select::of(select)?;
        // SAFETY: the caller's promise.
        unsafe { report(|| select.start(&limits, token, wake_fn, user), index, result) }
    })
}

/// Ends a started select, with the results of marline_select_wait.
///
/// EINPROGRESS: no clause has happened yet; wake_fn will be called, again if it was before.
/// EINVAL: no such select, nothing was started, or a null pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn marline_select_finish(
    select: SelectId,
    index: *mut usize,
    result: *mut c_int,
) -> c_int {
    enter(|| {
        let select = Select::of(select)?;
        // SAFETY: the caller's promise.
        unsafe { report(|| select.finish(), index, result) }
    })
}

/// Gives up a started select; wake_fn is not called any more (nor does it run on another thread).
///
/// ECANCELED: no clause has happened; what a receive clause had been given is its channel's next
/// element. 0: a receiver was faster to take a send clause: that has happened, see *index and
/// *result. EINVAL: no such select, nothing was started, or a null pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn marline_select_abandon(
    select: SelectId,
    index: *mut usize,
    result: *mut c_int,
) -> c_int {
    enter(|| {
        let select = Select::of(select)?;
        // SAFETY: the caller's promise.
        unsafe { report(|| select.abandon(), index, result) }
    })
}

/// Takes all clauses out, to add others. What they have not sent stays yours.
///
/// EINVAL: no such select, or one that is being waited for.
#[unsafe(no_mangle)]
pub extern "C" fn marline_select_reset(select: SelectId) -> c_int {
    enter(|| {
        Select::of(select)?.change(|clauses| {
            // SAFETY: a select that rests.
            unsafe { clauses.clear() };
            Ok(())
        })
    })
}

/// Ends a select. A thread that waits for it is woken with EPIPE; a started one is abandoned.
///
/// EINVAL: no such select.
#[unsafe(no_mangle)]
pub extern "C" fn marline_select_destroy(select: SelectId) -> c_int {
    enter(|| {
        let select = Select::table().remove(select).ok_or(Code::INVALID)?;
        select.destroy();
        Ok(())
    })
}
