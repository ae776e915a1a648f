//! Functions and classes, and submitting tasks that call them.

use crate::answer::Answer;
use crate::arguments::Arguments;
use crate::failure::to_python;
use crate::generator::ObjectRefGenerator;
use crate::options::{Returns, TaskOptions};
use crate::reference::ObjectRef;
use crate::session::{Session, SessionState};
use crate::submit_context::{SubmitContext, within};
use marline_runtime::core::error::ErrorKind;
use marline_runtime::core::id::ObjectId;
use marline_runtime::core::spec::{self, Target, TaskSpec};
use marline_runtime::new_task_id;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use std::sync::Arc;

/// The scheme of the names of Python functions and classes. A runtime environment adds its hash:
/// `python/1f0a`.
pub const SCHEME: &str = "python";
/// The longest readable part of a function's name, in bytes. A longer one is cut.
const MAX_LABEL_BYTES: usize = 200;

/// A function or a class: its name, its code, and how it runs.
#[pyclass(frozen, module = "marline._native")]
pub struct Function {
    pub name: Arc<str>,
    /// The object with the code, held as long as the `Function` exists. `None` for a function that
    /// workers provide under its name: its arguments and results are plain data.
    code: Option<Py<ObjectRef>>,
    options: Arc<spec::TaskOptions>,
    returns: Returns,
}

impl Function {
    /// Returns whether the function takes and returns plain data only.
    pub fn is_plain(&self) -> bool {
        self.code.is_none()
    }

    /// Encodes arguments by pickle or as plain data, as the function expects them.
    pub fn arguments<'py>(
        &self,
        args: &Bound<'py, PyTuple>,
        kwargs: &Bound<'py, PyDict>,
        submit_context: &SubmitContext<'py>,
        session: &Arc<SessionState>,
    ) -> PyResult<Arguments<'py>> {
        match &self.code {
            Some(code) => {
                let code = Some(code.get().id);
                let collected = self.returns.collected(self.options.durable);
                Arguments::of(args, kwargs, submit_context, code, collected, session)
            }
            None => Arguments::plain(args, kwargs, session),
        }
    }
}

#[pymethods]
impl Function {
    #[new]
    fn new(
        runtime: &str,
        label: &str,
        key: &str,
        code: Bound<'_, ObjectRef>,
        options: &Bound<'_, TaskOptions>,
        returns: Returns,
    ) -> Function {
        let mut end = label.len().min(MAX_LABEL_BYTES);
        while !label.is_char_boundary(end) {
            end -= 1;
        }
        let name = format!("{runtime}:{}#{key}", &label[..end]).into();
        let options = options.get().options.clone();
        Function { name, code: Some(code.unbind()), options, returns }
    }

    /// Makes a function that workers provide under this name.
    #[staticmethod]
    fn named(name: &str, options: &Bound<'_, TaskOptions>) -> Function {
        let options = options.get().options.clone();
        Function {
            name: name.into(),
            code: None,
            options,
            returns: Returns { results: 1, stream: None, collects: false, durable: false },
        }
    }

    /// Submits a task that calls the function. Returns the references to the task's results, or the
    /// stream of its items.
    fn submit<'py>(
        &self,
        py: Python<'py>,
        session: &Bound<'py, Session>,
        args: &Bound<'py, PyTuple>,
        kwargs: &Bound<'py, PyDict>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let session = &session.get().inner;
        let submit_context = SubmitContext::here(py, session)?;
        let Arguments { payload, needs, holds, _references, _found, _stored } =
            self.arguments(args, kwargs, &submit_context, session)?;
        let spec = Arc::new(TaskSpec {
            id: new_task_id(),
            target: Target::Function(self.name.clone()),
            args: payload,
            needs,
            referents: holds,
            returns: self.returns.results,
            stream_window: self.returns.stream,
            options: within(&self.options, submit_context.time_left()?),
        });
        let client = session.client_for_work().map_err(|error| to_python(py, &error))?;
        let answer = Arc::<Answer>::default();
        let completion =
            || answer.completion_for(session.unread.get().map(|unread| unread.task(&self.name)));
        if spec.stream_window.is_some() {
            let submitted = match client.try_submit_stream(spec.clone(), completion) {
                Err(error) if error.kind() == ErrorKind::Exhausted => {
                    py.detach(|| client.submit_stream(spec.clone(), completion))
                }
                submitted => submitted,
            };
            let stream = submitted.map_err(|error| to_python(py, &error))?;
            submit_context.record_submission(session, spec.id, &answer);
            return Ok(Bound::new(py, ObjectRefGenerator::new(session, stream, answer))?.into_any());
        }
        let submitted = match client.try_submit_with_callback(spec.clone(), completion) {
            Err(error) if error.kind() == ErrorKind::Exhausted => {
                py.detach(|| client.submit_with_callback(spec.clone(), completion))
            }
            submitted => submitted,
        };
        submitted.map_err(|error| to_python(py, &error))?;
        submit_context.record_submission(session, spec.id, &answer);
        results(py, &spec, |id| ObjectRef::result(session, id, answer.clone()))
    }
}

/// Returns the references to the results of a task: `None`, one reference, or a list of several.
pub fn results<'py>(
    py: Python<'py>,
    spec: &TaskSpec,
    reference: impl Fn(ObjectId) -> ObjectRef,
) -> PyResult<Bound<'py, PyAny>> {
    let reference = |id| Bound::new(py, reference(id));
    match spec.returns {
        0 => Ok(py.None().into_bound(py)),
        1 => Ok(reference(ObjectId::of(spec.id, 0))?.into_any()),
        _ => {
            let all = spec.results().map(reference).collect::<PyResult<Vec<_>>>()?;
            Ok(PyList::new(py, all)?.into_any())
        }
    }
}
