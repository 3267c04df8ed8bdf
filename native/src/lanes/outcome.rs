//! How a request on a lane ended, and a lane.

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

/// What a lane had whose worker has ended.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Closed {
    /// The model of what it had had for longest.
    pub(crate) model: Option<u32>,
    /// How many requests.
    pub(crate) had: usize,
    /// The clients of those that may have run.
    pub(crate) clients: Vec<String>,
}
