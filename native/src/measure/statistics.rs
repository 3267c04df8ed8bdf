//! What the front end counts. Plain relaxed counters: they are read for people, never decided upon.

use crate::measure::limits::{LIMITS, Limit};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counts {
    ($($(#[$about:meta])* $count:ident = $name:literal,)*) => {
        /// What is counted besides limits.
        #[derive(Clone, Copy)]
        pub(crate) enum Count {
            $($(#[$about])* $count,)*
        }

        /// The names by which Python knows them, in the order of [`Count`].
        const COUNTS: &[&str] = &[$($name,)*];
    };
}

counts! {
    /// gRPC connections that are open.
    ConnectionsOpen = "connections_open",
    /// Those that were accepted.
    ConnectionsTotal = "connections_total",
    /// Those turned away because there were too many.
    ConnectionsRefused = "connections_refused",
    /// gRPC clients turned away for the name in their certificate.
    ClientsRefused = "clients_refused",
    /// TLS handshakes of gRPC that took too long.
    HandshakesLate = "handshakes_late",
    /// gRPC clients that did not speak TLS.
    HandshakesPlain = "handshakes_plain",
    /// TLS handshakes of gRPC that failed for any other reason.
    HandshakesFailed = "handshakes_failed",
    /// The kernel gave no connection, for instance because the process has no descriptor left.
    AcceptFailures = "accept_failures",
    /// Calls that are under way.
    CallsOpen = "calls_open",
    /// Calls that arrived.
    CallsTotal = "calls_total",
    /// Calls refused because there were too many, of their client or in all.
    CallsRefused = "calls_refused",
    /// Messages refused because their connection already holds its share of the memory.
    SharesRefused = "connection_bytes_refused",
    /// Answers given up because clients have not taken those before them.
    AnswersRefused = "answer_bytes_refused",
    /// Calls reset by their client before they were answered.
    Resets = "resets",
    /// Faults of the front end's own code.
    Panics = "panics",
    /// Frames refused by the HTTP/2 library because the protocol does not allow them.
    ProtocolErrors = "protocol_errors",
    /// Data refused by the HTTP/2 library because it was more than a window allows.
    WindowErrors = "window_errors",
    /// Sockets on which HTTP is listened for.
    HttpListeners = "http_listeners",
    /// HTTP connections that are open.
    HttpConnectionsOpen = "http_connections_open",
    /// Those turned away because there were too many.
    HttpConnectionsRefused = "http_connections_refused",
    /// Those turned away because there were too many from their address.
    HttpConnectionsPerPeer = "http_connections_per_peer",
    /// Those of both that were told so.
    HttpUnavailable = "http_unavailable",
    /// HTTP requests that the front end is serving by itself.
    HttpServing = "http_serving",
    /// HTTP requests that the front end answered by itself.
    HttpAnswered = "http_answered",
    /// Those of them with tensors as JSON, in the request or in the answer.
    HttpJson = "http_json",
    /// HTTP requests whose tensors went into their slot as they came.
    HttpUploads = "http_uploads",
    /// HTTP requests that the front end refused by itself, because they would have been late.
    HttpLate = "http_late",
    /// HTTP requests that the front end refused by itself, because their clients ask too much.
    HttpOverQuota = "http_over_quota",
    /// HTTP requests that the front end answered by itself too late, which it then said.
    HttpExpired = "http_expired",
    /// HTTP requests handed to the application whose ends are known.
    HttpPassed = "http_passed",
    /// HTTP connections handed to the application for good.
    HttpTunnels = "http_tunnels",
    /// HTTP clients cut off because they took nothing of an answer.
    HttpStalled = "http_stalled",
    /// TLS handshakes of HTTP that took too long.
    HttpHandshakesLate = "http_handshakes_late",
    /// HTTP clients that did not speak TLS where that is spoken.
    HttpHandshakesPlain = "http_handshakes_plain",
    /// HTTP clients turned away for the name in their certificate.
    HttpClientsRefused = "http_clients_refused",
    /// TLS handshakes of HTTP that failed for any other reason.
    HttpHandshakesFailed = "http_handshakes_failed",
}

/// Counts since the start, and what is open now.
pub(crate) struct Statistics {
    counts: [AtomicU64; COUNTS.len()],
    limits: [AtomicU64; LIMITS.len()],
}

impl Default for Statistics {
    fn default() -> Self {
        Self {
            counts: [const { AtomicU64::new(0) }; COUNTS.len()],
            limits: [const { AtomicU64::new(0) }; LIMITS.len()],
        }
    }
}

/// Something that is open until this is dropped.
pub(crate) struct Open<'a>(&'a AtomicU64);

impl<'a> Open<'a> {
    /// One more of what is counted there, if that is no more than so many.
    pub(crate) fn within(count: &'a AtomicU64, most: u64) -> Option<Self> {
        let before = count.fetch_add(1, Relaxed);
        let open = Self(count);
        (before < most).then_some(open)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Statistics {
    /// Something has happened once more.
    pub(crate) fn count(&self, what: Count) {
        self.counts[what as usize].fetch_add(1, Relaxed);
    }

    /// Something counts as open until what this gives is dropped.
    pub(crate) fn open(&self, what: Count) -> Open<'_> {
        self.count(what);
        Open(&self.counts[what as usize])
    }

    /// Likewise, if it is one of so many at most.
    pub(crate) fn open_within(&self, what: Count, most: u64) -> Option<Open<'_>> {
        Open::within(&self.counts[what as usize], most)
    }

    /// A limit was enforced.
    pub(crate) fn strike(&self, limit: Limit) {
        self.limits[limit as usize].fetch_add(1, Relaxed);
    }

    /// All counts by name. The counter of the limit `bytes_in_flight` is `bytes_in_flight_refused`, because its
    /// own name says how many there are now.
    pub(crate) fn report(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let own_name = |name| if name == "bytes_in_flight" { "bytes_in_flight_refused" } else { name };
        let limits = LIMITS.iter().map(move |(name, ..)| own_name(*name)).zip(&self.limits);
        let counts = COUNTS.iter().copied().zip(&self.counts);
        counts.chain(limits).map(|(name, count)| (name, count.load(Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(statistics: &Statistics, name: &str) -> u64 {
        let found: Vec<_> = statistics.report().filter(|(n, _)| *n == name).collect();
        assert_eq!(found.len(), 1, "{name}");
        found[0].1
    }

    #[test]
    fn what_is_open_closes_when_it_is_dropped() {
        let statistics = Statistics::default();
        let (one, two) = (statistics.open(Count::CallsOpen), statistics.open(Count::CallsOpen));
        drop(one);
        assert_eq!(value(&statistics, "calls_open"), 1);
        drop(two);
        assert_eq!(value(&statistics, "calls_open"), 0);
    }

    #[test]
    fn no_more_is_open_than_may_be() {
        let statistics = Statistics::default();
        let open = || statistics.open_within(Count::CallsOpen, 2);
        for _ in 0..2 {
            let held = (open(), open());
            assert!(held.0.is_some() && held.1.is_some() && open().is_none());
            assert_eq!(value(&statistics, "calls_open"), 2);
        }
        assert_eq!(value(&statistics, "calls_open"), 0);
    }

    #[test]
    fn a_strike_counts_under_the_name_of_its_limit() {
        let statistics = Statistics::default();
        statistics.strike(Limit::Connections);
        statistics.strike(Limit::BytesInFlight);
        statistics.strike(Limit::BytesInFlight);
        assert_eq!(value(&statistics, "connections"), 1);
        assert_eq!(value(&statistics, "bytes_in_flight_refused"), 2);
    }

    #[test]
    fn what_the_protocol_refuses_counts_under_its_limit_or_as_an_error() {
        let statistics = Statistics::default();
        statistics.strike(Limit::MetadataBytes);
        statistics.count(Count::ProtocolErrors);
        statistics.count(Count::WindowErrors);
        for name in ["metadata_bytes", "protocol_errors", "window_errors"] {
            assert_eq!(value(&statistics, name), 1, "{name}");
        }
    }
}
