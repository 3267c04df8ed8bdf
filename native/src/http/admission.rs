//! Whether an HTTP request is the door's: what it shows of itself, held against what was taught.

use crate::fastpath::admission::Admission;
use crate::fastpath::booking::Asks;
use crate::fastpath::direct::{Direct, State};
use crate::fastpath::flight::Flight;
use crate::fastpath::parking::Request;
use crate::fastpath::plan::Plan;
use crate::http::answer as http_answer;
use crate::http::head::Compress;
use crate::http::json::Outline;
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;

/// A request that was taken apart.
pub struct Shown<'a> {
    /// Its JSON.
    pub outline: &'a Outline,
    /// Its id.
    pub id: Bytes,
    /// Where its binary tensors lie in its message, one after another.
    pub tensors: Range<usize>,
    /// Which answers its client might want compressed.
    pub compress: Compress,
    /// From which size on.
    pub compress_bytes: usize,
    /// When it came.
    pub arrived_ns: u64,
}

impl Shown<'_> {
    /// What was taught of such requests, if that is of use for this one.
    fn plan(&self, state: &State) -> Option<Arc<Plan>> {
        let plan = state.plans.find(&self.outline.key)?;
        let texts = plan.text_inputs().count();
        let fits = plan.raw_bytes() == self.tensors.len() && texts == self.outline.data.len();
        let squeezed = if plan.answers_text() { self.compress.text } else { self.compress.binary };
        let compressed = squeezed && http_answer::longest(plan, &self.id) >= self.compress_bytes;
        (fits && !compressed).then(|| plan.clone())
    }
}

impl Direct {
    /// Whether such requests were taught.
    pub fn knows(&self, shown: &Shown<'_>) -> bool {
        shown.plan(&self.state()).is_some()
    }

    /// Looks at a request that has come. A flight is counted against its lane from here on; tensors that are JSON are not
    /// read yet, so that whoever is refused for being late is refused at once.
    pub fn admit_http(self: &Arc<Self>, shown: &Shown<'_>) -> Admission {
        let mut state = self.state();
        let Some(plan) = shown.plan(&state) else { return Admission::Engine(None) };
        let starts = plan.raw_inputs().scan(shown.tensors.start, |next, place| {
            let start = *next;
            *next += place.size;
            Some((start, place))
        });
        let raw = starts.collect();
        let request = Request::new(plan, shown.id.clone(), raw, (shown.arrived_ns, 0));
        self.book(&mut state, request, Asks::InTurn)
    }

    /// Looks at a request whose tensors are yet to come, as `admit_upload` does.
    pub fn admit_http_upload(self: &Arc<Self>, shown: &Shown<'_>) -> Option<Box<Flight>> {
        let mut state = self.state();
        let plan = shown.plan(&state)?;
        self.book_ahead(&mut state, plan, shown.id.clone(), (shown.arrived_ns, 0))
    }
}
