//! One connection: TLS, HTTP/2, its calls, and the watch over its client.

use crate::h2::call;
use crate::h2::keepalive::{Keepalive, Verdict};
use crate::h2::monitor::{Monitor, SharedMonitor};
use crate::h2::refusal::Refusal;
use crate::h2::service::{Caller, Service};
use crate::h2::watch::WatchedTransport;
use crate::h2::window::Window;
use crate::listen::connections::{Admission, Connections, Listening};
use crate::listen::identity::Identity;
use crate::listen::listener::Reception;
use crate::listen::quota::Who;
use crate::listen::stream::Stream;
use crate::listen::tls::{Failure, meet};
use crate::measure::clock::now_ns;
use crate::measure::limits::Limit;
use crate::measure::lock::Lock;
use crate::measure::statistics::Count;
use crate::resources::Resources;
use bytes::Bytes;
use h2::server::{self, SendResponse};
use h2::{Ping, PingPong, Reason, RecvStream};
use http::Request;
use std::future::{Future, poll_fn};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep, timeout_at};

/// Larger frames make for fewer wake-ups; beyond this the allocator gives memory back and takes it again.
const FRAME: u32 = 64 << 10;
/// What may be buffered of one answer besides the answer itself.
const SEND_BUFFER: usize = 1 << 20;
/// Streams that were reset here are remembered for a moment, so that frames under way to them are no errors.
const REMEMBERED_RESETS: usize = 256;
/// How long a connection that is cut may take to send its last frame.
const GOAWAY_TIME: Duration = Duration::from_secs(1);
/// What is told of clients that took too long for TLS, and of those that do not speak it.
const LATE: &str = "it was not done in time (grpc.handshake_timeout_s)";
const PLAIN: &str = "the client does not speak TLS";

type Http2 = server::Connection<WatchedTransport, Bytes>;

impl Reception for Service {
    fn connections(&self) -> &Connections {
        &self.resources.connections
    }

    fn is_closed(&self) -> bool {
        self.connections().is_draining()
    }

    fn receive(self: &Arc<Self>, stream: Stream, address: Option<SocketAddr>) {
        let Resources { limits, statistics, connections, .. } = &*self.resources;
        let bounds = [Limit::Connections, Limit::ConnectionsPerPeer].map(|limit| limits.get(limit));
        let peer = address.map(|address| address.ip().to_canonical());
        match connections.admit(bounds[0], bounds[1], peer) {
            Ok(admission) => {
                drop(tokio::spawn(serve(self.clone(), stream, peer_text(address).into(), admission)));
            }
            Err(limit) => {
                statistics.count(Count::ConnectionsRefused);
                statistics.strike(limit);
            }
        }
    }

    fn accept_failed(&self) {
        self.resources.statistics.count(Count::AcceptFailures);
    }
}

/// The address as gRPC writes it.
fn peer_text(address: Option<SocketAddr>) -> String {
    let Some(address) = address else { return "unix:".to_string() };
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => format!("ipv4:{ip}:{}", address.port()),
        IpAddr::V6(ip) => format!("ipv6:[{ip}]:{}", address.port()),
    }
}

/// Serves a connection to its end.
async fn serve(service: Arc<Service>, stream: Stream, peer: Arc<str>, admission: Admission) {
    let resources = &service.resources;
    resources.statistics.count(Count::ConnectionsTotal);
    let _open = resources.statistics.open(Count::ConnectionsOpen);
    let monitor = Arc::new(Lock::new(Monitor::new(&resources.limits)));
    let window = service.windows.open();
    let until = Instant::now() + resources.limits.duration(Limit::HandshakeMs);
    let user = stream.user();
    let (stream, identity) = match meet(stream, service.tls.as_deref(), until).await {
        Ok(met) => met,
        Err(failure) => {
            handshake_failed(resources, &peer, &failure);
            if let (Failure::Plain(stream), Some(tls)) = (failure, &service.tls) {
                let _ = timeout_at(until, tls.alert(stream)).await;
            }
            return;
        }
    };
    let http2 = match timeout_at(until, establish(resources, stream, &monitor, &window)).await {
        Ok(Some(http2)) => http2,
        Ok(None) => return,
        Err(_) => return resources.statistics.strike(Limit::HandshakeMs),
    };
    let (requests, answers) = resources.shares();
    let client = identity.as_ref().map_or("", Identity::text).into();
    let account = resources.quotas.account(Who::of(identity, admission.peer()), now_ns());
    let who = account.who().text().into();
    let caller = Arc::new(Caller { who, client, user, account, monitor, requests, answers, window });
    let mut driver = Driver::new(resources.clone(), http2, caller.clone());
    while let Some((request, respond)) = poll_fn(|cx| driver.poll(cx)).await {
        tokio::spawn(call::serve(service.clone(), caller.clone(), request, respond));
    }
}

