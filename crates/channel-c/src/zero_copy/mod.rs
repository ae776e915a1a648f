//! Zero-copy: buffers inside registered regions travel as descriptors, and come back.
//!
//! - `region` is memory that was registered, and `backend` says whose memory it is.
//! - `lease` is one buffer in flight, until its receiver releases it.
//! - `flight` is a lease inside a channel.
//! - `transfer` decides whether a send goes as a descriptor or falls back to a copy, and has the
//!   functions of the ABI.

mod backend;
mod counters;
mod flight;
mod lease;
mod region;
mod transfer;

pub(crate) use counters::{Counters, Route};
pub(crate) use flight::{Descriptor, Flight};
pub(crate) use region::RegionId;
pub(crate) use transfer::{destination, element};
