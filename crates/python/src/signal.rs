//! Interrupts the main thread with a signal. Besides `buffer.rs`, the only unsafe code of this
//! crate.
#![allow(unsafe_code)]

use pyo3::prelude::*;

/// Sends SIGURG to the main thread of this process. A signal to the whole process might be handled
/// on another thread, and would then not end the system call in which the main thread waits.
#[pyfunction]
pub fn interrupt_main_thread() {
    let main = std::process::id() as libc::pid_t;
    // SAFETY: `tgkill` takes three numbers and touches no memory. The id of the main thread is that
    // of the process.
    unsafe {
        libc::syscall(libc::SYS_tgkill, main, main, libc::SIGURG);
    }
}
