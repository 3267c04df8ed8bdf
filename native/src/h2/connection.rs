//! One connection: TLS, HTTP/2, its calls, and the watch over its client.

use crate::door::Core;
use crate::h2::call::{Call, Caller};
use crate::h2::carriers::Carriers;
use crate::h2::conduct::{Conduct, SharedConduct, WatchedTransport};
use crate::h2::refusal::Refusal;
use crate::h2::transport::Transport;
use crate::h2::vigil::{Verdict, Vigil};
use crate::h2::window::Window;
use crate::listen::connections::{Admission, Listening};
use crate::listen::handshakes::Reason::{Failed, Late, Plain};
use crate::listen::identity::Identity;
use crate::listen::listener::Socket;
use crate::listen::quota::Who;
use crate::listen::tls::{Failure, Tls, speaks_tls};
use crate::measure::clock::now_ns;
use crate::measure::limits::Limit;
use bytes::Bytes;
use h2::server::{self, SendResponse};
use h2::{Ping, PingPong, Reason, RecvStream};
use http::Request;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep, timeout_at};

/// Larger frames make for fewer wake-ups; beyond this the allocator gives memory back and takes it again.
const FRAME: u32 = 64 << 10;
/// What may be buffered of one answer besides the answer itself.
const SEND_BUFFER: usize = 1 << 20;
/// Streams that were reset here are remembered for a moment, so that frames under way to them are no errors.
const REMEMBERED_RESETS: usize = 256;
/// How long a connection that is cut may take to send its last frame.
const FAREWELL: Duration = Duration::from_secs(1);
/// What is told of who took too long for TLS, and of who does not speak it.
const LATE: &str = "it was not done in time (grpc.handshake_timeout_s)";
const PLAIN: &str = "the client does not speak TLS";

type Http2 = server::Connection<WatchedTransport, Bytes>;

/// Serves a connection to its end.
pub async fn serve(core: Arc<Core>, socket: Socket, peer: Arc<str>, admission: Admission) {
    let _open = core.statistics.connection();
    let conduct = SharedConduct::new(Conduct::new(&core.limits));
    let window = core.windows.open();
    let until = Instant::now() + core.limits.duration(Limit::HandshakeMs);
    let Ok(met) = timeout_at(until, meet(&core, socket, &peer)).await else {
        core.statistics.strike(Limit::HandshakeMs);
        return core.handshake_failed(&peer, Late, LATE.into());
    };
    let Some((transport, identity)) = met else { return };
    let http2 = match timeout_at(until, establish(&core, transport, &conduct, &window)).await {
        Ok(Some(http2)) => http2,
        Ok(None) => return,
        Err(_) => return core.statistics.strike(Limit::HandshakeMs),
    };
    let requests = core.budget.share(core.limits.connection_bytes());
    let answers = core.answers.share(core.limits.connection_bytes());
    let client = identity.as_ref().map_or("", Identity::text).into();
    let account = core.quotas.account(Who::of(identity, admission.peer()), now_ns());
    let caller = Arc::new(Caller { peer, client, account, conduct, requests, answers, window });
    let mut driver = Driver::new(core.clone(), http2, caller.clone());
    while let Some((request, respond)) = poll_fn(|cx| driver.poll(cx)).await {
        Carriers::carry(&core, Call::new(caller.clone(), request, respond));
    }
}

/// What HTTP/2 goes over, and who the client is, if that is known. It takes time only where TLS is spoken.
async fn meet(core: &Core, socket: Socket, peer: &Arc<str>) -> Option<(Transport, Option<Identity>)> {
    match (socket, &core.tls) {
        (Socket::Unix(stream), _) => Some((Transport::Unix(stream), None)),
        (Socket::Tcp(stream), None) => Some((Transport::Tcp(stream), None)),
        (Socket::Tcp(stream), Some(tls)) => shake(core, tls, stream, peer).await,
    }
}

