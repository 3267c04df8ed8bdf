//! Some of the requests that the front end serves by itself, told one by one: every so many, and not too many at a
//! time. What is not among them costs one count.

use crate::lanes::outcome::Stages;
use bytes::Bytes;

/// Traces kept until they are told; more are lost.
const KEPT: usize = 64;
/// A longer trace context is none.
const PARENT: usize = 512;

/// One request on its way. All times are of CLOCK_MONOTONIC, in nanoseconds.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Trace {
    /// The model that it is for.
    pub(crate) model: u32,
    /// The lane that served it.
    pub(crate) lane: u32,
    /// Its rows.
    pub(crate) rows: u32,
    /// Its id.
    pub(crate) id: Bytes,
    /// The trace context that its client sent, as W3C writes it; empty: none.
    pub(crate) parent: Bytes,
    /// When its headers came.
    pub(crate) arrived_ns: u64,
    /// When it was taken.
    pub(crate) admitted_ns: u64,
    /// When the worker got it.
    pub(crate) dispatched_ns: u64,
    /// How long it waited from its arrival on until the worker took it, and what the worker's steps took.
    pub(crate) stages: Stages,
    /// When its answer was ready to be sent.
    pub(crate) replied_ns: u64,
}

impl Trace {
    /// Notes the trace context of the client.
    pub(crate) fn note_parent(&mut self, value: &[u8]) {
        if value.len() <= PARENT {
            self.parent = Bytes::copy_from_slice(value);
        }
    }
}

/// Says which requests are traced, and keeps what became of these until it is told.
#[derive(Default)]
pub(crate) struct Traces {
    one_in: u64,
    seen: u64,
    ended: Vec<Trace>,
}

impl Traces {
    /// Traces one request in so many from here on; 0: none.
    pub(crate) fn sample(&mut self, one_in: u64) {
        (self.one_in, self.seen) = (one_in, 0);
    }

    /// A place for the trace of a request that was just admitted, if this is the one.
    pub(crate) fn pick(&mut self) -> Option<Box<Trace>> {
        self.seen += 1;
        if self.seen != self.one_in {
            return None;
        }
        self.seen = 0;
        (self.ended.len() < KEPT).then(Box::default)
    }

    /// A traced request was answered.
    pub(crate) fn end(&mut self, trace: Trace) {
        if self.ended.len() < KEPT {
            self.ended.push(trace);
        }
    }

    /// Takes all that ended.
    pub(crate) fn take(&mut self) -> Vec<Trace> {
        std::mem::take(&mut self.ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lanes::memory::status;
    use crate::rig::Rig;
    use std::task::{Context, Waker};

    fn traced(traces: &mut Traces, requests: usize) -> usize {
        let mut ended = 0;
        for _ in 0..requests {
            if let Some(trace) = traces.pick() {
                traces.end(*trace);
                ended += 1;
            }
        }
        ended
    }

    #[test]
    fn one_in_so_many_is_traced() {
        let mut traces = Traces::default();
        assert_eq!(traced(&mut traces, 100), 0);
        traces.sample(10);
        assert_eq!(traced(&mut traces, 100), 10);
        assert_eq!(traces.take().len(), 10);
        traces.sample(1);
        assert_eq!(traced(&mut traces, 3), 3);
        traces.sample(0);
        assert_eq!(traced(&mut traces, 100), 0);
    }

    #[test]
    fn a_traced_request_tells_when_it_was_where() {
        let mut rig = Rig::leased();
        rig.direct.sample(2);
        for _ in 0..2 {
            let mut flight = rig.fly();
            rig.complete(status::OK);
            assert!(flight.poll(&mut Context::from_waker(Waker::noop())).is_ready());
            if let Some(trace) = flight.trace() {
                trace.note_parent(b"parent");
            }
            flight.finish("");
        }
        let traces = rig.direct.traces();
        assert_eq!(traces.len(), 1, "the second of two");
        let trace = &traces[0];
        assert_eq!((trace.model, trace.lane, trace.rows, &trace.id[..]), (1, 1, 1, &b"42"[..]));
        assert_eq!(&trace.parent[..], b"parent");
        let taken_ns = trace.arrived_ns + trace.stages.queue_ns;
        let stamps = [trace.arrived_ns, trace.admitted_ns, trace.dispatched_ns, taken_ns, trace.replied_ns];
        assert!(stamps.is_sorted() && stamps[0] > 0, "{stamps:?}");
        assert!(rig.direct.traces().is_empty());
    }

    #[test]
    fn what_nobody_fetches_is_bounded() {
        let mut traces = Traces::default();
        traces.sample(1);
        assert_eq!(traced(&mut traces, 1000), KEPT);
        assert_eq!(traces.take().len(), KEPT);
        assert_eq!(traced(&mut traces, 1), 1);
    }

    #[test]
    fn a_long_context_is_none() {
        let mut trace = Trace::default();
        trace.note_parent(&[b'x'; PARENT + 1]);
        assert!(trace.parent.is_empty());
        trace.note_parent(b"00-1-2-01");
        assert_eq!(&trace.parent[..], b"00-1-2-01");
    }
}
