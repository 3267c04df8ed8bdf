//! One HTTP connection: request after request, each served by the front end or passed to the application.

use crate::fastpath::admission::Asked;
use crate::http::client::ROOM;
use crate::http::front::{Admitted, Front};
use crate::http::handshake::establish;
use crate::http::head::{self as http_head, HEAD, Head, Request};
use crate::http::pass::{self as http_pass, Edge, Passed};
use crate::http::serve::{EDGE, Server, Tried};
use crate::http::service::Open;
use crate::http::service::Service;
use crate::listen::connections::{Connections, Listening};
use crate::listen::identity::Identity;
use crate::listen::listener::{self, ListeningSocket, Reception, Socket};
use crate::listen::quota::Who;
use crate::measure::clock::now_ns;
use crate::measure::limits::Limit;
use futures_util::FutureExt;
use std::future::{Future, poll_fn};
use std::io::Result;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep, sleep_until};

/// How long the rest of a head may be on its way; the application waits for longer ones, and for other bounds on them.
const HEAD_PATIENCE: Duration = Duration::from_millis(100);

/// After a request beyond this, what was read behind it gets memory of its own.
const BULKY: usize = HEAD + 2 * ROOM;

impl Reception for Front {
    fn connections(&self) -> &Connections {
        &self.service.resources.connections
    }

    fn is_closed(&self) -> bool {
        self.connections().is_draining() || self.service.is_ending()
    }

    fn receive(self: &Arc<Self>, socket: Socket, address: Option<SocketAddr>) {
        let ip = address.map(|address| address.ip().to_canonical());
        let admitted = match self.admit(ip) {
            Ok(admitted) => admitted,
            Err((limit, answer)) => return self.turn_away(&socket, limit, answer),
        };
        let peer = ip.map_or_else(String::new, |ip| ip.to_string());
        let serving = serve(self.clone(), socket, peer.into(), admitted);
        let service = self.service.clone();
        tokio::spawn(async move {
            // A panic ends its connection and nothing else, but it is said.
            if AssertUnwindSafe(serving).catch_unwind().await.is_err() {
                service.resources.statistics.panicked();
            }
        });
    }

    fn accept_failed(&self) {
        self.service.resources.statistics.accept_failed();
    }
}

impl Front {
    /// Tells a client that is not let in. The answer fits into the buffer of a new connection; a client that has gone
    /// already does not miss it. A client that speaks TLS could not read it, and no handshake is made for one that is
    /// not let in.
    fn turn_away(&self, socket: &Socket, limit: Limit, answer: &[u8]) {
        let figures = &self.service.figures;
        let refused =
            if limit == Limit::ConnectionsPerPeer { &figures.refused_per_peer } else { &figures.refused };
        refused.fetch_add(1, Relaxed);
        let told = match socket {
            Socket::Tcp(_) if self.tls.is_some() => return,
            Socket::Tcp(stream) => stream.try_write(answer),
            Socket::Unix(stream) => stream.try_write(answer),
        };
        figures.unavailable.fetch_add(told.is_ok().into(), Relaxed);
    }
}

/// Accepts connections until the front closes. To be called within the runtime, which takes the descriptor in.
pub(crate) fn accept(
    front: Arc<Front>,
    bound: ListeningSocket,
) -> Result<impl Future<Output = ()> + Send + 'static> {
    let service = front.service.clone();
    let accepting = listener::accept(front, bound)?;
    Ok(async move {
        let _open = Open::new(&service.figures.listeners);
        accepting.await; // its listener is closed before it counts no longer
    })
}

/// Serves a connection to its end.
async fn serve(front: Arc<Front>, socket: Socket, peer: Arc<str>, admitted: Admitted) {
    let Some((stream, identity)) = establish(&front, socket, &peer).await else { return };
    let name = identity.as_ref().map_or("", Identity::text).into();
    let who = Who::of(identity, admitted.peer());
    let account = front.service.resources.quotas.account(who, now_ns());
    let mut connection = Connection::new(Server::new(&front, stream, name, account), peer);
    if connection.run().await {
        connection.server.client.leave().await;
    }
}

/// One connection, between requests or within one.
struct Connection<'a> {
    server: Server<'a>,
    /// The client's address.
    peer: Arc<str>,
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
    fn new(server: Server<'a>, peer: Arc<str>) -> Self {
        let idle = Idle::new(server.front.keepalive);
        Self { server, peer, bulky: false, edge: None, idle, listening: None }
    }

    fn service(&self) -> &'a Service {
        &self.server.front.service
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
        self.service().resources.catch_up();
        let service = self.service();
        if self.server.client.inbound.is_empty() || std::mem::take(&mut self.bulky) {
            self.server.client.renew();
        }
        self.server.client.reservation = None; // what it was for is through, and little was read behind it
        self.idle.begin();
        let mut hurry: Option<Pin<Box<Sleep>>> = None;
        poll_fn(|cx| {
            self.listening.get_or_insert_with(|| service.resources.connections.listen(cx.waker()));
            loop {
                if !self.server.client.inbound.is_empty() {
                    match http_head::request(&self.server.client.inbound, &self.server.front.bounds) {
                        Head::Request(request) => {
                            self.bulky = request.head + request.body > BULKY;
                            return Poll::Ready(Begun::Request(request));
                        }
                        Head::Odd => return Poll::Ready(Begun::Odd),
                        Head::Partial if self.server.client.ended => return Poll::Ready(Begun::Odd),
                        Head::Partial => {}
                    }
                } else if self.server.client.ended || service.is_ending() {
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
            let link = &self.service().resources.link;
            self.edge =
                Some(Edge::open(link, (&self.peer, &self.server.name), attempts, &self.server.account).ok()?);
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
        let service = self.service();
        if self.edge(attempts).is_none() {
            return Passed::Gone; // no descriptors are left
        }
        let Self { server: Server { client, .. }, edge: Some(edge), .. } = self else { return Passed::Gone };
        http_pass::exchange(service, client, edge, request, asked, let_in, arrived_ns).await
    }

    async fn tunnel(&mut self) -> bool {
        let service = self.service();
        if self.edge(0).is_none() {
            return false;
        }
        let Self { server: Server { client, .. }, edge: Some(edge), .. } = self else { return false };
        matches!(http_pass::tunnel(service, client, edge).await, Passed::Over)
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
