//! Carries bytes between a client and the application, both ways, at the pace of the slower one.
//!
//! Nothing is changed on the way, so headers between two neighbours stay between these: the client's neighbour is the
//! edge. Where the ends of request and response are known, the connection comes back for the next request; else it is
//! a tunnel until one of the two ends it.

use crate::fastpath::admission::Asked;
use crate::handover::link::Link;
use crate::handover::mailbox::{Event, Sender};
use crate::http::client::{Client, ROOM};
use crate::http::head::{self as http_head, Request};
use crate::listen::quota::{Account, Entry};
use crate::listen::stream::Stream;
use crate::measure::statistics::Count;
use crate::resources::Resources;
use bytes::{Buf, BytesMut};
use std::future::poll_fn;
use std::io::{ErrorKind, Result};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::AsyncWrite;
use tokio::net::UnixStream;
use tokio::time::Instant;

/// What is kept of one direction at most, besides what the kernel keeps.
const HELD: usize = 64 * 1024;

/// The front end's end of a connection to the application.
pub(crate) struct Edge {
    stream: Stream,
    inbound: BytesMut,
    ended: bool,
    shut: bool,
    deaf: bool,
    /// When it was last needed.
    pub(crate) used: Instant,
    /// What its client may ask of the application.
    pub(crate) entry: Entry,
}

impl Edge {
    /// Hands the application a connection for this client, which has this account. `attempts`: how often a worker died
    /// with the first request on it.
    pub(crate) fn open(link: &Link, sender: Sender, attempts: u32, account: &Arc<Account>) -> Result<Self> {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        theirs.set_nonblocking(true)?;
        let stream = Stream::Unix(UnixStream::from_std(ours)?);
        let entry = Entry::new(account.clone());
        link.mailbox.push(Event::Http(theirs.into(), sender, attempts, entry.clone()));
        Ok(Self {
            stream,
            inbound: BytesMut::new(),
            ended: false,
            shut: false,
            deaf: false,
            used: Instant::now(),
            entry,
        })
    }
}

/// What is still to come of a request and its response.
struct Exchange {
    request: usize,
    /// None: its head has not come.
    response: Option<usize>,
    /// Until the response begins: how long the client takes over it is no work of the engine's.
    asked: Option<Asked>,
}

/// How it went.
pub(crate) enum Passed {
    /// The next request can be looked at.
    Whole,
    /// The connection is over: the application has ended it.
    Over,
    /// The client is not there any more.
    Gone,
}

/// Carries a request whose end is known, at the front of what the client has sent, and its response. `asked` is held
/// until both are through, or it is not known where they end. `let_in`: its client's quota has been asked;
/// `arrived_ns`: when it came, if that matters.
pub(crate) async fn exchange(
    resources: &Resources,
    client: &mut Client,
    edge: &mut Edge,
    request: &Request,
    asked: Option<Asked>,
    let_in: bool,
    arrived_ns: u64,
) -> Passed {
    resources.statistics.count(Count::HttpPassed);
    let exchange = Exchange { request: request.head + request.body, response: None, asked };
    edge.entry.note(let_in, arrived_ns);
    let passed = carry(resources, client, edge, Some(exchange)).await;
    edge.entry.note(false, 0);
    passed
}

/// Carries everything until one of the two ends it.
pub(crate) async fn tunnel(resources: &Resources, client: &mut Client, edge: &mut Edge) -> Passed {
    resources.statistics.count(Count::HttpTunnels);
    carry(resources, client, edge, None).await
}

async fn carry(
    resources: &Resources,
    client: &mut Client,
    edge: &mut Edge,
    exchange: Option<Exchange>,
) -> Passed {
    let mut flow = Flow { resources, client, edge, exchange, blocked: false };
    let passed = poll_fn(|cx| flow.poll(cx)).await;
    edge.used = Instant::now();
    passed.unwrap_or_else(|error| {
        if error.kind() == ErrorKind::TimedOut {
            resources.statistics.count(Count::HttpStalled);
        }
        Passed::Gone
    })
}

struct Flow<'a> {
    resources: &'a Resources,
    client: &'a mut Client,
    edge: &'a mut Edge,
    /// None: a tunnel.
    exchange: Option<Exchange>,
    /// The client has yet to take what was written, before more is.
    blocked: bool,
}

