//! What HTTP connections share, whichever front let them in.

use crate::http::figures::Figures;
use crate::resources::Resources;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::*};

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
