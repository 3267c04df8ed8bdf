//! One request on its way through the fast path, as values: what it asks, the place that it was given, and what the
//! engine has of it.

use crate::lanes::lane::Ticket;
use crate::lanes::slots::{Leftover, MemoryObject, Slot};
use crate::lanes::trace::Trace;
use crate::templates::template::{Place, Template};
use bytes::Bytes;
use std::sync::Arc;
use tokio::sync::oneshot;

/// A request that can be given to a lane.
pub(crate) struct Request {
    pub(crate) template: Arc<Template>,
    pub(crate) id: Bytes,
    /// Where its tensors begin in the message, and where they go; without those that are in the slot already.
    pub(crate) raw: Vec<(usize, Place)>,
    pub(crate) arrived_ns: u64,
    pub(crate) deadline_ns: u64,
}

impl Request {
    /// With what of its deadline its template knows.
    pub(crate) fn new(
        template: Arc<Template>,
        id: Bytes,
        raw: Vec<(usize, Place)>,
        (arrived_ns, deadline_ns): (u64, u64),
    ) -> Self {
        let deadline_ns = template.deadline_of(arrived_ns, deadline_ns);
        Self { template, id, raw, arrived_ns, deadline_ns }
    }
}

/// How a request came, and so what can be said to its client.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asks {
    /// As a call of its own: it can be refused, and can wait.
    Alone,
    /// Over a connection that serves one at a time: it can be refused.
    InTurn,
    /// Among others on a stream: what is to be said of it is the engine's to say.
    Within,
}

/// A place on a lane, and the request that has it.
pub(crate) struct Booking {
    pub(crate) request: Request,
    /// The lane that it is given to.
    pub(crate) lane: u32,
    /// Its name there.
    pub(crate) ticket: Ticket,
    pub(crate) slot: Slot,
    /// What its tensors lie in.
    pub(crate) object: Arc<MemoryObject>,
    /// What is to be discarded of the slot before it is written to.
    pub(crate) leftover: Option<Leftover>,
    pub(crate) trace: Option<Box<Trace>>,
}

/// A request that is the engine's, as work that is ahead of others.
pub(crate) struct EngineWork {
    pub(crate) group: u32,
    pub(crate) charge_ns: u64,
    /// It is one of those that wait here while the engine has many of them.
    pub(crate) waits: bool,
}

/// A request in the backlog.
pub(crate) struct Queued {
    pub(crate) template: Arc<Template>,
    pub(crate) id: Bytes,
    pub(crate) number: u64,
    pub(crate) deadline_ns: u64,
    /// What becomes of it, which is never to wait again.
    pub(crate) released: oneshot::Receiver<Verdict>,
}

/// What is to become of a request.
pub(crate) enum Verdict {
    /// Its tensors can be copied.
    Lane(Booking),
    /// It cannot be in time: what its client is told, and when it would be worth trying again.
    Late(String, u64),
    /// It waits.
    Waits(Queued),
    /// It is the engine's, and ahead of others as far as it is known.
    Engine(Option<EngineWork>),
}

/// An id as clients are told it.
pub(crate) fn shown(id: &[u8]) -> String {
    const CHARACTERS: usize = 64;
    match std::str::from_utf8(id) {
        Ok("") | Err(_) => "<id_unknown>".into(),
        Ok(id) => id.chars().take(CHARACTERS).collect(),
    }
}
