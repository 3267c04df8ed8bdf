//! One HTTP connection: request after request, each served by the front end or passed to the application.

use crate::fastpath::admission::Asked;
use crate::handover::mailbox::Sender;
use crate::http::client::{Client, ROOM};
use crate::http::front::Front;
use crate::http::head::{self as http_head, HEAD, Head, Request};
use crate::http::pass::{self as http_pass, Edge, Passed};
use crate::http::serve::{EDGE, Server, Tried};
use crate::listen::connections::{Admission, Connections, Listening};
use crate::listen::identity::Identity;
use crate::listen::listener::Reception;
use crate::listen::quota::Who;
use crate::listen::stream::Stream;
use crate::listen::tls::{Failure, meet};
use crate::measure::clock::now_ns;
use crate::measure::limits::Limit;
use crate::measure::statistics::{Count, Open};
use crate::resources::Resources;
use bytes::BytesMut;
use futures_util::FutureExt;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep, sleep_until};

/// How long the rest of a head may be on its way; the application waits for longer ones, and for other bounds on them.
const HEAD_PATIENCE: Duration = Duration::from_millis(100);

/// After a request beyond this, what was read behind it gets memory of its own.
const BULKY: usize = HEAD + 2 * ROOM;

impl Reception for Front {
    fn connections(&self) -> &Connections {
        &self.resources.connections
    }

    fn is_closed(&self) -> bool {
        self.connections().is_draining() || self.is_ending()
    }

    fn receive(self: &Arc<Self>, stream: Stream, address: Option<SocketAddr>) {
        let ip = address.map(|address| address.ip().to_canonical());
        let admission = match self.admit(ip) {
            Ok(admission) => admission,
            Err(limit) => return self.turn_away(&stream, limit),
        };
        let peer = ip.map_or_else(String::new, |ip| ip.to_string());
        let serving = serve(self.clone(), stream, peer.into(), admission);
        let resources = self.resources.clone();
        tokio::spawn(async move {
            // A panic ends its connection and nothing else, but it is said.
            if AssertUnwindSafe(serving).catch_unwind().await.is_err() {
                resources.statistics.count(Count::Panics);
            }
        });
    }

    fn accept_failed(&self) {
        self.resources.statistics.count(Count::AcceptFailures);
    }

    fn listens(&self) -> Option<Open<'_>> {
        Some(self.resources.statistics.open(Count::HttpListeners))
    }
}

impl Front {
    /// Tells a client that is not let in. The answer fits into the buffer of a new connection; a client that has gone
    /// already does not miss it. A client that speaks TLS could not read it, and no handshake is made for one that is
    /// not let in.
    fn turn_away(&self, stream: &Stream, limit: Limit) {
        let (count, answer) = match limit {
            Limit::ConnectionsPerPeer => (Count::HttpConnectionsPerPeer, &self.answers.crowded),
            _ => (Count::HttpConnectionsRefused, &self.answers.full),
        };
        self.resources.statistics.count(count);
        let told = match stream {
            Stream::Tcp(stream) if self.tls.is_none() => stream.try_write(answer),
            Stream::Unix(stream) => stream.try_write(answer),
            Stream::Tcp(_) | Stream::Tls(_) => return,
        };
        if told.is_ok() {
            self.resources.statistics.count(Count::HttpUnavailable);
        }
    }

    /// What HTTP goes over, and who the client is, if that is known. None: nothing of HTTP will come of it.
    async fn meet(&self, stream: Stream, peer: &Arc<str>) -> Option<(Stream, Option<Identity>)> {
        let met = tokio::select! {
            biased;
            met = meet(stream, self.tls.as_deref(), Instant::now() + self.handshake) => met,
            () = self.ended() => return None,
        };
        let count = match met {
            Ok(met) => return Some(met),
            Err(Failure::Late) => Count::HttpHandshakesLate,
            Err(Failure::Plain(stream)) => {
                self.resources.statistics.count(Count::HttpHandshakesPlain);
                let mut client = Client::new(Stream::Tcp(stream), self.write_stall);
                if client.write(BytesMut::from(&self.answers.plain[..])).await.is_ok() {
                    client.leave().await;
                }
                return None;
            }
            Err(Failure::Name(client)) => {
                self.resources.link.turned_away(peer, client, "http");
                Count::HttpClientsRefused
            }
            Err(Failure::Other(_)) => Count::HttpHandshakesFailed,
        };
        self.resources.statistics.count(count);
        None
    }