/// Counts a TLS handshake that came to nothing, and tells some of them.
fn handshake_failed(resources: &Resources, peer: &Arc<str>, failure: &Failure) {
    let (count, reason, text) = match failure {
        Failure::Name(client) => {
            resources.statistics.count(Count::ClientsRefused);
            return resources.link.turned_away(peer, client.clone(), "grpc");
        }
        Failure::Late => {
            resources.statistics.strike(Limit::HandshakeMs);
            (Count::HandshakesLate, "late", LATE.into())
        }
        Failure::Plain(_) => (Count::HandshakesPlain, "plain", PLAIN.into()),
        Failure::Other(error) => (Count::HandshakesFailed, "failed", error.to_string()),
    };
    resources.statistics.count(count);
    resources.link.handshake_failed(peer, reason, text, now_ns());
}

/// The handshake of HTTP/2.
async fn establish(
    resources: &Resources,
    stream: Stream,
    monitor: &SharedMonitor,
    window: &Window,
) -> Option<Http2> {
    let limits = &resources.limits;
    let metadata = limits.setting(Limit::MetadataBytes);
    let (connection_window, stream_window) = window.sizes();
    let mut builder = server::Builder::new();
    if let Some(bytes) = window.frame_bytes() {
        builder.data_frame_budget(bytes);
    }
    let http2 = builder
        .initial_window_size(stream_window)
        .initial_connection_window_size(connection_window)
        .max_frame_size(FRAME)
        // Up to four times as much is taken apart, so that the refusal can be a status that clients understand.
        .max_header_list_size(metadata.saturating_mul(4))
        .max_concurrent_streams(limits.setting(Limit::StreamsPerConnection))
        .max_send_buffer_size(SEND_BUFFER)
        .max_concurrent_reset_streams(REMEMBERED_RESETS)
        .max_local_error_reset_streams(None) // in all its life; the allowance bounds them by the time they take
        .max_pending_accept_reset_streams(limits.size(Limit::ResetsPerConnection))
        .handshake(WatchedTransport::new(stream, monitor.clone()))
        .await;
    match http2 {
        Ok(http2) => Some(http2),
        Err(error) => {
            if error.is_go_away() {
                resources.statistics.count(Count::ProtocolErrors); // it does not begin as HTTP/2 does
            }
            None
        }
    }
}

/// Drives HTTP/2 and looks after the client whenever there is something to look at.
struct Driver {
    resources: Arc<Resources>,
    http2: Http2,
    caller: Arc<Caller>,
    keepalive: Keepalive,
    timer: Pin<Box<Sleep>>,
    pings: Option<PingPong>,
    listening: Option<Listening>,
    /// Calls are being accepted that came at one time.
    accepting: bool,
    widening: bool,
    leaving: bool,
    cut: bool,
}

impl Driver {
    fn new(resources: Arc<Resources>, mut http2: Http2, caller: Arc<Caller>) -> Self {
        let keepalive = Keepalive::new(&resources.limits, now_ns());
        let pings = http2.ping_pong();
        let timer = Box::pin(sleep(Duration::ZERO)); // the first look sets it
        Self {
            resources,
            http2,
            caller,
            keepalive,
            timer,
            pings,
            listening: None,
            accepting: false,
            widening: false,
            leaving: false,
            cut: false,
        }
    }

