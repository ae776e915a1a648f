//! Buffers between Python and shared memory, in both directions. Large buffers of Python objects
//! are kept out of the pickle and copied once, into the object store. [`SharedBytes`] lets Python
//! read a blob in place, for as long as Python references it.

#![expect(
    unsafe_code,
    reason = "the buffer protocol is made of pointers; each use says why it is sound"
)]

use bytes::Bytes;
use marline_runtime::core::payload::MAX_INLINE_BYTES;
use pyo3::buffer::PyBuffer;
use pyo3::ffi;
use pyo3::prelude::*;
use std::cell::RefCell;
use std::ffi::{c_int, c_void};

thread_local! {
    /// The large buffers found so far by the pickling that runs on this thread.
    static FOUND_BUFFERS: RefCell<Vec<PyBuffer<u8>>> = const { RefCell::new(Vec::new()) };
}

/// The `buffer_callback` of pickle. Returns whether the buffer becomes part of the pickled data:
/// small buffers do, and buffers that are not contiguous. Takes the others.
#[pyfunction]
pub fn buffer_callback(buffer: &Bound<'_, PyAny>) -> PyResult<bool> {
    let Ok(raw) = buffer.call_method0("raw") else { return Ok(true) };
    let raw = PyBuffer::<u8>::get(&raw)?;
    if raw.len_bytes() <= MAX_INLINE_BYTES || !raw.is_c_contiguous() {
        return Ok(true);
    }
    FOUND_BUFFERS.with_borrow_mut(|found| found.push(raw));
    Ok(false)
}

/// Takes the buffers found on this thread, and replaces them by `buffers`.
pub fn replace_found_buffers(buffers: Buffers) -> Buffers {
    Buffers(FOUND_BUFFERS.replace(buffers.0))
}

/// Buffers of Python objects. The memory of an object neither moves nor goes away as long as its
/// buffer exists.
#[derive(Default)]
pub struct Buffers(Vec<PyBuffer<u8>>);

impl Buffers {
    pub fn len_bytes(&self) -> usize {
        self.0.iter().map(|buffer| buffer.len_bytes()).sum()
    }

    /// Returns copies of the buffers.
    pub fn copied(&self) -> Vec<Bytes> {
        self.parts().iter().map(|part| Bytes::copy_from_slice(part)).collect()
    }

    /// Returns the bytes of the buffers. Another Python thread may write to them while they are
    /// copied. The copy is then a mixture of old and new bytes, as for any unlocked read in Python.
    pub fn parts(&self) -> Vec<&[u8]> {
        let part = |buffer: &PyBuffer<u8>| {
            let (start, len) = (buffer.buf_ptr().cast::<u8>(), buffer.len_bytes());
            if len == 0 {
                return &[][..];
            }
            // SAFETY: the exporter keeps the memory in place until the buffer is released, which
            // happens when `self` is dropped. `buffer_callback` has checked that it is contiguous.
            unsafe { std::slice::from_raw_parts(start, len) }
        };
        self.0.iter().map(part).collect()
    }
}

/// Bytes that Python reads in place and cannot write. They live as long as the Python objects made
/// from them.
#[pyclass(frozen, module = "marline._native")]
pub struct SharedBytes(pub Bytes);

#[pymethods]
impl SharedBytes {
    fn __len__(&self) -> usize {
        self.0.len()
    }

    /// # Safety
    ///
    /// `view` points to a `Py_buffer` that this function may fill, as the buffer protocol of Python
    /// guarantees.
    unsafe fn __getbuffer__(
        this: Bound<'_, SharedBytes>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let bytes = &this.get().0;
        let (start, len) = (bytes.as_ptr() as *mut c_void, bytes.len() as ffi::Py_ssize_t);
        // SAFETY: the caller passes `view` to be filled. The bytes belong to `this`, which the view
        // keeps alive, and do not move. The view is marked read-only (the argument 1).
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, this.as_ptr(), start, len, 1, flags) };
        match filled {
            0 => Ok(()),
            _ => Err(PyErr::fetch(this.py())),
        }
    }
}