impl Flow<'_> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Passed>> {
        self.resources.catch_up();
        loop {
            let mut moved = self.read_client(cx)?;
            moved |= self.write_edge(cx);
            moved |= self.read_edge(cx);
            self.look_at_response();
            moved |= self.write_client(cx)?;
            let flushed = !self.blocked && self.client.poll_flush(cx)?.is_ready();
            if self.edge.ended && self.edge.inbound.is_empty() && flushed {
                return Poll::Ready(Ok(Passed::Over));
            }
            if matches!(self.exchange, Some(Exchange { request: 0, response: Some(0), .. })) && flushed {
                return Poll::Ready(Ok(Passed::Whole));
            }
            if !moved {
                return Poll::Pending;
            }
        }
    }

    /// From here on it is a tunnel.
    fn let_go(&mut self) {
        if self.exchange.take().is_some() {
            self.resources.statistics.count(Count::HttpTunnels);
        }
    }

    fn read_client(&mut self, cx: &mut Context<'_>) -> Result<bool> {
        if self.client.ended || self.client.inbound.len() >= HELD {
            return match self.client.poll_hung_up(cx) {
                Poll::Ready(()) => Err(ErrorKind::ConnectionReset.into()),
                Poll::Pending => Ok(false),
            };
        }
        match self.client.poll_read(cx, ROOM) {
            Poll::Ready(read) => read?,
            Poll::Pending => return Ok(false),
        }
        if self.client.ended {
            self.let_go(); // what it means is the application's to say
        }
        Ok(true)
    }

    fn write_edge(&mut self, cx: &mut Context<'_>) -> bool {
        let Self { client, edge, exchange, .. } = self;
        let bound = exchange.as_ref().map_or(usize::MAX, |exchange| exchange.request);
        let mut sent = 0;
        while !edge.deaf && sent < bound && !client.inbound.is_empty() {
            let next = &client.inbound[..client.inbound.len().min(bound - sent)];
            match Pin::new(&mut edge.stream).poll_write(cx, next) {
                Poll::Ready(Ok(written)) => {
                    client.inbound.advance(written);
                    sent += written;
                }
                Poll::Ready(Err(_)) => edge.deaf = true,
                Poll::Pending => break,
            }
        }
        if let Some(exchange) = exchange {
            exchange.request -= sent;
        }
        let mut moved = sent > 0;
        if moved && (client.inbound.is_empty() || sent == bound) {
            client.renew(); // the rest of a body may take its time, and so may the answer
        }
        if edge.deaf && !client.inbound.is_empty() {
            client.release(); // not wanted; but the answer may yet come
            moved = true;
        }
        if client.ended && client.inbound.is_empty() && !edge.shut {
            edge.shut = Pin::new(&mut edge.stream).poll_shutdown(cx).is_ready();
        }
        moved
    }

    fn read_edge(&mut self, cx: &mut Context<'_>) -> bool {
        let edge = &mut *self.edge;
        if edge.ended || edge.inbound.len() >= HELD {
            return false;
        }
        match edge.stream.poll_append(cx, &mut edge.inbound, ROOM) {
            Poll::Ready(read) => {
                edge.ended = !matches!(read, Ok(1..));
                true
            }
            Poll::Pending => false,
        }
    }

    /// Learns from the response's head where its end is; it is held back until then.
    fn look_at_response(&mut self) {
        let Some(Exchange { response: response @ None, asked, .. }) = &mut self.exchange else { return };
        match http_head::response(&self.edge.inbound) {
            Some(Some(head)) => (*response, *asked) = (Some(head.head + head.body), None),
            Some(None) => self.let_go(),
            None if self.edge.ended => self.let_go(),
            None => {}
        }
    }

    fn write_client(&mut self, cx: &mut Context<'_>) -> Result<bool> {
        let mut moved = false;
        self.blocked = false;
        loop {
            let bound = match &self.exchange {
                None => usize::MAX,
                Some(Exchange { response: None | Some(0), .. }) => return Ok(moved),
                Some(Exchange { response: Some(left), .. }) => *left,
            };
            if self.edge.inbound.is_empty() {
                return Ok(moved);
            }
            let before = self.edge.inbound.len();
            match self.client.poll_write(cx, &mut (&mut self.edge.inbound).take(bound)) {
                Poll::Ready(written) => written?,
                Poll::Pending => {
                    self.blocked = true;
                    return Ok(moved);
                }
            }
            moved = true;
            if let Some(Exchange { response: Some(left), .. }) = &mut self.exchange {
                *left -= before - self.edge.inbound.len();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listen::quota::Who;
    use std::time::Duration;
    use tokio::io::AsyncReadExt;

    const CAME: usize = 1 << 20; // more than sockets hold

    #[tokio::test]
    async fn what_the_edge_has_taken_holds_no_memory_while_the_rest_is_awaited() {
        passed(CAME + 1, CAME).await;
    }

    #[tokio::test]
    async fn what_the_edge_has_taken_holds_no_memory_while_the_answer_is_awaited() {
        passed(CAME - 1, CAME - 1).await;
    }

    /// Of a request of so many bytes, of which, and of what is behind it, `CAME` have come, the application takes so
    /// many.
    async fn passed(request: usize, takes: usize) {
        let resources = crate::rig::resources(1 << 20);
        let (_client, socket) = UnixStream::pair().unwrap();
        let mut client = Client::new(Stream::Unix(socket), Duration::from_secs(60));
        client.inbound.resize(CAME, b'x');
        let mut reservation = resources.requests.reserve();
        reservation.resize(CAME).unwrap();
        client.reservation = Some(reservation);
        let account = resources.quotas.account(Who::Local, 0);
        let nobody = Sender { peer: "".into(), name: "".into(), user: None };
        let mut edge = Edge::open(&resources.link, nobody, 0, &account).unwrap();
        let theirs = resources.link.mailbox.take().unwrap().into_iter().find_map(|event| match event {
            Event::Http(theirs, ..) => Some(std::os::unix::net::UnixStream::from(theirs)),
            _ => None,
        });
        let mut theirs = UnixStream::from_std(theirs.unwrap()).unwrap();
        let exchange = Exchange { request, response: None, asked: None };
        let mut flow = Flow {
            resources: &resources,
            client: &mut client,
            edge: &mut edge,
            exchange: Some(exchange),
            blocked: false,
        };
        poll_fn(|cx| {
            assert!(flow.poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
        assert_eq!(resources.requests.used(), CAME as u64, "the edge has not taken all of it");
        let mut taken = vec![0; takes];
        tokio::select! {
            biased;
            read = theirs.read_exact(&mut taken) => assert_eq!(read.unwrap(), takes),
            _ = poll_fn(|cx| flow.poll(cx)) => panic!("the end has not come"),
        }
        assert_eq!((resources.requests.used(), flow.client.inbound.len()), (0, CAME - takes));
        assert!(!flow.client.inbound.try_reclaim(CAME), "its memory is kept");
    }
}
