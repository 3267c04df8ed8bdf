//! What HTTP connections share, whichever front let them in, and what is counted of them.

use crate::resources::Resources;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// See the head of this file.
pub(crate) struct Service {
    pub(crate) resources: Arc<Resources>,
    pub(crate) figures: Figures,
    ending: AtomicBool,
}

impl Service {
    /// Nobody is let in yet.
    pub(crate) fn new(resources: Arc<Resources>) -> Self {
        Self { resources, figures: Figures::default(), ending: AtomicBool::new(false) }
    }

    /// Connections that wait for a request close.
    pub(crate) fn end(&self) {
        self.ending.store(true, Release);
        self.resources.connections.wake_all();
    }

    /// Whether that was said.
    pub(crate) fn is_ending(&self) -> bool {
        self.ending.load(Acquire)
    }

    /// Counts a client that was turned away for its name, and tells some of them.
    pub(crate) fn turned_away(&self, peer: &Arc<str>, client: String) {
        self.figures.clients_refused.fetch_add(1, Relaxed);
        self.resources.link.turned_away(peer, client, "http");
    }
}

/// What is counted, also while nothing listens.
#[derive(Default)]
pub(crate) struct Figures {
    /// Sockets that are listened on.
    pub(crate) listeners: AtomicU64,
    /// Connections that are open.
    pub(crate) connections: AtomicU64,
    /// Connections turned away because there were too many.
    pub(crate) refused: AtomicU64,
    /// Connections turned away because there were too many from their address.
    pub(crate) refused_per_peer: AtomicU64,
    /// Those of both that were told so.
    pub(crate) unavailable: AtomicU64,
    /// Requests that the front end is serving by itself.
    pub(crate) serving: AtomicU64,
    /// Requests that the front end answered by itself.
    pub(crate) answered: AtomicU64,
    /// Those of them with tensors as JSON, in the request or in the answer.
    pub(crate) json: AtomicU64,
    /// Requests whose tensors went into their slot as they came.
    pub(crate) uploads: AtomicU64,
    /// Requests that the front end refused by itself, because they would have been late.
    pub(crate) late: AtomicU64,
    /// Requests that the front end refused by itself, because their clients ask too much.
    pub(crate) over_quota: AtomicU64,
    /// Requests that the front end answered by itself too late, which it then said.
    pub(crate) expired: AtomicU64,
    /// Requests handed to the application whose ends are known.
    pub(crate) passed: AtomicU64,
    /// Connections handed to the application for good.
    pub(crate) tunnels: AtomicU64,
    /// Clients cut off because they took nothing of an answer.
    pub(crate) stalled: AtomicU64,
    /// TLS handshakes that took too long.
    pub(crate) handshakes_late: AtomicU64,
    /// Clients that did not speak TLS.
    pub(crate) handshakes_plain: AtomicU64,
    /// Clients turned away for the name in their certificate.
    pub(crate) clients_refused: AtomicU64,
    /// TLS handshakes that failed for any other reason.
    pub(crate) handshakes_failed: AtomicU64,
}

impl Figures {
    /// All of them by name.
    pub(crate) fn report(&self) -> [(&'static str, u64); 19] {
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
}

/// What counts as open until it is dropped.
pub(crate) struct Open<'a>(&'a AtomicU64);

impl<'a> Open<'a> {
    /// Counts it.
    pub(crate) fn new(count: &'a AtomicU64) -> Self {
        count.fetch_add(1, Relaxed);
        Self(count)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}
