//! How a request on a lane ended.

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
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
pub(crate) struct Stages {
    /// From its arrival until the worker took it.
    pub(crate) queue_ns: u64,
    /// Making its batch.
    pub(crate) gather_ns: u64,
    /// Running it.
    pub(crate) run_ns: u64,
    /// Splitting it.
    pub(crate) scatter_ns: u64,
}
