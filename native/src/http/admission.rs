//! Whether an HTTP request is the front end's: what it shows of itself, held against the templates.

use crate::fastpath::admission::Admission;
use crate::fastpath::direct::Direct;
use crate::fastpath::flight::Flight;
use crate::fastpath::request::{Asks, Request};
use crate::http::answer as http_answer;
use crate::http::head::Compress;
use crate::http::json::Outline;
use crate::templates::template::{Template, Templates};
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;

/// A request that was taken apart.
pub(crate) struct Shown<'a> {
    /// Its JSON.
    pub(crate) outline: &'a Outline,
    /// Its id.
    pub(crate) id: Bytes,
    /// Where its binary tensors lie in its message, one after another.
    pub(crate) tensors: Range<usize>,
    /// Which answers its client might want compressed.
    pub(crate) compress: Compress,
    /// From which size on.
    pub(crate) compress_bytes: usize,
    /// When it came.
    pub(crate) arrived_ns: u64,
}

impl Shown<'_> {
    /// The template of such requests, if that is of use for this one.
    fn template(&self, templates: &Templates) -> Option<Arc<Template>> {
        let template = templates.find(&self.outline.key)?;
        let texts = template.text_inputs().count();
        let fits = template.raw_bytes() == self.tensors.len() && texts == self.outline.data.len();
        let squeezed = if template.answers_text() { self.compress.text } else { self.compress.binary };
        let compressed = squeezed && http_answer::longest(template, &self.id) >= self.compress_bytes;
        (fits && !compressed).then(|| template.clone())
    }
}

impl Shown<'_> {
    /// Whether there is a template for such requests.
    pub(crate) fn is_known(&self, direct: &Direct) -> bool {
        self.template(&direct.dispatch.lock().templates).is_some()
    }

    /// Looks at a request that has come. A flight is counted against its lane from here on; tensors that are JSON are
    /// not read yet, so that what is refused for being late is refused at once.
    pub(crate) fn admit(&self, direct: &Arc<Direct>) -> Admission {
        direct.admit_by(Asks::InTurn, |templates| {
            let template = self.template(templates)?;
            let starts = template.raw_inputs().scan(self.tensors.start, |next, place| {
                let start = *next;
                *next += place.size;
                Some((start, place))
            });
            let raw = starts.collect();
            Some(Request::new(template, self.id.clone(), raw, (self.arrived_ns, 0)))
        })
    }

    /// Looks at a request whose tensors are yet to come, as `admit_upload` does.
    pub(crate) fn admit_upload(&self, direct: &Arc<Direct>) -> Option<Box<Flight>> {
        direct.admit_ahead_by(|templates| {
            let template = self.template(templates)?;
            Some(Request::new(template, self.id.clone(), Vec::new(), (self.arrived_ns, 0)))
        })
    }
}
