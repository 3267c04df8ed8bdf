//! One request that the door serves by itself, from its slot to its answer.

use crate::fastpath::direct::{Direct, State};
use crate::fastpath::plan::{Place, Plan};
use crate::lanes::lane::Ticket;
use crate::lanes::news::kept;
use crate::lanes::outcome::{Outcome, Stages};
use crate::lanes::slots::Slot;
use crate::lanes::trace::Trace;
use crate::measure::clock::now_ns;
use bytes::{Bytes, BytesMut};
use std::sync::Arc;
use std::task::{Context, Poll};

/// How a request came back from its worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Landing {
    /// It can be answered.
    Well,
    /// Its deadline is over, or was when its turn came.
    Late,
}

/// For a request of so many bytes a worker is woken at once: before the next is there it can have run.
const LARGE: usize = 32 * 1024;

/// A request that the door serves. Dropped before it landed, its client has gone.
pub struct Flight {
    /// Whose it is.
    pub(crate) direct: Arc<Direct>,
    /// The lane that it is given to.
    pub(crate) lane: u32,
    /// Its name there.
    pub(crate) ticket: Ticket,
    pub(crate) plan: Arc<Plan>,
    pub(crate) slot: Slot,
    pub(crate) id: Bytes,
    pub(crate) arrived_ns: u64,
    pub(crate) deadline_ns: u64,
    /// Where its tensors begin in the message, and where they go; without those that are in the slot already.
    pub(crate) raw: Vec<(usize, Place)>,
    pub(crate) landed: Option<Stages>,
    pub(crate) trace: Option<Box<Trace>>,
}

impl Flight {
    /// Its trace, if it is traced.
    pub fn trace(&mut self) -> Option<&mut Trace> {
        self.trace.as_deref_mut()
    }

    /// Its deadline, that of its plan if it brought none; 0: none.
    pub fn deadline_ns(&self) -> u64 {
        self.deadline_ns
    }

    /// When it came.
    pub fn arrived_ns(&self) -> u64 {
        self.arrived_ns
    }

    /// Its id.
    pub fn id(&self) -> &Bytes {
        &self.id
    }

    /// What was taught of it.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Copies bytes into its slot.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        if let Some(attached) = self.direct.attached() {
            attached.arena.write(self.slot.offset + offset, bytes);
        }
    }

    /// Appends bytes of its slot.
    pub fn read(&self, offset: usize, size: usize, into: &mut BytesMut) {
        if let Some(attached) = self.direct.attached() {
            attached.arena.append_to(self.slot.offset + offset, size, into);
        }
    }

    /// Copies the tensors of the message into the slot (others are there) and gives them to the worker, of which the
    /// engine is told. False: it is the engine's.
    pub fn depart(&mut self, message: &[u8]) -> bool {
        for (start, place) in &self.raw {
            self.write(place.offset, &message[*start..*start + place.size]);
        }
        let mut state = self.direct.state();
        let now = now_ns();
        let lane = state.lanes.get_mut(&self.lane);
        let departed = lane.is_some_and(|lane| {
            let departed = lane.submit(self.ticket, self.deadline_ns, now);
            if self.plan.span >= LARGE {
                lane.rouse();
            }
            departed
        });
        if let Some(trace) = &mut self.trace {
            trace.dispatched_ns = now;
        }
        if departed {
            self.direct.announce_departure(&mut state);
        }
        departed
    }

    /// Ready when the worker is done with it. An error: the engine's, after so many attempts.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Landing, u32>> {
        let mut state = self.direct.state();
        let Some(lane) = state.lanes.get_mut(&self.lane) else { return Poll::Ready(Err(0)) };
        match lane.poll(self.ticket, cx.waker()) {
            None => Poll::Pending,
            Some(Outcome::Ran(stages)) => {
                self.landed = Some(stages);
                let late = self.deadline_ns > 0 && now_ns() > self.deadline_ns;
                Poll::Ready(Ok(if late { Landing::Late } else { Landing::Well }))
            }
            Some(Outcome::Expired) => Poll::Ready(Ok(Landing::Late)),
            Some(Outcome::HandOver { attempts }) => Poll::Ready(Err(attempts)),
        }
    }

    /// How long its answer is.
    pub fn answer_length(&self) -> usize {
        self.plan.answer_length(&self.id)
    }

    /// Appends the answer; only once it has landed.
    pub fn answer(&self, into: &mut BytesMut) {
        self.plan.write_answer(&self.id, into, |place, into| self.read(place.offset, place.size, into));
    }

    /// How long its answer is on a stream.
    pub fn streamed_length(&self) -> usize {
        self.plan.streamed_length(&self.id)
    }

    /// Appends the answer as it goes over a stream; only once it has landed.
    pub fn streamed(&self, into: &mut BytesMut) {
        self.plan.write_streamed(&self.id, into, |place, into| self.read(place.offset, place.size, into));
    }

    /// Counts it as answered; `client` is who asked, by its certificate (empty: that is not known).
    pub fn finish(mut self, client: &str) {
        let (trace, now) = (self.trace.take(), now_ns());
        let mut state = self.direct.state();
        let State { lanes, news, traces, .. } = &mut *state;
        if let (Some(lane), Some(stages)) = (lanes.get(&self.lane), self.landed) {
            lane.answered(self.ticket, stages, (&self.id, client), now, news);
            if let Some(trace) = trace {
                let Plan { model, rows, .. } = *self.plan;
                let (lane, id, replied_ns) = (self.lane, kept(&self.id), now);
                traces.end(Trace { model, lane, rows, id, stages, replied_ns, ..*trace });
            }
        }
        self.direct.announce(&mut state);
    }

    /// Counts it as expired; what its client is told.
    pub fn expire(self) -> String {
        let when = if self.landed.is_some() { " while it ran" } else { "" };
        let text = format!("[request id: {}] Request timeout expired{when}", shown(&self.id));
        let mut state = self.direct.state();
        state.news.expired((self.plan.model, self.plan.kind, self.lane));
        self.direct.announce(&mut state);
        text
    }

    /// Counts it as given up by its client.
    pub fn cancel(self) {
        let mut state = self.direct.state();
        state.news.cancelled((self.plan.model, self.plan.kind, self.lane));
        self.direct.announce(&mut state);
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        let mut state = self.direct.state();
        let State { lanes, slots, .. } = &mut *state;
        let Some(lane) = lanes.get_mut(&self.lane) else { return };
        let before = lane.in_flight();
        lane.release(self.ticket, slots);
        self.direct.count((before - lane.in_flight()) as usize);
        if lane.is_done() {
            lanes.remove(&self.lane);
        }
        self.direct.unpark_all(&mut state);
    }
}

/// An id as clients are told it.
pub fn shown(id: &[u8]) -> String {
    const CHARACTERS: usize = 64;
    match std::str::from_utf8(id) {
        Ok("") | Err(_) => "<id_unknown>".into(),
        Ok(id) => id.chars().take(CHARACTERS).collect(),
    }
}
