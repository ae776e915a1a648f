//! A signal to the main thread: the only unsafe code of this crate.
#![allow(unsafe_code)]

use pyo3::prelude::*;

/// Sends SIGURG to the main thread of this process. Sent to the process, it might go to the thread that
/// sends it, and would not end what the main thread waits for.
#[pyfunction]
pub fn interrupt_main_thread() {
    let main = std::process::id() as libc::pid_t;
    // SAFETY: takes three numbers and touches no memory. The main thread's number is the process's.
    unsafe {
        libc::syscall(libc::SYS_tgkill, main, main, libc::SIGURG);
    }
}
