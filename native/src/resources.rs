//! What connections share, whichever protocol they speak: memory, quotas, the fast path, and the way to Python.

use crate::fastpath::direct::Direct;
use crate::handover::link::Link;
use crate::listen::connections::Connections;
use crate::listen::registry::Registry;
use crate::measure::budget::Budget;
use crate::measure::limits::{Limit, Limits};
use crate::measure::statistics::{Count, Statistics};
use std::io::Result;
use std::sync::Arc;

/// See the head of this file.
pub(crate) struct Resources {
    pub(crate) limits: Limits,
    /// What clients may ask.
    pub(crate) quotas: Arc<Registry>,
    /// The way to Python and back.
    pub(crate) link: Arc<Link>,
    /// Requests that are served without Python.
    pub(crate) direct: Arc<Direct>,
    /// Memory for request messages.
    pub(crate) requests: Arc<Budget>,
    /// Memory for answers that clients have not taken yet, as much as for requests.
    pub(crate) answers: Arc<Budget>,
    pub(crate) connections: Connections,
    /// Those of HTTP; it drains when HTTP ends.
    pub(crate) http_connections: Connections,
    pub(crate) statistics: Statistics,
}

impl Resources {
    /// Of a front end that is not open yet.
    pub(crate) fn new(limits: Limits, quotas: Arc<Registry>) -> Result<Self> {
        let bytes = limits.get(Limit::BytesInFlight);
        Ok(Self {
            limits,
            quotas,
            link: Arc::new(Link::new()?),
            direct: Arc::default(),
            requests: Budget::new(bytes),
            answers: Budget::new(bytes),
            connections: Connections::default(),
            http_connections: Connections::default(),
            statistics: Statistics::default(),
        })
    }

    /// What one connection may hold of the memory for requests and for answers.
    pub(crate) fn shares(&self) -> (Arc<Budget>, Arc<Budget>) {
        let bytes = self.limits.connection_bytes();
        (self.requests.share(bytes), self.answers.share(bytes))
    }

    /// Does on the thread what it does before it sleeps: when it is too busy to sleep, nothing else does.
    pub(crate) fn catch_up(&self) {
        self.link.wakeups.deliver();
        self.direct.collect();
    }

    /// An answer finds no room: counts it, and says so.
    pub(crate) fn no_room(&self) -> String {
        self.statistics.count(Count::AnswersRefused);
        let bound = self.limits.get(Limit::BytesInFlight);
        format!(
            "there is no memory for this answer now: all answers that clients have not taken yet may take {bound} bytes, \
             and those of one connection half of it"
        )
    }

    /// No more HTTP connections are let in, and those that wait for a request close.
    pub(crate) fn end_http(&self) {
        self.http_connections.drain();
        self.connections.wake_all();
    }

    /// Listeners close, clients are asked to leave.
    pub(crate) fn drain(&self) {
        if self.connections.drain() {
            self.link.wakeups.wake_thread();
        }
    }
}
