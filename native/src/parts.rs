//! The scanner as Python may call it: for tests that compare what it reads with what the engine's own reader does. No
//! request is served through here.

use crate::scan::Scanned;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Head, id, and where each raw tensor begins and ends.
type Parts<'py> = (Bound<'py, PyBytes>, Bound<'py, PyBytes>, Vec<(usize, usize)>);

/// Takes a message apart; see the stub of the package.
#[pyfunction]
pub fn scan<'py>(py: Python<'py>, message: &[u8]) -> Option<Parts<'py>> {
    let mut scanned = Scanned::default();
    scanned.read(message)?;
    let id = &message[scanned.id];
    let raw = scanned.raw.iter().map(|range| (range.start, range.end)).collect();
    Some((PyBytes::new(py, &scanned.head), PyBytes::new(py, id), raw))
}
