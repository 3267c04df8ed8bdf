//! What the fast path answers when it is asked whether it serves a request.

use crate::fastpath::backlog;
use crate::fastpath::booking::{book, book_ahead};
use crate::fastpath::direct::Direct;
use crate::fastpath::flight::Flight;
use crate::fastpath::request::{Asks, EngineWork, Queued, Request, Verdict, shown};
use crate::templates::scan::Opening;
use crate::templates::template::Templates;
use bytes::Bytes;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// What can be done about a request.
pub(crate) enum Admission {
    /// Its tensors can be copied.
    Flight(Box<Flight>),
    /// It cannot be in time: what its client is told, and when it would be worth trying again.
    Late(String, u64),
    /// It waits.
    Waiting(Box<Waiting>),
    /// It is the engine's. What is known of it counts as work ahead of others while this is held.
    Engine(Option<Asked>),
}

impl Admission {
    fn of(direct: &Arc<Direct>, verdict: Verdict) -> Self {
        match verdict {
            Verdict::Lane(booking) => Self::Flight(Box::new(Flight::new(direct, booking))),
            Verdict::Late(text, late_ns) => Self::Late(text, late_ns),
            Verdict::Waits(queued) => Self::Waiting(Box::new(Waiting { direct: direct.clone(), queued })),
            Verdict::Engine(work) => Self::Engine(work.map(|work| Asked { direct: direct.clone(), work })),
        }
    }
}

/// A request that was left to the engine.
pub(crate) struct Asked {
    direct: Arc<Direct>,
    work: EngineWork,
}

impl Drop for Asked {
    fn drop(&mut self) {
        let mut dispatch = self.direct.dispatch.lock();
        dispatch.engine_done(&self.work);
        if dispatch.waiting > 0 {
            backlog::release(&mut dispatch, self.work.group);
        }
    }
}

/// A request that waits. Dropped before it was told what becomes of it, its client has gone.
pub(crate) struct Waiting {
    direct: Arc<Direct>,
    queued: Queued,
}

impl Waiting {
    /// Its deadline, that of its template if it brought none; 0: none.
    pub(crate) fn deadline_ns(&self) -> u64 {
        self.queued.deadline_ns
    }

    /// Ready with what becomes of it, which is never to wait again.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Admission> {
        let released = Pin::new(&mut self.queued.released).poll(cx);
        released.map(|told| Admission::of(&self.direct, told.unwrap_or(Verdict::Engine(None))))
    }

    /// Counts it as expired; what its client is told.
    pub(crate) fn expire(&self) -> String {
        let template = &self.queued.template;
        let mut dispatch = self.direct.dispatch.lock();
        dispatch.news.expired(template.subject(0));
        dispatch.announce();
        drop(dispatch);
        format!("[request id: {}] Request timeout expired", shown(&self.queued.id))
    }

    /// Counts it as given up by its client.
    pub(crate) fn cancel(&self) {
        let template = &self.queued.template;
        let mut dispatch = self.direct.dispatch.lock();
        dispatch.news.cancelled(template.subject(0));
        dispatch.announce();
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        backlog::leave(&mut self.direct.dispatch.lock(), self.queued.template.group, self.queued.number);
        if let Ok(verdict) = self.queued.released.try_recv() {
            drop(Admission::of(&self.direct, verdict)); // it was given a place, which goes back
        }
    }
}

impl Direct {
    /// Looks at a request by this template. A flight is counted against its lane from here on.
    pub(crate) fn admit_by(
        self: &Arc<Self>,
        asks: Asks,
        find: impl FnOnce(&Templates) -> Option<Request>,
    ) -> Admission {
        let mut dispatch = self.dispatch.lock();
        let Some(request) = find(&dispatch.templates) else { return Admission::Engine(None) };
        let verdict = book(&mut dispatch, request, asks);
        drop(dispatch);
        Admission::of(self, verdict)
    }

    /// Looks at a request whose tensors are yet to come. None also when it would be late: that is said when it has
    /// come.
    pub(crate) fn admit_ahead_by(
        self: &Arc<Self>,
        find: impl FnOnce(&Templates) -> Option<Request>,
    ) -> Option<Box<Flight>> {
        let mut dispatch = self.dispatch.lock();
        let request = find(&dispatch.templates)?;
        let booking = book_ahead(&mut dispatch, request)?;
        drop(dispatch);
        Some(Box::new(Flight::new(self, booking)))
    }

    /// Looks at a message. What would be late is refused here only where the caller can say so (`refuse`), and the
    /// engine's otherwise.
    pub(crate) fn admit(
        self: &Arc<Self>,
        message: &Bytes,
        arrived_ns: u64,
        deadline_ns: u64,
        refuse: bool,
    ) -> Admission {
        let scanned = &mut *self.scanned.lock();
        if scanned.read(message).is_none() {
            return Admission::Engine(None);
        }
        self.admit_by(if refuse { Asks::Alone } else { Asks::Within }, |templates| {
            let template = templates.find(&scanned.head).filter(|template| template.fits(&scanned.raw))?;
            let id = message.slice(scanned.id.clone());
            let raw = scanned.raw.iter().map(|range| range.start).zip(template.raw_inputs()).collect();
            Some(Request::new(template.clone(), id, raw, (arrived_ns, deadline_ns)))
        })
    }

    /// Looks at a message of which the tensors are yet to come.
    pub(crate) fn admit_upload(
        self: &Arc<Self>,
        piece: &Bytes,
        opening: &Opening,
        times_ns: (u64, u64),
    ) -> Option<Box<Flight>> {
        self.admit_ahead_by(|templates| {
            let template = templates.find(&opening.head)?.clone();
            Some(Request::new(template, piece.slice(opening.id.clone()), Vec::new(), times_ns))
        })
    }
}
