//! What requests cost, as the engine has learnt, and the work that one worker has at these prices.

/// What a request of one kind costs, as the engine has learnt. The arithmetic is that of `core/scheduling/leases.py`.
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

/// See the head of this file.
#[derive(Default)]
pub(crate) struct Load {
    given: u32,
    charges_ns: u64,
    /// Kind and price of the request submitted last.
    last: (u32, Price),
    latest_deadline_ns: u64,
    /// Since when the batch that runs can have been running.
    begun_ns: u64,
    /// The longest batch of a kind that was submitted since the worker was idle.
    longest_ns: u64,
}

impl Load {
    /// Requests that the worker has.
    pub(crate) fn given(&self) -> u32 {
        self.given
    }

    /// All charges, and what may be left of the batch that runs, which no charge covers.
    pub(crate) fn work_ns(&self, now_ns: u64) -> u64 {
        let passed_ns = now_ns.saturating_sub(self.begun_ns);
        if self.given == 0 { 0 } else { self.charges_ns + self.longest_ns.saturating_sub(passed_ns) }
    }

    /// The work ahead of one more request of a kind.
    pub(crate) fn ahead_ns(&self, kind: u32, price: Price, now_ns: u64) -> u64 {
        self.work_ns(now_ns) + self.closes_ns(kind, price)
    }

    /// What the batch before wastes when a request does not join it, being of another kind, or of another plan.
    fn closes_ns(&self, kind: u32, price: Price) -> u64 {
        let (last, before) = self.last;
        let joins = last == kind && before.batch_rows == price.batch_rows;
        if self.given == 0 || joins { 0 } else { before.batch_ns }
    }

    /// Whether nothing that the worker has is due later than this.
    pub(crate) fn is_latest(&self, deadline_ns: u64) -> bool {
        deadline_ns >= self.latest_deadline_ns
    }

    /// Since when the worker has something to do and has completed nothing; 0: it has nothing. A request that waits in
    /// a long queue which moves is no sign of a worker that hangs.
    pub(crate) fn owing_ns(&self) -> u64 {
        if self.given == 0 { 0 } else { self.begun_ns }
    }

    /// One more is given. It is charged with its rows, with those that the batch before it wastes when it does not
    /// fit, and with that whole batch where it does not join it. Its charge, for when it ends.
    pub(crate) fn begin(
        &mut self,
        (kind, rows): (u32, u32),
        price: Price,
        deadline_ns: u64,
        now_ns: u64,
    ) -> u64 {
        let charge_ns = price.charge(rows) + self.closes_ns(kind, price);
        if self.given == 0 {
            (self.begun_ns, self.longest_ns) = (now_ns, 0);
        }
        self.last = (kind, price);
        self.longest_ns = self.longest_ns.max(price.batch_ns);
        self.charges_ns += charge_ns;
        self.given += 1;
        self.latest_deadline_ns = self.latest_deadline_ns.max(endless(deadline_ns));
        charge_ns
    }

    /// The worker is done with one that was charged so much.
    pub(crate) fn end(&mut self, charge_ns: u64) {
        self.given -= 1;
        self.charges_ns -= charge_ns;
        if self.given == 0 {
            self.latest_deadline_ns = 0;
        }
    }

    /// The worker has completed something: another batch can be running.
    pub(crate) fn progressed(&mut self, now_ns: u64) {
        self.begun_ns = now_ns;
    }
}
