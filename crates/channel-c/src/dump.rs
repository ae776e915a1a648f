//! A channel as one line of text, for logs and debuggers.

use std::{
    ffi::{c_char, c_int},
    fmt::Write,
    ptr,
};

use crate::{
    border::{enter, store},
    channel::{Channel, ChannelId},
    code::Code,
    options::Mode,
};

fn line(id: ChannelId, channel: &Channel) -> String {
    let snapshot = channel.rx.snapshot();
    let totals = &snapshot.totals;
    let mut line = format!("channel {id:#x} {}", snapshot.kind);
    let name = match &snapshot.name {
        None => String::new(),
        // The name is escaped, so that the text stays one line.
        Some(name) => format!(" name={name:?}"),
    };
    let mode = match channel.mode {
        Mode::Copy => format!("copy({})", channel.element_size),
        Mode::Pointer => "pointer".into(),
        Mode::Descriptor => "descriptor".into(),
    };
    let capacity = match snapshot.capacity {
        None => "none".into(),
        Some(capacity) => capacity.to_string(),
    };
    // Writing to a string cannot fail.
    let _ = write!(
        line,
        "{name} mode={mode} capacity={capacity} len={} high_water={} waiting_send={} \
         waiting_recv={} sends={} recvs={} dropped={} closed={}",
        snapshot.len,
        snapshot.high_water,
        snapshot.waiting_send,
        snapshot.waiting_recv,
        totals.sends,
        totals.recvs,
        totals.dropped_oldest + totals.dropped_newest + totals.undelivered,
        snapshot.closed,
    );
    line
}

/// Writes one line about a channel into text, with a NUL at the end and no newline. *len (which may
/// be NULL) becomes the length of the line without the NUL, also if the line did not fit. With size
/// 0, text may be NULL.
///
/// EMSGSIZE: the line did not fit and was cut off. EINVAL: no such channel, or a null pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn marline_dump(
    channel: ChannelId,
    text: *mut c_char,
    size: usize,
    len: *mut usize,
) -> c_int {
    enter(|| {
        if text.is_null() && size > 0 {
            return Err(Code::INVALID);
        }
        let line = line(channel, &*Channel::of(channel)?);
        // SAFETY: the caller's promise.
        unsafe { store(len, line.len()) };
        if size > 0 {
            let kept = line.len().min(size - 1);
            // SAFETY: `text` has `size` bytes of room, by the caller's promise.
            unsafe {
                ptr::copy_nonoverlapping(line.as_ptr().cast(), text, kept);
                text.add(kept).write(0);
            }
        }
        match line.len() < size {
            true => Ok(()),
            false => Err(Code::TOO_LARGE),
        }
    })
}
