//! The bounds that the front end keeps, checked once when it is built.

use std::time::Duration;

/// One bound. The discriminant is its place in [`NAMES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// Largest request message.
    MessageBytes,
    /// Largest header list.
    MetadataBytes,
    /// Calls at a time on one connection.
    StreamsPerConnection,
    /// Connections at a time.
    Connections,
    /// Connections at a time from one IPv4 address or one IPv6 network of 64 bits.
    ConnectionsPerPeer,
    /// Request messages held at any time, all calls together; one connection may hold half of it.
    BytesInFlight,
    /// Silence after which a connection is pinged.
    KeepaliveMs,
    /// Time for the answer to that ping.
    KeepaliveTimeoutMs,
    /// Age at which a connection is asked to leave; 0: none.
    ConnectionAgeMs,
    /// Time for TLS and the HTTP/2 preface.
    HandshakeMs,
    /// Time in which a request body must make progress: 64 KiB, or what is left of its message.
    IdleBodyMs,
    /// Time in which a client must take 64 KiB of an answer, or what is left of it.
    WriteStallMs,
    /// Calls reset before they were answered, per [`RATE_WINDOW`].
    ResetsPerConnection,
    /// Pings that answer no data, per [`RATE_WINDOW`].
    PingsPerConnection,
    /// Frames without use, per [`RATE_WINDOW`]; see `h2/allowance.rs`.
    ControlFramesPerConnection,
}

/// Number of limits.
pub(crate) const COUNT: usize = 15;

/// The names by which Python gives the limits, in the order of [`Limit`].
pub(crate) const NAMES: [&str; COUNT] = [
    "message_bytes",
    "metadata_bytes",
    "streams_per_connection",
    "connections",
    "connections_per_peer",
    "bytes_in_flight",
    "keepalive_ms",
    "keepalive_timeout_ms",
    "connection_age_ms",
    "handshake_ms",
    "idle_body_ms",
    "write_stall_ms",
    "resets_per_connection",
    "pings_per_connection",
    "control_frames_per_connection",
];

/// The time over which resets, pings and frames without use are counted.
pub(crate) const RATE_WINDOW: Duration = Duration::from_secs(10);

/// Bytes that are progress even when they are not the end of a message: a client that sends or takes a byte now and
/// then would hold memory for ever.
pub(crate) const PROGRESS: usize = 64 * 1024;

const MONTH_MS: u64 = 31 * 24 * 3600 * 1000;
const MANY: u64 = 1 << 20;

/// Smallest and largest sensible value of each limit.
const RANGES: [(u64, u64); COUNT] = [
    (1, u32::MAX as u64 - 5), // a message and its prefix still have a 32-bit length
    (256, 16 << 20),
    (1, MANY),
    (1, MANY),
    (1, MANY),
    (1, 1 << 44),
    (1, MONTH_MS),
    (1, MONTH_MS),
    (0, MONTH_MS),
    (1, MONTH_MS),
    (1, MONTH_MS),
    (1, MONTH_MS),
    (1, MANY),
    (1, MANY),
    (1, MANY),
];

/// A value for every [`Limit`].
#[derive(Clone, Debug)]
pub(crate) struct Limits([u64; COUNT]);

impl Limits {
    /// Checks that each limit is given once and possible; the error names the one that is not.
    pub(crate) fn new(pairs: impl IntoIterator<Item = (String, i128)>) -> Result<Self, String> {
        let mut values = [None; COUNT];
        for (name, value) in pairs {
            let place = NAMES
                .iter()
                .position(|known| *known == name)
                .ok_or_else(|| format!("limit '{name}' is not known; the limits are {}", NAMES.join(", ")))?;
            let (low, high) = RANGES[place];
            values[place] =
                Some(u64::try_from(value).ok().filter(|value| (low..=high).contains(value)).ok_or_else(
                    || format!("limit '{name}' is {value}; it must be between {low} and {high}"),
                )?);
        }
        let mut complete = [0; COUNT];
        for (place, value) in values.into_iter().enumerate() {
            complete[place] = value.ok_or_else(|| format!("limit '{}' is missing", NAMES[place]))?;
        }
        let limits = Self(complete);
        let (held, message) = (limits.get(Limit::BytesInFlight), limits.get(Limit::MessageBytes));
        if held < message {
            return Err(format!(
                "limit 'bytes_in_flight' is {held}, less than one message of 'message_bytes' ({message})"
            ));
        }
        Ok(limits)
    }

