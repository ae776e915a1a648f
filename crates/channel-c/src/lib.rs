//! The C ABI of `marline-channel`. Its documentation is the header, `include/marline_channel.h`,
//! which cbindgen writes from this source: the doc comment of an exported item is what a C
//! engineer reads there.
//!
//! How it is built:
//! - C holds only numbers (handles). `table` checks the generation of a handle, so that a stale
//!   handle is `EINVAL`. It keeps the object in place while an operation uses it.
//! - Every function that can fail runs through `border::enter`: a panic becomes `EIO`.
//! - Elements of all modes have one Rust type (`element`), and so have channels, operations and
//!   selects. Elements that will never be received end in `discard`.
//! - Start forms poll the Rust operation with a waker that calls into C (`alert`). Revoking such a
//!   callback waits for its end (`calls`).
//!
//! Every exported function relies on this, and is `unsafe` for it: a pointer argument is null, or
//! valid for the use that the header describes, for as long as the header says. Handles, sizes,
//! modes and numbers may have any value.

#![allow(
    clippy::missing_safety_doc,
    reason = "the contract of all exported functions is above; their comments are the header's"
)]
#![allow(
    clippy::too_many_arguments,
    reason = "C has no defaults: a start form takes the operation, its limits and its callback"
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

// The modules from here on are in the order of the header.
mod channel;

mod blocking;
mod recent_channels;
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
