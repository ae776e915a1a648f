//! The options of a channel: as C passes them, and what they mean.
//!
//! C's enums may hold any number, so they never become Rust enums unchecked: the ABI takes `u32`.

use std::ffi::{c_char, c_void};

use marline_channel::{Builder, Overflow};

use crate::{code::Code, discard::OnDropFn, element::Element};

/// The kinds of channel.
#[repr(C)]
#[derive(Clone, Copy)]
pub enum Kind {
    /// No buffer: a send completes when its element is handed to a receive.
    Rendezvous = 1,
    /// Holds up to capacity elements. Further sends wait, or do as the overflow policy says.
    Bounded = 2,
    /// Holds any number of elements. Sends never wait.
    Unbounded = 3,
    /// Holds the latest element: a new element replaces one that was not received yet.
    Conflated = 4,
}

/// The form in which a channel carries its elements.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// element_size bytes, copied in and out: marline_send, marline_recv.
    Copy = 0,
    /// A pointer with a length. The receiver then owns the memory behind it: marline_send_ptr,
    /// marline_recv_ptr.
    Pointer = 1,
    /// A buffer in a registered region: marline_send_zc, marline_recv_zc.
    Descriptor = 2,
}

/// How a bounded channel treats an element that it has no room for.
#[repr(C)]
pub enum OverflowPolicy {
    /// The send waits.
    Block = 0,
    /// The oldest element inside goes to on_drop to make room.
    DropOldest = 1,
    /// The new element goes to on_drop, before the send returns 0.
    DropNewest = 2,
}

/// Bits of struct marline_options.flags.
#[repr(C)]
pub enum ChannelFlag {
    /// Blocking calls on this channel return EINTR when a signal handler ran on their thread.
    /// Nothing has happened then: call again. Without this flag they keep waiting.
    Interruptible = 1,
}

/// The options of a channel. Set the fields that you need, and the others to zero:
/// struct marline_options options = {.kind = MARLINE_KIND_BOUNDED, .capacity = 8,
/// .element_size = sizeof(struct job)};
#[repr(C)]
pub struct Options {
    /// One of enum marline_kind.
    pub kind: u32,
    /// One of enum marline_mode; 0 is COPY.
    pub mode: u32,
    /// BOUNDED: how many elements the channel holds, 1 to 2^30. Otherwise 0.
    pub capacity: u64,
    /// COPY: the size of every element in bytes, 1 to 2^30. Otherwise 0.
    pub element_size: usize,
    /// One of enum marline_overflow; 0 is BLOCK. Only a BOUNDED channel can have another policy
    /// (a CONFLATED channel always drops the oldest).
    pub overflow: u32,
    /// Bits of enum marline_channel_flag.
    pub flags: u32,
    /// A name for marline_dump, at most 255 bytes of UTF-8, or NULL. The call copies it.
    pub name: *const c_char,
    /// The function of marline_set_on_drop, or NULL.
    pub on_drop: OnDropFn,
    /// Passed to on_drop.
    pub on_drop_user: *mut c_void,
    /// Always 0.
    pub reserved: [u64; 2],
}

/// The largest element that is copied, in bytes. A larger one is a mistake, or a case for POINTER
/// or DESCRIPTOR.
const MAX_ELEMENT_BYTES: usize = 1 << 30;

impl Options {
    /// Returns the mode. Fails with EINVAL if an option that every kind has is invalid.
    pub(crate) fn checked_mode(&self) -> Result<Mode, Code> {
        let mode = match self.mode {
            mode if mode == Mode::Copy as u32 => Mode::Copy,
            mode if mode == Mode::Pointer as u32 => Mode::Pointer,
            mode if mode == Mode::Descriptor as u32 => Mode::Descriptor,
            _ => return Err(Code::INVALID),
        };
        let size_fits = match mode {
            Mode::Copy => (1..=MAX_ELEMENT_BYTES).contains(&self.element_size),
            Mode::Pointer | Mode::Descriptor => self.element_size == 0,
        };
        let known_flags = ChannelFlag::Interruptible as u32;
        if !size_fits || self.flags & !known_flags != 0 || self.reserved != [0; 2] {
            return Err(Code::INVALID);
        }
        Ok(mode)
    }

    pub(crate) fn is_interruptible(&self) -> bool {
        self.flags & ChannelFlag::Interruptible as u32 != 0
    }

    /// Returns a builder for the kind, its capacity and its overflow policy.
    pub(crate) fn builder(&self) -> Result<Builder<Element>, Code> {
        let kind = Kind::of(self.kind)?;
        let overflow = OverflowPolicy::of(self.overflow)?;
        if let Kind::Bounded = kind {
            let capacity = usize::try_from(self.capacity).map_err(|_| Code::INVALID)?;
            return Ok(Builder::bounded(capacity).overflow(overflow));
        }
        if self.capacity != 0 {
            return Err(Code::INVALID);
        }
        match (kind, overflow) {
            (Kind::Rendezvous, Overflow::Block) => Ok(Builder::rendezvous()),
            (Kind::Unbounded, Overflow::Block) => Ok(Builder::unbounded()),
            // `Block` is zero, the value of a field that was not set. A conflated channel takes it.
            (Kind::Conflated, Overflow::Block | Overflow::DropOldest) => Ok(Builder::conflated()),
            _ => Err(Code::UNSUPPORTED),
        }
    }
}

impl Kind {
    fn of(kind: u32) -> Result<Kind, Code> {
        [Kind::Rendezvous, Kind::Bounded, Kind::Unbounded, Kind::Conflated]
            .into_iter()
            .find(|known| *known as u32 == kind)
            .ok_or(Code::INVALID)
    }
}

impl OverflowPolicy {
    pub(crate) fn of(policy: u32) -> Result<Overflow, Code> {
        match policy {
            policy if policy == OverflowPolicy::Block as u32 => Ok(Overflow::Block),
            policy if policy == OverflowPolicy::DropOldest as u32 => Ok(Overflow::DropOldest),
            policy if policy == OverflowPolicy::DropNewest as u32 => Ok(Overflow::DropNewest),
            _ => Err(Code::INVALID),
        }
    }
}
