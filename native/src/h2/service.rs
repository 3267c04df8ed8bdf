//! What gRPC connections share: the methods that there are, and how they are let in; and what the calls of one share.

use crate::h2::monitor::SharedMonitor;
use crate::h2::window::{Window, WindowBudget};
use crate::handover::calls::Kind;
use crate::listen::quota::Account;
use crate::listen::tls::Tls;
use crate::measure::budget::Budget;
use crate::resources::Resources;
use std::collections::HashMap;
use std::sync::Arc;

/// See the head of this file.
pub(crate) struct Service {
    pub(crate) resources: Arc<Resources>,
    /// Index and kind of each method by its path.
    pub(crate) methods: HashMap<String, (u32, Kind)>,
    /// Those of them whose messages are inference requests, which clients' quotas bound.
    pub(crate) inferences: Vec<u32>,
    /// Certificates, if TLS is spoken over TCP.
    pub(crate) tls: Option<Arc<Tls>>,
    /// Memory for what clients send ahead.
    pub(crate) windows: WindowBudget,
}

impl Service {
    /// Of these methods, over TLS if there are certificates.
    pub(crate) fn new(
        resources: Arc<Resources>,
        methods: HashMap<String, (u32, Kind)>,
        inferences: Vec<u32>,
        tls: Option<Arc<Tls>>,
    ) -> Self {
        let windows = WindowBudget::new(&resources.limits);
        Self { resources, methods, inferences, tls, windows }
    }
}

/// A client, as its calls see it.
pub(crate) struct Caller {
    /// Who it is to quotas, as text.
    pub(crate) who: Arc<str>,
    /// Its name by its certificate; empty: that is not known.
    pub(crate) client: Arc<str>,
    /// Its user on this machine, where that is known.
    pub(crate) user: Option<u32>,
    /// What it may ask.
    pub(crate) account: Arc<Account>,
    /// How it behaves.
    pub(crate) monitor: SharedMonitor,
    /// Its share of the memory for request messages.
    pub(crate) requests: Arc<Budget>,
    /// Its share of the memory for answers.
    pub(crate) answers: Arc<Budget>,
    /// How much it may send ahead.
    pub(crate) window: Arc<Window>,
}
