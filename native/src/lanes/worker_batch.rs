//! Requests of a worker that run together. Pure.

use crate::lanes::worker_layouts::{Layout, Tensor};
use std::sync::Arc;

/// A request of a batch.
pub(crate) struct Request {
    /// The front end's name for it.
    pub(crate) ticket: u64,
    /// Where its inputs begin.
    pub(crate) offset: usize,
    /// Where its outputs shall begin.
    pub(crate) out_offset: usize,
    /// How its tensors lie.
    pub(crate) layout: Arc<Layout>,
}

/// Requests that run together. Empty: none do.
pub(crate) struct Batch {
    /// In the order in which they came.
    pub(crate) requests: Vec<Request>,
    /// All of theirs.
    pub(crate) rows: u32,
    /// The least that one of them allows.
    pub(crate) bound: u32,
    /// When it was begun.
    pub(crate) started_ns: u64,
}

impl Default for Batch {
    fn default() -> Self {
        Self { requests: Vec::new(), rows: 0, bound: u32::MAX, started_ns: 0 }
    }
}

impl Batch {
    /// The kind of its requests.
    pub(crate) fn kind(&self) -> Option<u32> {
        self.requests.first().map(|first| first.layout.kind)
    }

    /// Whether a request of this layout may run with those that are in it.
    pub(crate) fn takes(&self, layout: &Layout, batch_rows: u32) -> bool {
        self.requests.first().is_none_or(|first| {
            let bound = first.layout.max_rows.min(self.bound).min(allowed(batch_rows));
            layout.kind == first.layout.kind && self.rows.saturating_add(layout.rows) <= bound
        })
    }

    /// Whether it has all rows that it may have.
    pub(crate) fn is_full(&self) -> bool {
        self.requests.first().is_some_and(|first| self.rows >= first.layout.max_rows.min(self.bound))
    }
}

/// Rows of a batch at most, where 0 is any number.
pub(crate) fn allowed(batch_rows: u32) -> u32 {
    if batch_rows == 0 { u32::MAX } else { batch_rows }
}

/// The way of tensors between the requests and what runs them.
#[derive(Clone, Copy)]
pub(crate) enum Direction {
    /// Inputs, to what runs them.
    Gather,
    /// Outputs, from there.
    Scatter,
}

impl Request {
    /// Its tensors that go this way, and where they begin in the arena.
    pub(crate) fn tensors(&self, direction: Direction) -> (&[Tensor], usize) {
        match direction {
            Direction::Gather => (&self.layout.inputs, self.offset),
            Direction::Scatter => (&self.layout.outputs, self.out_offset),
        }
    }
}

/// Whether `size` bytes at `position` lie within `nbytes`.
pub(crate) fn within(nbytes: usize, position: usize, size: usize) -> Result<(), String> {
    if nbytes.checked_sub(position).is_none_or(|room| room < size) {
        return Err(format!("the batch does not fit into {nbytes} bytes"));
    }
    Ok(())
}
