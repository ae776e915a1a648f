//! Buffers between Python and shared memory: those of Python objects that are pickled beside them and copied once,
//! and bytes of ours that Python reads where they are, for as long as it likes.

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
    /// What was met beside what is pickled on this thread.
    static MET: RefCell<Vec<PyBuffer<u8>>> = const { RefCell::new(Vec::new()) };
}

/// A buffer is met while something is pickled. Says whether it is to be part of the data: small ones are, and
/// those that are not in one piece.
#[pyfunction]
pub fn met_buffer(buffer: &Bound<'_, PyAny>) -> PyResult<bool> {
    let Ok(raw) = buffer.call_method0("raw") else { return Ok(true) };
    let raw = PyBuffer::<u8>::get(&raw)?;
    if raw.len_bytes() <= MAX_INLINE_BYTES || !raw.is_c_contiguous() {
        return Ok(true);
    }
    MET.with_borrow_mut(|met| met.push(raw));
    Ok(false)
}

/// The buffers that were met since the last time. From now on these were.
pub fn replace_met(buffers: Buffers) -> Buffers {
    Buffers(MET.replace(buffers.0))
}

/// Buffers of Python objects, which cannot go or move before these do.
#[derive(Default)]
pub struct Buffers(Vec<PyBuffer<u8>>);

impl Buffers {
    pub fn len_bytes(&self) -> usize {
        self.0.iter().map(|buffer| buffer.len_bytes()).sum()
    }

    /// Copies of them.
    pub fn copied(&self) -> Vec<Bytes> {
        self.parts().iter().map(|part| Bytes::copy_from_slice(part)).collect()
    }

    /// What is in them. Another thread of the interpreter may write to it while it is copied: what comes of that
    /// is what comes of any two threads of which one writes to what the other reads without a lock.
    pub fn parts(&self) -> Vec<&[u8]> {
        let part = |buffer: &PyBuffer<u8>| {
            let (start, len) = (buffer.buf_ptr().cast::<u8>(), buffer.len_bytes());
            if len == 0 {
                return &[][..];
            }
            // SAFETY: whoever exports a buffer keeps it where it is until it is released, which is when `self`
            // is dropped; it is in one piece, as was looked at when it was met.
            unsafe { std::slice::from_raw_parts(start, len) }
        };
        self.0.iter().map(part).collect()
    }
}

/// Bytes that Python can read and not write. They live as long as whatever it makes of them.
#[pyclass(frozen, module = "marline._native")]
pub struct SharedBytes(pub Bytes);

#[pymethods]
impl SharedBytes {
    fn __len__(&self) -> usize {
        self.0.len()
    }

    /// # Safety
    ///
    /// As Python calls it: with a place for what describes the buffer.
    unsafe fn __getbuffer__(
        this: Bound<'_, SharedBytes>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let bytes = &this.get().0;
        let (start, len) = (bytes.as_ptr() as *mut c_void, bytes.len() as ffi::Py_ssize_t);
        // SAFETY: `view` is the caller's to be filled. The bytes are the object's, which the view keeps alive, and
        // do not move. It is said that they cannot be written.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, this.as_ptr(), start, len, 1, flags) };
        match filled {
            0 => Ok(()),
            _ => Err(PyErr::fetch(this.py())),
        }
    }
}
