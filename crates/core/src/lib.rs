//! Marline's vocabulary and decisions: no input, no output, no clock, no threads.
//!
//! Every decision of Marline is made here, by state machines. A machine receives an event and the
//! time, and returns effects. The crate `runtime` puts sockets and processes around the machines.
//! The crate `sim` puts a simulated world around them and kills everything in it.
//!
//! Reading order:
//!
//! - vocabulary: [`id`], [`error`], [`payload`], [`spec`], [`message`], [`output`]
//! - what a machine did last: [`recent_events`]
//! - primitives that the rest is built on: [`lease`], `membership`, [`link`], [`hold`]
//! - resources and placement: [`resources`], [`account`], [`schedule`], [`object_store`]
//! - the three roles, which mirror each other file by file: [`controller`], [`worker`], [`client`]
//!
//! Every machine has `check_invariants`, which panics with a message if the machine's state is
//! inconsistent. Tests and simulations call it after every event.

#![forbid(unsafe_code)]
// One plain function per event: its arguments are the event's fields.
#![allow(clippy::too_many_arguments)]

pub mod error;
pub mod id;
pub mod label;
pub mod map;
pub mod payload;
pub mod random;
pub mod slab;
pub mod spec;
pub mod table;
pub mod time;

pub mod message;
pub mod output;
pub mod recent_events;

pub mod hold;
pub mod lease;
pub mod link;
mod membership;

pub mod account;
pub mod object_store;
pub mod resources;
pub mod schedule;

pub mod client;
pub mod controller;
pub mod worker;

#[doc(hidden)]
pub mod planted;

pub use error::{Error, ErrorKind, Ran};
