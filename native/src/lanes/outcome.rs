//! How a request on a lane ended.

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Its outputs lie in its slot.
    Ran(Stages),
    /// Its deadline could no longer be met when its turn came.
    Expired,
    /// The engine shall serve it; whether a worker died with it.
    HandOver {
        /// How often it was tried in vain.
        attempts: u32,
    },
}

/// Where its time went, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stages {
    /// From its arrival until the worker took it.
    pub queue_ns: u64,
    /// Making its batch.
    pub gather_ns: u64,
    /// Running it.
    pub run_ns: u64,
    /// Splitting it.
    pub scatter_ns: u64,
}
