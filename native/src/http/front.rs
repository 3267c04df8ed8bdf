//! The public HTTP addresses: who may connect, and what there is to count.
//!
//! The application in Python listens nowhere. Whenever a connection first has something for it, it is handed one end
//! of a pair of sockets, and the other end speaks for that one connection (see `http/pass.rs`).

use crate::http::answer::Signature;
use crate::http::head::Bounds;
use crate::http::service::Service;
use crate::listen::connections::{Admission, Connections};
use crate::listen::tls::Tls;
use crate::measure::limits::Limit;
use std::net::IpAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The names by which Python gives the limits.
pub(crate) const NAMES: [&str; 10] = [
    "connections",
    "connections_per_peer",
    "line_bytes",
    "headers",
    "json_bytes",
    "body_bytes",
    "keepalive_ms",
    "handshake_ms",
    "write_stall_ms",
    "compress_bytes",
];

/// A connection that was let in; it counts until this is dropped.
pub(crate) struct Admitted(Arc<Service>, Option<Admission>);

impl Admitted {
    /// Counts it.
    pub(crate) fn new(service: &Arc<Service>, admission: Option<Admission>) -> Self {
        service.figures.connections.fetch_add(1, Relaxed);
        Self(service.clone(), admission)
    }

    /// What counts as its peer; None over a Unix socket.
    pub(crate) fn peer(&self) -> Option<IpAddr> {
        self.1.as_ref().and_then(Admission::peer)
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.0.figures.connections.fetch_sub(1, Relaxed);
    }
}

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
    /// What it has in common with other fronts.
    pub(crate) service: Arc<Service>,
    /// Certificates, if TLS is spoken over TCP.
    pub(crate) tls: Option<Arc<Tls>>,
    /// How long a handshake may take.
    pub(crate) handshake: Duration,
    /// What a client is told that does not speak TLS.
    pub(crate) plain: Vec<u8>,
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
    register: Connections,
    full: Vec<u8>,
    crowded: Vec<u8>,
    signature: Mutex<Signature>,
}

impl Front {
    /// With limits by their names; the error names the one that is missing, unknown or out of bounds. `server` is what
    /// answers name themselves.
    pub(crate) fn new(
        service: Arc<Service>,
        limits: &[(String, i128)],
        server: String,
        answers: Answers,
        tls: Option<Arc<Tls>>,
    ) -> Result<Self, String> {
        if let Some((unknown, _)) = limits.iter().find(|(name, _)| !NAMES.contains(&name.as_str())) {
            return Err(format!("limit '{unknown}' is not known; the limits are {}", NAMES.join(", ")));
        }
        let limit = |wanted: &str| {
            let given = limits.iter().find(|(name, _)| name == wanted);
            let (name, value) = given.ok_or_else(|| format!("limit '{wanted}' is missing"))?;
            let least = i128::from(name != "compress_bytes");
            u64::try_from(*value)
                .ok()
                .filter(|value| (least..=1 << 40).contains(&i128::from(*value)))
                .ok_or_else(|| {
                    format!("limit '{name}' is {value}; it must be between {least} and {}", 1u64 << 40)
                })
        };
        let size = |wanted| limit(wanted).map(|value| usize::try_from(value).unwrap_or(usize::MAX));
        Ok(Self {
            service,
            bounds: Bounds { line_bytes: size("line_bytes")?, headers: size("headers")? },
            keepalive: Duration::from_millis(limit("keepalive_ms")?),
            write_stall: Duration::from_millis(limit("write_stall_ms")?),
            compress_bytes: size("compress_bytes")?,
            json_bytes: size("json_bytes")?,
            body_bytes: size("body_bytes")?,
            connections: limit("connections")?,
            connections_per_peer: limit("connections_per_peer")?,
            register: Connections::default(),
            full: answers.full,
            crowded: answers.crowded,
            plain: answers.plain,
            tls,
            handshake: Duration::from_millis(limit("handshake_ms")?),
            signature: Mutex::new(Signature::new(server)),
        })
    }

    /// Lets a connection in, or says for which limit not, with what its client is told.
    pub(crate) fn admit(&self, peer: Option<IpAddr>) -> Result<Admitted, (Limit, &[u8])> {
        match self.register.admit(self.connections, self.connections_per_peer, peer) {
            Ok(admission) => Ok(Admitted::new(&self.service, Some(admission))),
            Err(Limit::ConnectionsPerPeer) => Err((Limit::ConnectionsPerPeer, &self.crowded)),
            Err(limit) => Err((limit, &self.full)),
        }
    }

    /// The last headers of answers; all that ask are tasks of one thread, so this never waits.
    pub(crate) fn signature(&self) -> MutexGuard<'_, Signature> {
        self.signature.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn front(change: (&str, i128)) -> Result<Front, String> {
        let service = Arc::new(Service::new(Arc::new(crate::rig::resources(1000))));
        let mut limits: Vec<_> = NAMES.iter().map(|name| (name.to_string(), 1000)).collect();
        limits.retain(|(name, _)| name != change.0);
        if change.1 != i128::MAX {
            limits.push((change.0.to_string(), change.1));
        }
        Front::new(service, &limits, "s".into(), Answers::default(), None)
    }

    #[test]
    fn limits_that_cannot_be_are_named() {
        let front_of = |change| front(change).map(|front| front.compress_bytes);
        assert_eq!(front_of(("compress_bytes", 0)), Ok(0));
        assert!(front_of(("headers", 0)).unwrap_err().contains("'headers' is 0"));
        assert!(front_of(("headers", i128::MAX)).unwrap_err().contains("'headers' is missing"));
        assert!(front_of(("speed", 1)).unwrap_err().contains("'speed' is not known"));
    }
}
