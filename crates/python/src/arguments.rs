//! Arguments of tasks and calls, as they travel. References among them are left out: their values go along.

use crate::around::Around;
use crate::failure::to_python;
use crate::pickle::{self, Encoded, Met};
use crate::plain;
use crate::reference::{Held, ObjectRef};
use crate::session::Inner;
use marline_runtime::core::id::{ObjectId, Referent};
use marline_runtime::core::payload::{MAX_INLINE_BYTES, Payload, Value};
use marline_runtime::new_object_id;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::sync::Arc;

/// See the [module](self).
pub struct Arguments<'py> {
    pub payload: Payload,
    pub needs: Vec<ObjectId>,
    pub holds: Vec<Referent>,
    /// Kept until they are submitted, so that what they name is held.
    pub _references: Vec<Bound<'py, ObjectRef>>,
    /// The same of those inside of them.
    pub _met: Met,
    /// The same of their data, if that is in a store.
    pub _stored: Option<Held>,
}

impl<'py> Arguments<'py> {
    /// Encodes arguments, with what goes along; the code of the function or class comes last. It is said if all
    /// items are wanted in one result.
    pub fn of(
        args: &Bound<'py, PyTuple>,
        kwargs: &Bound<'py, PyDict>,
        around: &Around<'py>,
        code: Option<ObjectId>,
        collects: bool,
        session: &Arc<Inner>,
    ) -> PyResult<Arguments<'py>> {
        let py = args.py();
        let mut references = Vec::new();
        let has_references =
            args.iter().chain(kwargs.values().iter()).any(|arg| is_reference(&arg));
        let all = if has_references {
            let args = args.iter().map(|arg| leave_out(arg, &mut references));
            let args = PyTuple::new(py, args.collect::<PyResult<Vec<_>>>()?)?;
            let named = PyDict::new(py);
            for (name, arg) in kwargs.iter() {
                named.set_item(name, leave_out(arg, &mut references)?)?;
            }
            (args, named)
        } else {
            (args.clone(), kwargs.clone())
        };
        let all = match &around.values {
            values if collects => (all.0, all.1, values, true).into_pyobject(py)?,
            None => all.into_pyobject(py)?,
            Some(values) => (all.0, all.1, values).into_pyobject(py)?,
        };
        let room = |bytes| session.room(new_object_id(), bytes);
        let Encoded { value, at, met: _met } = pickle::encode(all.as_any(), "arguments", room)?;
        let Value { payload, referents: contains } = value;
        let put = match &payload.stored {
            Some(_) => session.client().and_then(|client| client.put_arguments(&payload, at)),
            None => Ok(None),
        };
        let _stored = held(session, put.map_err(|error| to_python(py, &error))?);
        let mut needs = ids(py, &references)?;
        needs.extend(code);
        let holds = contains;
        Ok(Arguments { payload, needs, holds, _references: references, _met, _stored })
    }

    /// Encodes arguments for what is written in another language.
    pub fn plain(
        args: &Bound<'py, PyTuple>,
        kwargs: &Bound<'py, PyDict>,
        session: &Arc<Inner>,
    ) -> PyResult<Arguments<'py>> {
        if !kwargs.is_empty() {
            let words =
                "what is called by its name has no names for its arguments: give them in order";
            return Err(PyTypeError::new_err(words));
        }
        let py = args.py();
        let (payload, references) = plain::dump_arguments(args)?;
        let needs = ids(py, &references)?;
        let kept = match payload.len() > MAX_INLINE_BYTES {
            true => py.detach(|| session.client()?.store_arguments(payload)),
            false => Ok((payload, None)),
        };
        let (payload, stored) = kept.map_err(|error| to_python(py, &error))?;
        let (holds, _stored) = (Vec::new(), held(session, stored));
        let _met = Met::default();
        Ok(Arguments { payload, needs, holds, _references: references, _met, _stored })
    }
}

/// A handle to arguments that are in a store.
fn held(session: &Arc<Inner>, stored: Option<ObjectId>) -> Option<Held> {
    stored.map(|object| Held::new(session, Referent::Object(object)))
}

/// The objects that others know the values of references by.
fn ids(py: Python<'_>, references: &[Bound<'_, ObjectRef>]) -> PyResult<Vec<ObjectId>> {
    let id = |one: &Bound<'_, ObjectRef>| {
        one.get().leave_to_others();
        one.get().public_id(py)
    };
    references.iter().map(id).collect()
}

fn is_reference(arg: &Bound<'_, PyAny>) -> bool {
    arg.is_exact_instance_of::<ObjectRef>()
}

/// What stands for an argument: itself, or which of the values that go along.
fn leave_out<'py>(
    arg: Bound<'py, PyAny>,
    references: &mut Vec<Bound<'py, ObjectRef>>,
) -> PyResult<Bound<'py, PyAny>> {
    if !is_reference(&arg) {
        return Ok(arg);
    }
    let need = arg.py().import("marline._pickle")?.call_method1("Need", (references.len(),))?;
    references.push(arg.cast_into::<ObjectRef>()?);
    Ok(need)
}
