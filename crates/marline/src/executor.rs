//! Where executors that are processes begin.
//!
//! Such an executor is its worker's program started again, so it runs whatever that program runs before it is told
//! to be an executor. That is `main` up to [`Worker::join`](crate::Worker) if the main thread joins, or up to
//! [`executor_main`]. From any other thread nobody knows what comes first: in a test binary, `main` is the harness,
//! and it would run every test in every executor. So a worker whose executors would begin like that is refused.

use crate::program::Program;
use marline_runtime::core::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The main thread of this process has called [`executor_main`]: its executors do so, too, and go no further.
static DECLARED: AtomicBool = AtomicBool::new(false);

/// Makes this process an executor if a [`Worker`](crate::Worker) started it as one: then this does not return.
/// Otherwise it returns at once.
///
/// Call it first in `main`. Executors go no further, and any thread may then join a worker of the same program. A
/// program whose main thread does nothing before it joins a worker needs no such call.
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
///     // … what only the worker's process does …
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

/// Whether executors of a worker that this thread joins run nothing but what leads to it.
pub(crate) fn check_executor_entry() -> Result<(), Error> {
    if marline_runtime::is_main_thread() || DECLARED.load(Ordering::Relaxed) {
        return Ok(());
    }
    Err(Error::unsupported(
        "executors are this program started again, and this is not its main thread: each would run all that `main` \
         runs, in a test binary every test. Call `marline::executor_main(program)` first in `main`; or in a test \
         binary, name a test that calls it (`executor_test`); or use `.threads()`",
    ))
}
