//! The native part of the Python package `marline`. What users see is in `python/marline`; here is what
//! must be quick, or must not be Python: submitting, waiting, and running tasks in executors.
//!
//! No thread of ours ever takes the interpreter's lock to deliver an answer: an answer is stored
//! (`answer.rs`), and whoever waits for it takes it.

#![deny(unsafe_code)]

mod actor;
mod answer;
mod arguments;
mod around;
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
mod plain;
mod reference;
mod scope;
mod session;
mod signal;
mod status;
mod submitted;
mod unread;
mod wait;

use pyo3::prelude::*;

#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::actor::Actor;
    #[pymodule_export]
    use crate::around::look_around;
    #[pymodule_export]
    use crate::buffer::{SharedBytes, met_buffer};
    #[pymodule_export]
    use crate::completions::Completions;
    #[pymodule_export]
    use crate::cpus::available_cpus;
    #[pymodule_export]
    use crate::executor::{CallEnd, Items, is_to_stop, serve};
    #[pymodule_export]
    use crate::fork::{about_to_fork, forked};
    #[pymodule_export]
    use crate::function::Function;
    #[pymodule_export]
    use crate::generator::ObjectRefGenerator;
    #[pymodule_export]
    use crate::options::{ActorOptions, TaskOptions};
    #[pymodule_export]
    use crate::output::Output;
    #[pymodule_export]
    use crate::pickle::{Things, noting};
    #[pymodule_export]
    use crate::reference::ObjectRef;
    #[pymodule_export]
    use crate::scope::Scope;
    #[pymodule_export]
    use crate::session::{Session, sweep};
    #[pymodule_export]
    use crate::signal::interrupt_main_thread;
    #[pymodule_export]
    use crate::status::Status;
    /// The version of the package.
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");
}
