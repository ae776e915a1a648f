//! Selects behind handles: clauses added one by one, waited for again and again.
//!
//! `clauses` holds what was added and the Rust selector that refers to it; `state` is a select that
//! rests, is waited for by a thread, or was started; `abi` has the functions of the ABI.

mod abi;
mod clauses;
mod state;
