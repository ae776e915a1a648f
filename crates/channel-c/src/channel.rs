//! A channel behind its handle: the functions that make, close, destroy and query it.
//!
//! The handle owns one sender and one receiver of a `marline-channel` queue. Destroying the handle
//! closes the channel, which ends every wait on it. It also releases both ends, which gives the
//! elements inside to `on_drop`. The object itself goes when the last operation on it has returned.

use std::{
    ffi::{CStr, c_int, c_void},
    sync::{Arc, atomic::Ordering},
};

use marline_channel::{Receiver, Sender};

use crate::{
    blocks::Blocks,
    border::{checked, checked_const, enter},
    code::Code,
    discard::{Discards, OnDropFn},
    element::Element,
    options::{Mode, Options, OverflowPolicy},
    table::{Object, Ref, Table},
    zero_copy::{Descriptor, Flight},
};

/// The handle of a channel. Never 0.
pub type ChannelId = u64;

/// The abilities of a channel.
#[repr(C)]
pub enum Capability {
    /// marline_send and marline_recv.
    Copy = 1,
    /// marline_send_ptr and marline_recv_ptr.
    Pointer = 2,
    /// marline_send_zc without a copy, and marline_recv_zc.
    ZeroCopy = 4,
    /// Holding elements that no receive waits for.
    Buffer = 8,
    /// marline_set_overflow.
    Overflow = 16,
}

pub(crate) struct Channel {
    pub(crate) tx: Sender<Element>,
    pub(crate) rx: Receiver<Element>,
    pub(crate) mode: Mode,
    pub(crate) element_size: usize,
    pub(crate) interruptible: bool,
    pub(crate) blocks: Blocks,
    pub(crate) discards: Arc<Discards>,
}

impl Object for Channel {
    const ID_TAG: u64 = 1;

    fn table() -> &'static Table<Channel> {
        static CHANNELS: Table<Channel> = Table::new();
        &CHANNELS
    }
}

impl Channel {
    #[inline(always)]
    pub(crate) fn of(id: ChannelId) -> Result<Ref<Channel>, Code> {
        Channel::table().get(id).ok_or(Code::INVALID)
    }

    fn make(options: &Options, name: Option<&CStr>) -> Result<Channel, Code> {
        let mode = options.checked_mode()?;
        let discards = Arc::new(Discards::default());
        discards.set(options.on_drop, options.on_drop_user);
        let ended = discards.clone();
        let mut builder =
            options.builder()?.measure(Element::measure).on_drop(move |element| ended.end(element));
        if let Some(name) = name {
            builder = builder.name(name.to_str().map_err(|_| Code::INVALID)?);
        }
        let (tx, rx) = builder.build()?;
        Ok(Channel {
            tx,
            rx,
            mode,
            element_size: options.element_size,
            interruptible: options.is_interruptible(),
            blocks: Blocks::default(),
            discards,
        })
    }

    fn close(&self) {
        self.discards.closing.store(true, Ordering::Relaxed);
        self.tx.close_channel();
    }

    fn capabilities(&self) -> u32 {
        let elements = match self.mode {
            Mode::Copy => Capability::Copy,
            Mode::Pointer => Capability::Pointer,
            Mode::Descriptor => Capability::ZeroCopy,
        };
        let kind = match self.tx.kind() {
            marline_channel::Kind::Rendezvous => 0,
            marline_channel::Kind::Bounded => {
                Capability::Buffer as u32 | Capability::Overflow as u32
            }
            _ => Capability::Buffer as u32,
        };
        elements as u32 | kind
    }

    /// Delivers a descriptor to its receiver. A descriptor that cannot be mapped is dropped: it has
    /// left the channel, and no other receive will get it.
    pub(crate) fn land(&self, flight: Flight) -> Result<Descriptor, Code> {
        let zero_copy = flight.is_zero_copy();
        match flight.deliver() {
            Ok(descriptor) => {
                if zero_copy {
                    self.discards.zero_copy.count_received();
                }
                Ok(descriptor)
            }
            Err((code, flight)) => {
                self.discards.end(Element::Descriptor(flight));
                Err(code)
            }
        }
    }
}

