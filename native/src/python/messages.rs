//! Messages on their way to Python and from it: copied where they are small, else read where they lie.

use crate::h2::framing::{PREFIX, Prefix};
use crate::measure::budget::{self, Budget};
use bytes::Bytes;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::os::raw::c_int;
use std::sync::Arc;

/// Up to here a message is copied into `bytes`; above, Python reads it where it lies.
const COPIED: usize = 64 * 1024;

/// A message as Python gets it. What is copied gives its memory back here, what is not when Python drops it.
pub(crate) fn handed_over(
    py: Python<'_>,
    message: Option<budget::Message>,
) -> PyResult<Option<Bound<'_, PyAny>>> {
    let Some(message) = message else { return Ok(None) };
    if message.bytes.len() <= COPIED {
        return Ok(Some(PyBytes::new(py, &message.bytes).into_any()));
    }
    Ok(Some(Bound::new(py, Message(message))?.into_any()))
}

/// The pieces of a message from Python, or its only one.
pub(crate) fn pieces<'py>(message: &Bound<'py, PyAny>) -> PyResult<Vec<Piece<'py>>> {
    if let Ok(whole) = Piece::new(message) {
        return Ok(vec![whole]);
    }
    let wrong = || PyTypeError::new_err("a message is bytes, or a sequence of bytes and memoryviews");
    let pieces = message.try_iter().map_err(|_| wrong())?;
    pieces.map(|piece| Piece::new(&piece?)).collect()
}

/// A message from Python, with its prefix, copied; None when the budget has no room for it.
pub(crate) fn framed(pieces: &[Piece<'_>], answers: &Arc<Budget>) -> PyResult<Option<Bytes>> {
    let length = pieces.iter().map(Piece::len).sum();
    let prefix = Prefix::encode(length).ok_or_else(|| {
        PyValueError::new_err(format!("a message of {length} bytes is longer than gRPC can carry"))
    })?;
    let mut reservation = answers.reserve();
    if reservation.resize(PREFIX + length).is_err() {
        return Ok(None);
    }
    let mut frame = Vec::with_capacity(PREFIX + length);
    frame.extend_from_slice(&prefix);
    for piece in pieces {
        piece.append_to(&mut frame);
    }
    Ok(Some(reservation.hold(frame)))
}

/// A piece of a message, borrowed from Python.
pub(crate) enum Piece<'py> {
    Bytes(Bound<'py, PyBytes>),
    Buffer(PyUntypedBuffer),
}

impl<'py> Piece<'py> {
    fn new(piece: &Bound<'py, PyAny>) -> PyResult<Self> {
        if let Ok(bytes) = piece.cast::<PyBytes>() {
            return Ok(Self::Bytes(bytes.clone()));
        }
        let buffer = PyUntypedBuffer::get(piece)?;
        if !buffer.is_c_contiguous() {
            return Err(PyValueError::new_err("a piece of a message is not contiguous"));
        }
        Ok(Self::Buffer(buffer))
    }

    fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.as_bytes().len(),
            Self::Buffer(buffer) => buffer.len_bytes(),
        }
    }

    fn append_to(&self, frame: &mut Vec<u8>) {
        match self {
            Self::Bytes(bytes) => frame.extend_from_slice(bytes.as_bytes()),
            Self::Buffer(buffer) if buffer.len_bytes() == 0 => {}
            // SAFETY: the buffer is contiguous, held by `self`, and this thread holds the interpreter's lock, so that
            // no Python code writes to it meanwhile.
            Self::Buffer(buffer) => frame.extend_from_slice(unsafe {
                std::slice::from_raw_parts(buffer.buf_ptr().cast::<u8>(), buffer.len_bytes())
            }),
        }
    }
}

/// A request message that is too large to copy: bytes that Python reads where they lie.
#[pyclass(frozen, module = "edge_appliance_native")]
pub(crate) struct Message(budget::Message);

#[pymethods]
impl Message {
    fn __len__(&self) -> usize {
        self.0.bytes.len()
    }

    /// Fills a view that keeps this object, and so the memory, alive.
    ///
    /// # Safety
    /// As the buffer protocol demands: `view` is valid or null.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let bytes = &slf.get().0.bytes;
        // SAFETY: the view takes a reference to the object, which is frozen and owns the bytes; read-only.
        let result = unsafe {
            ffi::PyBuffer_FillInfo(
                view,
                slf.as_ptr(),
                bytes.as_ptr().cast_mut().cast(),
                bytes.len() as ffi::Py_ssize_t,
                1,
                flags,
            )
        };
        if result == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}
