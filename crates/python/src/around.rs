//! What work takes along from where it is submitted. Mostly nothing: then it costs a look at two numbers.

use crate::answer::Answer;
use crate::failure::to_python;
use crate::pickle::function;
use crate::scope::Scope;
use crate::session::Inner;
use marline_runtime::core::error::Error;
use marline_runtime::core::id::TaskId;
use marline_runtime::core::spec::TaskOptions;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Whether there may be anything.
static LOOK: AtomicBool = AtomicBool::new(false);
/// How many modules there were when it was last looked whether one of them traces.
static MODULES: AtomicUsize = AtomicUsize::new(0);
/// Where it is imported, there are traces to go along.
const TRACER: &str = "opentelemetry.trace";

/// See the [module](self).
#[derive(Default)]
pub struct Around<'py> {
    /// Values of context variables, by name.
    pub values: Option<Bound<'py, PyDict>>,
    /// The stretch of user code that submits it.
    scope: Option<Bound<'py, Scope>>,
}

impl<'py> Around<'py> {
    /// Around what is submitted now.
    pub fn here(py: Python<'py>) -> PyResult<Around<'py>> {
        static AROUND: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        if !LOOK.load(Ordering::Relaxed) && !traces(py)? {
            return Ok(Around::default());
        }
        let around = function(py, &AROUND, "marline._scope", "around")?.call0()?;
        let (values, scope) = around.extract()?;
        Ok(Around { values, scope })
    }

    /// This was submitted here.
    pub fn submitted(&self, session: &Arc<Inner>, task: TaskId, answer: &Arc<Answer>) {
        if let Some(scope) = &self.scope {
            scope.get().add(session, task, answer);
        }
    }

    /// How long it may take at most. There must be some time left.
    pub fn time_left(&self) -> PyResult<Option<Duration>> {
        let Some(scope) = &self.scope else { return Ok(None) };
        let left = scope.get().time_left();
        if left.is_some_and(|left| left.is_zero()) {
            let words = "what submits this has used up its timeout: there is no time left for it";
            return Err(to_python(scope.py(), &Error::timeout(words)));
        }
        Ok(left)
    }
}

/// The same options, with no more time than this for one attempt.
pub fn within(options: &Arc<TaskOptions>, limit: Option<Duration>) -> Arc<TaskOptions> {
    let Some(limit) = limit else { return options.clone() };
    let timeout = options.timeout.map_or(limit, |timeout| timeout.min(limit));
    Arc::new(TaskOptions { timeout: Some(timeout), ..(**options).clone() })
}

/// From now on there may be something to take along.
#[pyfunction]
pub fn look_around() {
    LOOK.store(true, Ordering::Relaxed);
}

/// Whether something traces since it was last looked.
fn traces(py: Python<'_>) -> PyResult<bool> {
    static ALL: PyOnceLock<Py<PyDict>> = PyOnceLock::new();
    let all = ALL.get_or_try_init(py, || {
        Ok::<_, PyErr>(py.import("sys")?.getattr("modules")?.cast_into::<PyDict>()?.unbind())
    })?;
    let all = all.bind(py);
    if all.len() == MODULES.swap(all.len(), Ordering::Relaxed) {
        return Ok(false);
    }
    let traces = all.contains(TRACER)?;
    if traces {
        look_around();
    }
    Ok(traces)
}
