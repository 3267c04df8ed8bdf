//! TLS handshakes of gRPC that come to nothing: all are counted by why, few are told.

use crate::measure::rate::Rate;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Why a handshake came to nothing. Who is turned away for its name is counted as a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// It took too long.
    Late,
    /// The client did not speak TLS.
    Plain,
    /// Anything else: no certificate or a wrong one, nothing in common, a client that went away.
    Failed,
}

const COUNT: usize = 3;
const NAMES: [&str; COUNT] = ["late", "plain", "failed"];
const COUNTERS: [&str; COUNT] = ["handshakes_late", "handshakes_plain", "handshakes_failed"];

/// In each of these stretches one of each kind is told: a scan of ports must not fill the log.
const STRETCH: Duration = Duration::from_secs(60);

impl Reason {
    /// As the metric has it.
    pub(crate) fn name(self) -> &'static str {
        NAMES[self as usize]
    }
}

/// Counts since the start, and what was told of late.
pub(crate) struct Handshakes {
    counts: [AtomicU64; COUNT],
    told: Mutex<[Rate; COUNT]>,
}

impl Default for Handshakes {
    fn default() -> Self {
        let told = [(); COUNT].map(|()| Rate::new(1, STRETCH));
        Self { counts: Default::default(), told: Mutex::new(told) }
    }
}

impl Handshakes {
    /// One has failed; true when it is to be told.
    pub(crate) fn fail(&self, reason: Reason, now_ns: u64) -> bool {
        self.counts[reason as usize].fetch_add(1, Relaxed);
        !self.told.lock().unwrap_or_else(PoisonError::into_inner)[reason as usize].exceeded(now_ns)
    }

    /// All counts by name.
    pub(crate) fn report(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        COUNTERS.into_iter().zip(self.counts.iter().map(|count| count.load(Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE_NS: u64 = 60_000_000_000;

    #[test]
    fn each_is_counted_and_one_of_a_kind_told_in_a_minute() {
        let handshakes = Handshakes::default();
        let fail = |reason, after_ns| handshakes.fail(reason, MINUTE_NS + after_ns);
        assert_eq!([fail(Reason::Failed, 0), fail(Reason::Failed, MINUTE_NS - 1)], [true, false]);
        assert!(fail(Reason::Plain, 5), "another kind");
        assert!(fail(Reason::Failed, MINUTE_NS), "another minute");
        let counts: Vec<_> = handshakes.report().collect();
        assert_eq!(counts, [("handshakes_late", 0), ("handshakes_plain", 1), ("handshakes_failed", 3)]);
        assert_eq!([Reason::Late, Reason::Plain, Reason::Failed].map(Reason::name), NAMES);
    }
}
