//! The entry point of executors that are processes.
//!
//! Such an executor is the worker's program, started again. It runs `main` until `main` reaches one
//! of two calls, and becomes an executor there:
//!
//! - [`executor_main`], or
//! - [`WorkerBuilder::join`](crate::WorkerBuilder::join) on the main thread.
//!
//! If another thread joins and `main` never calls `executor_main`, an executor would run all of
//! `main`. In a test binary, `main` is the test harness, so each executor would run every test.
//! Joining fails in that case.

use crate::program::Program;
use marline_runtime::core::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the main thread of this process has called [`executor_main`]. Then the executors that
/// this process starts call it too, and go no further.
static DECLARED: AtomicBool = AtomicBool::new(false);

/// Makes this process an executor, if a [`Worker`](crate::Worker) started it as one: then the call
/// does not return. Otherwise returns at once.
///
/// Call it first in `main`. Executors go no further, and any thread may then join a worker of the
/// same program. A program whose main thread does nothing before it joins a worker needs no such
/// call.
///
/// ```no_run
/// use marline::{Program, Worker};
///
/// fn program() -> Program {
///     Program::new().task("square", |x: i64| x * x)
/// }
///
/// fn main() {
///     marline::executor_main(program());
///     let worker = std::thread::spawn(|| Worker::of(program()).run("127.0.0.1:7000"));
///     // … code for the worker's process only …
///     worker.join().unwrap().unwrap();
/// }
/// ```
///
/// In a test binary, call it in a test of its own: see
/// [`executor_test`](crate::WorkerBuilder::executor_test).
pub fn executor_main(program: Program) {
    let program: Arc<dyn marline_runtime::Program> = Arc::new(program);
    marline_runtime::serve_if_executor(&program);
    if marline_runtime::is_main_thread() {
        DECLARED.store(true, Ordering::Relaxed);
    }
}

/// Fails if the executors of a worker that this thread joins would run all of `main`.
pub(crate) fn check_executor_entry() -> Result<(), Error> {
    if marline_runtime::is_main_thread() || DECLARED.load(Ordering::Relaxed) {
        return Ok(());
    }
    Err(Error::unsupported(
        "a worker must be joined from the main thread: its executors are this program started again, and each would \
         run all of `main`, which in a test binary runs every test. Call `marline::executor_main(program)` first in \
         `main`; or in a test binary, name a test that calls it (`executor_test`); or use `.threads()`",
    ))
}
