//! The functions of the ABI for selects. Their comments are the documentation in the C header. The
//! header is generated: a change of a comment changes it, too.
//!
//! These functions check arguments and convert results. `state.rs` waits, and `clauses.rs` has the
//! clauses.

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

/// The handle of a select. Never 0.
pub type SelectId = u64;

/// Bits for marline_select_create.
#[repr(C)]
pub enum SelectFlag {
    /// Attempts the clauses in the order in which they were added, instead of in fair turns.
    Biased = 1,
    /// Skips clauses whose channel is closed (and drained), instead of choosing them with EPIPE. If
    /// all are, the wait returns EPIPE.
    SkipClosed = 2,
    /// A blocking wait returns EINTR when a signal handler ran on its thread.
    Interruptible = 4,
}

/// Creates a select: a set of send and receive clauses, of which a wait chooses one. Flags are bits
/// of enum marline_select_flag.
///
/// Add clauses, wait, see which clause was chosen, wait again. A clause keeps its number (from 0,
/// in the order in which clauses were added) until marline_select_reset. One thread at a time may
/// use a select. A select keeps its channels, also if they are destroyed meanwhile: then they are
/// closed.
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

/// Adds a receive clause to a select. Stores the clause's number in `index`.
///
/// # Safety
/// The destination can be written to during waits; `index` is null or can be written to.
unsafe fn add_recv(
    select: SelectId,
    channel: ChannelId,
    to: impl FnOnce(&Channel) -> Result<Destination, Code>,
    index: *mut usize,
) -> Result<(), Code> {
    let channel = Channel::of(channel)?;
    let to = to(&channel)?;
    // SAFETY: the select rests; the caller's promise.
    let added = Select::of(select)?.change(|clauses| unsafe { clauses.add_recv(channel, to) })?;
    // SAFETY: the caller's promise.
    unsafe { store(index, added) };
    Ok(())
}

/// Adds a send clause to a select. Stores the clause's number in `index`.
///
/// # Safety
/// `index` is null or can be written to.
unsafe fn add_send(
    select: SelectId,
    channel: Ref<Channel>,
    element: Element,
    route: Route,
    index: *mut usize,
) -> Result<(), Code> {
    let added = Select::of(select)?
        // SAFETY: the select rests.
        .change(|clauses| unsafe { clauses.add_send(channel, element, route) })?;
    // SAFETY: the caller's promise.
    unsafe { store(index, added) };
    Ok(())
}

/// Adds a clause that receives from a COPY channel into *element, which must stay valid during
/// waits. *index (which may be NULL) becomes the clause's number.
///
/// EINVAL: no such select or channel, a select with a wait in progress, another mode or size, or a
/// null pointer. EMSGSIZE: over 65536 clauses. ENOMEM.
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

/// Adds a clause that receives from a POINTER channel into *ptr and *len. Otherwise like
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

/// Adds a clause that receives from a DESCRIPTOR channel into *descriptor. Otherwise like
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

/// Adds a clause that sends a copy of *element to a COPY channel. This call makes the copy. The
/// clause sends once: after it was chosen, waits skip it until marline_select_refill.
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

/// Adds a clause that sends a pointer to a POINTER channel. The memory behind the pointer stays
/// yours until the clause was chosen with result 0, also if the select is reset or destroyed.
/// Otherwise like marline_select_add_send.
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

/// Adds a clause that sends a buffer inside a region, as marline_send_zc does. This call sets
/// *copied (which may be NULL). A buffer that is not copied is lent, and in flight, until the
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

/// Gives send clause `index` an element that `make` creates for its channel. `make` gets the
/// channel itself, because the channel's handle may be destroyed by now.
fn refill(
    select: SelectId,
    index: usize,
    make: impl FnOnce(&Channel) -> Result<(Element, Route), Code>,
) -> Result<(), Code> {
    Select::of(select)?.change(|clauses| {
        let (element, route) = make(clauses.send_channel(index)?)?;
        // SAFETY: the select rests.
        unsafe { clauses.refill(index, element, route) }
    })
}

/// Gives send clause number index a copy of *element to send next. It replaces an element that the
/// clause has not sent.
///
/// EINVAL: no such select or send clause, a select with a wait in progress, another mode or size,
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

/// Gives send clause number index a pointer to send next. A pointer that the clause has not sent
/// stays yours. Otherwise like marline_select_refill.
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

/// Gives send clause number index a buffer inside a region to send next. A buffer that the clause
/// has not sent is yours again. Otherwise like marline_select_refill and
/// marline_select_add_send_zc.
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

/// Checks both pointers, then runs `ended`. Stores the number and the result of the chosen clause.
///
/// # Safety
/// `index` and `result` are null or can be written to.
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

/// Waits until exactly one clause has happened. Then returns 0, with the clause's number in *index
/// and its result in *result: 0, or the code that the send or receive would have returned, such as
/// EPIPE. The other clauses have changed nothing. timeout_ms: 0 tries without waiting, < 0 waits
/// without a limit, > 0 waits that many milliseconds.
///
/// Otherwise no clause has happened. EAGAIN: none could (timeout_ms 0). ETIME. EPIPE: all channels
/// are closed (with SKIP_CLOSED), or the select was destroyed. EINTR (with INTERRUPTIBLE). EINVAL:
/// no such select, a select with a wait in progress, a null pointer, no clauses, or only send
/// clauses that were not refilled.
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

/// Like marline_select_wait, but also ends with ECANCELED when the token is triggered. A token of 0
/// means none.
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
/// operation object: this returns EINPROGRESS, then wake_fn is called, then marline_select_finish
/// ends the wait. The destinations of receive clauses must stay valid until then.
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
/// EINPROGRESS: no clause has happened yet. wake_fn will be called, also if it was called before.
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

/// Gives up a started select. When this returns, wake_fn is not called any more and does not run on
/// another thread.
///
/// ECANCELED: no clause has happened. An element that a receive clause was given is the next
/// element of its channel. 0: a receiver took the element of a send clause first. That clause has
/// happened, see *index and *result. EINVAL: no such select, nothing was started, or a null
/// pointer.
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

/// Removes all clauses, so that others can be added. Elements that they have not sent stay yours.
///
/// EINVAL: no such select, or a select with a wait in progress.
#[unsafe(no_mangle)]
pub extern "C" fn marline_select_reset(select: SelectId) -> c_int {
    enter(|| {
        Select::of(select)?.change(|clauses| {
            // SAFETY: the select rests.
            unsafe { clauses.clear() };
            Ok(())
        })
    })
}

/// Destroys a select. The wait of a thread ends with EPIPE. A started wait is abandoned.
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
