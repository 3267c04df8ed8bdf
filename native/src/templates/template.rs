//! Templates of requests that Python has seen and checked: how their tensors and answers look.

use crate::templates::number::Number;
use bytes::{BufMut, BytesMut};
use pyo3::prelude::*;
use std::collections::HashMap;
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::*};

/// The tag before each output in an answer's `raw_output_contents`, and before its id.
const ID: u8 = 3 << 3 | 2;
/// The tag of the response within an answer on a stream.
const RESPONSE: u8 = 2 << 3 | 2;
/// More heads than Python ever keeps are a mistake.
pub(crate) const TEMPLATES: usize = 8192;

/// A tensor in a slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// Where it begins, from the slot's begin.
    pub(crate) offset: usize,
    /// Its bytes.
    pub(crate) size: usize,
}

/// An input in the request.
#[derive(Clone, Copy)]
pub(crate) struct Input {
    /// Where it goes.
    pub(crate) place: Place,
    /// Its elements, if they come as JSON; over HTTP only.
    pub(crate) text: Option<Number>,
}

/// An output in the answer.
pub(crate) struct Output {
    /// What comes before it in the answer and is not part of what describes that: tag and length, or JSON.
    pub(crate) prefix: Box<[u8]>,
    /// Where the worker leaves it.
    pub(crate) place: Place,
    /// Its elements, if they are written as JSON; over HTTP only.
    pub(crate) text: Option<Number>,
}

/// What Python says of a template.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct TemplateSpec {
    /// Its id towards the worker.
    #[pyo3(item("template"))]
    pub(crate) id: u32,
    /// Which others may share its batches.
    pub(crate) kind: u32,
    /// The model version.
    pub(crate) model: u32,
    /// The lanes that serve it.
    pub(crate) group: u32,
    /// Rows of the batch dimension.
    pub(crate) rows: u32,
    /// Size and offset of each input.
    pub(crate) inputs: Vec<(usize, usize)>,
    /// Where the outputs begin.
    pub(crate) out_offset: usize,
    /// What the slot must hold.
    pub(crate) span: usize,
    /// The beginning of the answer, before the id.
    pub(crate) opening: Vec<u8>,
    /// What follows the id.
    pub(crate) described: Vec<u8>,
    /// Prefix, offset and size of each output.
    pub(crate) outputs: Vec<(Vec<u8>, usize, usize)>,
    /// Format characters of the inputs that come as JSON, others empty; empty when none does.
    #[pyo3(default)]
    pub(crate) input_texts: Vec<String>,
    /// Likewise of the outputs.
    #[pyo3(default)]
    pub(crate) output_texts: Vec<String>,
    /// What follows the outputs in an answer on a stream, or the last one that is written as JSON over HTTP.
    pub(crate) closing: Vec<u8>,
    /// What a client that cannot be served in time is told.
    pub(crate) late_text: String,
    /// Deadline of requests that bring none; 0: none.
    pub(crate) default_timeout_ns: u64,
}

/// What is told separately: one lane's requests of one kind, as model, kind and lane.
pub(crate) type Subject = (u32, u32, u32);

/// One head, checked against one model version: what Python has said of it, and what was made of that.
pub(crate) struct Template {
    spec: TemplateSpec,
    /// Where each input goes, in the order of the request.
    pub(crate) inputs: Box<[Input]>,
    /// The outputs, in the order of the answer.
    pub(crate) outputs: Box<[Output]>,
    live: AtomicBool,
    used: AtomicBool,
}

impl Deref for Template {
    type Target = TemplateSpec;

    fn deref(&self) -> &TemplateSpec {
        &self.spec
    }
}

impl Template {
    /// Under what its requests on a lane are told.
    pub(crate) fn subject(&self, lane: u32) -> Subject {
        (self.model, self.kind, lane)
    }

    /// Whether it still holds.
    pub(crate) fn is_live(&self) -> bool {
        self.live.load(Acquire)
    }

    /// The deadline of a request that came with this one (0: none); 0: it has none.
    pub(crate) fn deadline_of(&self, arrived_ns: u64, deadline_ns: u64) -> u64 {
        match (deadline_ns, self.default_timeout_ns) {
            (0, 0) => 0,
            (0, default) => arrived_ns.saturating_add(default),
            (deadline, _) => deadline,
        }
    }

