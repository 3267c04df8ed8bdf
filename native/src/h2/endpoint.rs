//! What gRPC connections share: the service that they reach, and how they are let in.

use crate::h2::call::Call;
use crate::h2::carriers::Carriers;
use crate::h2::service::Service;
use crate::h2::window::WindowBudget;
use crate::handover::mailbox::Event;
use crate::listen::handshakes::{Handshakes, Reason};
use crate::listen::tls::Tls;
use crate::measure::clock::now_ns;
use std::sync::Arc;

/// See the head of this file.
pub(crate) struct Endpoint {
    pub(crate) service: Arc<Service>,
    /// The tasks that carry calls.
    pub(crate) carriers: Arc<Carriers<Call>>,
    /// Certificates, if the endpoint speaks TLS.
    pub(crate) tls: Option<Arc<Tls>>,
    /// TLS handshakes that came to nothing.
    pub(crate) handshakes: Handshakes,
    /// Memory for what clients send ahead.
    pub(crate) windows: WindowBudget,
}

impl Endpoint {
    /// Of a service, over TLS if there are certificates.
    pub(crate) fn new(service: Arc<Service>, tls: Option<Arc<Tls>>) -> Self {
        let windows = WindowBudget::new(&service.resources.limits);
        Self { service, carriers: Arc::default(), tls, handshakes: Handshakes::default(), windows }
    }

    /// Counts a client that was turned away for its name, and tells some of them.
    pub(crate) fn turned_away(&self, peer: &Arc<str>, client: String) {
        self.service.resources.statistics.client_refused();
        self.service.resources.link.turned_away(peer, client, "grpc");
    }

    /// Counts a TLS handshake that came to nothing, and tells some of them.
    pub(crate) fn handshake_failed(&self, peer: &Arc<str>, reason: Reason, text: String) {
        if self.handshakes.fail(reason, now_ns()) {
            let event = Event::Handshake(peer.clone(), reason.name(), text);
            self.service.resources.link.mailbox.push(event);
        }
    }
}
