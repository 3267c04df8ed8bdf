//! Runs that a worker's session has prepared for fixed addresses, kept beside the ring that calls them.

use pyo3::prelude::*;
use std::collections::HashMap;

/// What is kept; empty at first. Whoever takes something out of it drops that without a lock: it ends in Python.
#[derive(Default)]
pub(crate) struct Runs {
    /// Of a request in its place: by template, offset and out_offset.
    pub(crate) alone: HashMap<(u32, usize, usize), Alone>,
    /// Of a batch: by kind and rows.
    pub(crate) merged: HashMap<(u32, u32), Merged>,
}

impl Runs {
    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.alone.len() + self.merged.len()
    }

    /// Takes out those of a template's requests in their places, and of batches of its kind.
    pub(crate) fn split_off_template(&mut self, template: u32, kind: u32) -> Self {
        Self {
            alone: self.alone.extract_if(|key, _| key.0 == template).collect(),
            merged: self.merged.extract_if(|key, _| key.0 == kind).collect(),
        }
    }

    /// Takes out those of a kind.
    pub(crate) fn split_off(&mut self, kind: u32) -> Self {
        Self {
            alone: self.alone.extract_if(|_, alone| alone.kind == kind).collect(),
            merged: self.merged.extract_if(|key, _| key.0 == kind).collect(),
        }
    }
}

/// The run of a request in its place.
pub(crate) struct Alone {
    /// The kind of its template.
    pub(crate) kind: u32,
    /// Called without arguments; raises when it fails.
    pub(crate) run: Py<PyAny>,
}

/// The run of a batch, and the memory of this process that it reads and writes; its keeper vouches for that.
pub(crate) struct Merged {
    /// Where its inputs are to lie: address and bytes.
    pub(crate) source: (usize, usize),
    /// Likewise where its outputs will.
    pub(crate) place: (usize, usize),
    /// Called without arguments; raises when it fails.
    pub(crate) run: Py<PyAny>,
}

impl Merged {
    /// Another hold on the same run.
    pub(crate) fn clone_ref(&self, py: Python<'_>) -> Self {
        Self { source: self.source, place: self.place, run: self.run.clone_ref(py) }
    }
}
