//! Runs that a worker's session has prepared for fixed addresses, kept beside the ring that calls them.

use pyo3::prelude::*;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// What is kept; empty at first. Whoever takes something out of it drops that without a lock: it ends in Python.
#[derive(Default)]
pub(crate) struct Runs {
    /// Of a request in its place: by template, offset and out_offset.
    pub(crate) alone: HashMap<(u32, usize, usize), Alone>,
    /// Of a batch: by kind and rows.
    pub(crate) merged: HashMap<(u32, u32), Merged>,
    /// Of a batch that a device runs by itself: by kind, rows and the place where it was gathered.
    pub(crate) overlapped: HashMap<(u32, u32, usize), Overlapped>,
    /// Where batches of a kind are gathered while another runs: by kind.
    pub(crate) turns: HashMap<u32, Arc<Turns>>,
}

impl Runs {
    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.alone.len() + self.merged.len() + self.overlapped.len()
    }

    /// Takes out those of a template's requests in their places, and of batches of its kind.
    pub(crate) fn split_off_template(&mut self, template: u32, kind: u32) -> Self {
        let alone = self.alone.extract_if(|key, _| key.0 == template).collect();
        Self { alone, ..self.split_off_batches(kind) }
    }

    /// Takes out those of a kind.
    pub(crate) fn split_off(&mut self, kind: u32) -> Self {
        let alone = self.alone.extract_if(|_, alone| alone.kind == kind).collect();
        Self { alone, ..self.split_off_batches(kind) }
    }

    fn split_off_batches(&mut self, kind: u32) -> Self {
        Self {
            alone: HashMap::new(),
            merged: self.merged.extract_if(|key, _| key.0 == kind).collect(),
            overlapped: self.overlapped.extract_if(|key, _| key.0 == kind).collect(),
            turns: self.turns.remove_entry(&kind).into_iter().collect(),
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

/// Two places of this process where batches of a kind are gathered in turn, so that one is filled while the other is
/// still read; its keeper vouches for them.
pub(crate) struct Turns {
    /// Rows for which there is room.
    pub(crate) max_rows: u32,
    /// Where each input begins.
    pub(crate) starts: Box<[usize]>,
    /// The bytes of each place.
    pub(crate) nbytes: usize,
    /// Where they are.
    pub(crate) addresses: [usize; 2],
}

/// The run of a batch that has been gathered in one of the two places, and the memory that it writes.
pub(crate) struct Overlapped {
    /// Where its outputs will lie: address and bytes.
    pub(crate) place: (usize, usize),
    /// `begin`, `ended` and `finish` are called without arguments.
    pub(crate) run: Py<PyAny>,
    /// Nanoseconds that the device took for it last.
    pub(crate) took_ns: Arc<AtomicU64>,
}

impl Overlapped {
    /// Another hold on the same run.
    pub(crate) fn clone_ref(&self, py: Python<'_>) -> Self {
        Self { place: self.place, run: self.run.clone_ref(py), took_ns: self.took_ns.clone() }
    }
}
