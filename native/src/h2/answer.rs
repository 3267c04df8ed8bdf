//! The response side of a call: messages and trailers, at the pace at which the client takes them.

use crate::h2::monitor::SharedMonitor;
use crate::h2::status::{Fault, GRPC_STATUS, code, refused, trailers};
use crate::handover::calls::End;
use crate::measure::limits::PROGRESS;
use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, SendStream};
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep};

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const ACCEPTED_ENCODINGS: (HeaderName, HeaderValue) =
    (HeaderName::from_static("grpc-accept-encoding"), HeaderValue::from_static("identity,deflate,gzip"));

/// What was answered so far.
pub(crate) struct Answer {
    respond: SendResponse<Bytes>,
    stream: Option<SendStream<Bytes>>,
    stall: Stall,
    ended: bool,
}

/// How often an answer may wait for one more time of patience because the client takes other answers meanwhile.
const TURNS: u32 = 8;

/// How long one message has waited for the client to take 64 KiB of it, or its rest.
struct Stall {
    monitor: SharedMonitor,
    patience: Duration,
    timer: Option<Pin<Box<Sleep>>>,
    progress: usize,
    written: u64,
    turns: u32,
}

impl Stall {
    fn new(monitor: SharedMonitor, patience: Duration) -> Self {
        Self { monitor, patience, timer: None, progress: 0, written: 0, turns: 0 }
    }

    fn begin(&mut self) {
        (self.timer, self.progress, self.turns) = (None, 0, 0);
    }

    fn progressed(&mut self, bytes: usize) {
        self.progress += bytes;
        if self.progress >= PROGRESS {
            self.begin();
        }
    }

    /// Ready when it has waited too long. A slow client with many answers takes them by turns: what it takes over its
    /// connection counts for each of them, but not without end.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let (monitor, patience) = (&self.monitor, self.patience);
        let timer = self.timer.get_or_insert_with(|| {
            self.written = monitor.lock().written_bytes();
            Box::pin(sleep(patience))
        });
        while timer.as_mut().poll(cx).is_ready() {
            let written = monitor.lock().written_bytes();
            if written - self.written < PROGRESS as u64 || self.turns == TURNS {
                return Poll::Ready(());
            }
            (self.written, self.turns) = (written, self.turns + 1);
            timer.as_mut().reset(Instant::now() + patience);
        }
        Poll::Pending
    }
}

impl Answer {
    /// Nothing yet. `patience`: how long the client may take next to nothing.
    pub(crate) fn new(respond: SendResponse<Bytes>, monitor: SharedMonitor, patience: Duration) -> Self {
        Self { respond, stream: None, stall: Stall::new(monitor, patience), ended: false }
    }

    /// Ready with the reason when the client has reset the call or its connection has ended.
    pub(crate) fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<Fault> {
        let reset = match &mut self.stream {
            Some(stream) => stream.poll_reset(cx),
            None => self.respond.poll_reset(cx),
        };
        reset.map(|reset| reset.map_or_else(|error| Fault::of(&error), |_| Fault::Reset))
    }

    /// Sends one message, prefix included; done when the transport has taken it.
    pub(crate) async fn send(&mut self, mut message: Bytes) -> Result<(), Fault> {
        self.open()?;
        let (Some(stream), stall) = (&mut self.stream, &mut self.stall) else { return Err(Fault::Gone) };
        stall.begin();
        while !message.is_empty() {
            stream.reserve_capacity(message.len());
            let room = match stream.capacity() {
                0 => capacity(stream, stall).await?,
                room => room,
            };
            let piece = message.split_to(room.min(message.len()));
            stall.progressed(piece.len());
            stream.send_data(piece, false).map_err(|_| Fault::Gone)?;
        }
        Ok(())
    }

    /// One message and a good end.
    pub(crate) async fn reply(&mut self, message: Bytes) -> Result<(), Fault> {
        self.send(message).await?;
        let mut good = HeaderMap::with_capacity(1);
        good.insert(GRPC_STATUS, HeaderValue::from_static("0"));
        self.finish(good);
        Ok(())
    }

    /// Ends the call as Python wants it.
    pub(crate) async fn end(&mut self, end: End) -> Result<(), Fault> {
        match end {
            End::Reply(message) => self.reply(message).await,
            End::Finish(trailers) => {
                self.finish(trailers);
                Ok(())
            }
        }
    }

    /// Ends the call with these trailers; alone when nothing was sent before.
    pub(crate) fn finish(&mut self, trailers: HeaderMap) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        // Errors mean that the client has gone, which then no longer matters.
        match &mut self.stream {
            Some(stream) => drop(stream.send_trailers(trailers)),
            None => self.headers_only(StatusCode::OK, trailers),
        }
    }

    /// Ends a call that the front end does not let go on.
    pub(crate) fn refuse(&mut self, fault: Fault) {
        match fault {
            Fault::Status(code, text) => self.finish(trailers(code, &text)),
            Fault::Refused(told) => self.finish(refused(&told)),
            Fault::Encoding(found) => {
                let text = format!("grpc-encoding '{found}' is not supported");
                let mut trailers = trailers(code::UNIMPLEMENTED, &text);
                trailers.extend([ACCEPTED_ENCODINGS]);
                self.finish(trailers);
            }
            Fault::NotGrpc => {
                let text = "this port speaks gRPC only: POST with content-type application/grpc";
                self.headers_only(StatusCode::UNSUPPORTED_MEDIA_TYPE, trailers(code::INTERNAL, text));
            }
            Fault::Stalled => self.cut(Reason::ENHANCE_YOUR_CALM),
            Fault::Reset | Fault::Gone => self.cut(Reason::CANCEL), // in case that something still hangs on it
        }
    }

    fn cut(&mut self, reason: Reason) {
        match &mut self.stream {
            Some(stream) => stream.send_reset(reason),
            None => self.respond.send_reset(reason),
        }
    }

    fn open(&mut self) -> Result<(), Fault> {
        if self.stream.is_none() {
            let mut response = Response::new(());
            response.headers_mut().insert(CONTENT_TYPE, GRPC);
            self.stream = Some(self.respond.send_response(response, false).map_err(|_| Fault::Gone)?);
        }
        Ok(())
    }

    fn headers_only(&mut self, status: StatusCode, headers: HeaderMap) {
        let mut response = Response::new(());
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        response.headers_mut().insert(CONTENT_TYPE, GRPC);
        let _ = self.respond.send_response(response, true);
    }
}

async fn capacity(stream: &mut SendStream<Bytes>, stall: &mut Stall) -> Result<usize, Fault> {
    poll_fn(|cx| {
        match stream.poll_capacity(cx) {
            Poll::Ready(Some(Ok(0))) => {} // taken by another stream meanwhile; asked again with the next change
            Poll::Ready(Some(Ok(room))) => return Poll::Ready(Ok(room)),
            Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(Fault::of(&error))),
            Poll::Ready(None) => {
                return stream.poll_reset(cx).map(|reset| Err(reset.map_or(Fault::Gone, |_| Fault::Reset)));
            }
            Poll::Pending => {}
        }
        stall.poll(cx).map(|()| Err(Fault::Stalled))
    })
    .await
}
