//! What work takes along from where it is submitted. Mostly nothing: then it costs a look at two numbers.

use crate::pickle::function;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

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
}

impl<'py> Around<'py> {
    /// Around what is submitted now.
    pub fn here(py: Python<'py>) -> PyResult<Around<'py>> {
        static AROUND: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        if !LOOK.load(Ordering::Relaxed) && !traces(py)? {
            return Ok(Around::default());
        }
        let values = function(py, &AROUND, "marline._propagate", "values")?.call0()?.extract()?;
        Ok(Around { values })
    }
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