    /// Whether tensors that lie there in a message are what the template asks for.
    pub(crate) fn fits(&self, raw: &[Range<usize>]) -> bool {
        raw.len() == self.inputs.len()
            && raw.iter().zip(&self.inputs).all(|(range, input)| range.len() == input.place.size)
    }

    /// The inputs that come as bytes, one after another.
    pub(crate) fn raw_inputs(&self) -> impl Iterator<Item = Place> {
        self.inputs.iter().filter(|input| input.text.is_none()).map(|input| input.place)
    }

    /// The bytes of these together.
    pub(crate) fn raw_bytes(&self) -> usize {
        self.raw_inputs().map(|place| place.size).sum()
    }

    /// The outputs that are answered as bytes, one after another.
    pub(crate) fn raw_outputs(&self) -> impl Iterator<Item = Place> {
        self.outputs.iter().filter(|output| output.text.is_none()).map(|output| output.place)
    }

    /// Whether every output is written as JSON.
    pub(crate) fn answers_text(&self) -> bool {
        self.raw_outputs().next().is_none()
    }

    /// Whether a tensor is read or written as JSON.
    pub(crate) fn has_text(&self) -> bool {
        self.writes_text() || self.text_inputs().next().is_some()
    }

    /// Whether an output is.
    pub(crate) fn writes_text(&self) -> bool {
        self.outputs.iter().any(|output| output.text.is_some())
    }

    /// The inputs that come as JSON, with their elements.
    pub(crate) fn text_inputs(&self) -> impl Iterator<Item = (Place, Number)> {
        self.inputs.iter().filter_map(|input| Some((input.place, input.text?)))
    }

    /// The length of the answer to a request with this id.
    pub(crate) fn answer_length(&self, id: &[u8]) -> usize {
        let outputs =
            self.outputs.iter().map(|output| output.prefix.len() + output.place.size).sum::<usize>();
        let id = if id.is_empty() { 0 } else { 1 + varint_length(id.len()) + id.len() };
        self.opening.len() + id + self.described.len() + outputs
    }

    /// Writes the answer; `copy` appends a tensor.
    pub(crate) fn write_answer(
        &self,
        id: &[u8],
        into: &mut BytesMut,
        mut copy: impl FnMut(Place, &mut BytesMut),
    ) {
        into.put_slice(&self.opening);
        if !id.is_empty() {
            into.put_u8(ID);
            put_varint(id.len(), into);
            into.put_slice(id);
        }
        into.put_slice(&self.described);
        for output in &self.outputs {
            into.put_slice(&output.prefix);
            copy(output.place, into);
        }
    }

    /// The length of the answer on a stream.
    pub(crate) fn streamed_length(&self, id: &[u8]) -> usize {
        let response = self.answer_length(id) + self.closing.len();
        1 + varint_length(response) + response
    }

    /// Writes the answer as it goes over a stream.
    pub(crate) fn write_streamed(
        &self,
        id: &[u8],
        into: &mut BytesMut,
        copy: impl FnMut(Place, &mut BytesMut),
    ) {
        into.put_u8(RESPONSE);
        put_varint(self.answer_length(id) + self.closing.len(), into);
        self.write_answer(id, into, copy);
        into.put_slice(&self.closing);
    }
}

fn varint_length(value: usize) -> usize {
    (1..).find(|bytes| value >> (7 * bytes) == 0).unwrap_or(10)
}

/// Appends a number in base 128, as protobuf writes it.
pub(crate) fn put_varint(mut value: usize, into: &mut impl BufMut) {
    while value > 127 {
        into.put_u8(value as u8 | 128);
        value >>= 7;
    }
    into.put_u8(value as u8);
}

