//! What requests cost, as the engine has learnt, and when they are due.

/// What a request of one kind costs, as the engine has learnt. The arithmetic is that of `core/scheduling/grants.py`.
#[derive(Clone, Copy, Default)]
pub(crate) struct Price {
    /// For each row, in a batch of the planned size.
    pub(crate) charge_per_row_ns: u64,
    /// The largest batch that it may run in.
    pub(crate) batch_ns: u64,
    /// Rows of that batch; 0: whatever the kind allows.
    pub(crate) batch_rows: u32,
    /// Kept free before a deadline.
    pub(crate) margin_ns: u64,
}

impl Price {
    /// What so many rows are charged: with the rows that the batch before them wastes when they do not fit.
    pub(crate) fn charge(&self, rows: u32) -> u64 {
        self.charge_per_row_ns * (2 * u64::from(rows)).saturating_sub(1)
    }

    /// How long a request of so many rows needs when its turn has come.
    pub(crate) fn own_ns(&self, rows: u32) -> u64 {
        self.charge_per_row_ns * u64::from(rows.saturating_sub(1)) + self.batch_ns
    }
}

/// A deadline in the order of deadlines: none is the last.
pub(crate) fn endless(deadline_ns: u64) -> u64 {
    if deadline_ns == 0 { u64::MAX } else { deadline_ns }
}