    /// Ready when connections that wait are to close.
    async fn ended(&self) {
        let mut listening = None;
        poll_fn(|cx| {
            listening.get_or_insert_with(|| self.resources.connections.listen(cx.waker()));
            if self.is_ending() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

/// Serves a connection to its end.
async fn serve(front: Arc<Front>, stream: Stream, peer: Arc<str>, admission: Admission) {
    let _open = front.resources.statistics.open(Count::HttpConnectionsOpen);
    let user = stream.user();
    let Some((stream, identity)) = front.meet(stream, &peer).await else { return };
    let name = identity.as_ref().map_or("", Identity::text).into();
    let who = Who::of(identity, admission.peer());
    let account = front.resources.quotas.account(who, now_ns());
    let mut connection = Connection::new(Server::new(&front, stream, name, account), peer, user);
    if connection.run().await {
        connection.server.client.leave().await;
    }
}

/// One connection, between requests or within one.
struct Connection<'a> {
    server: Server<'a>,
    /// The client's address.
    peer: Arc<str>,
    /// The client's user on this machine, where that is known.
    user: Option<u32>,
    /// What the client has sent takes more memory than what is left of it.
    bulky: bool,
    edge: Option<Edge>,
    idle: Idle,
    listening: Option<Listening>,
}

/// What a client begins.
enum Begun {
    Request(Request),
    /// Something that the application shall judge.
    Odd,
    /// The end.
    Nothing,
}

impl<'a> Connection<'a> {
    fn new(server: Server<'a>, peer: Arc<str>, user: Option<u32>) -> Self {
        let idle = Idle::new(server.front.keepalive);
        Self { server, peer, user, bulky: false, edge: None, idle, listening: None }
    }

    fn resources(&self) -> &'a Resources {
        &self.server.front.resources
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
            let entered = request.infer.as_ref().map(|_| self.server.account.take(arrived_ns));
            let tried = match (&request.infer, &entered) {
                (Some(_), Some(Err(refusal))) => self.server.refuse(&request, refusal).await,
                (Some(infer), _) => self.server.serve(&request, infer).await,
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
        let front = self.server.front;
        front.resources.catch_up();
        if self.server.client.inbound.is_empty() || std::mem::take(&mut self.bulky) {
            self.server.client.renew();
        }
        self.server.client.reservation = None; // what it was for is through, and little was read behind it
        self.idle.begin();
        let mut hurry: Option<Pin<Box<Sleep>>> = None;
        poll_fn(|cx| {
            self.listening.get_or_insert_with(|| front.resources.connections.listen(cx.waker()));
            loop {
                if !self.server.client.inbound.is_empty() {
                    match http_head::request(&self.server.client.inbound, &front.bounds) {
                        Head::Request(request) => {
                            self.bulky = request.head + request.body > BULKY;
                            return Poll::Ready(Begun::Request(request));
                        }
                        Head::Odd => return Poll::Ready(Begun::Odd),
                        Head::Partial if self.server.client.ended => return Poll::Ready(Begun::Odd),
                        Head::Partial => {}
                    }
                } else if self.server.client.ended || front.is_ending() {
                    return Poll::Ready(Begun::Nothing);
                }
                match self.server.client.poll_read(cx, ROOM) {
                    Poll::Ready(Ok(())) => continue,
                    Poll::Ready(Err(_)) => return Poll::Ready(Begun::Nothing),
                    Poll::Pending => {}
                }
                if self.server.client.inbound.is_empty() {
                    return self.idle.poll(cx).map(|()| Begun::Nothing);
                }
                let hurry = hurry.get_or_insert_with(|| Box::pin(sleep(HEAD_PATIENCE)));
                return hurry.as_mut().poll(cx).map(|()| Begun::Odd);
            }
        })
        .await
    }

    // --- by the application

    /// The application's end. A connection that has waited is made anew, before the application gives up waiting
    /// itself.
    fn edge(&mut self, attempts: u32) -> Option<&mut Edge> {
        if attempts > 0
            || self.edge.as_ref().is_none_or(|edge| edge.used.elapsed() > self.server.front.keepalive / 2)
        {
            let (link, Server { name, account, .. }) = (&self.resources().link, &self.server);
            let sender = Sender { peer: self.peer.clone(), name: name.clone(), user: self.user };
            self.edge = Some(Edge::open(link, sender, attempts, account).ok()?);
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
        let resources = self.resources();
        if self.edge(attempts).is_none() {
            return Passed::Gone; // no descriptors are left
        }
        let Self { server: Server { client, .. }, edge: Some(edge), .. } = self else { return Passed::Gone };
        http_pass::exchange(resources, client, edge, request, asked, let_in, arrived_ns).await
    }

    async fn tunnel(&mut self) -> bool {
        let resources = self.resources();
        if self.edge(0).is_none() {
            return false;
        }
        let Self { server: Server { client, .. }, edge: Some(edge), .. } = self else { return false };
        matches!(http_pass::tunnel(resources, client, edge).await, Passed::Over)
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
