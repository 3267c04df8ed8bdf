//! What gRPC connections share: the service that they reach, and how they are let in.

use crate::h2::call::Call;
use crate::h2::carriers::Carriers;
use crate::h2::service::Service;
use crate::h2::window::WindowBudget;
use crate::listen::tls::Tls;
use std::sync::Arc;

/// See the head of this file.
pub(crate) struct Endpoint {
    pub(crate) service: Arc<Service>,
    /// The tasks that carry calls.
    pub(crate) carriers: Arc<Carriers<Call>>,
    /// Certificates, if the endpoint speaks TLS.
    pub(crate) tls: Option<Arc<Tls>>,
    /// Memory for what clients send ahead.
    pub(crate) windows: WindowBudget,
}

impl Endpoint {
    /// Of a service, over TLS if there are certificates.
    pub(crate) fn new(service: Arc<Service>, tls: Option<Arc<Tls>>) -> Self {
        let windows = WindowBudget::new(&service.resources.limits);
        Self { service, carriers: Arc::default(), tls, windows }
    }
}