    /// The next call; None when the connection has ended.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<(Request<RecvStream>, SendResponse<Bytes>)>> {
        if !std::mem::replace(&mut self.accepting, true) {
            self.turn(cx);
        }
        loop {
            match self.http2.poll_accept(cx) {
                Poll::Ready(Some(Ok(call))) if !self.cut => return Poll::Ready(Some(call)),
                Poll::Ready(Some(Ok(_))) => continue,
                Poll::Ready(Some(Err(_)) | None) => {
                    self.count_refusals(); // nothing else of it is worth counting
                    return Poll::Ready(None);
                }
                Poll::Pending => self.count_refusals(),
            }
            if self.resources.connections.is_draining() && self.leave_once() {
                continue; // send it: nothing else might come
            }
            if !self.cut
                && let Some(limit) = self.breach()
            {
                self.caller.monitor.lock().say_goaway(limit);
                self.cut(limit, Reason::ENHANCE_YOUR_CALM);
                continue; // send it
            }
            if self.pings.as_mut().is_some_and(|pings| pings.poll_pong(cx).is_ready()) && !self.cut {
                self.look(); // the timer still waits for this pong
                continue;
            }
            if self.timer.as_mut().poll(cx).is_pending() {
                self.accepting = false;
                return Poll::Pending;
            }
            if self.cut {
                return Poll::Ready(None);
            }
            self.look();
        }
    }

    /// What is done once before the calls that have come are accepted.
    fn turn(&mut self, cx: &Context<'_>) {
        self.resources.catch_up();
        self.listening.get_or_insert_with(|| {
            self.caller.monitor.lock().register(cx.waker());
            self.caller.window.register(cx.waker());
            self.resources.connections.listen(cx.waker())
        });
        self.widen();
    }

    /// Tells the client of a window that has grown.
    fn widen(&mut self) {
        self.widening |= self.caller.window.take_growth();
        if self.widening {
            let (connection, stream) = self.caller.window.sizes();
            self.http2.set_target_window_size(connection);
            // Fails while the client has not acknowledged the settings before: tried again with the next poll.
            self.widening = self.http2.set_initial_window_size(stream).is_err();
        }
    }

    fn breach(&self) -> Option<Limit> {
        self.caller.monitor.lock().breach()
    }

    /// Tells the client to go elsewhere; HTTP/2 sends it with the next poll. False: it was told before.
    fn leave_once(&mut self) -> bool {
        let first = !std::mem::replace(&mut self.leaving, true);
        if first {
            self.http2.graceful_shutdown();
        }
        first
    }

    /// Acts on what the keepalive says; the loop in `poll` then lets HTTP/2 send it and sets the timer.
    fn look(&mut self) {
        let now = now_ns();
        let (heard, blocked) = {
            let monitor = self.caller.monitor.lock();
            (monitor.heard_ns(), monitor.blocked_ns())
        };
        match self.keepalive.look(now, heard, blocked) {
            Verdict::WaitUntil(then) => {
                self.timer.as_mut().reset(Instant::now() + Duration::from_nanos(then.saturating_sub(now)));
            }
            Verdict::Ping => {
                self.resources.statistics.strike(Limit::KeepaliveMs);
                if let Some(pings) = &mut self.pings {
                    let _ = pings.send_ping(Ping::opaque()); // fails while one is under way: as good
                }
            }
            Verdict::Leave => {
                self.resources.statistics.strike(Limit::ConnectionAgeMs);
                self.leave_once();
            }
            Verdict::Cut(limit) => self.cut(limit, Reason::NO_ERROR),
        }
    }

    fn cut(&mut self, limit: Limit, reason: Reason) {
        self.resources.statistics.strike(limit);
        self.http2.abrupt_shutdown(reason);
        self.cut = true;
        self.timer.as_mut().reset(Instant::now() + GOAWAY_TIME);
    }

    fn count_refusals(&self) {
        let statistics = &self.resources.statistics;
        for refusal in self.caller.monitor.lock().take_refusals() {
            match refusal {
                Refusal::Limit(limit) => statistics.strike(limit),
                Refusal::Protocol => statistics.count(Count::ProtocolErrors),
                Refusal::Window => statistics.count(Count::WindowErrors),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_written_as_grpc_does() {
        let text = |address: &str| peer_text(address.parse().ok());
        assert_eq!(text("10.0.0.1:5"), "ipv4:10.0.0.1:5");
        assert_eq!(text("[::1]:5"), "ipv6:[::1]:5");
        assert_eq!(text("[::ffff:10.0.0.1]:5"), "ipv4:10.0.0.1:5");
        assert_eq!(peer_text(None), "unix:");
    }
}
