//! The bounds that the front end keeps, checked once when it is built.

use std::time::Duration;

/// What a limit may be: its name for Python, and the smallest and the largest sensible value.
pub(crate) type Known = (&'static str, u64, u64);

macro_rules! limits {
    ($($(#[$about:meta])* $limit:ident = $name:literal, $low:expr, $high:expr;)*) => {
        /// One bound of gRPC's.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Limit {
            $($(#[$about])* $limit,)*
        }

        /// All of them, in their order.
        pub(crate) const LIMITS: &[Known] = &[$(($name, $low, $high),)*];
    };
}

limits! {
    /// Largest request message; with its prefix it still has a 32-bit length.
    MessageBytes = "message_bytes", 1, u32::MAX as u64 - 5;
    /// Largest header list.
    MetadataBytes = "metadata_bytes", 256, 16 << 20;
    /// Calls at a time on one connection.
    StreamsPerConnection = "streams_per_connection", 1, MANY;
    /// Connections at a time.
    Connections = "connections", 1, MANY;
    /// Connections at a time from one IPv4 address or one IPv6 network of 64 bits.
    ConnectionsPerPeer = "connections_per_peer", 1, MANY;
    /// Request messages held at any time, all calls together; one connection may hold half of it.
    BytesInFlight = "bytes_in_flight", 1, 1 << 44;
    /// Silence after which a connection is pinged.
    KeepaliveMs = "keepalive_ms", 1, MONTH_MS;
    /// Time for the answer to that ping.
    KeepaliveTimeoutMs = "keepalive_timeout_ms", 1, MONTH_MS;
    /// Age at which a connection is asked to leave; 0: none.
    ConnectionAgeMs = "connection_age_ms", 0, MONTH_MS;
    /// Time for TLS and the HTTP/2 preface.
    HandshakeMs = "handshake_ms", 1, MONTH_MS;
    /// Time in which a request body must make progress: 64 KiB, or what is left of its message.
    IdleBodyMs = "idle_body_ms", 1, MONTH_MS;
    /// Time in which a client must take 64 KiB of an answer, or what is left of it.
    WriteStallMs = "write_stall_ms", 1, MONTH_MS;
    /// Calls reset before they were answered, per [`RATE_WINDOW`].
    ResetsPerConnection = "resets_per_connection", 1, MANY;
    /// Pings that answer no data, per [`RATE_WINDOW`].
    PingsPerConnection = "pings_per_connection", 1, MANY;
    /// Frames without use, per [`RATE_WINDOW`]; see `h2/allowance.rs`.
    ControlFramesPerConnection = "control_frames_per_connection", 1, MANY;
}

/// The time over which resets, pings and frames without use are counted.
pub(crate) const RATE_WINDOW: Duration = Duration::from_secs(10);

/// Bytes that are progress even when they are not the end of a message: a client that sends or takes a byte now and
/// then would hold memory for ever.
pub(crate) const PROGRESS: usize = 64 * 1024;

/// A month, and many of anything: what is larger is a mistake.
pub(crate) const MONTH_MS: u64 = 31 * 24 * 3600 * 1000;
const MANY: u64 = 1 << 20;

/// The value of each limit that is `known`, in that order; the error names one that is missing, unknown or impossible.
pub(crate) fn checked<const COUNT: usize>(
    known: &[Known],
    given: impl IntoIterator<Item = (String, i64)>,
) -> Result<[u64; COUNT], String> {
    let mut values = [None; COUNT];
    for (name, value) in given {
        let Some(place) = known.iter().position(|(known, ..)| *known == name) else {
            let names: Vec<_> = known.iter().map(|(name, ..)| *name).collect();
            return Err(format!("limit '{name}' is not known; the limits are {}", names.join(", ")));
        };
        let (_, low, high) = known[place];
        let possible = u64::try_from(value).ok().filter(|value| (low..=high).contains(value));
        values[place] = Some(
            possible
                .ok_or_else(|| format!("limit '{name}' is {value}; it must be between {low} and {high}"))?,
        );
    }
    let mut complete = [0; COUNT];
    for ((value, place), (name, ..)) in values.into_iter().zip(&mut complete).zip(known) {
        *place = value.ok_or_else(|| format!("limit '{name}' is missing"))?;
    }
    Ok(complete)
}

/// A value for every [`Limit`].
#[derive(Clone, Debug)]
pub(crate) struct Limits([u64; LIMITS.len()]);

impl Limits {
    /// Checks that each limit is given once and possible; the error names the one that is not.
    pub(crate) fn new(pairs: impl IntoIterator<Item = (String, i64)>) -> Result<Self, String> {
        let limits = Self(checked(LIMITS, pairs)?);
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

    fn all() -> Vec<(String, i64)> {
        LIMITS.iter().map(|(name, ..)| (name.to_string(), 1000)).collect()
    }

    #[test]
    fn every_limit_is_found_under_its_name() {
        let pairs: Vec<_> =
            LIMITS.iter().enumerate().map(|(i, (n, ..))| (n.to_string(), 1000 + i as i64)).collect();
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
        for (name, ..) in LIMITS {
            assert_eq!(zero(name).is_ok(), *name == "connection_age_ms", "{name}");
        }
    }

    #[test]
    fn the_memory_in_flight_holds_at_least_one_message() {
        let pairs = all().into_iter().map(|(n, v)| if n == "bytes_in_flight" { (n, 999) } else { (n, v) });
        assert!(Limits::new(pairs).unwrap_err().contains("bytes_in_flight"));
    }
}