impl TemplateSpec {
    /// The template, or what is wrong with it: what leaves its slot would reach into another's.
    fn build(self) -> Result<Template, String> {
        let within =
            |offset: usize, size: usize| offset.checked_add(size).is_some_and(|end| end <= self.span);
        let input_texts = texts(&self.input_texts, self.inputs.iter().map(|(size, _)| *size))?;
        let inputs: Box<[Input]> = self
            .inputs
            .iter()
            .zip(input_texts)
            .map(|(&(size, offset), text)| Input { place: Place { offset, size }, text })
            .collect();
        let output_texts = texts(&self.output_texts, self.outputs.iter().map(|(_, _, size)| *size))?;
        let outputs: Box<[Output]> = self
            .outputs
            .iter()
            .zip(output_texts)
            .map(|((prefix, offset, size), text)| Output {
                prefix: prefix.as_slice().into(),
                place: Place { offset: *offset, size: *size },
                text,
            })
            .collect();
        let places = inputs.iter().map(|input| input.place);
        let mut places = places.chain(outputs.iter().map(|output| output.place));
        if self.out_offset > self.span || !places.all(|place| within(place.offset, place.size)) {
            return Err(format!(
                "a tensor of template {} lies outside of its slot of {} bytes",
                self.id, self.span
            ));
        }
        let (live, used) = (AtomicBool::new(true), AtomicBool::new(false));
        Ok(Template { spec: self, inputs, outputs, live, used })
    }
}

/// What is JSON of tensors of these sizes.
fn texts(
    codes: &[String],
    sizes: impl ExactSizeIterator<Item = usize>,
) -> Result<Vec<Option<Number>>, String> {
    if codes.is_empty() {
        return Ok(vec![None; sizes.len()]);
    }
    if codes.len() != sizes.len() {
        return Err(format!("{} formats for {} tensors", codes.len(), sizes.len()));
    }
    let text = |(code, size): (&String, usize)| {
        if code.is_empty() {
            return Ok(None);
        }
        let number = Number::of_code(code).filter(|number| size % number.size() == 0);
        number.map(Some).ok_or_else(|| format!("a tensor of {size} bytes has no elements of format '{code}'"))
    };
    codes.iter().zip(sizes).map(text).collect()
}

/// The templates by head, and how many had to go for others.
#[derive(Default)]
pub(crate) struct Templates {
    by_head: HashMap<Box<[u8]>, Arc<Template>>,
    retired: u64,
}

impl Templates {
    /// Takes a template up for requests with this head.
    pub(crate) fn add(&mut self, head: Vec<u8>, spec: TemplateSpec) -> Result<(), String> {
        if self.len() >= TEMPLATES && !self.by_head.contains_key(head.as_slice()) {
            return Err(format!("more than {TEMPLATES} templates"));
        }
        let template = Arc::new(spec.build()?);
        if let Some(before) = self.by_head.insert(head.into(), template) {
            before.live.store(false, Release);
        }
        Ok(())
    }

    /// The template for a head, which is of use then.
    pub(crate) fn find(&self, head: &[u8]) -> Option<&Arc<Template>> {
        self.by_head.get(head).inspect(|template| template.used.store(true, Relaxed))
    }

    /// Drops the template of a head, but not one to be spared that was of use since this was asked last. Whether there
    /// is none now.
    pub(crate) fn retire(&mut self, head: &[u8], spare: bool) -> bool {
        let Some(template) = self.by_head.get(head) else { return true };
        if template.used.swap(false, Relaxed) && spare {
            return false;
        }
        template.live.store(false, Release);
        self.by_head.remove(head);
        self.retired += 1;
        true
    }

    /// Drops the templates of a model, or all.
    pub(crate) fn drop_of(&mut self, model: Option<u32>) {
        self.by_head.retain(|_, template| {
            let keep = model.is_some_and(|model| model != template.model);
            if !keep {
                template.live.store(false, Release);
            }
            keep
        });
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.by_head.len()
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_head.is_empty()
    }

