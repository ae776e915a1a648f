//! Functions and classes, and submitting tasks that call them.

use crate::answer::Answer;
use crate::arguments::Arguments;
use crate::around::{Around, within};
use crate::failure::to_python;
use crate::generator::ObjectRefGenerator;
use crate::options::{Returns, TaskOptions};
use crate::reference::ObjectRef;
use crate::session::{Inner, Session};
use marline_runtime::core::error::ErrorKind;
use marline_runtime::core::id::ObjectId;
use marline_runtime::core::spec::{self, Target, TaskSpec};
use marline_runtime::new_task_id;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use std::sync::Arc;

/// The scheme of the names of Python functions and classes; those with a runtime environment add its hash:
/// `python/1f0a`.
pub const SCHEME: &str = "python";
/// The longest part of a name that says which function it is, in bytes.
const MAX_LABEL_BYTES: usize = 200;

/// A function or a class: its name, its code, and how it runs.
#[pyclass(frozen, module = "marline._native")]
pub struct Function {
    pub name: Arc<str>,
    /// It lives as long as this. Where there is none, workers know what the name means, and arguments and
    /// results are plain data.
    code: Option<Py<ObjectRef>>,
    options: Arc<spec::TaskOptions>,
    returns: Returns,
}

impl Function {
    /// Whether only plain data is understood.
    pub fn is_plain(&self) -> bool {
        self.code.is_none()
    }

    /// Encodes arguments as it understands them.
    pub fn arguments<'py>(
        &self,
        args: &Bound<'py, PyTuple>,
        kwargs: &Bound<'py, PyDict>,
        around: &Around<'py>,
        session: &Arc<Inner>,
    ) -> PyResult<Arguments<'py>> {
        match &self.code {
            Some(code) => {
                let code = Some(code.get().id);
                Arguments::of(args, kwargs, around, code, self.returns.2, session)
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

    /// One that workers provide under this name.
    #[staticmethod]
    fn named(name: &str, options: &Bound<'_, TaskOptions>) -> Function {
        let options = options.get().options.clone();
        Function { name: name.into(), code: None, options, returns: Returns(1, None, false, false) }
    }

    /// Submits a task that calls it.
    fn submit<'py>(
        &self,
        py: Python<'py>,
        session: &Bound<'py, Session>,
        args: &Bound<'py, PyTuple>,
        kwargs: &Bound<'py, PyDict>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let around = Around::here(py)?;
        let session = &session.get().inner;
        let Arguments { payload, needs, holds, _references, _met, _stored } =
            self.arguments(args, kwargs, &around, session)?;
        let spec = Arc::new(TaskSpec {
            id: new_task_id(),
            target: Target::Function(self.name.clone()),
            args: payload,
            needs,
            referents: holds,
            returns: self.returns.0,
            stream_window: self.returns.1,
            options: within(&self.options, around.time_left()?),
        });
        let client = session.client_for_work().map_err(|error| to_python(py, &error))?;
        let answer = Arc::<Answer>::default();
        let tell = || answer.tell_of(session.unread.get().map(|unread| unread.task(&self.name)));
        if spec.stream_window.is_some() {
            let submitted = match client.try_submit_stream(spec.clone(), tell) {
                Err(error) if error.kind() == ErrorKind::Exhausted => {
                    py.detach(|| client.submit_stream(spec.clone(), tell))
                }
                submitted => submitted,
            };
            let stream = submitted.map_err(|error| to_python(py, &error))?;
            around.submitted(session, spec.id, &answer);
            return Ok(Bound::new(py, ObjectRefGenerator::new(session, stream, answer))?.into_any());
        }
        let submitted = match client.try_submit_with_callback(spec.clone(), tell) {
            Err(error) if error.kind() == ErrorKind::Exhausted => {
                py.detach(|| client.submit_with_callback(spec.clone(), tell))
            }
            submitted => submitted,
        };
        submitted.map_err(|error| to_python(py, &error))?;
        around.submitted(session, spec.id, &answer);
        results(py, &spec, |id| ObjectRef::result(session, id, answer.clone()))
    }
}

/// The references to what a task gives: one, or a list of several.
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
