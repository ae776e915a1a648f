//! Streams of items: an iterator of references to the items that a task yields while it runs.

use crate::answer::Answer;
use crate::failure::to_python;
use crate::reference::{HoldGuard, ObjectRef};
use crate::session::SessionState;
use crate::wait::wait_for_one;
use marline_runtime::core::id::{ObjectId, Referent};
use marline_runtime::core::message::CancelMode;
use marline_runtime::{ItemStream, StreamNext};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use std::sync::Arc;

/// An iterator of references to the items of a task or call with `num_returns="streaming"`, in
/// order.
///
/// Each reference comes as soon as its value has come. `async for` works, too. Closing the iterator
/// cancels the task.
#[pyclass(frozen, weakref, module = "marline")]
pub struct ObjectRefGenerator {
    session: Arc<SessionState>,
    /// Always there, until this is dropped.
    stream: Option<ItemStream>,
    /// A hold on the task's result, which is the number of items.
    _count: HoldGuard,
    /// The outcome of the task.
    end: Arc<Answer>,
}

impl ObjectRefGenerator {
    /// Makes the stream of a task or call that this process has just submitted.
    pub fn new(
        session: &Arc<SessionState>,
        stream: ItemStream,
        end: Arc<Answer>,
    ) -> ObjectRefGenerator {
        let count = Referent::Object(ObjectId::of(stream.task(), 0));
        let _count = HoldGuard::new(session, count);
        ObjectRefGenerator { session: session.clone(), stream: Some(stream), _count, end }
    }

    /// Returns the stream. Fails in a fork: the items come to the parent.
    pub fn stream(&self, py: Python<'_>) -> PyResult<&ItemStream> {
        self.session.client().map_err(|error| to_python(py, &error))?;
        Ok(self.stream.as_ref().expect("it is there until it is dropped"))
    }

    fn reference(&self, py: Python<'_>, next: StreamNext) -> PyResult<Taken> {
        match next {
            StreamNext::Item(id, value) => {
                Ok(Taken::Item(ObjectRef::item(&self.session, id, value)))
            }
            StreamNext::Pending => Ok(Taken::Nothing),
            StreamNext::End(Ok(())) => Ok(Taken::End),
            StreamNext::End(Err(error)) => {
                self.end.mark_read();
                Err(to_python(py, &error))
            }
        }
    }
}

enum Taken {
    Item(ObjectRef),
    Nothing,
    End,
}

impl Drop for ObjectRefGenerator {
    fn drop(&mut self) {
        if self.session.client().is_err() {
            std::mem::forget(self.stream.take()); // In a fork: the stream belongs to the parent.
        }
    }
}

#[pymethods]
impl ObjectRefGenerator {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<ObjectRef>> {
        let stream = self.stream(py)?;
        loop {
            match self.reference(py, stream.take())? {
                Taken::Item(reference) => return Ok(Some(reference)),
                Taken::End => return Ok(None),
                Taken::Nothing => {
                    wait_for_one(py, || stream.has_come(), |wake| stream.on_ready(wake))?
                }
            }
        }
    }

    fn __aiter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __anext__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("marline._concurrent.aio")?.call_method1("next_of", (slf,))
    }

    /// Returns the next reference, if it has come, and whether more may follow.
    fn _take(&self, py: Python<'_>) -> PyResult<(Option<ObjectRef>, bool)> {
        match self.reference(py, self.stream(py)?.take())? {
            Taken::Item(reference) => Ok((Some(reference), true)),
            Taken::Nothing => Ok((None, true)),
            Taken::End => Ok((None, false)),
        }
    }

    /// Cancels the task, and releases the items that were not taken. References that were taken
    /// stay valid.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.stream(py)?.close();
        self.end.mark_read();
        Ok(())
    }

    /// Returns the id of the task that yields the items.
    fn task_id(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.stream(py)?.task().to_string())
    }

    /// Cancels the task. Items that it has yielded can still be taken.
    fn _cancel(&self, py: Python<'_>, force: bool, alone: bool) -> PyResult<()> {
        let task = self.stream(py)?.task();
        if let Ok(client) = self.session.client() {
            client.cancel(task, CancelMode::of(force, alone));
        }
        self.end.mark_read();
        Ok(())
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("ObjectRefGenerator({})", self.stream(py)?.task()))
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err(
            "an ObjectRefGenerator cannot be pickled: only the process that made the call takes its items; \
             pass the references that it yields",
        ))
    }
}
