//! Large values in shared memory: one copy on a node, however many processes read it.
//!
//! A node's memory is an [`Arena`], owned by one process: segments without names, of which blocks are given
//! out. Whoever makes a value fills a block ([`Writable`]) and seals it; from then on it is read in place
//! ([`View`]), here or, where the segment was passed on, in other processes ([`MappedSegments`]). A block is free
//! again when no view of it is left: the owner's process keeps one for each other process that reads it (a
//! pin) until that returns it, or is dead. Where memory is short, blocks go to files ([`Spill`]);
//! what is to outlive the node is saved in others ([`Saved`]).
//!
//! This crate has the mechanisms. Who holds which object, what is spilled when, and where copies are is
//! decided in `marline-core`; processes and sockets are in `marline-runtime`.
//!
//! Read in this order: [`space`] (which bytes are free), [`segment`] (memory; with [`view`] the only unsafe
//! code), [`view`], [`arena`], [`window`], [`parts`], [`spill`], [`saved`], [`pass`].

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

/// What tells bytes from what a disk or a network made of them.
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