    /// How many were retired.
    pub(crate) fn retired(&self) -> u64 {
        self.retired
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig;

    fn spec(id: u32, model: u32) -> TemplateSpec {
        TemplateSpec { id, ..rig::spec(model) }
    }

    #[test]
    fn an_answer_is_as_long_as_was_said() {
        let mut spec = spec(1, 1);
        spec.outputs.push((vec![0x32, 4], 68, 4));
        let template = spec.build().unwrap();
        for id in ["", "7", &"x".repeat(200)] {
            let mut answer = BytesMut::new();
            template.write_answer(id.as_bytes(), &mut answer, |place, into| into.put_bytes(9, place.size));
            assert_eq!(answer.len(), template.answer_length(id.as_bytes()));
            assert!(answer.starts_with(b"open") && answer.ends_with(&[9, 9, 9, 9, 0x32, 4, 9, 9, 9, 9]));
        }
    }

    #[test]
    fn an_answer_on_a_stream_is_the_response_in_its_field() {
        for closing in [&b""[..], b"\x22\x02ok"] {
            let template = TemplateSpec { closing: closing.to_vec(), ..spec(1, 1) }.build().unwrap();
            for id in ["", &"x".repeat(200)] {
                let (mut alone, mut streamed) = (BytesMut::new(), BytesMut::new());
                template.write_answer(id.as_bytes(), &mut alone, |place, into| into.put_bytes(9, place.size));
                template.write_streamed(id.as_bytes(), &mut streamed, |place, into| {
                    into.put_bytes(9, place.size)
                });
                assert_eq!(streamed.len(), template.streamed_length(id.as_bytes()));
                let mut expected = vec![0x12];
                put_varint(alone.len() + closing.len(), &mut expected);
                assert_eq!(streamed, [&expected[..], &alone, closing].concat());
            }
        }
    }

    #[test]
    fn what_leaves_its_slot_is_no_template() {
        let mut templates = Templates::default();
        for (offset, size) in [(121, 8), (usize::MAX, 8), (0, 129)] {
            assert!(
                templates
                    .add(b"h".to_vec(), TemplateSpec { inputs: vec![(size, offset)], ..spec(1, 1) })
                    .is_err()
            );
        }
        assert!(templates.add(b"h".to_vec(), TemplateSpec { out_offset: 129, ..spec(1, 1) }).is_err());
        assert!(templates.is_empty());
    }

    #[test]
    fn formats_must_fit_their_tensors() {
        for (codes, good) in
            [(vec![], true), (vec!["f"], true), (vec![""], true), (vec!["e"], false), (vec!["f", "f"], false)]
        {
            let input_texts: Vec<_> = codes.iter().map(ToString::to_string).collect();
            assert_eq!(TemplateSpec { input_texts, ..spec(1, 1) }.build().is_ok(), good, "{codes:?}");
        }
        let odd = TemplateSpec { inputs: vec![(7, 0)], input_texts: vec!["f".into()], ..spec(1, 1) };
        assert!(odd.build().is_err());
    }

    #[test]
    fn what_was_dropped_or_made_anew_is_dead() {
        let mut templates = Templates::default();
        templates.add(b"a".to_vec(), spec(1, 1)).unwrap();
        templates.add(b"b".to_vec(), spec(2, 2)).unwrap();
        let (a, b) = (templates.find(b"a").unwrap().clone(), templates.find(b"b").unwrap().clone());
        templates.drop_of(Some(1));
        assert!(!a.is_live() && b.is_live() && templates.find(b"a").is_none() && templates.len() == 1);
        templates.add(b"b".to_vec(), spec(3, 2)).unwrap();
        assert!(!b.is_live());
        templates.drop_of(None);
        assert!(templates.is_empty());
    }

    #[test]
    fn what_was_of_use_is_spared_once() {
        let mut templates = Templates::default();
        for head in [b"a", b"b"] {
            templates.add(head.to_vec(), spec(1, 1)).unwrap();
        }
        let used = templates.find(b"a").unwrap().clone();
        assert!(!templates.retire(b"a", true) && used.is_live(), "a request came for it");
        assert!(templates.retire(b"b", true) && templates.find(b"b").is_none(), "none has");
        assert!(templates.retire(b"a", true) && !used.is_live(), "none has since");
        assert!(templates.retire(b"a", true), "there is none");
        templates.add(b"a".to_vec(), spec(1, 1)).unwrap();
        templates.find(b"a").unwrap();
        assert!(templates.retire(b"a", false) && templates.is_empty());
        assert_eq!(templates.retired(), 3);
    }
}
