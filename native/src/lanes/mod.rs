//! The way to a worker and back: shared memory, rings, slots, and what became of each request.

pub mod lane;
pub mod memory;
pub mod news;
pub mod outcome;
pub mod price;
pub mod rings;
pub mod slots;
pub mod trace;
pub mod worker_plans;
pub mod worker_runs;
