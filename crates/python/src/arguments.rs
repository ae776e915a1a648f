//! The encoding of the arguments of tasks and calls.
//!
//! A reference that is itself an argument is replaced by an `ArgumentSlot` (`marline/_serialize/pickling.py`).
//! The executor receives the values of these references beside the arguments, and puts them in. A
//! reference deeper inside an argument travels as a reference.

use crate::failure::to_python;
use crate::options::CollectedItems;
use crate::pickle::{self, Encoded, FoundReferences};
use crate::plain_data;
use crate::reference::{HoldGuard, ObjectRef};
use crate::session::SessionState;
use crate::submit_context::SubmitContext;
use marline_runtime::core::id::{ObjectId, Referent};
use marline_runtime::core::payload::{MAX_INLINE_BYTES, Payload, Value};
use marline_runtime::new_object_id;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::sync::Arc;

/// Encoded arguments. See the [module](self).
pub struct Arguments<'py> {
    pub payload: Payload,
    pub needs: Vec<ObjectId>,
    pub holds: Vec<Referent>,
    /// The references that are arguments. Kept until the work is submitted, so that their objects
    /// stay held.
    pub _references: Vec<Bound<'py, ObjectRef>>,
    /// The references inside arguments, kept for the same reason.
    pub _found: FoundReferences,
    /// A hold on the object with the data of large arguments, kept for the same reason.
    pub _stored: Option<HoldGuard>,
}

impl<'py> Arguments<'py> {
    /// Encodes arguments by pickle, with the context of the submission. `code`, the code of the
    /// function or class, becomes the last of the needed objects. `collected` asks for all items of
    /// a generator in one result.
    pub fn of(
        args: &Bound<'py, PyTuple>,
        kwargs: &Bound<'py, PyDict>,
        submit_context: &SubmitContext<'py>,
        code: Option<ObjectId>,
        collected: Option<CollectedItems>,
        session: &Arc<SessionState>,
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
        // The fourth item is there only for a generator whose items are collected.
        let all = match (&submit_context.values, collected) {
            (values, Some(items)) => (all.0, all.1, values, items.durable).into_pyobject(py)?,
            (None, None) => all.into_pyobject(py)?,
            (Some(values), None) => (all.0, all.1, values).into_pyobject(py)?,
        };
        let destination = |bytes| session.destination(new_object_id(), bytes);
        let Encoded { value, at, found: _found } =
            pickle::encode(all.as_any(), "arguments", destination)?;
        let Value { payload, referents: contains } = value;
        let put = match &payload.stored {
            Some(_) => session.client().and_then(|client| client.put_arguments(&payload, at)),
            None => Ok(None),
        };
        let _stored = held(session, put.map_err(|error| to_python(py, &error))?);
        _found.check_session(session, "arguments")?;
        let mut needs = ids(py, &references, session)?;
        needs.extend(code);
        let holds = contains;
        Ok(Arguments { payload, needs, holds, _references: references, _found, _stored })
    }

    /// Encodes arguments as plain data, for functions and classes in another language.
    pub fn plain(
        args: &Bound<'py, PyTuple>,
        kwargs: &Bound<'py, PyDict>,
        session: &Arc<SessionState>,
    ) -> PyResult<Arguments<'py>> {
        if !kwargs.is_empty() {
            let words = "functions and classes that are called by name take no keyword arguments: pass \
                         them in order";
            return Err(PyTypeError::new_err(words));
        }
        let py = args.py();
        let (payload, references) = plain_data::dump_arguments(args)?;
        let needs = ids(py, &references, session)?;
        let stored_args = match payload.len() > MAX_INLINE_BYTES {
            true => py.detach(|| session.client()?.store_arguments(payload)),
            false => Ok((payload, None)),
        };
        let (payload, stored) = stored_args.map_err(|error| to_python(py, &error))?;
        let (holds, _stored) = (Vec::new(), held(session, stored));
        let _found = FoundReferences::default();
        Ok(Arguments { payload, needs, holds, _references: references, _found, _stored })
    }
}

/// Returns a hold on the object that has large arguments, if there is one. It is counted already.
fn held(session: &Arc<SessionState>, stored: Option<ObjectId>) -> Option<HoldGuard> {
    stored.map(|object| HoldGuard::new(session, Referent::Object(object)))
}

/// Returns the public ids of references of a session. The work that is submitted has to read their
/// errors from now on.
fn ids(
    py: Python<'_>,
    references: &[Bound<'_, ObjectRef>],
    session: &Arc<SessionState>,
) -> PyResult<Vec<ObjectId>> {
    let id = |reference: &Bound<'_, ObjectRef>| {
        if !Arc::ptr_eq(&reference.get().session, session) {
            return Err(pickle::other_session(py, "arguments"));
        }
        reference.get().hand_over_error();
        reference.get().public_id(py)
    };
    references.iter().map(id).collect()
}

fn is_reference(arg: &Bound<'_, PyAny>) -> bool {
    arg.is_exact_instance_of::<ObjectRef>()
}

/// Returns an argument as it is pickled: a reference is moved to `references`, and replaced by its
/// index there.
fn leave_out<'py>(
    arg: Bound<'py, PyAny>,
    references: &mut Vec<Bound<'py, ObjectRef>>,
) -> PyResult<Bound<'py, PyAny>> {
    if !is_reference(&arg) {
        return Ok(arg);
    }
    let slot = arg
        .py()
        .import("marline._serialize.pickling")?
        .call_method1("ArgumentSlot", (references.len(),))?;
    references.push(arg.cast_into::<ObjectRef>()?);
    Ok(slot)
}
