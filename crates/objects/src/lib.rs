//! Large values in shared memory: one copy on a node, however many processes read it.
//!
//! One process owns the node's memory, an [`Arena`] of segments without names. A process that makes
//! a value fills a block of a segment ([`Writable`]) and seals it. From then on processes read the
//! block in place ([`View`]): in the owner's process, or in a process that was passed the segment
//! ([`MappedSegments`]). A block is free again when no view of it is left. For each other process
//! that reads a block, the owner has a view of its own (a pin) until that process returns it, or is
//! dead. If memory is short, blocks go to files ([`SpillFiles`]). Values that must outlive the node
//! go to other files ([`DurableFiles`]).
//!
//! This crate has the mechanisms. `marline-core` decides what holds an object, when a blob is
//! spilled, and where copies are. `marline-runtime` has the processes and the sockets.
//!
//! Read in this order: [`space`] (which bytes are free), [`segment`] (memory; with [`view`] the
//! only unsafe code), [`view`], [`arena`], [`mapped_segments`], [`parts`], [`spill`],
//! [`durable_files`], [`descriptor_passing`].

pub mod arena;
mod copy;
pub mod descriptor_passing;
pub mod durable_files;
pub mod mapped_segments;
pub mod parts;
pub mod segment;
pub mod space;
pub mod spill;
pub mod view;

/// Returns the checksum by which a reader detects that a disk or a network has changed the bytes.
pub fn checksum(bytes: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(bytes)
}

pub use arena::{Arena, RemovedSegment};
pub use durable_files::{DurableFiles, FileId};
pub use mapped_segments::MappedSegments;
pub use segment::Access;
pub use space::Block;
pub use spill::{SpillError, SpillFiles, SpilledBlock, lacks_memory};
pub use view::{SealedBlock, View, Writable};
