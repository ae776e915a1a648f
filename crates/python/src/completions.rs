//! Answers for event loops: what came is queued, and one descriptor says that there is something. So an
//! answer reaches its loop without a thread of ours that needs the interpreter.

use crate::executor::Items;
use crate::failure::to_python;
use crate::generator::ObjectRefGenerator;
use crate::pickle;
use crate::reference::ObjectRef;
use crate::scope::Scope;
use marline_runtime::core::error::Error;
use marline_runtime::core::map::Map;
use marline_runtime::core::payload::Payload;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};

/// What came for one event loop.
#[pyclass(frozen, module = "marline._native")]
pub struct Completions {
    queue: Arc<Queue>,
}

struct Queue {
    came: Mutex<Vec<u64>>,
    /// Data that was brought for these tokens.
    brought: Mutex<Map<u64, Result<Payload, Error>>>,
    bell: OwnedFd,
}

impl Queue {
    fn brought(&self) -> MutexGuard<'_, Map<u64, Result<Payload, Error>>> {
        self.brought.lock().expect("nothing panics under it")
    }

    fn push(&self, token: u64) {
        let mut came = self.came.lock().expect("nothing panics under it");
        came.push(token);
        if came.len() == 1 {
            // It fails only if it was rung four billion times.
            let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        }
    }
}

/// Queues its token when the last one that has it lets go.
struct Last {
    queue: Arc<Queue>,
    token: u64,
}

impl Drop for Last {
    fn drop(&mut self) {
        self.queue.push(self.token);
    }
}

#[pymethods]
impl Completions {
    #[new]
    fn new() -> PyResult<Completions> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let bell = bell.map_err(|error| PyOSError::new_err(error.to_string()))?;
        Ok(Completions {
            queue: Arc::new(Queue { came: Mutex::default(), brought: Mutex::default(), bell }),
        })
    }

    /// The descriptor that is readable when something came.
    fn fileno(&self) -> i32 {
        self.queue.bell.as_raw_fd()
    }

    /// Queues `token` when the value of a reference comes.
    fn expect(&self, reference: &Bound<'_, ObjectRef>, token: u64) {
        let queue = self.queue.clone();
        reference.get().answer().then(Box::new(move || queue.push(token)));
    }

    /// The value of a reference that has come, in a tuple. Nothing if its data is on its way: `token` is queued when
    /// that is here, and it can be asked for again.
    fn value<'py>(
        &self,
        py: Python<'py>,
        reference: &Bound<'py, ObjectRef>,
        token: u64,
    ) -> PyResult<Option<(Bound<'py, PyAny>,)>> {
        let brought = self.queue.brought().remove(&token);
        if let Some(brought) = brought {
            let payload = brought.map_err(|error| to_python(py, &error))?;
            return pickle::decode(py, &payload).map(|value| Some((value,)));
        }
        if let Some(value) = reference.get().value_at_once(py)? {
            return Ok(Some((value,)));
        }
        let queue = self.queue.clone();
        let tell = move |brought| {
            queue.brought().insert(token, brought);
            queue.push(token);
        };
        reference.get().open_telling(py, Box::new(tell))?;
        Ok(None)
    }

    /// Nobody waits any more for what was queued under this token.
    fn forget(&self, token: u64) {
        let brought = self.queue.brought().remove(&token);
        drop(brought); // Not under the lock: it may be the last view of a value.
    }

    /// Queues `token` when there is something to take of a stream, or its end.
    fn expect_item(&self, generator: &Bound<'_, ObjectRefGenerator>, token: u64) -> PyResult<()> {
        let queue = self.queue.clone();
        let stream = generator.get().stream(generator.py())?;
        stream.on_ready(Box::new(move || queue.push(token)));
        Ok(())
    }

    /// Queues `token` when there is room for an item, or it is to stop.
    fn expect_room(&self, items: &Bound<'_, Items>, token: u64) {
        let (queue, items) = (self.queue.clone(), &items.get().items);
        items.pause();
        items.when_room(Box::new(move || queue.push(token)));
    }

    /// Queues `token` when all has ended that was submitted in a scope so far.
    fn expect_end(&self, scope: &Bound<'_, Scope>, token: u64) {
        let last = Arc::new(Last { queue: self.queue.clone(), token });
        for answer in scope.get().pending() {
            let one = last.clone();
            answer.then(Box::new(move || drop(one)));
        }
    }

    /// What came since the last time.
    fn take(&self) -> Vec<u64> {
        let _ = rustix::io::read(&self.queue.bell, &mut [0_u8; 8]);
        std::mem::take(&mut *self.queue.came.lock().expect("nothing panics under it"))
    }
}
