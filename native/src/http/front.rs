//! The public HTTP addresses: who may connect, and what there is to count.
//!
//! The application in Python listens nowhere. Whenever a connection first has something for it, it is handed one end
//! of a pair of sockets, and the other end speaks for that one connection (see `http/pass.rs`).

use crate::http::answer::Signature;
use crate::http::head::Bounds;
use crate::listen::connections::Admission;
use crate::listen::tls::Tls;
use crate::measure::limits::{Known, Limit, checked};
use crate::measure::lock::Lock;
use crate::resources::Resources;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// The bounds of HTTP.
pub(crate) const LIMITS: [Known; 10] = [
    ("connections", 1, MOST),
    ("connections_per_peer", 1, MOST),
    ("line_bytes", 1, MOST),
    ("headers", 1, MOST),
    ("json_bytes", 1, MOST),
    ("body_bytes", 1, MOST),
    ("keepalive_ms", 1, MOST),
    ("handshake_ms", 1, MOST),
    ("write_stall_ms", 1, MOST),
    ("compress_bytes", 0, MOST),
];
const MOST: u64 = 1 << 40;

/// Whole answers to clients that are not served.
#[derive(Default)]
pub(crate) struct Answers {
    /// To a connection too many.
    pub(crate) full: Vec<u8>,
    /// To one too many from its address.
    pub(crate) crowded: Vec<u8>,
    /// To a client that does not speak TLS where that is spoken.
    pub(crate) plain: Vec<u8>,
}

/// What all connections share.
pub(crate) struct Front {
    /// What it has in common with gRPC.
    pub(crate) resources: Arc<Resources>,
    /// Certificates, if TLS is spoken over TCP.
    pub(crate) tls: Option<Arc<Tls>>,
    /// How long a handshake may take.
    pub(crate) handshake: Duration,
    /// To clients that are not served.
    pub(crate) answers: Answers,
    /// What is the application's to refuse.
    pub(crate) bounds: Bounds,
    /// How long a connection may wait for its next request.
    pub(crate) keepalive: Duration,
    /// How long a client may take no byte of what there is for it.
    pub(crate) write_stall: Duration,
    /// Answers from this size on may have to be compressed.
    pub(crate) compress_bytes: usize,
    /// Requests with more JSON are the application's to refuse.
    pub(crate) json_bytes: usize,
    /// Likewise those with longer bodies.
    pub(crate) body_bytes: usize,
    connections: u64,
    connections_per_peer: u64,
    pub(crate) signature: Lock<Signature>,
}

impl Front {
    /// With limits by their names; the error names the one that is missing, unknown or out of bounds. `hosts` are
    /// those of [`Bounds`], `server` is what answers name themselves.
    pub(crate) fn new(
        resources: Arc<Resources>,
        limits: impl IntoIterator<Item = (String, i64)>,
        hosts: Option<Vec<String>>,
        server: String,
        answers: Answers,
        tls: Option<Arc<Tls>>,
    ) -> Result<Self, String> {
        let limits: [u64; LIMITS.len()] = checked(&LIMITS, limits)?;
        let [connections, connections_per_peer, .., keepalive_ms, handshake_ms, stall_ms, _] = limits;
        let [_, _, line_bytes, headers, json_bytes, body_bytes, .., compress_bytes] =
            limits.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
        Ok(Self {
            resources,
            tls,
            handshake: Duration::from_millis(handshake_ms),
            answers,
            bounds: Bounds { line_bytes, headers, hosts },
            keepalive: Duration::from_millis(keepalive_ms),
            write_stall: Duration::from_millis(stall_ms),
            compress_bytes,
            json_bytes,
            body_bytes,
            connections,
            connections_per_peer,
            signature: Lock::new(Signature::new(server)),
        })
    }

    /// Lets a connection in, or says for which limit not.
    pub(crate) fn admit(&self, peer: Option<IpAddr>) -> Result<Admission, Limit> {
        self.resources.http_connections.admit(self.connections, self.connections_per_peer, peer)
    }

    /// Whether connections that wait are to close.
    pub(crate) fn is_ending(&self) -> bool {
        self.resources.http_connections.is_draining()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn front(change: (&str, i64)) -> Result<Front, String> {
        let resources = Arc::new(crate::rig::resources(1000));
        let mut limits: Vec<_> = LIMITS.iter().map(|(name, ..)| (name.to_string(), 1000)).collect();
        limits.retain(|(name, _)| name != change.0);
        if change.1 != i64::MAX {
            limits.push((change.0.to_string(), change.1));
        }
        Front::new(resources, limits, None, "s".into(), Answers::default(), None)
    }

    #[test]
    fn limits_that_cannot_be_are_named() {
        let front_of = |change| front(change).map(|front| front.compress_bytes);
        assert_eq!(front_of(("compress_bytes", 0)), Ok(0));
        assert!(front_of(("headers", 0)).unwrap_err().contains("'headers' is 0"));
        assert!(front_of(("headers", i64::MAX)).unwrap_err().contains("'headers' is missing"));
        assert!(front_of(("speed", 1)).unwrap_err().contains("'speed' is not known"));
    }
}
