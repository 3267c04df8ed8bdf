//! One request that the front end serves by itself, from its slot to its answer.

use crate::fastpath::backlog;
use crate::fastpath::direct::Direct;
use crate::fastpath::dispatch::Dispatch;
use crate::fastpath::request::{Booking, shown};
use crate::lanes::news::kept;
use crate::lanes::outcome::{Outcome, Stages};
use crate::lanes::trace::Trace;
use crate::listen::quota::Account;
use crate::measure::clock::now_ns;
use crate::templates::template::Template;
use bytes::{Bytes, BytesMut};
use std::sync::Arc;
use std::task::{Context, Poll};

/// How a request came back from its worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Landing {
    /// It can be answered.
    Well,
    /// Its deadline is over, or was when its turn came.
    Late,
}

/// For a request of so many bytes a worker is woken at once: before the next is there it can have run.
const LARGE: usize = 32 * 1024;

/// A request that the front end serves. Dropped before it landed, its client has gone.
pub(crate) struct Flight {
    direct: Arc<Direct>,
    booking: Booking,
    landed: Option<Stages>,
    /// Its client's.
    account: Option<Arc<Account>>,
}

impl Flight {
    /// The request that has this place.
    pub(crate) fn new(direct: &Arc<Direct>, mut booking: Booking) -> Self {
        if let Some(leftover) = booking.leftover.take() {
            leftover.discard();
        }
        Self { direct: direct.clone(), booking, landed: None, account: None }
    }

    /// Notes whose it is.
    pub(crate) fn note_client(&mut self, account: &Arc<Account>) {
        self.account = Some(account.clone());
    }

    /// Its trace, if it is traced.
    pub(crate) fn trace(&mut self) -> Option<&mut Trace> {
        self.booking.trace.as_deref_mut()
    }

    /// Its deadline, that of its template if it brought none; 0: none.
    pub(crate) fn deadline_ns(&self) -> u64 {
        self.booking.request.deadline_ns
    }

    /// When it came.
    pub(crate) fn arrived_ns(&self) -> u64 {
        self.booking.request.arrived_ns
    }

    /// Its id.
    pub(crate) fn id(&self) -> &Bytes {
        &self.booking.request.id
    }

    /// Its template.
    pub(crate) fn template(&self) -> &Template {
        &self.booking.request.template
    }

    /// Copies bytes into its slot.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        self.booking.object.write(self.booking.slot.offset + offset, bytes);
    }

    /// Appends bytes of its slot.
    pub(crate) fn read(&self, offset: usize, size: usize, into: &mut BytesMut) {
        self.booking.object.append_to(self.booking.slot.offset + offset, size, into);
    }

    /// Copies the tensors of the message into the slot (others are there) and gives them to the worker, of which the
    /// engine is told. False: it is the engine's, as is what a client asks of a model of which it is held.
    pub(crate) fn depart(&mut self, message: &[u8]) -> bool {
        for (start, place) in &self.booking.request.raw {
            self.write(place.offset, &message[*start..*start + place.size]);
        }
        let now = now_ns();
        if self.account.as_ref().is_some_and(|account| account.is_held(self.template().model, now)) {
            return false;
        }
        let mut state = self.direct.dispatch.lock();
        let lane = state.lanes.get_mut(&self.booking.lane);
        let departed = lane.is_some_and(|lane| {
            lane.note_client(self.booking.ticket, self.account.as_ref());
            let departed = lane.submit(self.booking.ticket, self.booking.request.deadline_ns, now);
            if self.booking.request.template.span >= LARGE {
                lane.rouse();
            }
            departed
        });
        if let Some(trace) = &mut self.booking.trace {
            trace.dispatched_ns = now;
        }
        if departed {
            state.announce_departure();
        }
        departed
    }

    /// Ready when the worker is done with it. An error: the engine's, after so many attempts.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Landing, u32>> {
        let mut state = self.direct.dispatch.lock();
        let Some(lane) = state.lanes.get_mut(&self.booking.lane) else { return Poll::Ready(Err(0)) };
        match lane.poll(self.booking.ticket, cx.waker()) {
            None => Poll::Pending,
            Some(Outcome::Ran(stages)) => {
                self.landed = Some(stages);
                let late =
                    self.booking.request.deadline_ns > 0 && now_ns() > self.booking.request.deadline_ns;
                Poll::Ready(Ok(if late { Landing::Late } else { Landing::Well }))
            }
            Some(Outcome::Expired) => Poll::Ready(Ok(Landing::Late)),
            Some(Outcome::HandOver { attempts }) => Poll::Ready(Err(attempts)),
        }
    }

    /// How long its answer is.
    pub(crate) fn answer_length(&self) -> usize {
        self.booking.request.template.answer_length(&self.booking.request.id)
    }

    /// Appends the answer; only once it has landed.
    pub(crate) fn answer(&self, into: &mut BytesMut) {
        self.booking.request.template.write_answer(&self.booking.request.id, into, |place, into| {
            self.read(place.offset, place.size, into)
        });
    }

    /// How long its answer is on a stream.
    pub(crate) fn streamed_length(&self) -> usize {
        self.booking.request.template.streamed_length(&self.booking.request.id)
    }

    /// Appends the answer as it goes over a stream; only once it has landed.
    pub(crate) fn streamed(&self, into: &mut BytesMut) {
        self.booking.request.template.write_streamed(&self.booking.request.id, into, |place, into| {
            self.read(place.offset, place.size, into)
        });
    }

    /// Counts it as answered; `client` is its client, by its certificate (empty: that is not known).
    pub(crate) fn finish(&mut self, client: &str) {
        let (trace, now) = (self.booking.trace.take(), now_ns());
        let mut state = self.direct.dispatch.lock();
        let Dispatch { lanes, news, traces, .. } = &mut *state;
        if let (Some(lane), Some(stages)) = (lanes.get(&self.booking.lane), self.landed) {
            lane.answered(self.booking.ticket, stages, (&self.booking.request.id, client), now, news);
            if let Some(trace) = trace {
                let (model, rows) = (self.template().model, self.template().rows);
                let (lane, id, replied_ns) = (self.booking.lane, kept(&self.booking.request.id), now);
                traces.end(Trace { model, lane, rows, id, stages, replied_ns, ..*trace });
            }
        }
        state.announce();
    }

    /// Counts it as expired; what its client is told.
    pub(crate) fn expire(&self) -> String {
        let when = if self.landed.is_some() { " while it ran" } else { "" };
        let text = format!("[request id: {}] Request timeout expired{when}", shown(&self.booking.request.id));
        let mut state = self.direct.dispatch.lock();
        state.news.expired(self.template().subject(self.booking.lane));
        state.announce();
        text
    }

    /// Counts it as given up by its client.
    pub(crate) fn cancel(&self) {
        let mut state = self.direct.dispatch.lock();
        state.news.cancelled(self.template().subject(self.booking.lane));
        state.announce();
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        let mut state = self.direct.dispatch.lock();
        let Dispatch { lanes, slots, .. } = &mut *state;
        let Some(lane) = lanes.get_mut(&self.booking.lane) else { return };
        let before = lane.in_flight();
        lane.release(self.booking.ticket, slots);
        let ended = before - lane.in_flight();
        if lane.is_done() {
            lanes.remove(&self.booking.lane);
        }
        state.count(ended as usize);
        backlog::release_all(&mut state);
    }
}
