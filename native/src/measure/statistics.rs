//! What the front end counts. Plain relaxed counters: they are read for people, never decided upon.

use crate::measure::limits::{COUNT, Limit, NAMES};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counts since the start, and what is open now.
#[derive(Default)]
pub(crate) struct Statistics {
    connections_open: AtomicU64,
    connections_total: AtomicU64,
    connections_refused: AtomicU64,
    clients_refused: AtomicU64,
    accept_failures: AtomicU64,
    calls_open: AtomicU64,
    calls_total: AtomicU64,
    shares_refused: AtomicU64,
    answers_refused: AtomicU64,
    resets: AtomicU64,
    panics: AtomicU64,
    protocol_errors: AtomicU64,
    window_errors: AtomicU64,
    limits: [AtomicU64; COUNT],
}

/// Something that is open until this is dropped.
pub(crate) struct Open<'a>(&'a AtomicU64);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Statistics {
    /// A limit was enforced.
    pub(crate) fn strike(&self, limit: Limit) {
        self.limits[limit as usize].fetch_add(1, Relaxed);
    }

    /// The HTTP/2 library refused a frame that the protocol does not allow.
    pub(crate) fn protocol_error(&self) {
        self.protocol_errors.fetch_add(1, Relaxed);
    }

    /// The HTTP/2 library refused more data than a window allows.
    pub(crate) fn window_error(&self) {
        self.window_errors.fetch_add(1, Relaxed);
    }

    /// A connection was accepted.
    pub(crate) fn connection(&self) -> Open<'_> {
        self.connections_total.fetch_add(1, Relaxed);
        self.connections_open.fetch_add(1, Relaxed);
        Open(&self.connections_open)
    }

    /// A connection was turned away.
    pub(crate) fn connection_refused(&self) {
        self.connections_refused.fetch_add(1, Relaxed);
    }

    /// A client was turned away for its name.
    pub(crate) fn client_refused(&self) {
        self.clients_refused.fetch_add(1, Relaxed);
    }

    /// The kernel gave no connection, for instance because the process has no descriptor left.
    pub(crate) fn accept_failed(&self) {
        self.accept_failures.fetch_add(1, Relaxed);
    }

    /// A call arrived.
    pub(crate) fn call(&self) -> Open<'_> {
        self.calls_total.fetch_add(1, Relaxed);
        self.calls_open.fetch_add(1, Relaxed);
        Open(&self.calls_open)
    }

    /// A message was refused because its connection already holds its share of the memory.
    pub(crate) fn share_refused(&self) {
        self.shares_refused.fetch_add(1, Relaxed);
    }

    /// An answer was given up because clients have not taken those before it.
    pub(crate) fn answer_refused(&self) {
        self.answers_refused.fetch_add(1, Relaxed);
    }

    /// A client reset a call before it was answered.
    pub(crate) fn reset(&self) {
        self.resets.fetch_add(1, Relaxed);
    }

    /// The front end's own code failed within a call.
    pub(crate) fn panicked(&self) {
        self.panics.fetch_add(1, Relaxed);
    }

    /// All counts by name. The counter of the limit `bytes_in_flight` is `bytes_in_flight_refused`, because its
    /// own name says how many there are now.
    pub(crate) fn report(&self, bytes_in_flight: u64, answer_bytes: u64) -> Vec<(&'static str, u64)> {
        let mut report = vec![
            ("connections_open", self.connections_open.load(Relaxed)),
            ("connections_total", self.connections_total.load(Relaxed)),
            ("connections_refused", self.connections_refused.load(Relaxed)),
            ("clients_refused", self.clients_refused.load(Relaxed)),
            ("accept_failures", self.accept_failures.load(Relaxed)),
            ("calls_open", self.calls_open.load(Relaxed)),
            ("calls_total", self.calls_total.load(Relaxed)),
            ("bytes_in_flight", bytes_in_flight),
            ("connection_bytes_refused", self.shares_refused.load(Relaxed)),
            ("answer_bytes", answer_bytes),
            ("answer_bytes_refused", self.answers_refused.load(Relaxed)),
            ("resets", self.resets.load(Relaxed)),
            ("panics", self.panics.load(Relaxed)),
            ("protocol_errors", self.protocol_errors.load(Relaxed)),
            ("window_errors", self.window_errors.load(Relaxed)),
        ];
        for (place, name) in NAMES.into_iter().enumerate() {
            let name = if place == Limit::BytesInFlight as usize { "bytes_in_flight_refused" } else { name };
            report.push((name, self.limits[place].load(Relaxed)));
        }
        report
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(statistics: &Statistics, name: &str) -> u64 {
        let found: Vec<_> = statistics.report(7, 8).into_iter().filter(|(n, _)| *n == name).collect();
        assert_eq!(found.len(), 1, "{name}");
        found[0].1
    }

    #[test]
    fn what_is_open_closes_when_it_is_dropped() {
        let statistics = Statistics::default();
        let (one, two) = (statistics.call(), statistics.call());
        drop(one);
        assert_eq!(value(&statistics, "calls_open"), 1);
        drop(two);
        assert_eq!(value(&statistics, "calls_open"), 0);
        assert_eq!(value(&statistics, "calls_total"), 2);
    }

    #[test]
    fn a_strike_counts_under_the_name_of_its_limit() {
        let statistics = Statistics::default();
        statistics.strike(Limit::Connections);
        statistics.strike(Limit::BytesInFlight);
        statistics.strike(Limit::BytesInFlight);
        assert_eq!(value(&statistics, "connections"), 1);
        assert_eq!(value(&statistics, "bytes_in_flight_refused"), 2);
        assert_eq!(value(&statistics, "bytes_in_flight"), 7);
    }

    #[test]
    fn what_the_protocol_refuses_counts_under_its_limit_or_as_an_error() {
        let statistics = Statistics::default();
        statistics.strike(Limit::MetadataBytes);
        statistics.protocol_error();
        statistics.window_error();
        for name in ["metadata_bytes", "protocol_errors", "window_errors"] {
            assert_eq!(value(&statistics, name), 1, "{name}");
        }
    }
}
