//! One HTTP connection: request after request, each served by the door or passed to the edge.

use crate::door::Core;
use crate::fastpath::admission::Asked;
use crate::http::client::{Client, ROOM};
use crate::http::front::{Admitted, Front};
use crate::http::handshake::establish;
use crate::http::head::{self as http_head, HEAD, Head, Request};
use crate::http::json::Outline;
use crate::http::pass::{self as http_pass, Edge, Passed};
use crate::http::serve::{EDGE, Tried};
use crate::http::stream::Stream;
use crate::listen::connections::Listening;
use crate::listen::identity::Identity;
use crate::listen::listener::Socket;
use crate::listen::quota::{Account, Who};
use crate::measure::budget::Budget;
use crate::measure::clock::now_ns;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep, sleep_until};

/// How long the rest of a head may be on its way; the edge waits for longer ones, and for other bounds on them.
const HEAD_PATIENCE: Duration = Duration::from_millis(100);

/// After a request beyond this, what was read behind it gets memory of its own.
const BULKY: usize = HEAD + 2 * ROOM;

/// Serves a connection to its end.
pub async fn serve(core: Arc<Core>, front: Arc<Front>, socket: Socket, peer: Arc<str>, admitted: Admitted) {
    let Some((stream, identity)) = establish(&core, &front, socket, &peer).await else { return };
    let name = identity.as_ref().map_or("", Identity::text).into();
    let account = core.quotas.account(Who::of(identity, admitted.peer()), now_ns());
    let mut connection = Connection::new(&core, &front, stream, (peer, name, account));
    if connection.run().await {
        connection.client.leave().await;
    }
}

/// One connection, between requests or within one.
pub(crate) struct Connection<'a> {
    pub(crate) core: &'a Core,
    pub(crate) front: &'a Front,
    peer: Arc<str>,
    /// Who the client is by its certificate; empty: that is not known.
    pub(crate) name: Arc<str>,
    /// What it may ask.
    pub(crate) account: Arc<Account>,
    pub(crate) client: Client,
    /// What the client has sent takes more memory than what is left of it.
    bulky: bool,
    edge: Option<Edge>,
    pub(crate) requests: Arc<Budget>,
    pub(crate) answers: Arc<Budget>,
    idle: Idle,
    listening: Option<Listening>,
    /// Used again for each request.
    pub(crate) outline: Outline,
}

/// What a client begins.
enum Begun {
    Request(Request),
    /// Something that the edge shall judge.
    Odd,
    /// The end.
    Nothing,
}

impl<'a> Connection<'a> {
    /// `who`: the client's address and name, and its account.
    fn new(
        core: &'a Core,
        front: &'a Front,
        stream: Stream,
        who: (Arc<str>, Arc<str>, Arc<Account>),
    ) -> Self {
        let (peer, name, account) = who;
        let share = core.limits.connection_bytes();
        Self {
            client: Client::new(stream, front.write_stall),
            requests: core.budget.share(share),
            answers: core.answers.share(share),
            idle: Idle::new(front.keepalive),
            core,
            front,
            peer,
            name,
            account,
            bulky: false,
            edge: None,
            listening: None,
            outline: Outline::default(),
        }
    }

    /// Whether the client may still be sending: if it is cut off then, it may not get to read its last answer.
    async fn run(&mut self) -> bool {
        loop {
            let request = match self.begin().await {
                Begun::Nothing => return false,
                Begun::Odd => return self.tunnel().await,
                Begun::Request(request) => request,
            };
            let arrived_ns = if request.infer.is_some() { now_ns() } else { 0 };
            let entered = request.infer.as_ref().map(|_| self.account.take(arrived_ns));
            let tried = match (&request.infer, &entered) {
                (Some(_), Some(Err(refusal))) => self.refuse(&request, refusal).await,
                (Some(infer), _) => self.serve(&request, infer).await,
                (None, _) => EDGE,
            };
            let let_in = matches!(entered, Some(Ok(Some(_))));
            let passed = match tried {
                Tried::Answered => continue,
                Tried::Over => return true,
                Tried::Gone => return false,
                Tried::Edge(attempts, asked) => {
                    self.pass(&request, attempts, asked, (let_in, arrived_ns)).await
                }
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
        if self.client.inbound.is_empty() || std::mem::take(&mut self.bulky) {
            self.client.renew();
        }
        self.client.reservation = None; // what it was for is through, and little was read behind it
        self.idle.begin();
        let mut hurry: Option<Pin<Box<Sleep>>> = None;
        poll_fn(|cx| {
            self.listening.get_or_insert_with(|| self.core.connections.listen(cx.waker()));
            loop {
                if !self.client.inbound.is_empty() {
                    match http_head::request(&self.client.inbound, &self.front.bounds) {
                        Head::Request(request) => {
                            self.bulky = request.head + request.body > BULKY;
                            return Poll::Ready(Begun::Request(request));
                        }
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
            self.edge = Some(Edge::open(self.core, (&self.peer, &self.name), attempts, &self.account).ok()?);
        }
        self.edge.as_mut()
    }

    async fn pass(
        &mut self,
        request: &Request,
        attempts: u32,
        asked: Option<Asked>,
        (let_in, arrived_ns): (bool, u64),
    ) -> Passed {
        let core = self.core;
        if self.edge(attempts).is_none() {
            return Passed::Gone; // no descriptors are left
        }
        let Self { client, edge: Some(edge), .. } = self else { return Passed::Gone };
        http_pass::exchange(core, client, edge, request, asked, let_in, arrived_ns).await
    }

    async fn tunnel(&mut self) -> bool {
        let core = self.core;
        if self.edge(0).is_none() {
            return false;
        }
        let Self { client, edge: Some(edge), .. } = self else { return false };
        matches!(http_pass::tunnel(core, client, edge).await, Passed::Over)
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
#[path = "connection_tests.rs"]
mod tests;