    /// The part of a budget of `bytes_in_flight` that one connection may hold: half, and at least one message.
    pub(crate) fn connection_bytes(&self) -> u64 {
        self.get(Limit::MessageBytes).max(self.get(Limit::BytesInFlight) / 2)
    }

    /// The value of a limit, in its unit.
    pub(crate) fn get(&self, limit: Limit) -> u64 {
        self.0[limit as usize]
    }

    /// The value as a size in memory.
    pub(crate) fn size(&self, limit: Limit) -> usize {
        usize::try_from(self.get(limit)).unwrap_or(usize::MAX)
    }

    /// The value for a 32-bit HTTP/2 setting.
    pub(crate) fn setting(&self, limit: Limit) -> u32 {
        u32::try_from(self.get(limit)).unwrap_or(u32::MAX)
    }

    /// The value of a limit in milliseconds.
    pub(crate) fn duration(&self, limit: Limit) -> Duration {
        Duration::from_millis(self.get(limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<(String, i128)> {
        NAMES.iter().map(|name| (name.to_string(), 1000)).collect()
    }

    #[test]
    fn every_limit_is_found_under_its_name() {
        let pairs: Vec<_> =
            NAMES.iter().enumerate().map(|(i, n)| (n.to_string(), 1000 + i as i128)).collect();
        let limits = Limits::new(pairs).unwrap();
        assert_eq!(limits.get(Limit::MessageBytes), 1000);
        assert_eq!(limits.get(Limit::BytesInFlight), 1005);
        assert_eq!(limits.get(Limit::PingsPerConnection), 1013);
        assert_eq!(limits.get(Limit::ControlFramesPerConnection), 1014);
        assert_eq!(limits.duration(Limit::HandshakeMs), Duration::from_millis(1009));
    }

    #[test]
    fn a_missing_limit_is_named() {
        let pairs = all().into_iter().filter(|(name, _)| name != "idle_body_ms");
        assert_eq!(Limits::new(pairs).unwrap_err(), "limit 'idle_body_ms' is missing");
    }

    #[test]
    fn an_unknown_limit_is_named() {
        let pairs = all().into_iter().chain([("speed".to_string(), 1)]);
        assert!(Limits::new(pairs).unwrap_err().contains("'speed'"));
    }

    #[test]
    fn an_impossible_limit_is_named() {
        for (name, value) in [("connections", 0), ("handshake_ms", -1), ("message_bytes", 1 << 40)] {
            let pairs = all().into_iter().map(|(n, v)| if n == name { (n, value) } else { (n, v) });
            let error = Limits::new(pairs).unwrap_err();
            assert!(error.contains(name) && error.contains(&value.to_string()), "{error}");
        }
    }

    #[test]
    fn only_the_age_of_a_connection_may_be_unbounded() {
        let zero =
            |name: &str| Limits::new(all().into_iter().map(|(n, v)| if n == name { (n, 0) } else { (n, v) }));
        for name in NAMES {
            assert_eq!(zero(name).is_ok(), name == "connection_age_ms", "{name}");
        }
    }

    #[test]
    fn the_memory_in_flight_holds_at_least_one_message() {
        let pairs = all().into_iter().map(|(n, v)| if n == "bytes_in_flight" { (n, 999) } else { (n, v) });
        assert!(Limits::new(pairs).unwrap_err().contains("bytes_in_flight"));
    }
}
