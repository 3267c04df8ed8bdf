//! The way to a worker and back: shared memory, rings, slots, and what became of each request. Nothing that a worker
//! writes is taken on trust.

pub(crate) mod lane;
pub(crate) mod load;
pub(crate) mod memory;
pub(crate) mod news;
pub(crate) mod outcome;
pub(crate) mod rings;
pub(crate) mod slots;
pub(crate) mod trace;
pub(crate) mod worker_batch;
pub(crate) mod worker_layouts;
pub(crate) mod worker_runs;