/// Creates a channel.
///
/// EINVAL: invalid options, or a null pointer. ENOTSUP: an overflow policy for a kind that cannot
/// overflow. ENOMEM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn marline_make(options: *const Options, channel: *mut ChannelId) -> c_int {
    enter(|| {
        let channel = checked(channel)?;
        // SAFETY: not null and aligned; valid by the caller's promise.
        let options = unsafe { &*checked_const(options)? };
        let name = match options.name.is_null() {
            true => None,
            // SAFETY: a string that ends with a NUL, by the caller's promise.
            false => Some(unsafe { CStr::from_ptr(options.name) }),
        };
        let made = Channel::make(options, name)?;
        let id = Channel::table().insert(made).map_err(|_| Code::NO_MEMORY)?;
        // SAFETY: not null and aligned; valid by the caller's promise.
        unsafe { channel.write(id) };
        Ok(())
    })
}

/// Destroys a channel: closes it, ends every wait on it with EPIPE, and gives the elements still
/// inside to on_drop before it returns. The handle is invalid from then on.
///
/// Operations that were started on the channel stay valid until they are finished or abandoned.
/// If an abandoned receive had an element already, that element goes to on_drop, too.
///
/// EINVAL: no such channel (also: destroyed before).
#[unsafe(no_mangle)]
pub extern "C" fn marline_destroy(channel: ChannelId) -> c_int {
    enter(|| {
        let channel = Channel::table().remove(channel).ok_or(Code::INVALID)?;
        channel.close();
        channel.tx.close();
        channel.rx.close();
        Ok(())
    })
}

/// Closes a channel: sends fail with EPIPE from now on, also sends that wait already. Receives get
/// the elements inside, and then EPIPE. Closing a closed channel does nothing.
///
/// EINVAL: no such channel.
#[unsafe(no_mangle)]
pub extern "C" fn marline_close(channel: ChannelId) -> c_int {
    enter(|| {
        Channel::of(channel)?.close();
        Ok(())
    })
}

/// Stores the number of elements inside in *len.
///
/// EINVAL: no such channel, or a null pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn marline_len(channel: ChannelId, len: *mut usize) -> c_int {
    enter(|| {
        let len = checked(len)?;
        let inside = Channel::of(channel)?.rx.len();
        // SAFETY: not null and aligned; valid by the caller's promise.
        unsafe { len.write(inside) };
        Ok(())
    })
}

/// Stores in *is_closed whether a channel is closed. It may still hold elements.
///
/// EINVAL: no such channel, or a null pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn marline_is_closed(channel: ChannelId, is_closed: *mut bool) -> c_int {
    enter(|| {
        let is_closed = checked(is_closed)?;
        let closed = Channel::of(channel)?.rx.is_closed();
        // SAFETY: not null and aligned; valid by the caller's promise.
        unsafe { is_closed.write(closed) };
        Ok(())
    })
}

/// Stores in *capabilities what a channel can do: bits of enum marline_capability.
///
/// EINVAL: no such channel, or a null pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn marline_capabilities(channel: ChannelId, capabilities: *mut u32) -> c_int {
    enter(|| {
        let capabilities = checked(capabilities)?;
        let bits = Channel::of(channel)?.capabilities();
        // SAFETY: not null and aligned; valid by the caller's promise.
        unsafe { capabilities.write(bits) };
        Ok(())
    })
}

/// Changes what a BOUNDED channel does when it is full, for sends that begin later: one of enum
/// marline_overflow.
///
/// EINVAL: no such channel or policy. ENOTSUP: another kind of channel.
#[unsafe(no_mangle)]
pub extern "C" fn marline_set_overflow(channel: ChannelId, policy: u32) -> c_int {
    enter(|| {
        let overflow = OverflowPolicy::of(policy)?;
        Ok(Channel::of(channel)?.tx.set_overflow(overflow)?)
    })
}

/// Replaces the function that gets the elements that were sent and will never be received; NULL for
/// none. When this returns, the function that was set before is not called any more and does not
/// run on another thread. Without on_drop, you lose such POINTER elements.
///
/// EINVAL: no such channel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn marline_set_on_drop(
    channel: ChannelId,
    on_drop: OnDropFn,
    user: *mut c_void,
) -> c_int {
    enter(|| {
        Channel::of(channel)?.discards.set(on_drop, user);
        Ok(())
    })
}
