//! Selects behind handles: clauses that are added one by one, for repeated waits.
//!
//! - `clauses` holds the clauses and the Rust selector that refers to their channels.
//! - `state` is a select that rests, is waited for by a thread, or was started.
//! - `abi` has the functions of the ABI.

mod abi;
mod clauses;
mod state;
