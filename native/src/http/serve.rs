//! HTTP requests that the front end serves by itself, from the body to the answer. Whatever does not go well is the
//! application's, as it came.

use crate::fastpath::admission::Asked;
use crate::fastpath::flight::Flight;
use crate::fastpath::serving::{InFlight, Left, Refused, Unserved, admitted, landed};
use crate::fastpath::upload::{UPLOAD, Upload};
use crate::http::admission::Shown;
use crate::http::answer as http_answer;
use crate::http::client::{Client, ROOM};
use crate::http::front::Front;
use crate::http::head::{HEAD, Infer, Request};
use crate::http::json::Outline;
use crate::listen::quota::{Account, Refusal};
use crate::listen::stream::Stream;
use crate::measure::budget::{Budget, Reservation};
use crate::measure::clock::now_ns;
use crate::measure::statistics::Count;
use crate::resources::Resources;
use crate::templates::array::{Array, Step};
use bytes::{Buf, Bytes, BytesMut};
use std::io::ErrorKind;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How long the rest of a body may be on its way; the application waits for longer ones.
const BODY_PATIENCE: Duration = Duration::from_millis(250);
/// What is read of requests behind the one that is being served.
const AHEAD: usize = ROOM;
/// What is read at a time of tensors that go into their slot.
const PIECE: usize = 64 * 1024;
/// Bytes of a tensor that are made text without a look at others; whole elements.
const WRITTEN: usize = 8 * 1024;

/// What became of a request that the front end might serve.
pub(crate) enum Tried {
    Answered,
    /// It is the application's, after so many attempts; the last is held until it has ended.
    Edge(u32, Option<Asked>),
    /// It was answered, and with it the connection ends.
    Over,
    Gone,
}

/// It is the application's as it came.
pub(crate) const EDGE: Tried = Tried::Edge(0, None);

/// A client as it is served: what it may ask, what it has sent, and its part of the memory.
pub(crate) struct Server<'a> {
    pub(crate) front: &'a Front,
    /// The client's name by its certificate; empty: that is not known.
    pub(crate) name: Arc<str>,
    /// What it may ask.
    pub(crate) account: Arc<Account>,
    pub(crate) client: Client,
    requests: Arc<Budget>,
    answers: Arc<Budget>,
    /// Used again for each request.
    outline: Outline,
}

impl<'a> Server<'a> {
    /// Of a client with this name and account.
    pub(crate) fn new(front: &'a Front, stream: Stream, name: Arc<str>, account: Arc<Account>) -> Self {
        let (requests, answers) = front.resources.shares();
        let client = Client::new(stream, front.write_stall);
        Self { front, name, account, client, requests, answers, outline: Outline::default() }
    }

    fn count(&self, what: Count) {
        self.front.resources.statistics.count(what);
    }

    /// Refuses a request at the front of what the client has sent, because it asks too much; at once, before the rest
    /// of it has come, which is then thrown away.
    pub(crate) async fn refuse(&mut self, request: &Request, refusal: &Refusal) -> Tried {
        self.front.resources.link.over_quota(self.account.who(), refusal);
        let mut left = request.head + request.body;
        let held = left.min(self.client.inbound.len());
        let tried = self.tell(&Refused::over_quota(refusal), held).await;
        left -= held;
        let until = Instant::now() + BODY_PATIENCE;
        while left > 0 && matches!(tried, Tried::Answered) {
            if !self.client.more(PIECE, until).await {
                return Tried::Over;
            }
            let came = left.min(self.client.inbound.len());
            self.client.inbound.advance(came);
            left -= came;
        }
        tried
    }

    /// Serves a request at the front of what the client has sent, if there is a template and a lease for it.
    pub(crate) async fn serve(&mut self, request: &Request, infer: &Infer) -> Tried {
        let Resources { direct, connections, statistics, .. } = &*self.front.resources;
        let bounded = infer.json <= self.front.json_bytes && request.body <= self.front.body_bytes;
        if !bounded || !direct.has_templates() || connections.is_draining() {
            return EDGE;
        }
        let _serving = statistics.open(Count::HttpServing);
        let mut outline = std::mem::take(&mut self.outline);
        let mut reservation = self.requests.reserve();
        let tried = self.try_to_serve(request, infer, &mut outline, &mut reservation).await;
        self.outline = outline;
        if matches!(tried, Tried::Edge(..)) {
            self.client.reservation = Some(reservation); // what was read of it is there until the application has it
        }
        tried
    }

