//! What reads and writes messages, as Python may call it: for tests that compare that with what the engine's own
//! readers and writers do. No request is served through here.

use crate::templates::array::{Array, Step};
use crate::templates::number::Number;
use crate::templates::scan::Scanned;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Head, id, and where each raw tensor begins and ends.
type Parts<'py> = (Bound<'py, PyBytes>, Bound<'py, PyBytes>, Vec<(usize, usize)>);

/// Takes a message apart; see the stub of the package.
#[pyfunction]
pub(crate) fn scan<'py>(py: Python<'py>, message: &[u8]) -> Option<Parts<'py>> {
    let mut scanned = Scanned::default();
    scanned.read(message)?;
    let id = &message[scanned.id];
    let raw = scanned.raw.iter().map(|range| (range.start, range.end)).collect();
    Some((PyBytes::new(py, &scanned.head), PyBytes::new(py, id), raw))
}

/// Reads what is between the brackets of an array; see the stub of the package.
#[pyfunction]
pub(crate) fn json_read<'py>(
    py: Python<'py>,
    code: &str,
    text: &[u8],
    elements: usize,
) -> Option<Bound<'py, PyBytes>> {
    let mut array = Array::new(text, Number::of_code(code)?, elements);
    let mut raw = Vec::new();
    loop {
        match array.step(&mut raw) {
            Step::More => {}
            Step::Whole => return Some(PyBytes::new(py, &raw)),
            Step::Strange => return None,
        }
    }
}

/// Writes what is between the brackets of an array; see the stub of the package.
#[pyfunction]
pub(crate) fn json_written<'py>(py: Python<'py>, code: &str, raw: &[u8]) -> Option<Bound<'py, PyBytes>> {
    let mut text = Vec::new();
    Number::of_code(code)?.write(raw, &mut text);
    Some(PyBytes::new(py, &text))
}
