//! An executor, seen from inside: runs Python functions and actors as it is told. The interpreter's main
//! thread waits for work without its lock, and runs it.

use crate::failure::of_user_code;
use crate::pickle;
use marline_runtime::core::error::Error;
use marline_runtime::core::payload::Value;
use marline_runtime::{Instance, Invocation, Program, Reply, serve_as};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};
use std::sync::Arc;

/// Makes this process an executor until it ends. Does not return, unless it is none.
#[pyfunction]
pub fn serve(py: Python<'_>, variable: &str) {
    let program: Arc<dyn Program> = Arc::new(Python_);
    py.detach(|| serve_as(variable, &program));
}

/// Functions and classes whose code comes with the arguments.
#[allow(non_camel_case_types)]
struct Python_;

impl Program for Python_ {
    fn provides(&self) -> Vec<String> {
        Vec::new()
    }

    fn run(&self, invocation: &Invocation) -> Result<Reply, Error> {
        let run = |py: Python<'_>| {
            let (function, values) = code(py, invocation)?;
            let (args, kwargs) = arguments(py, invocation, values)?;
            reply(&function.call(args, Some(&kwargs))?, invocation.returns)
        };
        Python::attach(|py| run(py).map_err(|error| of_user_code(py, error)))
    }

    fn construct(&self, invocation: &Invocation) -> Result<Arc<dyn Instance>, Error> {
        let construct = |py: Python<'_>| {
            let (class, values) = code(py, invocation)?;
            let (args, kwargs) = arguments(py, invocation, values)?;
            let object = class.call(args, Some(&kwargs))?.unbind();
            Ok(Arc::new(Actor { object }) as Arc<dyn Instance>)
        };
        Python::attach(|py| construct(py).map_err(|error| of_user_code(py, error)))
    }
}

/// An actor that lives here.
struct Actor {
    object: Py<PyAny>,
}

impl Instance for Actor {
    fn call(&self, invocation: &Invocation) -> Result<Reply, Error> {
        let call = |py: Python<'_>| {
            let method = self.object.bind(py).getattr(&*invocation.name)?;
            let (args, kwargs) = arguments(py, invocation, &invocation.values)?;
            reply(&method.call(args, Some(&kwargs))?, invocation.returns)
        };
        Python::attach(|py| call(py).map_err(|error| of_user_code(py, error)))
    }
}

/// The function or class that is meant, and the values that are arguments: the last value is its code.
fn code<'py, 'a>(
    py: Python<'py>,
    invocation: &'a Invocation,
) -> PyResult<(Bound<'py, PyAny>, &'a [Value])> {
    let (code, values) = match invocation.values.split_last() {
        Some((code, values)) => (PyBytes::new(py, &code.payload.inline), values),
        None => (PyBytes::new(py, b""), &[][..]),
    };
    let module = py.import("marline._executor")?;
    Ok((module.call_method1("code", (&*invocation.name, code))?, values))
}

/// The arguments of a call, complete.
fn arguments<'py>(
    py: Python<'py>,
    invocation: &Invocation,
    values: &[Value],
) -> PyResult<(Bound<'py, PyTuple>, Bound<'py, PyDict>)> {
    let mut all = pickle::decode(py, &invocation.args)?;
    if !values.is_empty() {
        let values = values.iter().map(|value| pickle::decode(py, &value.payload));
        let values = values.collect::<PyResult<Vec<_>>>()?;
        let values = PyList::new(py, values)?;
        all = py.import("marline._executor")?.call_method1("fill", (all, values))?;
    }
    Ok(all.extract()?)
}

/// What user code gave back, as it travels.
fn reply(result: &Bound<'_, PyAny>, returns: u32) -> PyResult<Reply> {
    let values = match returns {
        0 => Vec::new(),
        1 => vec![pickle::encode(result)?],
        _ => result.try_iter()?.map(|one| pickle::encode(&one?)).collect::<PyResult<Vec<_>>>()?,
    };
    Ok(Reply { values, kept: Vec::new() })
}
