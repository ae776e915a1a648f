//! What travels through a channel: one Rust type for the three modes of C, so that every channel,
//! operation and select is of one type.
//!
//! A copied element is held inside the value itself when it is small, in a block otherwise. Whoever
//! drops an element takes it back: a pointer is nothing to free (it is C's), a descriptor is
//! withdrawn from its region. Elements that were sent and will never be received do not end here
//! but in `discard`.

use std::{
    ffi::c_void,
    mem::{MaybeUninit, size_of},
    ptr,
};

use crate::{
    blocks::{Block, Blocks},
    channel::Channel,
    code::Code,
    zero_copy::{Descriptor, Flight},
};

/// The largest element held without a block: a cache line.
pub(crate) const INLINE_BYTES: usize = 64;

pub(crate) enum Element {
    /// A small copied element, beside the enum's own mark.
    Inline {
        len: u8,
        bytes: [MaybeUninit<u64>; INLINE_BYTES / 8],
    },
    Boxed(Block),
    Pointer(Pointer),
    Descriptor(Flight),
}

// Of its buffers, nodes and moves: the payload and one word.
const _: () = assert!(size_of::<Option<Element>>() == INLINE_BYTES + 8);

// SAFETY: bytes, and pointers that only mean something to C, which was told that they travel.
unsafe impl Send for Element {}

/// A pointer with the length of what it points at.
#[derive(Clone, Copy)]
pub(crate) struct Pointer {
    pub(crate) ptr: *mut c_void,
    pub(crate) len: usize,
}

impl Element {
    /// A copy of `size` bytes.
    ///
    /// # Safety
    /// `from` can be read for `size` bytes.
    #[inline(always)]
    pub(crate) unsafe fn copied(
        from: *const c_void,
        size: usize,
        blocks: &Blocks,
    ) -> Result<Element, Code> {
        if size > INLINE_BYTES {
            let mut block = blocks.take(size)?;
            // SAFETY: the caller's promise, and a block of this size.
            unsafe { ptr::copy_nonoverlapping(from.cast(), block.as_mut_ptr(), size) };
            return Ok(Element::Boxed(block));
        }
        let mut bytes = [MaybeUninit::uninit(); INLINE_BYTES / 8];
        // SAFETY: the caller's promise, and it fits.
        unsafe { ptr::copy_nonoverlapping(from.cast::<u8>(), bytes.as_mut_ptr().cast(), size) };
        Ok(Element::Inline { len: size as u8, bytes })
    }

    /// Where the bytes of a copied element are.
    pub(crate) fn bytes(&self) -> Option<(*const c_void, usize)> {
        match self {
            Element::Inline { len, bytes } => Some((bytes.as_ptr().cast(), usize::from(*len))),
            Element::Boxed(block) => Some((block.as_ptr().cast(), block.len())),
            Element::Pointer(_) | Element::Descriptor(_) => None,
        }
    }

    /// The bytes it counts for in the metrics.
    pub(crate) fn measure(&self) -> usize {
        match self {
            Element::Inline { len, .. } => usize::from(*len),
            Element::Boxed(block) => block.len(),
            Element::Pointer(pointer) => pointer.len,
            Element::Descriptor(flight) => flight.descriptor().len,
        }
    }
}

/// Where a received element goes. Checked when it was made; valid until the operation ends.
#[derive(Clone, Copy)]
pub(crate) enum Destination {
    Bytes(*mut c_void),
    Pointer { ptr: *mut *mut c_void, len: *mut usize },
    Descriptor(*mut Descriptor),
}

// SAFETY: written to by whoever finishes the receive, which is one thread at a time.
unsafe impl Send for Destination {}

impl Destination {
    /// Stores what was received from `channel`. Only a descriptor can fail to be: when it cannot be
    /// mapped for this receiver, nobody will receive it.
    ///
    /// # Safety
    /// The destination can be written to, and was made for this channel.
    #[inline(always)]
    pub(crate) unsafe fn store(self, element: Element, channel: &Channel) -> Result<(), Code> {
        // SAFETY: the caller's promise; a channel's elements all have its mode and size.
        unsafe {
            match (self, element) {
                (Destination::Bytes(to), Element::Inline { len, bytes }) => {
                    ptr::copy_nonoverlapping(bytes.as_ptr().cast::<u8>(), to.cast(), len.into());
                }
                (Destination::Bytes(to), Element::Boxed(block)) => {
                    ptr::copy_nonoverlapping(block.as_ptr(), to.cast(), block.len());
                    channel.blocks.put(block);
                }
                (Destination::Pointer { ptr, len }, Element::Pointer(pointer)) => {
                    ptr.write(pointer.ptr);
                    len.write(pointer.len);
                }
                (Destination::Descriptor(to), Element::Descriptor(flight)) => {
                    to.write(channel.land(flight)?);
                }
                _ => unreachable!("a channel's elements are of its mode"),
            }
        }
        Ok(())
    }
}
