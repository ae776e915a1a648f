//! Answers for an event loop, or for the thread that settles futures of `concurrent.futures`. Each
//! wait has a token: a number that the waiter chose. The thread that receives the answer queues the
//! token and makes a descriptor readable. The waiter watches the descriptor and takes the tokens.
//! So no thread of ours needs the interpreter to wake a waiter. `marline/_concurrent/aio.py` is the
//! other side.

use crate::executor::ItemSender;
use crate::failure::to_python;
use crate::generator::ObjectRefGenerator;
use crate::pickle;
use crate::reference::ObjectRef;
use crate::scope::CodeScope;
use crate::session::loading_from;
use marline_runtime::core::error::Error;
use marline_runtime::core::map::Map;
use marline_runtime::core::payload::Payload;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};

/// The queue of one waiter: the tokens of the values, items and ends that have arrived.
#[pyclass(frozen, module = "marline._native")]
pub struct Completions {
    queue: Arc<Queue>,
}

struct Queue {
    came: Mutex<Vec<u64>>,
    /// The loaded data of large values, by token, until the loop takes it.
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
            // A write to an eventfd fails only if its counter overflows.
            let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        }
    }
}

/// Queues its token when its last owner drops it.
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

    /// Returns the descriptor, which is readable while there are tokens to take.
    fn fileno(&self) -> i32 {
        self.queue.bell.as_raw_fd()
    }

    /// Queues `token` when the answer of a reference has arrived. The data of a large value may
    /// still be on the way.
    fn notify_value(&self, reference: &Bound<'_, ObjectRef>, token: u64) {
        let queue = self.queue.clone();
        reference.get().answer().then(Box::new(move || queue.push(token)));
    }

    /// Returns the value of a reference whose answer has arrived, in a tuple. Returns `None` if the
    /// data is still on the way: then `token` is queued again once the data is here.
    fn value<'py>(
        &self,
        py: Python<'py>,
        reference: &Bound<'py, ObjectRef>,
        token: u64,
    ) -> PyResult<Option<(Bound<'py, PyAny>,)>> {
        let brought = self.queue.brought().remove(&token);
        if let Some(brought) = brought {
            let payload = brought.map_err(|error| to_python(py, &error))?;
            let load = || pickle::decode(py, &payload);
            return loading_from(&reference.get().session, load).map(|value| Some((value,)));
        }
        if let Some(value) = reference.get().value_if_local(py)? {
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

    /// Drops the data that was loaded for a token, because no code waits for it any more.
    fn forget(&self, token: u64) {
        let brought = self.queue.brought().remove(&token);
        drop(brought); // Not under the lock: this may release the last view of a blob.
    }

    /// Queues `token` when a stream has an item to take, or has ended.
    fn notify_item(&self, generator: &Bound<'_, ObjectRefGenerator>, token: u64) -> PyResult<()> {
        let queue = self.queue.clone();
        let stream = generator.get().stream(generator.py())?;
        stream.on_ready(Box::new(move || queue.push(token)));
        Ok(())
    }

    /// Queues `token` when the stream has room for an item, or its task was cancelled.
    fn notify_room(&self, items: &Bound<'_, ItemSender>, token: u64) {
        let (queue, items) = (self.queue.clone(), &items.get().items);
        items.pause();
        items.when_room(Box::new(move || queue.push(token)));
    }

    /// Queues `token` when all work that the scope has submitted so far has ended.
    fn notify_scope_end(&self, scope: &Bound<'_, CodeScope>, token: u64) {
        let last = Arc::new(Last { queue: self.queue.clone(), token });
        for answer in scope.get().pending() {
            let last = last.clone();
            answer.then(Box::new(move || drop(last)));
        }
    }

    /// Takes the tokens that were queued since the last call.
    fn take(&self) -> Vec<u64> {
        let _ = rustix::io::read(&self.queue.bell, &mut [0_u8; 8]);
        std::mem::take(&mut *self.queue.came.lock().expect("nothing panics under it"))
    }
}
