//! How often something happened in a stretch of time.

use std::time::Duration;

/// Counts events in stretches of a fixed length that follow each other.
pub(crate) struct Rate {
    bound: u64,
    stretch_ns: u64,
    began_ns: u64,
    count: u64,
}

impl Rate {
    /// At most `bound` events in each stretch.
    pub(crate) fn new(bound: u64, stretch: Duration) -> Self {
        Self { bound, stretch_ns: stretch.as_nanos() as u64, began_ns: 0, count: 0 }
    }

    /// Notes an event; true when it is one too many.
    pub(crate) fn exceeded(&mut self, now_ns: u64) -> bool {
        if now_ns.saturating_sub(self.began_ns) >= self.stretch_ns {
            self.began_ns = now_ns;
            self.count = 0;
        }
        self.count += 1;
        self.count > self.bound
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_event_after_the_bound_is_one_too_many() {
        let mut rate = Rate::new(2, Duration::from_nanos(10));
        assert_eq!([100, 101, 102].map(|now| rate.exceeded(now)), [false, false, true]);
    }

    #[test]
    fn each_stretch_counts_anew() {
        let mut rate = Rate::new(1, Duration::from_nanos(10));
        assert_eq!(
            [100, 105, 110, 111, 125].map(|now| rate.exceeded(now)),
            [false, true, false, true, false]
        );
    }
}