async fn shake(
    core: &Core,
    tls: &Tls,
    stream: TcpStream,
    peer: &Arc<str>,
) -> Option<(Transport, Option<Identity>)> {
    let is_plain = !speaks_tls(&stream).await;
    match tls.accept(stream).await {
        Ok((stream, client)) => return Some((Transport::Tls(Box::new(stream)), client)),
        Err(Failure::Name(client)) => core.turned_away(peer, client),
        Err(Failure::Other(_)) if is_plain => core.handshake_failed(peer, Plain, PLAIN.into()),
        Err(Failure::Other(error)) => core.handshake_failed(peer, Failed, error.to_string()),
    }
    None
}

/// The handshake of HTTP/2.
async fn establish(
    core: &Core,
    transport: Transport,
    conduct: &SharedConduct,
    window: &Window,
) -> Option<Http2> {
    let limits = &core.limits;
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
        .handshake(WatchedTransport::new(transport, conduct.clone()))
        .await;
    match http2 {
        Ok(http2) => Some(http2),
        Err(error) => {
            if error.is_go_away() {
                core.statistics.refuse(Refusal::Protocol); // it does not begin as HTTP/2 does
            }
            None
        }
    }
}

/// Drives HTTP/2 and looks after the client whenever there is something to look at.
struct Driver {
    core: Arc<Core>,
    http2: Http2,
    caller: Arc<Caller>,
    vigil: Vigil,
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
    fn new(core: Arc<Core>, mut http2: Http2, caller: Arc<Caller>) -> Self {
        let vigil = Vigil::new(&core.limits, now_ns());
        let pings = http2.ping_pong();
        let timer = Box::pin(sleep(Duration::ZERO)); // the first look sets it
        Self {
            core,
            http2,
            caller,
            vigil,
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
            if self.core.is_draining() && self.leave_once() {
                continue; // send it: nothing else might come
            }
            if !self.cut
                && let Some(limit) = self.breach()
            {
                self.caller.conduct.lock().bid_farewell(limit);
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
        self.core.bell.answer(); // when the thread is too busy to sleep, nobody else does
        self.core.direct.drain();
        self.listening.get_or_insert_with(|| {
            self.caller.conduct.lock().register(cx.waker());
            self.caller.window.register(cx.waker());
            self.core.connections.listen(cx.waker())
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
        self.caller.conduct.lock().breach()
    }

    /// Tells the client to go elsewhere; HTTP/2 sends it with the next poll. False: it was told before.
    fn leave_once(&mut self) -> bool {
        let first = !std::mem::replace(&mut self.leaving, true);
        if first {
            self.http2.graceful_shutdown();
        }
        first
    }

    /// Acts on what the vigil says; the loop in `poll` then lets HTTP/2 send it and sets the timer.
    fn look(&mut self) {
        let now = now_ns();
        let (heard, blocked) = {
            let conduct = self.caller.conduct.lock();
            (conduct.heard_ns(), conduct.blocked_ns())
        };
        match self.vigil.look(now, heard, blocked) {
            Verdict::WaitUntil(then) => {
                self.timer.as_mut().reset(Instant::now() + Duration::from_nanos(then.saturating_sub(now)));
            }
            Verdict::Ping => {
                self.core.statistics.strike(Limit::KeepaliveMs);
                if let Some(pings) = &mut self.pings {
                    let _ = pings.send_ping(Ping::opaque()); // fails while one is under way: as good
                }
            }
            Verdict::Leave => {
                self.core.statistics.strike(Limit::ConnectionAgeMs);
                self.leave_once();
            }
            Verdict::Cut(limit) => self.cut(limit, Reason::NO_ERROR),
        }
    }

    fn cut(&mut self, limit: Limit, reason: Reason) {
        self.core.statistics.strike(limit);
        self.http2.abrupt_shutdown(reason);
        self.cut = true;
        self.timer.as_mut().reset(Instant::now() + FAREWELL);
    }

    fn count_refusals(&self) {
        for refusal in self.caller.conduct.lock().take_refusals() {
            self.core.statistics.refuse(refusal);
        }
    }
}
