//! The native module `marline._native` of the Python package `marline`. Users import from
//! `python/marline`; this crate has the parts that must be fast or cannot be Python: submitting
//! work, waiting for it, and running it in executors.
//!
//! None of our threads takes the interpreter's lock to deliver an answer. The thread that receives
//! an answer stores it (`answer.rs`), and the Python thread that waits for it reads it there.
//!
//! Read `session.rs`, `function.rs` and `actor.rs` first (the driver's side), then `executor.rs`
//! (where user code runs).

#![deny(unsafe_code)]

mod actor;
mod answer;
mod arguments;
mod buffer;
mod completions;
mod cpus;
mod executor;
mod failure;
mod fork;
mod function;
mod generator;
mod options;
mod output;
mod pickle;
mod plain_data;
mod reference;
mod scope;
mod session;
mod signal;
mod status;
mod submissions;
mod submit_context;
mod unread_failures;
mod wait;

use pyo3::prelude::*;

#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::actor::Actor;
    #[pymodule_export]
    use crate::buffer::{SharedBytes, buffer_callback};
    #[pymodule_export]
    use crate::completions::Completions;
    #[pymodule_export]
    use crate::cpus::available_cpus;
    #[pymodule_export]
    use crate::executor::{CallCompletion, ItemSender, serve, take_cancellation};
    #[pymodule_export]
    use crate::failure::ErrorParts;
    #[pymodule_export]
    use crate::fork::{about_to_fork, forked};
    #[pymodule_export]
    use crate::function::Function;
    #[pymodule_export]
    use crate::generator::ObjectRefGenerator;
    #[pymodule_export]
    use crate::options::{ActorOptions, TaskOptions};
    #[pymodule_export]
    use crate::output::{Output, OutputPiece};
    #[pymodule_export]
    use crate::pickle::{ContainedReferences, pickle_with_references};
    #[pymodule_export]
    use crate::reference::ObjectRef;
    #[pymodule_export]
    use crate::scope::{CodeScope, RunningWork};
    #[pymodule_export]
    use crate::session::{Session, sweep};
    #[pymodule_export]
    use crate::signal::interrupt_main_thread;
    #[pymodule_export]
    use crate::status::StatusClient;
    #[pymodule_export]
    use crate::submit_context::enable_submit_context;
    #[pymodule_export]
    use crate::unread_failures::UnreadNotice;
    /// The version of the package.
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");
    #[pymodule_export]
    const DEFAULT_MAX_UNCONSUMED: u32 = marline_runtime::core::spec::DEFAULT_MAX_UNCONSUMED;
    #[pymodule_export]
    const MAX_INTERFACE_BYTES: usize = marline_runtime::core::spec::MAX_INTERFACE_BYTES;
    #[pymodule_export]
    const MAX_RETURNS: u32 = marline_runtime::core::spec::MAX_RETURNS;
    #[pymodule_export]
    const MAX_UNCONSUMED: u32 = marline_runtime::core::spec::MAX_UNCONSUMED;
}
