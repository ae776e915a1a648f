//! The context of a submission: the context variables that travel with the work, and the
//! [`CodeScope`] that submits it. Usually there is neither, and a submission costs two atomic
//! reads.
//!
//! `marline/_api/scopes.py` and `marline/_api/propagation.py` find both; this file asks them only after
//! [`enable_submit_context`], or once OpenTelemetry was imported.

use crate::answer::Answer;
use crate::failure::to_python;
use crate::pickle::function;
use crate::scope::CodeScope;
use crate::session::SessionState;
use marline_runtime::core::error::Error;
use marline_runtime::core::id::TaskId;
use marline_runtime::core::spec::TaskOptions;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Whether there may be a context, so that a submission has to ask Python for it. Never reset.
static LOOK: AtomicBool = AtomicBool::new(false);
/// The length of `sys.modules` at the last search for [`TRACER`]. The search is repeated only when
/// the length has changed.
static MODULES: AtomicUsize = AtomicUsize::new(0);
/// The module of OpenTelemetry. In a process that has imported it, the current trace travels.
const TRACER: &str = "opentelemetry.trace";

/// The values of a submission that come from the code around it. See the [module](self).
#[derive(Default)]
pub struct SubmitContext<'py> {
    /// The values of propagated context variables, by name.
    pub values: Option<Bound<'py, PyDict>>,
    /// The innermost scope of the user code that submits.
    scope: Option<Bound<'py, CodeScope>>,
}

impl<'py> SubmitContext<'py> {
    /// Returns the context of a submission that the current thread makes now through `session`.
    pub fn here(py: Python<'py>, session: &SessionState) -> PyResult<SubmitContext<'py>> {
        static SUBMIT_CONTEXT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        if !LOOK.load(Ordering::Relaxed) && !traces(py)? {
            return Ok(SubmitContext::default());
        }
        let around = function(py, &SUBMIT_CONTEXT, "marline._api.scopes", "submit_context")?
            .call1((session.namespace.get(),))?;
        let (values, scope) = around.extract()?;
        Ok(SubmitContext { values, scope })
    }

    /// Records a submitted task or call in the scope, which may have to cancel it.
    pub fn record_submission(
        &self,
        session: &Arc<SessionState>,
        task: TaskId,
        answer: &Arc<Answer>,
    ) {
        if let Some(scope) = &self.scope {
            scope.get().add(session, task, answer);
        }
    }

    /// Returns how much time the submitting task has left, which limits the new work; `None` is no
    /// limit. Fails with a timeout if no time is left.
    pub fn time_left(&self) -> PyResult<Option<Duration>> {
        let Some(scope) = &self.scope else { return Ok(None) };
        let left = scope.get().time_left();
        if left.is_some_and(|left| left.is_zero()) {
            let words = "the task that submits this has used up its timeout: there is no time left";
            return Err(to_python(scope.py(), &Error::timeout(words)));
        }
        Ok(left)
    }
}

/// Returns `options` with the timeout of one attempt reduced to `limit`.
pub fn within(options: &Arc<TaskOptions>, limit: Option<Duration>) -> Arc<TaskOptions> {
    let Some(limit) = limit else { return options.clone() };
    let timeout = options.timeout.map_or(limit, |timeout| timeout.min(limit));
    Arc::new(TaskOptions { timeout: Some(timeout), ..(**options).clone() })
}

/// Makes every later submission of this process look for a context. Called by Python as soon as
/// there is a scope, a propagated variable or a namespace.
#[pyfunction]
pub fn enable_submit_context() {
    LOOK.store(true, Ordering::Relaxed);
}

/// Returns whether OpenTelemetry has been imported since the last call; enables the context if so.
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
        enable_submit_context();
    }
    Ok(traces)
}
