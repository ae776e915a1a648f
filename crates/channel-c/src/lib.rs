//! The C ABI of `marline-channel`. Its documentation is the header, `include/marline_channel.h`,
//! which cbindgen writes from this source: what stands above an exported item here is what a C
//! engineer reads there.
//!
//! How it is built:
//! - Everything C holds is a number. `table` checks its generation, so a stale one is
//!   `EINVAL`, and keeps the object where it is while an operation uses it.
//! - Every function runs through `border::enter`: a panic becomes `EIO`.
//! - Elements of all modes are one Rust type (`element`), so channels, operations and selects are
//!   too; values nobody will receive end in `discard`.
//! - Start forms poll the Rust operation with a waker that calls into C (`alert`); taking such a
//!   callback back waits for its end (`calls`).
//!
//! What every exported function relies on, and why it is `unsafe`: a pointer it is given is null, or
//! valid for what the header says is done with it, for as long as the header says. Handles, sizes,
//! modes and numbers may be anything.

#![allow(
    clippy::missing_safety_doc,
    reason = "the contract of all exported functions is above; their comments are the header's"
)]
#![allow(
    clippy::too_many_arguments,
    reason = "C has no defaults: a start form takes what to do, its limits and whom to tell"
)]

mod border;
mod calls;
mod clock;
mod code;
mod exclusive;
mod sync;
mod table;

mod blocks;
mod discard;
mod element;
mod limits;
mod options;

// From here on in the order of the header.
mod channel;

mod blocking;
mod recent;
mod token;

mod copy;

mod pointer;

mod zero_copy;

mod alert;
mod operation;

mod select;

mod metrics;

mod dump;

#[cfg(all(test, marline_model))]
mod model;
