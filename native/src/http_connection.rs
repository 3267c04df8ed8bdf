//! One HTTP connection: request after request, each served by the door or passed to the edge.

use crate::budget::Budget;
use crate::clock::now_ns;
use crate::connections::Listening;
use crate::direct::{Admission, Asked};
use crate::door::Core;
use crate::flight::{Flight, Landing};
use crate::http_answer;
use crate::http_client::{Client, ROOM};
use crate::http_front::{Admitted, Front, Open};
use crate::http_head::{self, Head, Infer, Request};
use crate::http_json;
use crate::http_pass::{self, Edge, Passed};
use crate::listener::Socket;
use bytes::{Buf, Bytes, BytesMut};
use std::future::{Future, poll_fn};
use std::io::ErrorKind;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep, sleep_until};

/// How long the rest of a head may be on its way; the edge waits for longer ones, and for other bounds on them.
const HEAD_PATIENCE: Duration = Duration::from_millis(100);
/// Likewise for bodies.
const BODY_PATIENCE: Duration = Duration::from_millis(250);
/// What is read of requests behind the one that is being served.
const AHEAD: usize = ROOM;

/// Serves a connection to its end.
pub async fn serve(core: Arc<Core>, front: Arc<Front>, socket: Socket, peer: Arc<str>, _admitted: Admitted) {
    let share = core.limits.connection_bytes();
    let mut connection = Connection {
        client: Client::new(socket, front.write_stall),
        requests: core.budget.share(share),
        answers: core.answers.share(share),
        idle: Idle::new(front.keepalive),
        core: &core,
        front: &front,
        peer,
        edge: None,
        listening: None,
        key: Vec::new(),
    };
    if connection.run().await {
        connection.client.leave().await;
    }
}

struct Connection<'a> {
    core: &'a Core,
    front: &'a Front,
    peer: Arc<str>,
    client: Client,
    edge: Option<Edge>,
    requests: Arc<Budget>,
    answers: Arc<Budget>,
    idle: Idle,
    listening: Option<Listening>,
    /// Used again for each request.
    key: Vec<u8>,
}

/// What a client begins.
enum Begun {
    Request(Request),
    /// Something that the edge shall judge.
    Odd,
    /// The end.
    Nothing,
}

/// What became of a request that the door might serve.
enum Tried {
    Answered,
    /// It is the edge's, after so many attempts; the last is held until it has ended.
    Edge(u32, Option<Asked>),
    Gone,
}

/// It is the edge's as it came.
const EDGE: Tried = Tried::Edge(0, None);