    async fn try_to_serve(
        &mut self,
        request: &Request,
        infer: &Infer,
        outline: &mut Outline,
        reservation: &mut Reservation,
    ) -> Tried {
        let (arrived_ns, until) = (now_ns(), Instant::now() + BODY_PATIENCE);
        let direct = &self.front.resources.direct;
        let whole = request.head + request.body;
        let json = request.head..request.head + infer.json;
        let waits = json.end > HEAD && self.client.inbound.len() < json.end;
        if (waits && reservation.resize(json.end).is_err()) || !self.client.fill(json.end, until).await {
            return EDGE;
        }
        if !self.take_apart(infer, outline, json.clone()).await {
            return EDGE;
        }
        let inbound = &self.client.inbound;
        let id = Bytes::copy_from_slice(&inbound[json.clone()][outline.id.clone()]);
        let (compress, compress_bytes) = (infer.compress, self.front.compress_bytes);
        let tensors = json.end..whole;
        let shown = Shown { outline, id, tensors, compress, compress_bytes, arrived_ns };
        if inbound.len() < whole {
            // What the front end will not serve goes on at once, without waiting for all of it.
            if !shown.is_known(direct) || reservation.resize(whole).is_err() {
                return EDGE;
            }
            if whole - json.end >= UPLOAD
                && let Some(flight) = shown.admit_upload(direct)
            {
                return self.upload(flight, infer, outline, json, until).await;
            }
            if !self.client.fill(whole, until).await {
                return EDGE;
            }
        }
        let client = &mut self.client;
        let admitted = admitted(shown.admit(direct), |cx| client.poll_gone(cx, whole + AHEAD)).await;
        let flight = match admitted {
            Ok(flight) => flight,
            Err(unserved) => return self.leave(unserved, None, whole).await,
        };
        if !self.read_texts(&flight, outline, json).await {
            return EDGE;
        }
        self.fly(InFlight::Message(flight, ()), infer, whole).await
    }

    /// Copies the binary tensors into the slot as they arrive.
    async fn upload(
        &mut self,
        flight: Box<Flight>,
        infer: &Infer,
        outline: &Outline,
        json: Range<usize>,
        until: Instant,
    ) -> Tried {
        let end = json.end;
        if !self.read_texts(&flight, outline, json).await {
            return EDGE;
        }
        let mut upload = Upload::bare(flight, self.client.inbound.split_to(end).freeze());
        loop {
            let length = upload.missing().min(self.client.inbound.len());
            upload.push(&self.client.inbound[..length]); // of bytes without tags all are taken
            self.client.inbound.advance(length);
            if upload.missing() == 0 {
                break;
            }
            if !self.client.more(PIECE, until).await {
                return self.hand_over(Some(upload), Left::default());
            }
        }
        self.count(Count::HttpUploads);
        self.fly(InFlight::Upload(upload), infer, 0).await
    }

    /// Finds what tells requests apart. False: the front end serves none that are like this one.
    async fn take_apart(&self, infer: &Infer, outline: &mut Outline, json: Range<usize>) -> bool {
        let inbound = &self.client.inbound;
        let json = &inbound[json];
        if outline.begin(&inbound[infer.target.clone()], json).is_none() {
            return false;
        }
        loop {
            match outline.step(json) {
                Step::More => self.breathe().await,
                Step::Whole => return true,
                Step::Strange => return false,
            }
        }
    }

    /// Reads the tensors that are JSON into the slot. False: they are the application's to judge.
    async fn read_texts(&self, flight: &Flight, outline: &Outline, json: Range<usize>) -> bool {
        let mut bytes = Vec::new();
        for ((place, number), data) in flight.template().text_inputs().zip(&outline.data) {
            let text = &self.client.inbound[json.clone()][data.clone()];
            let mut array = Array::new(text, number, place.size / number.size());
            let mut done = 0;
            loop {
                bytes.clear();
                let step = array.step(&mut bytes);
                if step == Step::Strange {
                    return false;
                }
                flight.write(place.offset + done, &bytes); // never more than there is room for
                done += bytes.len();
                if step == Step::Whole {
                    break;
                }
                self.breathe().await;
            }
        }
        true
    }

