//! Marline's vocabulary and decisions: no input, no output, no clock, no threads.
//!
//! Everything that Marline decides is decided here, in state machines that are given events and the
//! time, and answer with effects. The crate `runtime` puts sockets and processes around them; the
//! crate `sim` puts a simulated world around them and kills everything in it.
//!
//! Read in this order: what things are called ([`id`], [`error`], [`payload`], [`spec`],
//! [`message`], [`output`]); the primitive that everything stands on ([`lease`], [`link`], [`hold`]); what is
//! counted and where things go ([`resources`], [`account`], [`schedule`], [`store`]); and the three roles
//! ([`controller`], [`worker`], [`client`]), which mirror each other file by file.
//!
//! Every machine has `check_invariants`, which panics with words if its state does not add up; tests
//! and simulations call it after every event.

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

pub mod hold;
pub mod lease;
pub mod link;

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