impl Connection<'_> {
    /// Whether the client may still be sending: if it is cut off then, it may not get to read its last answer.
    async fn run(&mut self) -> bool {
        loop {
            let request = match self.begin().await {
                Begun::Nothing => return false,
                Begun::Odd => return self.tunnel().await,
                Begun::Request(request) => request,
            };
            let tried = match &request.infer {
                Some(infer) => self.serve(&request, infer).await,
                None => EDGE,
            };
            let passed = match tried {
                Tried::Answered => continue,
                Tried::Gone => return false,
                Tried::Edge(attempts, asked) => self.pass(&request, attempts, asked).await,
            };
            match passed {
                Passed::Whole => {}
                Passed::Over => return true,
                Passed::Gone => return false,
            }
        }
    }

    /// The next request's head.
    async fn begin(&mut self) -> Begun {
        self.core.bell.answer(); // when the thread is too busy to sleep, nobody else does
        self.core.direct.drain();
        if self.client.inbound.is_empty() {
            self.client.inbound = BytesMut::new(); // a connection that waits holds no memory
        }
        self.idle.begin();
        let mut hurry: Option<Pin<Box<Sleep>>> = None;
        poll_fn(|cx| {
            self.listening.get_or_insert_with(|| self.core.connections.listen(cx.waker()));
            loop {
                if !self.client.inbound.is_empty() {
                    match http_head::request(&self.client.inbound, &self.front.bounds) {
                        Head::Request(request) => return Poll::Ready(Begun::Request(request)),
                        Head::Odd => return Poll::Ready(Begun::Odd),
                        Head::Partial if self.client.ended => return Poll::Ready(Begun::Odd),
                        Head::Partial => {}
                    }
                } else if self.client.ended || self.core.http.is_ending() {
                    return Poll::Ready(Begun::Nothing);
                }
                match self.client.poll_read(cx, ROOM) {
                    Poll::Ready(Ok(())) => continue,
                    Poll::Ready(Err(_)) => return Poll::Ready(Begun::Nothing),
                    Poll::Pending => {}
                }
                if self.client.inbound.is_empty() {
                    return self.idle.poll(cx).map(|()| Begun::Nothing);
                }
                let hurry = hurry.get_or_insert_with(|| Box::pin(sleep(HEAD_PATIENCE)));
                return hurry.as_mut().poll(cx).map(|()| Begun::Odd);
            }
        })
        .await
    }

    // --- by the edge

    /// The edge's end. A connection that has waited is made anew, before the edge gives up waiting itself.
    fn edge(&mut self, attempts: u32) -> Option<&mut Edge> {
        if attempts > 0
            || self.edge.as_ref().is_none_or(|edge| edge.used.elapsed() > self.front.keepalive / 2)
        {
            self.edge = Some(Edge::open(self.core, &self.peer, attempts).ok()?);
        }
        self.edge.as_mut()
    }

    async fn pass(&mut self, request: &Request, attempts: u32, asked: Option<Asked>) -> Passed {
        let core = self.core;
        if self.edge(attempts).is_none() {
            return Passed::Gone; // no descriptors are left
        }
        let Self { client, edge: Some(edge), .. } = self else { return Passed::Gone };
        http_pass::exchange(core, client, edge, request, asked).await
    }

    async fn tunnel(&mut self) -> bool {
        let core = self.core;
        if self.edge(0).is_none() {
            return false;
        }
        let Self { client, edge: Some(edge), .. } = self else { return false };
        matches!(http_pass::tunnel(core, client, edge).await, Passed::Over)
    }

    // --- by the door

    async fn serve(&mut self, request: &Request, infer: &Infer) -> Tried {
        let core = self.core;
        if !core.direct.has_lessons() || core.is_draining() {
            return EDGE;
        }
        let _serving = Open::new(&core.http.serving);
        let arrived_ns = now_ns();
        let whole = request.head + request.body;
        let until = Instant::now() + BODY_PATIENCE;
        let json = request.head..request.head + infer.json;
        if json.end > http_head::HEAD || !self.client.fill(json.end, until).await {
            return EDGE;
        }
        let inbound = &self.client.inbound;
        let Some(id) = http_json::key(&inbound[infer.target.clone()], &inbound[json.clone()], &mut self.key)
        else {
            return EDGE;
        };
        let id = Bytes::copy_from_slice(&inbound[json.start + id.start..json.start + id.end]);
        let mut reservation = self.requests.reserve();
        if inbound.len() < whole {
            // What the door will not serve goes on at once, without waiting for all of it.
            let knows = core.direct.knows(&self.key, request.body - infer.json);
            if !knows || reservation.resize(whole).is_err() || !self.client.fill(whole, until).await {
                return EDGE;
            }
        }
        let bound = if infer.compress { self.front.compress_bytes } else { usize::MAX };
        let tensors = json.end..whole;
        match core.direct.admit_http(&self.key, id, tensors, bound, arrived_ns) {
            Admission::Engine(asked) => Tried::Edge(0, asked),
            Admission::Flight(mut flight) => {
                if let (Some(trace), Some(parent)) = (flight.trace(), &infer.parent) {
                    trace.note_parent(parent);
                }
                self.fly(flight, whole).await
            }
            Admission::Late(text, late_ns) => {
                let answer = http_answer::late(&text, late_ns, &mut self.front.signature());
                core.http.late.fetch_add(1, Relaxed);
                self.answer(answer, whole).await
            }
        }
    }

    async fn fly(&mut self, mut flight: Box<Flight>, whole: usize) -> Tried {
        let length = http_answer::HEAD + http_answer::lengths(flight.plan(), flight.id()).1;
        let mut reservation = self.answers.reserve();
        if reservation.resize(length).is_err() || !flight.depart(&self.client.inbound) {
            return EDGE;
        }
        let client = &mut self.client;
        let landed = poll_fn(|cx| match flight.poll(cx) {
            Poll::Ready(landed) => Poll::Ready(Some(landed)),
            Poll::Pending => client.poll_gone(cx, whole + AHEAD).map(|()| None),
        })
        .await;
        match landed {
            Some(Ok(Landing::Late)) => {
                let answer = http_answer::expired(&flight.expire(), &mut self.front.signature());
                self.core.http.expired.fetch_add(1, Relaxed);
                return self.answer(answer, whole).await;
            }
            Some(Ok(Landing::Well)) => {}
            Some(Err(attempts)) => return Tried::Edge(attempts, None),
            None => {
                flight.cancel();
                return Tried::Gone;
            }
        }
        let mut answer = BytesMut::with_capacity(length);
        http_answer::put_answer(flight.plan(), flight.id(), &mut self.front.signature(), &mut answer);
        for output in &flight.plan().outputs {
            flight.read(output.place.offset, output.place.size, &mut answer);
        }
        flight.finish("");
        self.core.http.answered.fetch_add(1, Relaxed);
        self.answer(answer, whole).await
    }

    /// Sends the answer to a request of so many bytes, with which the door is then done.
    async fn answer(&mut self, answer: BytesMut, whole: usize) -> Tried {
        self.client.inbound.advance(whole);
        match self.client.write(answer).await {
            Ok(()) => Tried::Answered,
            Err(error) => {
                if error.kind() == ErrorKind::TimedOut {
                    self.core.http.stalled.fetch_add(1, Relaxed);
                }
                Tried::Gone
            }
        }
    }
}

/// How long a connection has waited for a request. The timer is only set anew when it has run out, so that a request
/// pays for no timer.
struct Idle {
    patience: Duration,
    since: Instant,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Idle {
    fn new(patience: Duration) -> Self {
        Self { patience, since: Instant::now(), timer: None }
    }

    fn begin(&mut self) {
        self.since = Instant::now();
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let until = self.since + self.patience;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(until)));
        while timer.as_mut().poll(cx).is_ready() {
            if Instant::now() >= until {
                return Poll::Ready(());
            }
            timer.as_mut().reset(until);
        }
        Poll::Pending
    }
}

#[cfg(test)]
#[path = "http_connection_tests.rs"]
mod tests;