    /// Has a request served of which the client's bytes hold so many.
    async fn fly(&mut self, mut request: InFlight<()>, infer: &Infer, held: usize) -> Tried {
        request.note_client(&self.account, infer.parent.as_deref());
        let flight = request.flight();
        let length = http_answer::HEAD + http_answer::longest(flight.template(), flight.id());
        let mut reservation = self.answers.reserve();
        let departed = reservation.resize(length).is_ok() && flight.depart(&self.client.inbound);
        let client = &mut self.client;
        let landed = match departed {
            true => landed(flight, |cx| client.poll_gone(cx, held + AHEAD)).await,
            false => Err(Unserved::Engine(Left::default())),
        };
        if let Err(unserved) = landed {
            return self.leave(unserved, Some(request), held).await;
        }
        let json = self.written(flight).await;
        let mut answer = http_answer::begin(flight.template(), json, &mut self.front.signature.lock());
        for place in flight.template().raw_outputs() {
            flight.read(place.offset, place.size, &mut answer);
        }
        if flight.template().has_text() {
            self.count(Count::HttpJson);
        }
        flight.finish(&self.name);
        drop(request); // its slot is needed no longer, however long the client takes
        self.count(Count::HttpAnswered);
        self.answer(answer, held).await
    }

    /// Ends a request that is not answered from its slot.
    async fn leave(&mut self, unserved: Unserved<()>, request: Option<InFlight<()>>, held: usize) -> Tried {
        match (unserved, request) {
            (Unserved::Refused(refused), request) => {
                drop(request);
                self.tell(&refused, held).await
            }
            (Unserved::Engine(left), Some(InFlight::Upload(upload))) => self.hand_over(Some(upload), left),
            (Unserved::Engine(left), _) => self.hand_over(None, left),
            (Unserved::Gone(()), _) => Tried::Gone,
        }
    }

    /// Answers a request that is refused.
    async fn tell(&mut self, refused: &Refused, held: usize) -> Tried {
        self.count(match refused {
            Refused::Late(..) => Count::HttpLate,
            Refused::OverQuota(..) => Count::HttpOverQuota,
            Refused::Expired(_) => Count::HttpExpired,
        });
        let answer = http_answer::refused(refused, &mut self.front.signature.lock());
        self.answer(answer, held).await
    }

    /// The JSON of an answer.
    async fn written(&self, flight: &Flight) -> Vec<u8> {
        let template = flight.template();
        let (mut json, mut raw) = (Vec::new(), BytesMut::new());
        http_answer::put_opening(template, flight.id(), &mut json);
        for output in &template.outputs {
            let (Some(number), place) = (output.text, output.place) else { continue };
            json.extend_from_slice(&output.prefix);
            for done in (0..place.size).step_by(WRITTEN) {
                if done > 0 {
                    json.push(b',');
                    self.breathe().await;
                }
                raw.clear();
                flight.read(place.offset + done, WRITTEN.min(place.size - done), &mut raw);
                number.write(&raw, &mut json);
            }
        }
        if template.writes_text() {
            json.extend_from_slice(&template.closing);
        }
        json
    }

    /// Lets others have the thread, and does what it does before it sleeps.
    async fn breathe(&self) {
        self.front.resources.catch_up();
        tokio::task::yield_now().await;
    }

    /// Leaves a request to the application, as it came.
    fn hand_over(&mut self, upload: Option<Upload>, left: Left) -> Tried {
        if let Some(upload) = upload {
            let mut message = upload.restore();
            message.extend_from_slice(&self.client.inbound);
            self.client.inbound = message;
        }
        Tried::Edge(left.attempts, left.asked)
    }

    /// Sends the answer to a request of which the client's bytes hold so many, with which the front end is then done.
    async fn answer(&mut self, answer: BytesMut, held: usize) -> Tried {
        self.client.inbound.advance(held);
        match self.client.write(answer).await {
            Ok(()) => Tried::Answered,
            Err(error) => {
                if error.kind() == ErrorKind::TimedOut {
                    self.count(Count::HttpStalled);
                }
                Tried::Gone
            }
        }
    }
}
