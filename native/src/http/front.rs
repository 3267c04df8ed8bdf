//! The public HTTP addresses: who may connect, and what there is to count.
//!
//! The edge in Python listens nowhere. Whenever a connection first has something for it, it is handed one end of a pair
//! of sockets, and the other end speaks for that one connection (see `http/pass.rs`).

use crate::door::Core;
use crate::http::answer::Signature;
use crate::http::connection as http_connection;
use crate::http::head::Bounds;
use crate::listen::connections::{Admission, Connections};
use crate::listen::listener::{BREATHER, Listener, ListeningSocket, Socket};
use crate::listen::tls::Tls;
use crate::measure::limits::Limit;
use futures_util::FutureExt;
use std::future::poll_fn;
use std::io::Result;
use std::net::{IpAddr, SocketAddr};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

/// The names by which Python gives the limits.
pub const NAMES: [&str; 10] = [
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

/// What is counted, also while nobody listens.
#[derive(Default)]
pub struct Figures {
    /// Sockets that are listened on.
    pub listeners: AtomicU64,
    /// Connections that are open.
    pub connections: AtomicU64,
    /// Connections turned away because there were too many.
    pub refused: AtomicU64,
    /// Connections turned away because there were too many from their address.
    pub refused_per_peer: AtomicU64,
    /// Those of both that were told so.
    pub unavailable: AtomicU64,
    /// Requests that the door is serving by itself.
    pub serving: AtomicU64,
    /// Requests that the door answered by itself.
    pub answered: AtomicU64,
    /// Those of them with tensors as JSON, in the request or in the answer.
    pub json: AtomicU64,
    /// Requests whose tensors went into their slot as they came.
    pub uploads: AtomicU64,
    /// Requests that the door refused by itself, because they would have been late.
    pub late: AtomicU64,
    /// Requests that the door refused by itself, because their clients ask too much.
    pub over_quota: AtomicU64,
    /// Requests that the door answered by itself too late, which it then said.
    pub expired: AtomicU64,
    /// Requests handed to the edge whose ends are known.
    pub passed: AtomicU64,
    /// Connections handed to the edge for good.
    pub tunnels: AtomicU64,
    /// Clients cut off because they took nothing of an answer.
    pub stalled: AtomicU64,
    /// TLS handshakes that took too long.
    pub handshakes_late: AtomicU64,
    /// Clients that did not speak TLS.
    pub handshakes_plain: AtomicU64,
    /// Clients turned away for the name in their certificate.
    pub clients_refused: AtomicU64,
    /// TLS handshakes that failed for any other reason.
    pub handshakes_failed: AtomicU64,
    ending: AtomicBool,
}

impl Figures {
    /// All of them by name.
    pub fn report(&self) -> [(&'static str, u64); 19] {
        [
            ("http_listeners", self.listeners.load(Relaxed)),
            ("http_connections_open", self.connections.load(Relaxed)),
            ("http_connections_refused", self.refused.load(Relaxed)),
            ("http_connections_per_peer", self.refused_per_peer.load(Relaxed)),
            ("http_unavailable", self.unavailable.load(Relaxed)),
            ("http_serving", self.serving.load(Relaxed)),
            ("http_answered", self.answered.load(Relaxed)),
            ("http_json", self.json.load(Relaxed)),
            ("http_uploads", self.uploads.load(Relaxed)),
            ("http_late", self.late.load(Relaxed)),
            ("http_over_quota", self.over_quota.load(Relaxed)),
            ("http_expired", self.expired.load(Relaxed)),
            ("http_passed", self.passed.load(Relaxed)),
            ("http_tunnels", self.tunnels.load(Relaxed)),
            ("http_stalled", self.stalled.load(Relaxed)),
            ("http_handshakes_late", self.handshakes_late.load(Relaxed)),
            ("http_handshakes_plain", self.handshakes_plain.load(Relaxed)),
            ("http_clients_refused", self.clients_refused.load(Relaxed)),
            ("http_handshakes_failed", self.handshakes_failed.load(Relaxed)),
        ]
    }

    /// Connections that wait for a request are to close; the caller wakes them.
    pub fn end(&self) {
        self.ending.store(true, Release);
    }

    /// Whether that was said.
    pub fn is_ending(&self) -> bool {
        self.ending.load(Acquire)
    }
}

/// What counts as open until it is dropped.
pub struct Open<'a>(&'a AtomicU64);

impl<'a> Open<'a> {
    /// Counts it.
    pub fn new(count: &'a AtomicU64) -> Self {
        count.fetch_add(1, Relaxed);
        Self(count)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// A connection that was let in; it counts until this is dropped.
pub struct Admitted(Arc<Core>, Option<Admission>);

impl Admitted {
    /// Lets one in, that a register may have let in before.
    pub fn new(core: &Arc<Core>, admission: Option<Admission>) -> Self {
        core.http.connections.fetch_add(1, Relaxed);
        Self(core.clone(), admission)
    }

    /// What counts as its peer, if it has an address.
    pub fn peer(&self) -> Option<IpAddr> {
        self.1.as_ref().and_then(Admission::peer)
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.0.http.connections.fetch_sub(1, Relaxed);
    }
}

/// Whole answers to whoever is not served.
#[derive(Default)]
pub struct Answers {
    /// To a connection too many.
    pub full: Vec<u8>,
    /// To one too many from its address.
    pub crowded: Vec<u8>,
    /// To a client that does not speak TLS where that is spoken.
    pub plain: Vec<u8>,
}

/// What all connections share.
pub struct Front {
    /// Certificates, if TLS is spoken over TCP.
    pub tls: Option<Arc<Tls>>,
    /// How long a handshake may take.
    pub handshake: Duration,
    /// What a client is told that does not speak TLS.
    pub plain: Vec<u8>,
    /// What is the edge's to refuse.
    pub bounds: Bounds,
    /// How long a connection may wait for its next request.
    pub keepalive: Duration,
    /// How long a client may take no byte of what there is for it.
    pub write_stall: Duration,
    /// Answers from this size on may have to be compressed.
    pub compress_bytes: usize,
    /// Requests with more JSON are the edge's to refuse.
    pub json_bytes: usize,
    /// Likewise those with longer bodies.
    pub body_bytes: usize,
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
    pub fn new(
        limits: &[(String, i128)],
        server: String,
        answers: Answers,
        tls: Option<Arc<Tls>>,
    ) -> std::result::Result<Self, String> {
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

    /// The last headers of answers; all who ask are tasks of one thread, so this never waits.
    pub fn signature(&self) -> MutexGuard<'_, Signature> {
        self.signature.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Accepts connections until the door drains. To be called within the runtime, which takes the descriptor in.
pub fn accept(
    core: Arc<Core>,
    front: Arc<Front>,
    bound: ListeningSocket,
) -> Result<impl Future<Output = ()> + Send + 'static> {
    let listener = Listener::new(bound)?;
    Ok(async move {
        let _open = Open::new(&core.http.listeners);
        let listener = listener; // closed before it counts no longer
        let mut listening = None;
        loop {
            let accepted = poll_fn(|cx| {
                listening.get_or_insert_with(|| core.connections.listen(cx.waker()));
                let over = core.is_draining() || core.http.is_ending();
                if over { Poll::Ready(None) } else { listener.poll_accept(cx).map(Some) }
            })
            .await;
            match accepted {
                None => return,
                Some(Ok((socket, address))) => welcome(&core, &front, socket, address),
                Some(Err(error)) if error.kind() == std::io::ErrorKind::ConnectionAborted => {}
                Some(Err(_)) => {
                    core.statistics.accept_failed();
                    tokio::time::sleep(BREATHER).await;
                }
            }
        }
    })
}

fn welcome(core: &Arc<Core>, front: &Arc<Front>, socket: Socket, address: Option<SocketAddr>) {
    let ip = address.map(|address| address.ip().to_canonical());
    let admission = match front.register.admit(front.connections, front.connections_per_peer, ip) {
        Ok(admission) => admission,
        Err(limit) => {
            let crowded = limit == Limit::ConnectionsPerPeer;
            let (refused, answer) = match crowded {
                true => (&core.http.refused_per_peer, &front.crowded),
                false => (&core.http.refused, &front.full),
            };
            refused.fetch_add(1, Relaxed);
            // It fits into the buffer of a new connection; a client that has gone already does not miss it. A client that
            // speaks TLS could not read it, and no handshake is made for one that is not let in.
            let told = match &socket {
                Socket::Tcp(_) if front.tls.is_some() => return,
                Socket::Tcp(stream) => stream.try_write(answer),
                Socket::Unix(stream) => stream.try_write(answer),
            };
            core.http.unavailable.fetch_add(told.is_ok().into(), Relaxed);
            return;
        }
    };
    if let Socket::Tcp(stream) = &socket {
        let _ = stream.set_nodelay(true); // fails only when the peer has left already
    }
    let peer = ip.map_or_else(String::new, |ip| ip.to_string());
    let admitted = Admitted::new(core, Some(admission));
    let serving = http_connection::serve(core.clone(), front.clone(), socket, peer.into(), admitted);
    let core = core.clone();
    tokio::spawn(async move {
        // A panic ends its connection and nothing else, but it is said.
        if AssertUnwindSafe(serving).catch_unwind().await.is_err() {
            core.statistics.panicked();
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn front(change: (&str, i128)) -> std::result::Result<Front, String> {
        let mut limits: Vec<_> = NAMES.iter().map(|name| (name.to_string(), 1000)).collect();
        limits.retain(|(name, _)| name != change.0);
        if change.1 != i128::MAX {
            limits.push((change.0.to_string(), change.1));
        }
        Front::new(&limits, "s".into(), Answers::default(), None)
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
