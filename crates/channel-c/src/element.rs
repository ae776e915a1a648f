//! The elements of channels: one Rust type for the three modes of C, so that all channels,
//! operations and selects have one type, too.
//!
//! A small copied element is inside the value itself, a large one in a block. Dropping an element
//! takes it back: a pointer has nothing to free (its memory is C's), a descriptor is withdrawn from
//! its region. Elements that were sent and will never be received do not end here but in `discard`.

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

/// The largest element without a block, in bytes: a cache line.
pub(crate) const INLINE_BYTES: usize = 64;

pub(crate) enum Element {
    /// A small copied element. Its length shares a word with the enum's tag.
    Inline {
        len: u8,
        bytes: [MaybeUninit<u64>; INLINE_BYTES / 8],
    },
    Boxed(Block),
    Pointer(Pointer),
    Descriptor(Flight),
}

// In buffers, in nodes and in moves an element costs its payload and one word.
const _: () = assert!(size_of::<Option<Element>>() == INLINE_BYTES + 8);

// SAFETY: an element is bytes, and pointers that only C uses, which knows that they change threads.
unsafe impl Send for Element {}

/// A pointer with the length of what it points at.
#[derive(Clone, Copy)]
pub(crate) struct Pointer {
    pub(crate) ptr: *mut c_void,
    pub(crate) len: usize,
}

impl Element {
    /// Creates an element with a copy of `size` bytes.
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
            // SAFETY: the caller's promise, and the block has this size.
            unsafe { ptr::copy_nonoverlapping(from.cast(), block.as_mut_ptr(), size) };
            return Ok(Element::Boxed(block));
        }
        let mut bytes = [MaybeUninit::uninit(); INLINE_BYTES / 8];
        // SAFETY: the caller's promise, and it fits.
        unsafe { ptr::copy_nonoverlapping(from.cast::<u8>(), bytes.as_mut_ptr().cast(), size) };
        Ok(Element::Inline { len: size as u8, bytes })
    }

    /// Returns where the bytes of a copied element are, and how many.
    pub(crate) fn bytes(&self) -> Option<(*const c_void, usize)> {
        match self {
            Element::Inline { len, bytes } => Some((bytes.as_ptr().cast(), usize::from(*len))),
            Element::Boxed(block) => Some((block.as_ptr().cast(), block.len())),
            Element::Pointer(_) | Element::Descriptor(_) => None,
        }
    }

    /// Returns how many bytes the element counts for in the metrics.
    pub(crate) fn measure(&self) -> usize {
        match self {
            Element::Inline { len, .. } => usize::from(*len),
            Element::Boxed(block) => block.len(),
            Element::Pointer(pointer) => pointer.len,
            Element::Descriptor(flight) => flight.descriptor().len,
        }
    }
}

/// Where a received element goes. It was checked when it was created, and is valid until the
/// operation ends.
#[derive(Clone, Copy)]
pub(crate) enum Destination {
    Bytes(*mut c_void),
    Pointer { ptr: *mut *mut c_void, len: *mut usize },
    Descriptor(*mut Descriptor),
}

// SAFETY: only the thread that finishes the receive writes to it: one thread at a time.
unsafe impl Send for Destination {}

impl Destination {
    /// Stores an element that was received from `channel`. This can fail for a descriptor only: if
    /// it cannot be mapped for this receiver, no receive will get it.
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
                _ => unreachable!("a channel's elements have its mode"),
            }
        }
        Ok(())
    }
}
